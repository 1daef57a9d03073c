"""Normalising arrays of pixels in NumPy."""

from __future__ import annotations

import pickle

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import loaderx as lx
from loaderx import ArgumentError, ArgumentTypeError, DataLoader, Dataset, RecordError
from loaderx.image import normalize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def plain(pixels, mean, std):
    largest = 1 if pixels.dtype.kind == "f" else np.iinfo(pixels.dtype).max
    return (pixels.astype(np.float64) / largest - mean) / std


@settings(max_examples=50)
@given(
    pixels=hnp.arrays(
        st.sampled_from([np.uint8, np.uint16, np.float32, np.float64]),
        hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=9).map(lambda s: (*s, 3)),
        elements=st.integers(0, 10),
    )
)
def test_it_is_the_plain_formula(pixels):
    found = normalize(MEAN, STD)(pixels)
    assert found.dtype == np.float32
    assert np.allclose(found, plain(pixels, MEAN, STD), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3, 4, 20_000])
def test_batches_larger_than_a_block(channels):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 5_000, channels), np.uint8)
    pixels = pixels[:, : max(7, 40_000 // channels)]
    mean, std = np.linspace(0.1, 0.9, channels), np.linspace(0.2, 0.3, channels)
    assert np.allclose(normalize(mean, std)(pixels), plain(pixels, mean, std), rtol=1e-5, atol=1e-6)


def test_numbers_for_all_channels():
    pixels = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    assert np.allclose(normalize()(pixels), pixels / 255)
    found = normalize(0.5, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8))(pixels)
    assert np.allclose(found, (pixels / 255 - 0.5) / np.linspace(0.1, 0.8, 8), atol=1e-6)


@pytest.mark.parametrize("change", [lambda x: x[:, ::-1], lambda x: x[..., ::-1], lambda x: x[1:2]])
def test_views(change):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), np.uint8)
    found = normalize(MEAN, STD)(change(pixels))
    assert np.allclose(found, plain(change(pixels), MEAN, STD), atol=1e-5)


def test_the_memory_of_dropped_results_is_used_again():
    normal = normalize(MEAN, STD)
    pixels = np.zeros((64, 32, 32, 3), np.uint8)
    addresses = {normal(pixels).ctypes.data for _ in range(8)}
    assert len(addresses) == 1
    kept = [normal(pixels) for _ in range(8)]
    assert len({array.ctypes.data for array in kept}) == 8
    assert kept[0].ctypes.data % 64 == 0


def test_into_an_array():
    pixels, out = np.full((2, 3), 255, np.uint8), np.empty((2, 3), np.float32)
    assert normalize(0.5, 0.5)(pixels, out=out) is out
    assert (out == 1).all()
    with pytest.raises(ArgumentError, match=r"must be a contiguous array of float32 of shape \(2,"):
        normalize()(pixels, out=np.empty((3, 2), np.float32))


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_in_a_chain(engine):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 4, 4, 3), np.uint8)
    chain = Dataset.from_arrays(image=pixels).batch(4).map(normalize(MEAN, STD))
    assert "map(normalize)" in repr(chain)
    workers = None if engine == "inline" else 1
    with DataLoader(chain, engine=engine, num_workers=workers) as loader:
        found = np.concatenate([batch["image"] for batch in loader])
    assert np.allclose(found, plain(pixels, MEAN, STD), atol=1e-5)


def test_other_leaves():
    pixels = np.full((4, 2, 2), 255, np.uint8)
    assert (Dataset.from_arrays(pixels).batch(4).map(normalize(key=None))[0] == 1).all()
    chain = Dataset.from_arrays(x=pixels).batch(4)
    assert (chain.map(normalize(key="x"))[0]["x"] == 1).all()
    with pytest.raises(RecordError, match="no leaf 'image' but 'x': choose one with key="):
        chain.map(normalize())[0]
    with pytest.raises(ArgumentTypeError, match="`key` must be a string, got 3"):
        normalize(key=3)


def test_its_repr_and_copies():
    normal = normalize(0.5, (0.25, 0.5))
    assert repr(normal) == "normalize(mean=0.5, std=[0.25, 0.5])"
    assert repr(pickle.loads(pickle.dumps(normal))) == repr(normal)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        (0.5, 0, r"`std` must be above 0, got 0\.0\."),
        (0.5, (0.2, -1), r"`std` must be above 0, got \[0\.2, -1\.0\]\."),
        ((0.1, 0.2), (0.1, 0.2, 0.3), "`mean` is for 2 channels and `std` for 3"),
        ("grey", 1, "`mean` must be a number, or one for each channel, got 'grey'"),
        ([[0.5]], 1, "`mean` must be a number, or one for each channel"),
        (np.nan, 1, "`mean` must be a number, or one for each channel, got nan"),
    ],
)
def test_bad_values(mean, std, message):
    with pytest.raises(ArgumentError, match=message):
        normalize(mean, std)


def test_pixels_of_other_kinds():
    with pytest.raises(ArgumentTypeError, match="takes an array of integers or floats, got <U1"):
        normalize()(np.array(["a"]))
    with pytest.raises(ArgumentTypeError, match=r"got bytes\. Decode or resize images before"):
        normalize()(b"a file")
    with pytest.raises(ArgumentError, match=r"is for 3 channels on the last axis, .* shape \(3, 8"):
        normalize(MEAN, STD)(np.zeros((3, 8, 8), np.uint8))


def test_numbers_for_pixels_up_to_255():
    wrong = lx.image.normalize(mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4))
    with pytest.raises(ArgumentError, match=r"divided by 255 first; so `mean` and `std` must"):
        wrong(np.zeros((8, 8, 3), np.uint8))
    assert wrong(np.zeros((8, 8, 3), np.float32)).shape == (8, 8, 3)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint32", "uint64"])
def test_integers_that_do_not_say_what_is_white(dtype):
    """255 of int16 became almost black."""
    image = np.full((2, 2, 3), 100, dtype)
    message = rf"takes uint8, uint16 or floats, got {dtype}: .*image.astype\('uint8'\)"
    with pytest.raises(ArgumentTypeError, match=message):
        normalize(MEAN, STD)(image)
    assert np.allclose(
        normalize(MEAN, STD)(image.astype("uint8")), plain(image.astype("uint8"), MEAN, STD)
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_that_were_not_divided(dtype):
    image = np.zeros((2, 40, 40, 3), dtype)
    image[-1, -1, -1] = 255
    with pytest.raises(
        ArgumentError, match=r"must be from 0 to 1, and one of them is 255\. Divide"
    ):
        normalize(MEAN, STD)(image)
    assert np.allclose(normalize(MEAN, STD)(image / 255), plain(image / 255, MEAN, STD), atol=1e-2)
    assert normalize(0, 255)(image).max() == 1  # of numbers up to 255
