"""A planned mix one position at a time, in exact fractions: no tables, no periods."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

Weights = Sequence[tuple[int, Sequence[int]]]
"""Tickets from a position on."""


def tickets_at(weights: Weights, position: int) -> Sequence[int]:
    return [counts for start, counts in weights if start <= position][-1]


def components(
    weights: Weights,
    most: Sequence[int | None] | None = None,
    others_go_on: Sequence[bool] | None = None,
) -> Iterator[int]:
    """The component of each position."""
    several = range(len(weights[0][1]))
    most = most or [None for _ in several]
    demand, given = [Fraction(0) for _ in several], [0 for _ in several]
    total = [0 for _ in several]
    gone = {c for c in several if most[c] == 0 and others_go_on and others_go_on[c]}
    position = 0
    while True:
        counts = [0 if c in gone else n for c, n in enumerate(tickets_at(weights, position))]
        if not any(counts):
            return
        shares = [Fraction(count, sum(counts)) for count in counts]
        able = [c for c in several if demand[c] + shares[c] > given[c]]
        due = min(able, key=lambda c: (_deadline(demand[c], given[c], shares[c]), c))
        if total[due] == most[due]:
            if not (others_go_on and others_go_on[due]):
                return
            gone |= {c for c in several if total[c] == most[c] and others_go_on[c]}
            demand, given = [Fraction(0) for _ in several], [0 for _ in several]
            continue
        yield due
        given[due] += 1
        total[due] += 1
        demand = [had + share for had, share in zip(demand, shares, strict=True)]
        position += 1


def _deadline(demand: Fraction, given: int, share: Fraction) -> float:
    """Positions until a component is one behind, if nothing changes."""
    return math.ceil((given + 1 - demand) / share) if share else math.inf
