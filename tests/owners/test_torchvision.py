"""Images, masks, boxes and keypoints changed by torchvision and by loaderx."""

from __future__ import annotations

import math

import numpy as np
import pytest

import loaderx as lx
from loaderx.image.regions import DRAWS, random_region
from loaderx.image.retouching import operations
from photos import photo

pytestmark = [pytest.mark.owners, pytest.mark.foreign]

torch = pytest.importorskip("torch", reason="torch is not installed")
v2 = pytest.importorskip("torchvision.transforms.v2", reason="torchvision is not installed")
tv_tensors = pytest.importorskip("torchvision.tv_tensors")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
F = v2.functional

HEIGHT, WIDTH = 90, 120
IMAGE = photo(HEIGHT, WIDTH)
MASK = np.arange(HEIGHT * WIDTH, dtype=np.int32).reshape(HEIGHT, WIDTH)
NEAREST = v2.InterpolationMode.NEAREST_EXACT
BOXES = np.array(
    [[10, 20, 60, 80], [0, 0, 120, 90], [100, 5, 118, 30], [3, 70, 40, 90]], np.float32
)
POINTS = np.array([[[5, 6], [60, 45], [119, 89]]], np.float32)
RECORD = {"image": IMAGE, "mask": MASK, "boxes": BOXES, "points": POINTS, "label": np.arange(4)}
JOINT = {"masks": "mask", "boxes": "boxes", "keypoints": "points"}


def tensor(pixels):
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def pixels(tensor):
    return tensor.numpy().transpose(1, 2, 0)


def places(mask):
    """The row and the column that each pixel of a mask comes from."""
    return np.divmod(np.asarray(mask), WIDTH)


def boxes_of():
    return tv_tensors.BoundingBoxes(BOXES, format="XYXY", canvas_size=(HEIGHT, WIDTH))


@pytest.mark.parametrize("seed", range(25))
def test_one_region_for_all_leaves(seed):
    size = (48, 36)
    crop = lx.image.random_resized_crop(size, **JOINT, per_box="label", min_area=0.1)
    found = crop(RECORD, np.random.default_rng(seed))
    draws = np.random.default_rng(seed).random(DRAWS).tolist()
    region = random_region(draws, HEIGHT, WIDTH, (0.08, 1.0), (3 / 4, 4 / 3))
    part = [int(number) for number in region]

    image = F.resized_crop(Image.fromarray(IMAGE), *part, size)
    np.testing.assert_allclose(found["image"].astype(int), np.asarray(image), atol=12)
    mask = F.resized_crop(torch.from_numpy(MASK)[None], *part, size, interpolation=NEAREST)
    differs = [np.abs(one - other) for one, other in zip(places(found["mask"]), places(mask[0]))]
    assert np.max(differs) <= 1  # where a middle lies between two pixels, sums are rounded
    assert (np.max(differs, axis=0) == 0).mean() > 0.8
    keypoints = tv_tensors.KeyPoints(POINTS, canvas_size=(HEIGHT, WIDTH))
    (top, left, height, width) = part
    moved = F.resize(F.crop(keypoints, top, left, height, width), size)
    inside = (((left, top) <= POINTS) & ((left + width, top + height) > POINTS)).all(-1)
    np.testing.assert_allclose(found["points"][inside], moved.numpy()[inside], atol=1e-3)

    moved = F.resized_crop(boxes_of(), *part, size)
    clipped = v2.ClampBoundingBoxes()(moved).numpy()
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) for boxes in (clipped, BOXES)]
    zoom = size[0] * size[1] / (height * width)
    kept = (areas[0] > 0) & (areas[0] >= 0.1 * areas[1] * zoom)
    np.testing.assert_allclose(found["boxes"], clipped[kept], atol=1e-3)
    np.testing.assert_array_equal(found["label"], np.flatnonzero(kept))


