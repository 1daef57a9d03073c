"""Which dataset of a mix an element comes from."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from loaderx.compat.grain.indices import Indices, Int64s, as_array, as_ints
from loaderx.compat.grain.protocols import AssertedError
from loaderx.errors import ArgumentError

_SCALE = 100


def whole_proportions(weights: Sequence[float] | None, count: int) -> tuple[int, ...]:
    """Weights as integers, the least of them 100."""
    if not count:
        raise ArgumentError("mix needs at least one dataset.")
    if weights is None:
        return (1,) * count
    if 0 in weights:
        raise ArgumentError("a weight of 0 is not possible: leave that dataset out.")
    if len(weights) != count:
        raise AssertedError(f"there are {count} datasets to mix, and {len(weights)} weights.")
    factor = _SCALE / min(weights)
    return tuple(int(weight * factor) for weight in weights)


def choose(index: int, proportions: tuple[int, ...]) -> tuple[int, int]:
    """The dataset of an element, and its index there: the datasets split off one by one."""
    left = sum(proportions)
    low, high = index, index + 1
    for number, part in enumerate(proportions):
        next_low, next_high = low * (left - part) // left, high * (left - part) // left
        taken = high - next_high
        if low - next_low != taken:
            return number, taken - 1
        left -= part
        low, high = next_low, next_high
    raise AssertionError("one of the datasets has the element")


def choose_many(indices: Indices, proportions: tuple[int, ...]) -> tuple[Int64s, Int64s]:
    """The same for many elements."""
    total = sum(proportions)
    if not len(indices):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    most = max(indices[0], indices[-1]) if isinstance(indices, range) else indices.max(initial=0)
    if most > sys.maxsize // (2 * total):  # the products below would not fit
        pairs = [choose(index, proportions) for index in as_ints(indices)]
        return np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    low = as_array(indices)
    high = low + 1
    chosen = np.full(len(low), -1, np.int64)
    inside = np.zeros(len(low), np.int64)
    left = total
    for number, part in enumerate(proportions):
        next_low, next_high = low * (left - part) // left, high * (left - part) // left
        taken = high - next_high
        found = (low - next_low != taken) & (chosen < 0)
        chosen[found] = number
        inside[found] = taken[found] - 1
        left -= part
        if left == 0:
            break
        low, high = next_low, next_high
    return chosen, inside
