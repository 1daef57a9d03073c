"""Stages of images on records, on batches, and called with an image."""

from __future__ import annotations

import numpy as np
import pytest

import loaderx as lx
from loaderx.rng import BatchGenerator
from photos import encoded, photo

pytest.importorskip("PIL.Image", reason="Pillow (the extra images) is not installed")

COUNT = 8
PHOTOS = np.stack([photo(24, 32, n) for n in range(COUNT)])
MASKS = (PHOTOS[..., 0] // 64).astype(np.int32)
BOXES = np.tile(np.array([[2, 3, 9, 8], [0, 0, 32, 24]], np.float32), (COUNT, 1, 1))
STAGES = {
    "flip": lx.image.random_flip_left_right(masks="mask", boxes="boxes", keypoints="points"),
    "up_down": lx.image.random_flip_up_down(masks="mask", boxes="boxes", keypoints="points"),
    "pad": lx.image.random_pad_and_crop(4, masks="mask", keypoints="points"),
    "jitter": lx.image.color_jitter(0.4, 0.4, 0.4, 0.1),
    "rand_augment": lx.image.rand_augment(),
    "erasing": lx.image.random_erasing(value="random"),
}
each_stage = pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)


def dataset():
    return lx.Dataset.from_arrays(
        image=PHOTOS, mask=MASKS, boxes=BOXES, points=BOXES[..., :2], label=np.arange(COUNT)
    )


def assert_equal(found, expected):
    assert set(found) == set(expected)
    for name, leaf in expected.items():
        np.testing.assert_array_equal(found[name], leaf)
        assert found[name].dtype == leaf.dtype


@each_stage
def test_records_runs_and_batches_have_the_same_draws(stage):
    ds = dataset().shuffle(seed=3)
    batches = list(ds.random_map(stage, seed=1).batch(3).repeat(2))
    for other in (
        ds.random_map(stage, seed=1, batched=True).batch(3).repeat(2),
        ds.batch(3).random_map(stage, seed=1).repeat(2),
    ):
        for found, expected in zip(other, batches, strict=True):
            assert_equal(found, expected)
    images = np.concatenate([batch["image"] for batch in batches])
    assert len({image.tobytes() for image in images}) > COUNT  # another draw in each epoch


@each_stage
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_engines(stage, engine):
    ds = dataset().random_map(stage).batch(3).random_map(stage)
    with lx.DataLoader(ds, engine=engine, num_workers=2) as loader:
        for found, expected in zip(loader, ds, strict=True):
            assert_equal(found, expected)


@each_stage
def test_streams(stage):
    """A record has the same draws whether or not the chain below can be indexed."""
    by_index = dataset()[::2].random_map(stage, seed=5).batch(2)
    stream = dataset()[::2].filter(lambda record: True).random_map(stage, seed=5).batch(2)
    for found, expected in zip(stream, by_index, strict=True):
        assert_equal(found, expected)


@each_stage
def test_what_is_given_stays_as_it_is(stage):
    ds = dataset()
    for seed in range(4):
        ds.random_map(stage, seed=seed)[0]["image"].fill(7)  # results may be written to
        found = ds.batch(COUNT).random_map(stage, seed=seed)[0]
        found["image"][...] = 7
    assert_equal(ds.batch(COUNT)[0], {**dataset().batch(COUNT)[0]})
    np.testing.assert_array_equal(ds[0]["image"], photo(24, 32, 0))


@each_stage
def test_images_that_are_the_records(stage):
    alone = stage.replace(leaves=type(stage.leaves)(None))
    expected = dataset().random_map(stage, seed=2).batch(COUNT)[0]["image"]
    ds = lx.Dataset.from_arrays(PHOTOS)
    np.testing.assert_array_equal(ds.random_map(alone, seed=2).batch(COUNT)[0], expected)
    np.testing.assert_array_equal(ds.batch(COUNT).random_map(alone, seed=2)[0], expected)


@each_stage
def test_a_call_with_an_image_is_the_same(stage):
    for seed in range(4):
        record = dataset()[seed]
        of_record = stage(record, np.random.default_rng(seed))
        of_image = stage(record["image"], np.random.default_rng(seed))
        np.testing.assert_array_equal(of_image, of_record["image"])
        other = stage.random_map(record, np.random.default_rng(seed))
        assert_equal(of_record, other)