def test_flips():
    for stage, flip in (
        (lx.image.random_flip_left_right, F.horizontal_flip),
        (lx.image.random_flip_up_down, F.vertical_flip),
    ):
        whole = {**RECORD, "pixels": POINTS.astype(np.int32)}
        found = stage(probability=1, **JOINT)(whole, np.random.default_rng(0))
        np.testing.assert_array_equal(found["image"], pixels(flip(tensor(IMAGE))))
        np.testing.assert_array_equal(found["mask"], flip(torch.from_numpy(MASK)).numpy())
        np.testing.assert_allclose(found["boxes"], flip(boxes_of()).numpy())
        # torchvision's keypoints name pixels, which integers do here.
        named = stage(probability=1, keypoints="pixels")(whole, np.random.default_rng(0))
        keypoints = tv_tensors.KeyPoints(POINTS, canvas_size=(HEIGHT, WIDTH))
        np.testing.assert_array_equal(named["pixels"], flip(keypoints).numpy())


def jittered(**amounts):
    return lx.image.color_jitter(**amounts)(IMAGE, np.random.default_rng(0)).astype(int)


@pytest.mark.parametrize("factor", [0.0, 0.4, 0.9, 1.3, 2.0])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_factors_of_colours(name, factor):
    found = jittered(**{name: (factor, factor)})
    theirs = pixels(getattr(F, f"adjust_{name}")(tensor(IMAGE), factor))
    # torchvision rounds the mean brightness down, too.
    assert np.abs(found - theirs).max() <= (2 if name == "contrast" else 1)


@pytest.mark.parametrize("turn", [-0.5, -0.13, 0.05, 0.25, 0.5])
def test_hue(turn):
    theirs = pixels(F.adjust_hue(tensor(IMAGE), turn))
    assert np.abs(jittered(hue=(turn, turn)) - theirs).max() <= 1


STRENGTHS = [0.3, 1.0, -0.7]
AFFINE = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
THEIRS = [
    lambda image, by: image,
    lambda image, by: F.affine(
        image, **{**AFFINE, "shear": [math.degrees(math.atan(0.3 * by)), 0.0]}, center=[0, 0]
    ),
    lambda image, by: F.affine(
        image, **{**AFFINE, "shear": [0.0, math.degrees(math.atan(0.3 * by))]}, center=[0, 0]
    ),
    lambda image, by: F.affine(
        image, **{**AFFINE, "translate": [int(150 / 331 * WIDTH * by), 0]}
    ),
    lambda image, by: F.affine(
        image, **{**AFFINE, "translate": [0, int(150 / 331 * HEIGHT * by)]}
    ),
    lambda image, by: F.rotate(image, 30 * by),
    lambda image, by: F.adjust_brightness(image, 1 + 0.9 * by),
    lambda image, by: F.adjust_saturation(image, 1 + 0.9 * by),
    lambda image, by: F.adjust_contrast(image, 1 + 0.9 * by),
    lambda image, by: F.adjust_sharpness(image, 1 + 0.9 * by),
    lambda image, by: F.posterize(image, 8 - round(4 * abs(by))),
    lambda image, by: F.solarize(image, 255 * (1 - abs(by))),
    lambda image, by: F.autocontrast(image),
    lambda image, by: F.equalize(image),
]  # fmt: skip


@pytest.mark.parametrize("number", range(14))
@pytest.mark.parametrize("by", STRENGTHS)
def test_operations_of_rand_augment(number, by):
    pale = IMAGE // 2 + 40
    found = np.asarray(operations()[number](Image.fromarray(pale), by)).astype(int)
    theirs = pixels(THEIRS[number](tensor(pale), by))
    share_that_differs = (np.abs(found - theirs) > 1).mean()
    assert share_that_differs <= (0.02 if 1 <= number <= 5 else 0)  # halves of pixels are rounded
    by_pillow = THEIRS[number](Image.fromarray(pale), by)
    np.testing.assert_array_equal(found, np.asarray(by_pillow))


@pytest.mark.parametrize("magnitude", [0, 9, 30])
def test_rand_augment_gives_the_same_images(magnitude):
    """Each of its operations comes in some hundred draws."""
    pale = IMAGE // 2 + 40
    augment, theirs = v2.RandAugment(1, magnitude), set()
    torch.manual_seed(0)
    for _ in range(600):
        theirs.add(np.asarray(augment(Image.fromarray(pale))).tobytes())
    ours = lx.image.rand_augment(1, magnitude)
    assert {ours(pale, np.random.default_rng(n)).tobytes() for n in range(600)} == theirs
