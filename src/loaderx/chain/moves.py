"""Stages that put elements in other places: orders, parts, repetitions."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from loaderx.chain.base import LIMIT, ShortBatches, Single, checked_length
from loaderx.chain.encoding import Encoded, encode, stage_text
from loaderx.errors import ArgumentError, ChainError


class Moved(Single):
    """The base of stages that put elements in other places."""

    @property
    def moves(self) -> bool:
        return True


class Shuffled(Moved):
    own_seed: int | None = None

    def __post_init__(self) -> None:
        if self.input.is_stream:
            raise ChainError(
                "shuffle of a stream needs a window: write .shuffle(window=1000), or put "
                ".shuffle() before the stage that makes it a stream."
            )
        if self.input.length is None:
            raise ChainError("shuffle needs a dataset that ends: put it before .repeat().")

    @property
    def is_random(self) -> bool:
        return True

    def seed(self, default: int) -> int:
        return default if self.own_seed is None else self.own_seed

    @property
    def stage(self) -> str:
        return "shuffle()" if self.own_seed is None else f"shuffle(seed={self.own_seed})"

    def fingerprint(self, seed: int) -> str:
        return stage_text("shuffle", {"seed": self.seed(seed)}, self, without=("own_seed",))


class WindowShuffled(Moved):
    """A new order within each window of consecutive records."""

    window: int
    own_seed: int | None = None

    def __post_init__(self) -> None:
        if self.input.is_stream and self.batched:
            raise ChainError(
                "shuffle after the batch of a stream: put .shuffle(window=...) before .batch(...)."
            )

    @property
    def is_random(self) -> bool:
        return True

    def seed(self, default: int) -> int:
        return default if self.own_seed is None else self.own_seed

    @property
    def stage(self) -> str:
        seed = "" if self.own_seed is None else f"seed={self.own_seed}, "
        return f"shuffle({seed}window={self.window})"

    def fingerprint(self, seed: int) -> str:
        return stage_text("shuffle", {"seed": self.seed(seed)}, self, without=("own_seed",))


class Part(Moved):
    """One part of a split: a run of one order that is the same in every epoch."""

    call: str  # as the user wrote it
    start: int
    count: int
    seed: int | None  # None: not shuffled

    @property
    def length(self) -> int:
        return self.count

    @property
    def stage(self) -> str:
        return self.call

    def fingerprint(self, seed: int) -> str:
        return stage_text("split", {}, self, without=("call",))


class Sliced(Moved):
    """Positions start, start + step, ...; ``count`` of them (None: endless)."""

    start: int
    step: int
    count: int | None

    def __post_init__(self) -> None:
        last = self.start + ((self.count or 1) - 1) * self.step
        if self.input.length is None and last >= self.input.limit:
            raise ArgumentError(
                f"{self.stage} goes beyond the {self.input.limit} elements that can be numbered "
                "here: positions of records are below 2**62."
            )

    @property
    def length(self) -> int | None:
        return None if self.is_stream else self.count

    @cached_property
    def limit(self) -> int:
        if self.is_stream:
            return LIMIT
        if self.count is not None:
            return self.count
        return -(-(self.input.limit - self.start) // self.step)

    @cached_property
    def ends(self) -> bool:
        return self.count is not None or (self.is_stream and self.input.ends)

    @cached_property
    def uniform(self) -> bool:
        return self.input.uniform or (self.input.only_last_is_short and not self._has_last)

    @cached_property
    def short_batches(self) -> tuple[ShortBatches, ...] | None:
        known = self.input.short_batches
        if not known or self.step != 1:
            return () if self.uniform else None
        return known[0].among(self.start, self.count)

    @property
    def _has_last(self) -> bool:
        """Does the slice take the input's last element, the one that may be short?"""
        if self.input.length is None or self.count is None or self.count == 0:
            return False
        ends = (self.start, self.start + (self.count - 1) * self.step)
        return self.input.length - 1 in ends

    @property
    def stage(self) -> str:
        if self.step == 1 and self.start == 0 and self.count is not None:
            return f"take({self.count})"
        if self.step == 1 and (self.count is None or self._has_last):
            return f"skip({self.start})"
        stop = "" if self.count is None else self.start + self.count * self.step
        return f"[{self.start}:{stop}:{self.step}]"

    def fingerprint(self, seed: int) -> str:
        return stage_text("slice", {}, self)


class Picked(Moved):
    """The elements at given positions."""

    table: npt.NDArray[np.int64]

    @property
    def length(self) -> int:
        return len(self.table)

    @cached_property
    def seen(self) -> npt.NDArray[np.int64] | None:
        """How often each entry stood in the table before; None if never."""
        order = np.argsort(self.table, kind="stable")
        ordered = self.table[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        if len(starts) == len(ordered):
            return None
        run = np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
        seen = np.empty_like(self.table)
        seen[order] = np.arange(len(ordered)) - run
        return seen

    @property
    def repeats_here(self) -> int:
        return int(self.seen is not None)

    @cached_property
    def uniform(self) -> bool:
        last = -1 if self.input.length is None else self.input.length - 1
        return self.input.uniform or (self.input.only_last_is_short and last not in self.table)

    @property
    def stage(self) -> str:
        return f"[{len(self.table)} chosen]"

    def fingerprint(self, seed: int) -> str:
        return stage_text("pick", {"indices": self._indices}, self, without=("table",))

    @cached_property
    def _indices(self) -> Encoded:
        """Kept, since a table may have millions of entries, and every epoch asks."""
        return Encoded(encode(self.table))


class Repeated(Moved):
    epochs: int | None

    def __post_init__(self) -> None:
        if not self.input.ends:
            raise ChainError("repeat needs a dataset that ends; this one is endless already.")
        checked_length((self.input.length or 1) * (self.epochs or 1))

    @property
    def length(self) -> int | None:
        if self.epochs is None or self.input.length is None:
            return None
        return self.input.length * self.epochs

    @cached_property
    def limit(self) -> int:
        return LIMIT if self.length is None else self.length

    @cached_property
    def ends(self) -> bool:
        return self.epochs is not None

    @cached_property
    def rows(self) -> int | None:
        if self.epochs is None or self.input.rows is None:
            return None
        return self.input.rows * self.epochs

    @cached_property
    def rows_are_known(self) -> bool:
        return self.input.rows_are_known and self.input.rows is not None

    @cached_property
    def short_batches(self) -> tuple[ShortBatches, ...] | None:
        known, period = self.input.short_batches, self.input.length
        if not known or period is None:
            return () if self.uniform else None
        (short,) = known
        if short.every is None:  # once in every pass
            return short._replace(every=period).among(0, self.length)
        goes_round = period % short.every == 0  # across the border between two passes, too
        return short.among(0, self.length) if goes_round else None

    @property
    def repeats_here(self) -> int:
        return 1

    @property
    def stage(self) -> str:
        return "repeat()" if self.epochs is None else f"repeat({self.epochs})"
