"""The weights of a mix: names, phases and ramps, checked and made into tickets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from loaderx.errors import ArgumentError, ArgumentTypeError, check_int
from loaderx.frozen import Frozen
from loaderx.order.epochs import LIMIT
from loaderx.order.mixing import ramp_phases, tickets
from loaderx.stages.mixture import Ramp

Change: TypeAlias = "tuple[int, tuple[int, ...]] | tuple[int, tuple[int, ...], int, int]"
"""Tickets from a position on; of a ramp, also where it ends, and 1 if it is a cosine."""


class WeightPlan(Frozen):
    """The weights of a mix: tickets at its beginning, and their changes."""

    first: tuple[int, ...]
    changes: tuple[Change, ...] = ()


def read_weights(
    weights: object, names: Sequence[str] | None, count: int, sizes: Sequence[float] | None
) -> WeightPlan:
    """The argument ``weights`` of a mix of ``count`` datasets.

    ``sizes``: weights count elements of this many in each record.
    """
    reader = _Reader(names, count, sizes)
    if weights is None:
        return WeightPlan(reader.tickets([1.0] * count))
    is_list = isinstance(weights, Iterable) and not isinstance(weights, (str, bytes))
    if not is_list:
        raise ArgumentTypeError(
            f"`weights` must be a list of numbers, one for each dataset; got {weights!r}."
        )
    if isinstance(weights, Mapping):
        return WeightPlan(reader.tickets(weights))
    entries = list(weights)  # type: ignore[call-overload]
    if not any(isinstance(entry, (Ramp, tuple, list)) for entry in entries):
        return WeightPlan(reader.tickets(entries))
    return reader.phases(entries)


class _Reader:
    def __init__(
        self, names: Sequence[str] | None, count: int, sizes: Sequence[float] | None
    ) -> None:
        self.names, self.count, self.sizes = names, count, sizes

    def phases(self, entries: Sequence[object]) -> WeightPlan:
        found: list[Change] = []
        free = 0  # the first position that no entry has set
        for number, entry in enumerate(entries):
            change = self._change(number, entry)
            if number == 0 and (len(change) > 2 or change[0] != 0):
                raise ArgumentError(
                    "`weights` must begin with (0, weights): the weights from position 0 on."
                )
            if number and change[0] < free:
                raise ArgumentError(
                    f"`weights` must be in order: entry {number} begins at position {change[0]}, "
                    f"and the one before it needs those up to {free}."
                )
            free = change[2] if len(change) > 2 else change[0] + 1
            found.append(change)
        return WeightPlan(found[0][1], tuple(found[1:]))

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


def read_epochs(epochs: object, names: Sequence[str] | None, count: int) -> tuple[int | None, ...]:
    """The argument ``epochs`` of a mix: the most of each dataset, where there is one."""
    if epochs is None:
        return ()
    if not isinstance(epochs, Mapping):
        return (check_int("epochs", epochs, least=1),) * count
    keys = names if names is not None else range(count)
    if unknown := [key for key in epochs if key not in keys]:
        raise ArgumentError(
            f"`epochs` has {unknown[0]!r}, which is none of the datasets: "
            f"{', '.join(map(str, keys))}."
        )
    return tuple(
        check_int(f"`epochs` of {key}", epochs[key], least=1) if key in epochs else None
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
