"""Alias tables: draws from given weights, each in constant time.

There is one column for each entry of positive weight.  All columns are of equal height and hold the
share of at most two entries: their own below a border, and that of another entry (the *alias*)
above it.  A draw takes a column at random, and a random height in it.

Entries of less than the average weight ("light") leave room in their columns, which the others
("heavy") fill, one after the other.  A heavy entry that is used up leaves room in its own column,
which the next one fills.  Running sums of what is missing and of what is left over give the heavy
entry for each light one, so the whole table is made by two binary searches.  Weights are made whole
numbers first: sums of them are exact, so the table is the same on every machine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loaderx.frozen import Frozen
from loaderx.rng import Keys

Positions = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BITS = 61  # of the sum of all weights as whole numbers


class AliasTable(Frozen):
    """Which entry is drawn: ``own`` below the border of a column, ``other`` above it."""

    border: Floats
    own: Numbers
    other: Numbers

    def draw(self, words: Keys) -> Positions:
        """The entry that each random word draws."""
        # 53 bits: as a product with the number of columns it never reaches that number.
        places = (words >> np.uint64(11)).astype(np.float64)
        places *= len(self.border) * 2.0**-53
        columns = places.astype(np.int64)
        places -= columns
        drawn = np.where(places < self.border[columns], self.own[columns], self.other[columns])
        return drawn.astype(np.int64)


def alias_table(weights: Floats) -> AliasTable:
    """The table for finite weights of at least 0, not all of them 0."""
    own = _numbers(np.flatnonzero(weights))
    height, amounts = _whole_numbers(weights[own] if len(own) < len(weights) else weights)
    is_light = amounts < height
    light, heavy = _numbers(np.flatnonzero(is_light)), _numbers(np.flatnonzero(~is_light))
    missing = amounts[light]
    np.subtract(height, missing, out=missing).cumsum(out=missing)
    spare = amounts[heavy]
    np.subtract(spare, height, out=spare).cumsum(out=spare)
    border = np.minimum(amounts, height, out=amounts)
    other = _numbers(np.arange(len(own)))
    # Light entries are filled in order, each by the first heavy one that the light ones before it
    # have not used up.
    if len(light):
        other[light[:1]] = heavy[np.searchsorted(spare, 0)]
        other[light[1:]] = heavy[np.searchsorted(spare, missing[:-1])]
    # A heavy entry is used up by the first light one after which more is missing than it and those
    # before it had to spare.  The next heavy one fills the difference.
    used_up_by = np.searchsorted(missing, spare, side="right")
    used_up = np.flatnonzero(used_up_by < len(light))
    border[heavy[used_up]] = height + spare[used_up] - missing[used_up_by[used_up]]
    other[heavy[used_up]] = heavy[used_up + 1]
    del is_light, light, heavy, missing, spare, used_up_by, used_up  # of a hundred million weights
    return AliasTable(border / height, own, own[other])


def _numbers(entries: Positions) -> Numbers:
    """Numbers of entries, in four bytes where these suffice."""
    return entries.astype(np.int32) if len(entries) < 1 << 31 else entries


def _whole_numbers(weights: Floats) -> tuple[int, Positions]:
    """Positive weights as whole numbers, and their average, a whole number, too."""
    count = len(weights)
    largest = 1 << (_BITS - count.bit_length())
    scaled = weights / weights.max()
    scaled *= largest
    rough = scaled.astype(np.int64)
    np.maximum(rough, 1, out=rough)
    height = (1 << _BITS) // count
    np.multiply(rough, height * count / int(rough.sum()), out=scaled)
    amounts = rough
    amounts[...] = scaled
    np.maximum(amounts, 1, out=amounts)
    amounts[np.argmax(amounts)] += height * count - int(amounts.sum())
    return height, amounts
