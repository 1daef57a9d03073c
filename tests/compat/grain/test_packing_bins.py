"""Bins against the plain way to find one: look at all of them."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx.compat.grain.packing_bins import PackedBatch, best_fit, first_fit


def plain_first_fit(room, lengths):
    fits = [all(r >= n for r, n in zip(each, lengths)) for each in room]
    return fits.index(True) if any(fits) else -1


def plain_best_fit(room, lengths):
    fits = [all(r >= n for r, n in zip(each, lengths)) for each in room]
    left = [sum(each) if fit else None for each, fit in zip(room, fits)]
    fitting = [n for n in left if n is not None]
    return left.index(min(fitting)) if fitting else -1


@pytest.mark.parametrize(
    ("make_bins", "plain"), [(first_fit, plain_first_fit), (best_fit, plain_best_fit)]
)
@pytest.mark.parametrize("features", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_bins_are_those_of_the_plain_way(make_bins, plain, features, seed):
    rng = np.random.default_rng(seed)
    capacities = tuple(rng.integers(8, 40, features).tolist())
    count = int(rng.integers(1, 12))
    bins = make_bins(capacities, count)
    room = [capacities] * count
    for _ in range(200):
        lengths = tuple(int(rng.integers(0, capacity // 2 + 1)) for capacity in capacities)
        number = bins.place(lengths)
        assert number == plain(room, lengths)
        if number < 0:
            bins, room = make_bins(capacities, count), [capacities] * count
            continue
        left = tuple(r - n for r, n in zip(room[number], lengths))
        if rng.random() < 0.05:
            left = (-1,) * features  # as many records as a bin may have
        room[number] = left
        bins.set_room(number, left)


def packed(values, *, count=2, length=6, **options):
    settings = {"paddings": (None,), "alignments": (1,), "most": None, **options}
    bins = first_fit((length,), count)
    batch = PackedBatch(values[:1], bins=bins, count=count, lengths=(length,), **settings)
    numbers = [batch.add([value], (np.size(value),)) for value in values]
    return batch, numbers


def test_segments_and_positions():
    batch, numbers = packed([np.array([1, 2, 3]), np.array([4, 5, 6, 7]), np.array([8])])
    assert numbers == [0, 1, 0]
    (feature,) = batch.features
    assert feature.values.tolist() == [[1, 2, 3, 8, 0, 0], [4, 5, 6, 7, 0, 0]]
    segment_ids, positions = feature.segments(2)
    assert segment_ids.tolist() == [[1, 1, 1, 2, 0, 0], [1, 1, 1, 1, 0, 0]]
    assert positions.tolist() == [[0, 1, 2, 0, 0, 0], [0, 1, 2, 3, 0, 0]]
    assert segment_ids.dtype == positions.dtype == np.int32


def test_alignment_and_padding():
    batch, _ = packed([np.array([1]), np.array([2, 3])], alignments=(4,), paddings=(-1,))
    assert batch.features[0].values[0].tolist() == [1, -1, -1, -1, 2, 3]


def test_a_bin_holds_so_many_records():
    _, numbers = packed([np.array([1])] * 5, most=2)
    assert numbers == [0, 0, 1, 1, -1]


def test_numbers_take_one_cell():
    batch, numbers = packed([7, 8], length=2, count=1)
    assert numbers == [0, 0]
    assert batch.features[0].values.dtype == np.int64
    assert batch.features[0].values.tolist() == [[7, 8]]


def test_a_value_may_be_changed_afterwards():
    value = np.array([1, 2])
    batch, _ = packed([value])
    value[:] = 0
    assert batch.features[0].values[0, :2].tolist() == [1, 2]
