"""The weights of a mix: names, phases and ramps, checked and made into tickets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from loaderx.errors import ArgumentError, ArgumentTypeError, check_int
from loaderx.order.epochs import LIMIT
from loaderx.order.mixing import ramp_phases, tickets
from loaderx.stages.mixture import Ramp

Change: TypeAlias = "tuple[int, tuple[int, ...]] | tuple[int, tuple[int, ...], int, int]"
"""Tickets from a position on; of a ramp, also where it ends, and 1 if it is a cosine."""


Plan: TypeAlias = tuple[tuple[int, ...], tuple[Change, ...]]
"""The tickets at the beginning of a mix, and their changes."""


def read_weights(
    weights: object, names: Sequence[str] | None, count: int, sizes: Sequence[float] | None
) -> Plan:
    """The argument ``weights`` of a mix of ``count`` datasets.

    ``sizes``: weights count elements of this many in each record.
    """
    reader = _Reader(names, count, sizes)
    if weights is None:
        weights = [1.0] * count
    elif isinstance(weights, Iterable) and not isinstance(weights, (str, bytes, Mapping)):
        weights = list(weights)
        if any(isinstance(entry, (Ramp, tuple, list)) for entry in weights):
            return reader.phases(weights)
    return reader.tickets(weights), ()


class _Reader:
    def __init__(
        self, names: Sequence[str] | None, count: int, sizes: Sequence[float] | None
    ) -> None:
        self.names, self.count, self.sizes = names, count, sizes

    def phases(self, entries: Sequence[object]) -> Plan:
        changes = [self._change(number, entry) for number, entry in enumerate(entries)]
        if len(changes[0]) > 2 or changes[0][0] != 0:
            raise ArgumentError(
                "`weights` must begin with (0, weights): the weights from position 0 on."
            )
        for number, (before, change) in enumerate(itertools.pairwise(changes), 1):
            # A ramp may begin where the weights do that it begins with.
            free = before[2] if len(before) > 2 else before[0] + (len(change) == 2)
            if change[0] < free:
                raise ArgumentError(
                    f"`weights` must be in order: entry {number} begins at position {change[0]}, "
                    f"and the one before it needs those up to {free}."
                )
        return changes[0][1], tuple(changes[1:])

    def _change(self, number: int, entry: object) -> Change:
        if isinstance(entry, Ramp):
            return entry.start, self.tickets(entry.to), entry.stop, int(entry.shape == "cosine")
        if not isinstance(entry, (tuple, list)) or len(entry) != 2:
            raise ArgumentTypeError(
                "`weights` must be numbers, or entries (position, weights) and ramp(...); entry "
                f"{number} is {entry!r}."
            )
        start = check_int(f"the position of entry {number} of `weights`", entry[0], least=0)
        if start > LIMIT:
            raise ArgumentError(f"`weights`: positions end at 2**62, entry {number} is {start}.")
        return start, self.tickets(entry[1])

    def tickets(self, weights: object) -> tuple[int, ...]:
        """Whole numbers for these weights, 0 for those that are 0."""
        values = self._named(weights) if isinstance(weights, Mapping) else weights
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise ArgumentTypeError(
                f"`weights` must be a list of numbers, one for each dataset; got {values!r}."
            )
        shares = [_weight(number, value) for number, value in enumerate(values)]
        if len(shares) != self.count:
            raise ArgumentError(f"`weights` has {len(shares)} numbers for {self.count} datasets.")
        for number, share in enumerate(shares):
            if not (math.isfinite(share) and share >= 0):
                raise ArgumentError(
                    f"`weights` must be positive numbers, or 0; weight {number} is {share}."
                )
        if shares and not any(shares):
            raise ArgumentError(f"`weights` are 0 for every dataset: {weights!r}.")
        if self.sizes is not None:
            shares = [share / size for share, size in zip(shares, self.sizes, strict=True)]
            shares = [share / max(shares) for share in shares]
        counts = iter(tickets([share for share in shares if share]))
        return tuple(next(counts) if share else 0 for share in shares)

    def _named(self, weights: Mapping[object, object]) -> list[object]:
        if self.names is None:
            raise ArgumentTypeError(
                "`weights` has names, and the datasets have none: give them as a dict, "
                'Dataset.mix({"web": web, ...}, ...).'
            )
        if unknown := [name for name in weights if name not in self.names]:
            raise ArgumentError(
                f"`weights` has {unknown[0]!r}, which is none of the datasets: "
                f"{', '.join(self.names)}."
            )
        return [weights.get(name, 0) for name in self.names]


def read_numbers(
    name: str, given: object, names: Sequence[str] | None, count: int
) -> tuple[int | None, ...]:
    """An argument of a mix with a number for each dataset, or for some of them by name."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        return (check_int(name, given, least=1),) * count
    keys = names if names is not None else range(count)
    if unknown := [key for key in given if key not in keys]:
        raise ArgumentError(
            f"`{name}` has {unknown[0]!r}, which is none of the datasets: "
            f"{', '.join(map(str, keys))}."
        )
    return tuple(
        check_int(f"`{name}` of {key}", given[key], least=1) if key in given else None
        for key in keys
    )


def _weight(number: int, weight: object) -> float:
    try:
        if isinstance(weight, (str, bytes)):
            raise TypeError
        return float(weight)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"`weights` must be positive numbers; weight {number} is {weight!r} "
            f"({type(weight).__name__})."
        ) from None


def flat_phases(
    first: tuple[int, ...], changes: Sequence[Change]
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Tickets by position, with ramps as many short phases."""
    found = [(0, first)]
    for change in changes:
        start, counts = change[:2]
        if len(change) > 2:
            before = found[-1][1]
            found += ramp_phases(start, change[2], before, counts, is_cosine=bool(change[3]))
            start = change[2]
        found.append((start, counts))
    return tuple(found)
