"""Indices of many elements: a range if they are regular, which costs nothing, or an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int64s: TypeAlias = npt.NDArray[np.int64]
Indices: TypeAlias = range | Int64s


def as_indices(indices: Sequence[int] | Indices) -> Indices:
    """The indices as a range or an array."""
    if isinstance(indices, (range, np.ndarray)):
        return indices
    return np.array(indices, np.int64)


def as_array(indices: Indices) -> Int64s:
    """The indices as an array."""
    if isinstance(indices, range):
        return np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
    return indices


def as_ints(indices: Sequence[int] | Indices) -> Sequence[int]:
    """The indices as Python integers."""
    return indices.tolist() if isinstance(indices, np.ndarray) else indices


def modulo(indices: Indices, length: int) -> Indices:
    """Indices in their epoch.

    >>> modulo(range(12, 15), 10), modulo(range(8, 12), 10)
    (range(2, 5), array([8, 9, 0, 1]))
    """
    epoch = epoch_of(indices, length)
    if epoch is None:
        return as_array(indices) % some(length)
    return shifted(indices, -epoch * length)


def some(length: int) -> int:
    """The length; raises if it is 0, by which NumPy would divide without an error."""
    if not length:
        raise ZeroDivisionError(
            "this part of the data has no records, so there is nothing to read. Make fewer shards "
            "than there are records, or leave the processes out that have none."
        )
    return length


def epoch_of(indices: Indices, length: int) -> int | None:
    """The epoch that contains all of a range; None if there is none, or for an array."""
    if not isinstance(indices, range) or not indices:
        return None
    epoch = indices[0] // some(length)
    return epoch if indices[-1] // length == epoch else None


def shifted(indices: Indices, by: int) -> Indices:
    """The indices plus ``by``."""
    if not by:
        return indices
    if isinstance(indices, range):
        return range(indices.start + by, indices.stop + by, indices.step)
    return indices + by
