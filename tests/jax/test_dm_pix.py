"""Functions of dm-pix as stages for batches."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from loaderx import DataLoader, Dataset
from loaderx.jax import augment
from loaderx.jax.image import normalize

pix = pytest.importorskip(
    "dm_pix", reason="dm-pix is not installed: pip install 'loaderx-jax[pix]'"
)
pytestmark = pytest.mark.foreign  # jax keeps descriptors of its own

COUNT, SIZE = 10, (8, 6, 3)


def images():
    x = np.random.default_rng(0).integers(0, 256, (COUNT, 10, 9, 3), np.uint8)
    return Dataset.from_arrays(image=x)


def crop_and_flip(key, record):
    for_crop, for_side = jax.random.split(key)
    image = pix.random_crop(for_crop, record["image"], SIZE)
    return {"image": pix.random_flip_left_right(for_side, image)}


def change_colours(key, record):
    for_shape, for_light, for_contrast = jax.random.split(key, 3)
    image = crop_and_flip(for_shape, record)["image"] / 255
    image = pix.random_brightness(for_light, image, 0.2)
    image = pix.random_contrast(for_contrast, image, 0.8, 1.2)
    return {"image": normalize(image.clip(0, 1), 0.5, 0.25)}


def one_by_one(f):
    """What the function makes of each record by itself."""
    batch = images().batch(COUNT).random_keys(seed=1)[0]
    keys, f = jax.random.wrap_key_data(batch["key"]), jax.jit(f)
    return np.stack([f(key, {"image": x})["image"] for key, x in zip(keys, batch["image"])])


def test_on_the_host():
    chain = images().batch(4).random_map(augment(change_colours), seed=1)
    with DataLoader(chain, engine="threads", num_workers=1) as loader:
        found = np.concatenate([batch["image"] for batch in loader])
    assert found.shape == (COUNT, *SIZE)
    assert np.allclose(found, one_by_one(change_colours), rtol=1e-5, atol=1e-5)


def test_in_a_step():
    step = jax.jit(augment(crop_and_flip))
    found = [step(batch)["image"] for batch in images().batch(5).random_keys(seed=1)]
    assert np.array_equal(np.concatenate(found), one_by_one(crop_and_flip))
