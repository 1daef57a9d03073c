"""Blocks in random order: where each record is, and which windows they make."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx.order.blocks import EqualBlocks, UnequalBlocks

KEY = np.array([0x1234_5678_9ABC_DEF1], np.uint64)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 12, 29, 64, 100, 255, 300])
def test_every_record_comes_once_whatever_the_length(length):
    positions = np.arange(length)
    for size in range(1, length + 1):
        found = EqualBlocks(length, size).find(KEY, positions)
        assert sorted(found.tolist()) == positions.tolist(), size


@pytest.mark.parametrize(
    "blocks",
    [EqualBlocks(300, 7), EqualBlocks(300, 300), UnequalBlocks(np.array([0, 4, 90, 91, 200, 300]))],
    ids=["short", "one", "unequal"],
)
def test_places_are_the_inverse_of_find(blocks):
    for keys in (KEY, np.array([1, 2, 3], np.uint64).repeat(100)):
        positions = np.arange(300)
        assert np.array_equal(blocks.places(keys, blocks.find(keys, positions)), positions)


def test_equal_blocks_are_unequal_blocks_of_one_size():
    """Where no block is short, both draw the same order and the same windows."""
    positions = np.arange(60)
    equal, unequal = EqualBlocks(60, 5), UnequalBlocks(np.arange(0, 61, 5))
    assert np.array_equal(equal.find(KEY, positions), unequal.find(KEY, positions))
    for one, other in zip(
        equal.windows(KEY, positions, 20), unequal.windows(KEY, positions, 20), strict=True
    ):
        assert np.array_equal(one, other)


def test_the_short_block_may_come_anywhere():
    keys = np.arange(2000, dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
    blocks, positions = EqualBlocks(23, 4), np.arange(23)
    found = [blocks.find(keys[i : i + 1], positions) for i in range(2000)]
    counts = np.bincount([np.argmax(one >= 20) for one in found], minlength=21)
    assert set(np.flatnonzero(counts).tolist()) == {0, 4, 8, 12, 16, 20}
    assert counts[[0, 4, 8, 12, 16, 20]].min() > 250  # of 333


@pytest.mark.parametrize(("size", "window"), [(4, 4), (4, 12), (3, 6), (5, 100), (1, 7)])
def test_windows_are_made_of_whole_blocks(size, window):
    for length in range(size, 60):
        blocks, positions = EqualBlocks(length, size), np.arange(length)
        found = blocks.find(KEY, positions)
        number, start, sizes = blocks.windows(KEY, positions, window)
        assert (np.diff(number) >= 0).all()
        for one in np.unique(number):
            inside = np.flatnonzero(number == one)
            assert (start[inside] == inside[0]).all()
            assert (sizes[inside] == len(inside)).all()
            assert len(inside) < window + size
            others = found[number != one] // size
            assert not set(found[inside] // size) & set(others), "a block is in two windows"


@pytest.mark.parametrize("window", [4, 8, 12, 100])
def test_where_windows_begin_and_end(window):
    starts = np.array([0, 5, 6, 27, 29, 40, 41, 42])
    for blocks in (EqualBlocks(42, 4), EqualBlocks(43, 4), UnequalBlocks(starts)):
        length = int(starts[-1]) if isinstance(blocks, UnequalBlocks) else blocks.length
        number, start, size = blocks.windows(KEY, np.arange(length), window)
        found = []
        for one in range(-(-length // window)):
            first, stop = blocks.bounds(KEY, one, window)
            found += range(first, stop)
            inside = np.flatnonzero(number == one)
            assert list(range(first, stop)) == inside.tolist()
            assert not len(inside) or (start[inside[0]], size[inside[0]]) == (first, stop - first)
        assert found == list(range(length))


def test_keys_of_several_epochs_at_once():
    keys = np.array([3, 3, 9, 3, 9, 9, 1], np.uint64)
    positions = np.array([0, 12, 5, 7, 5, 20, 11])
    for blocks in (EqualBlocks(23, 4), UnequalBlocks(np.array([0, 5, 6, 17, 23]))):
        alone = [blocks.find(keys[i : i + 1], positions[i : i + 1])[0] for i in range(7)]
        assert blocks.find(keys, positions).tolist() == alone
        windows = np.array(blocks.windows(keys, positions, 8)).T.tolist()
        for i, together in enumerate(windows):
            one = blocks.windows(keys[i : i + 1], positions[i : i + 1], 8)
            assert [int(x[0]) for x in one] == together


def test_a_trillion_records_take_no_memory():
    blocks = EqualBlocks(10**12 + 77, 256)
    positions = np.arange(10**12 - 50_000, 10**12 + 77)
    found = blocks.find(KEY, positions)
    assert len(np.unique(found)) == len(positions)
    assert found.min() >= 0
    assert found.max() < 10**12 + 77