def test_crops_are_called_with_bytes_and_arrays():
    crop = lx.image.random_resized_crop(16)
    data = encoded(PHOTOS[0], "PNG")
    for value in (data, PHOTOS[0], np.frombuffer(data, np.uint8)):
        found = crop(value, np.random.default_rng(4))
        np.testing.assert_array_equal(found, crop(PHOTOS[0], np.random.default_rng(4)))
    assert lx.image.center_crop(8, shorter_side=12)(data).shape == (8, 8, 3)
    assert lx.image.resize(8)({"image": data, "label": 1})["label"] == 1


def two_views(record, rng):
    crop = lx.image.random_resized_crop(16)
    flip = lx.image.random_flip_left_right()
    first, second = (flip(crop(record["image"], rng), rng) for _ in range(2))
    return {"first": first, "second": second}


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_two_views_differ_and_are_the_same_in_every_engine(engine):
    ds = dataset().random_map(two_views, seed=0).batch(4)
    with lx.DataLoader(ds, engine=engine, num_workers=2) as loader:
        for found, expected in zip(loader, ds, strict=True):
            assert_equal(found, expected)
            assert (found["first"] != found["second"]).any((1, 2, 3)).all()


def test_two_views_of_a_batch():
    """Each call goes on in the generator of its record."""
    jitter = lx.image.color_jitter(0.5)

    def views(record, rng):
        return {"first": jitter(record["image"], rng), "second": jitter(record["image"], rng)}

    batch = dataset().batch(COUNT).random_map(views, seed=0)[0]
    assert (batch["first"] != batch["second"]).any((1, 2, 3)).all()
    assert_equal(batch, dataset().random_map(views, seed=0).batch(COUNT)[0])


def test_generators_of_a_batch_are_those_of_its_records():
    drawn = dataset().random_map(lambda record, rng: {"x": rng.random(3)}, seed=4).batch(3)[0]["x"]

    def draw(batch, rng):
        again = np.array([own.random() for own in rng.generators()])
        more = np.array([own.random(2) for own in rng.generators()])
        return {"x": np.concatenate([again[:, None], more], 1)}

    np.testing.assert_array_equal(dataset().batch(3).random_map(draw, seed=4)[0]["x"], drawn)
    assert len(BatchGenerator(np.arange(5, dtype=np.uint64)).generators()) == 5


# Errors -----------------------------------------------------------------------------------------


def test_boxes_cannot_be_dropped_from_a_batch():
    pad = lx.image.random_pad_and_crop(4, boxes="boxes")
    with pytest.raises(lx.RecordError, match=r"random_pad_and_crop\(4, mode='constant'\) works on"):
        dataset().batch(4).random_map(pad)[0]


def test_stages_say_which_method_they_are_for():
    with pytest.raises(lx.ArgumentTypeError, match=r"Write \.random_map\(color_jitter\(\.\.\.\)\)"):
        dataset().map(lx.image.color_jitter())
    with pytest.raises(lx.ArgumentTypeError, match=r"Write \.map\(resize\(\.\.\.\)\)"):
        dataset().random_map(lx.image.resize(3))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (encoded(PHOTOS[0]), r"the image must be an array .* Put this stage after a crop, or"),
        ("photo.jpg", r"If it is a path, read the file in a \.map\(\) before"),
        (np.zeros((2, 24, 32, 3), np.uint8), r"works on records|uint8\[2, 24, 32, 3\]"),
        (np.zeros((24, 32, 3), complex), r"complex128\[24, 32, 3\]"),
    ],
)
@each_stage
def test_what_is_no_image(stage, image, message):
    with pytest.raises(lx.ArgumentTypeError, match=message):
        stage(image, np.random.default_rng(0))


def test_chains_show_them():
    ds = dataset()
    for name, stage in STAGES.items():
        ds = ds.random_map(stage)
        assert f"random_map({stage.__name__})" in repr(ds), name
    assert repr(STAGES["flip"]) == "random_flip_left_right(probability=0.5)"
    assert repr(STAGES["rand_augment"]) == "rand_augment(2, 9)"
