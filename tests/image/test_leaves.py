"""Masks, boxes and keypoints that follow their image: one draw for all of them."""

from __future__ import annotations

import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import loaderx as lx
from loaderx.image.leaves import Placement, nearest
from loaderx.image.regions import Region
from photos import encoded, photo

Image = pytest.importorskip("PIL.Image", reason="Pillow (the extra images) is not installed")

HEIGHT, WIDTH = 60, 90
BOXES = np.array([[10, 20, 40, 50], [0, 0, 90, 60], [70, 5, 80, 9]], np.float32)


def record(image=None, **more):
    """A photo, with a mask whose pixels are marked where the photo's are."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    mask = (rows * 256 + columns).astype(np.uint16)
    return {"image": photo(HEIGHT, WIDTH) if image is None else image, "mask": mask, **more}


JOINT = {"masks": "mask", "boxes": "boxes", "keypoints": "points"}
STAGES = {
    "crop": lambda **leaves: lx.image.random_resized_crop((32, 48), **leaves),
    "pad": lambda **leaves: lx.image.random_pad_and_crop((9, 14), **leaves),
    "pad, reflect": lambda **leaves: lx.image.random_pad_and_crop(20, mode="reflect", **leaves),
    "left right": lambda **leaves: lx.image.random_flip_left_right(**leaves),
    "up down": lambda **leaves: lx.image.random_flip_up_down(**leaves),
    "center": lambda **leaves: lx.image.center_crop(32, shorter_side=40, **leaves),
    "resize": lambda **leaves: lx.image.resize((30, 45), **leaves),
}
each_stage = pytest.mark.parametrize("name", STAGES)


def applied(stage, records, seed=0):
    ds = lx.Dataset.from_source(records)
    return ds.random_map(stage, seed=seed) if hasattr(stage, "random_map") else ds.map(stage)


@each_stage
@settings(max_examples=15)
@given(seed=st.integers(0, 1000), row=st.integers(0, HEIGHT - 1), column=st.integers(0, WIDTH - 1))
def test_a_keypoint_and_a_box_stay_on_the_pixel_that_the_mask_shows(name, seed, row, column):
    """A pixel of the mask says where it came from; keypoint and box must name the same one."""
    given_ = record(
        points=np.array([[column, row, 2]], np.int32),
        boxes=np.array([[column, row, column + 1, row + 1]], np.float64),
        labels=["it"],
    )
    cuts = {"per_box": "labels"} if name in ("crop", "pad", "pad, reflect", "center") else {}
    found = applied(STAGES[name](**JOINT, **cuts), [given_], seed)[0]
    rows, columns = np.divmod(found["mask"].astype(int), 256)
    (x, y, seen) = found["points"][0]
    if not seen:
        is_outside = not (0 <= x < found["mask"].shape[1] and 0 <= y < found["mask"].shape[0])
        assert is_outside
        return
    slack = 2 if found["mask"].shape != (HEIGHT, WIDTH) else 0
    assert abs(rows[y, x] - row) <= slack
    assert abs(columns[y, x] - column) <= slack
    assert found["boxes"].shape == (1, 4)
    x0, y0, x1, y1 = found["boxes"][0]
    assert x0 - 1 <= x <= x1
    assert y0 - 1 <= y <= y1
    assert list(found["labels"]) == ["it"]


@each_stage
def test_the_mask_moves_as_the_image_does(name):
    """An image whose pixels are their own mask; bilinear and nearest agree where it is flat."""
    halves = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    halves[:, WIDTH // 2 :] = 200
    halves[HEIGHT // 3 :] += 50
    for seed in range(5):
        found = applied(
            STAGES[name](masks=["mask", "other"]),
            [{"image": halves, "mask": halves[..., 0].astype(np.int64), "other": halves / 8}],
            seed,
        )[0]
        assert found["mask"].dtype == np.int64
        assert found["other"].dtype == np.float64
        assert found["mask"].shape == found["image"].shape[:2]
        assert set(np.unique(found["mask"])) <= {0, 50, 200, 250}
        differs = (found["mask"] != found["image"][..., 0]) | (
            found["other"][..., 1] * 8 != found["image"][..., 1]
        )
        assert differs.mean() < 0.12  # the edges of the four parts


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_engines_give_the_same_leaves(engine):
    crop = lx.image.random_resized_crop(24, **JOINT, per_box="labels", min_area=0.3)
    flip = lx.image.random_flip_left_right(**JOINT)
    points = BOXES[:, :2].copy()
    records = [record(boxes=BOXES, points=points, labels=np.arange(3)) for _ in range(6)]
    ds = lx.Dataset.from_source(records).random_map(crop).random_map(flip)
    batches = ds.batch(3, pad_to={"boxes": 3, "labels": 3}).repeat(2)
    expected = list(batches)
    with lx.DataLoader(batches, engine=engine, num_workers=2) as loader:
        iterator = iter(loader)
        for start in range(len(expected)):
            iterator.seek(start)
            for found, one in zip(iterator, expected[start:], strict=True):
                for name, leaf in one.items():
                    np.testing.assert_array_equal(found[name], leaf)


# Masks ------------------------------------------------------------------------------------------


def test_masks_in_files_keep_what_is_stored():
    palette = Image.fromarray((np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) % 21).astype("u1"))
    palette.putpalette([value for n in range(256) for value in (n, 255 - n, 7 * n % 256)])
    depth = np.linspace(0, 65535, HEIGHT * WIDTH).astype(np.uint16).reshape(HEIGHT, WIDTH)
    flip = lx.image.random_flip_left_right(probability=1, masks=("classes", "depth", "shape"))
    found = flip(
        {
            "image": photo(HEIGHT, WIDTH),
            "classes": encoded(palette, "PNG"),
            "depth": np.frombuffer(encoded(Image.fromarray(depth), "PNG"), np.uint8),
            "shape": encoded(Image.fromarray(depth > 999), "PNG"),
        },
        np.random.default_rng(0),
    )
    np.testing.assert_array_equal(found["classes"][..., 0], np.asarray(palette)[:, ::-1])
    np.testing.assert_array_equal(found["depth"][..., 0], depth[:, ::-1])
    np.testing.assert_array_equal(found["shape"][..., 0], (depth > 999)[:, ::-1])
    assert found["classes"].dtype == np.uint8
    assert found["depth"].dtype == np.uint16


def test_no_class_is_invented():
    mask = np.where(np.random.default_rng(0).random((HEIGHT, WIDTH)) < 0.5, 0, 20).astype(np.uint8)
    found = lx.image.resize(37, masks="mask")({"image": photo(HEIGHT, WIDTH), "mask": mask})
    assert set(np.unique(found["mask"])) == {0, 20}


@pytest.mark.parametrize("size", [(7, 9), (30, 45), (61, 200)])
def test_nearest_is_pillows(size):
    mask = record()["mask"]
    region = Region(5, 7, 40, 66)
    box = (region.left, region.top, region.left + region.width, region.top + region.height)
    box = [place + 1e-6 for place in box]  # else a middle between two pixels is either of them
    by_pillow = Image.fromarray(mask).resize(size[::-1], Image.Resampling.NEAREST, box)
    np.testing.assert_array_equal(nearest(mask, region, size), np.asarray(by_pillow))


def test_a_jpeg_that_is_reduced_and_its_mask():
    """A JPEG is decoded at a fraction: the mask and the boxes are of the part that was decoded."""
    pixels = np.zeros((403, 405, 3), np.uint8)
    pixels[120:280, 80:320] = 255
    crop = lx.image.random_resized_crop(64, scale=(0.5, 1), masks="mask", boxes="box")
    given_ = {
        "image": encoded(pixels, quality=95),
        "mask": (pixels[..., 0] > 0).astype(np.uint8),
        "box": [[80.0, 120.0, 320.0, 280.0]],
    }
    for seed in range(8):
        found = applied(crop, [given_], seed)[0]
        bright = found["image"][..., 0] > 127
        assert (bright != found["mask"].astype(bool)).mean() < 0.02
        x0, y0, x1, y1 = np.rint(found["box"][0]).astype(int)
        assert bright[y0:y1, x0:x1].mean() > 0.95
        assert bright.sum() <= 1.05 * (x1 - x0) * (y1 - y0)


def test_a_mask_of_another_size():
    with pytest.raises(lx.RecordError) as caught:
        applied(lx.image.resize(32, masks="mask"), [record(mask=np.zeros((30, 45), np.uint8))])[0]
    assert "the mask 'mask' is 30 x 45 and the image 'image' 60 x 90 (height x width)" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.zeros((4, HEIGHT, WIDTH, 1)), r"the mask 'mask' must be an array .* is float64\[4, 60"),
        ("mask.png", r"is 'mask.png' \(str\). If it is a path, read the file"),
        (encoded(photo(60, 90), "PNG")[:999], "damaged or cut off"),
        (b"no image", r"it is no image that Pillow knows: 8 bytes that begin with b'no image'"),
    ],
)
def test_what_is_no_mask(mask, message):
    with pytest.raises(lx.RecordError, match=message):
        applied(lx.image.resize(32, masks="mask"), [record(mask=mask)])[0]


# Boxes and keypoints ----------------------------------------------------------------------------


def cut(boxes, *, part, size=(100, 100), **options):
    """What `random_resized_crop` makes of boxes, where the part of the image is known."""
    leaves = lx.image.random_resized_crop(size, boxes="boxes", **options).leaves
    given_ = {"image": None, "boxes": boxes, "labels": np.arange(len(boxes))}
    place = Placement((200, 200), Region(*part), size, np.asarray)
    return leaves.changed(given_, lambda _: (np.zeros((*size, 3), np.uint8), place))


def test_boxes_are_cut_and_dropped():
    boxes = np.array([[0, 0, 100, 100], [90, 90, 110, 110], [150, 150, 160, 190]], np.float32)
    part = (50, 50, 100, 100)
    found = cut(boxes, part=part, per_box=["labels"])
    assert found["boxes"].tolist() == [[0, 0, 50, 50], [40, 40, 60, 60]]
    assert found["boxes"].dtype == np.float32
    assert found["labels"].tolist() == [0, 1]
    assert cut(boxes, part=part, per_box="labels", min_area=0.25)["labels"].tolist() == [0, 1]
    assert cut(boxes, part=part, per_box="labels", min_area=0.26)["labels"].tolist() == [1]
    assert cut(boxes, part=part, per_box="labels", min_area=1)["labels"].tolist() == [1]


def test_boxes_of_whole_numbers_are_rounded_and_never_empty():
    found = cut([[10, 10, 12, 30], [10, 10, 11, 30]], part=(0, 0, 200, 200), size=(80, 80))
    assert found["boxes"].tolist() == [[4, 4, 5, 12]]
    assert found["boxes"].dtype == np.int32


def test_no_boxes_stay_no_boxes():
    for empty in ([], np.zeros((0, 4), np.float32)):
        found = cut(empty, part=(0, 0, 50, 50), per_box="labels")
        assert found["boxes"].shape == (0, 4)
        assert found["boxes"].dtype == np.float32
        assert found["labels"].shape == (0,)


def test_a_flip_drops_nothing():
    boxes = np.array([[5, 5, 5, 9], [-4, 0, 95, 60]], np.float32)
    flip = lx.image.random_flip_left_right(probability=1, boxes="boxes")
    found = flip(record(boxes=boxes), np.random.default_rng(0))
    assert found["boxes"].tolist() == [[85, 5, 85, 9], [-5, 0, 94, 60]]


def test_keypoints_outside_are_not_visible():
    points = np.array([[[10, 10, 2], [60, 70, 2], [60, 70, 0]]], np.float32)
    leaves = lx.image.random_resized_crop(10, keypoints="points").leaves
    place = Placement((200, 200), Region(50, 50, 100, 100), (10, 10), np.asarray)
    found = leaves.changed({"image": None, "points": points}, lambda _: (None, place))
    assert found["points"].tolist() == [[[-4, -4, 0], [1, 2, 2], [1, 2, 0]]]
    without = leaves.changed({"image": None, "points": points[..., :2]}, lambda _: (None, place))
    assert without["points"].tolist() == [[[-4, -4], [1, 2], [1, 2]]]
    assert points[0, 0].tolist() == [10, 10, 2]  # what was given is as it was


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        ({"boxes": np.zeros((2, 3))}, r"x0, y0, x1, y1 in pixels, got float64\[2, 3\] in 'boxes'"),
        (
            {"boxes": [[5, 5, 20, 20], [50, 40, 20, 10]]},
            r"box 1 of 'boxes', \[50, 40, 20, 10\], ends before it begins\. If they are x, y,",
        ),
        ({"labels": [1, 2]}, r"3 boxes in 'boxes' and 2 entries in 'labels' of per_box=: it needs"),
        ({"points": np.zeros(4)}, r"keypoints are \[\.\.\., 2\].* got float64\[4\] in 'points'"),
    ],
)
def test_leaves_of_other_shapes(leaf, message):
    crop = lx.image.random_resized_crop(32, boxes="boxes", keypoints="points", per_box="labels")
    whole = {"boxes": BOXES, "labels": np.arange(3), "points": np.zeros((3, 2))}
    with pytest.raises(lx.RecordError, match=message):
        applied(crop, [record(**{**whole, **leaf})])[0]


def test_a_leaf_that_is_not_there():
    with pytest.raises(lx.RecordError, match=r"no leaf 'seg' but 'image', 'mask': choose one with"):
        applied(lx.image.resize(32, masks="seg"), [record()])[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"masks": 3}, r"`masks` must be the name of a leaf, or several, got 3\."),
        ({"masks": ["a", 0]}, r"`masks` must be the name of a leaf, or several, got \['a', 0\]"),
        ({"boxes": ["a"]}, r"`boxes` must be a string, got \['a'\] \(list\)"),
        ({"key": None, "masks": "mask"}, "beside its image: name the image, too, with key="),
        ({"min_area": 0.5}, "`per_box` and `min_area` are about boxes: name them with boxes="),
        ({"masks": "image"}, r"each leaf moves once; of \['image', 'image'\] one is named twice"),
        ({"per_box": "labels"}, "`per_box` and `min_area` are about boxes"),
        ({"boxes": "boxes", "min_area": 20}, "`min_area` must be a number from 0 to 1, got 20"),
    ],
)
def test_wrong_names(options, message):
    with pytest.raises((lx.ArgumentError, lx.ArgumentTypeError), match=message):
        lx.image.random_resized_crop(32, **options)


def test_they_can_be_pickled():
    crop = lx.image.random_resized_crop(24, **JOINT)
    again = pickle.loads(pickle.dumps(crop))
    given_ = record(boxes=BOXES, points=BOXES[:, :2])
    one, other = (f(given_, np.random.default_rng(5)) for f in (crop, again))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("leaf", ["boxes", "points"])
def test_whole_numbers_that_their_dtype_cannot_hold(leaf, dtype):
    numbers = {"boxes": [[10, 20, 40, 50]], "points": [[[40, 50, 2]]]}[leaf]
    stage = lx.image.resize((600, 900), **{leaf.replace("points", "keypoints"): leaf})
    small = record(**{leaf: np.array(numbers, dtype)})
    with pytest.raises(lx.RecordError, match=rf"'{leaf}' is u?int8, and its places are now from"):
        applied(stage, [small])[0]
    wide = applied(stage, [record(**{leaf: np.array(numbers, np.uint16)})])[0][leaf]
    assert wide.dtype == np.uint16
    assert wide.max() in (500, 505)


def test_unsigned_keypoints_outside():
    points = np.array([[5, 5], [45, 30]], np.uint16)
    crop = lx.image.center_crop(40, shorter_side=60, keypoints="points")
    with pytest.raises(lx.RecordError, match=r"'points' is uint16, .* from -20 to 20: make it int"):
        applied(crop, [record(points=points)])[0]


def test_a_flip_keeps_boxes_without_a_place():
    boxes = np.array([[5, 5, 20, 9], [np.nan] * 4], np.float32)
    flip = lx.image.random_flip_left_right(probability=1, boxes="boxes")
    found = flip(record(boxes=boxes), np.random.default_rng(0))["boxes"]
    np.testing.assert_array_equal(found, [[70, 5, 85, 9], [np.nan] * 4])
