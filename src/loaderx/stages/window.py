"""window: records at a fixed distance from each other, stacked as one, as for time series.

Only the first record of a window is in its address.  The others are found when it is read, so the
rows of a batch of windows are one gather, and windows take no memory before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from loaderx.chain.encoding import stage_text
from loaderx.chain.families import ByIndex, ChangesPlaces, OneInput
from loaderx.errors import ArgumentError, ChainError
from loaderx.order.epochs import LIMIT
from loaderx.reading.addresses import Addresses, SourceAddresses
from loaderx.reading.context import ReadContext
from loaderx.reading.operators import BatchOperator, OverRecords, RecordOperator, Request
from loaderx.reading.rows import Positions, Rows
from loaderx.reading.trails import Found, Sought, Traced, Trail, numbered
from loaderx.rng import Keys
from loaderx.tree import Array, ArraySpec, Tree, map_leaves


class Windowed(ByIndex, ChangesPlaces, OneInput):
    """``size`` records each, with ``gap`` others between two; one begins every ``stride``."""

    size: int
    stride: int = 1
    gap: int = 0

    unit_cost = "records"
    can_drop = False
    user_objects = ()
    is_one_dataset = True  # a window that cannot be read is replaced by another one

    def __post_init__(self) -> None:
        if self.input.batched:
            raise ChainError("window of batches: put .window(...) before .batch(...).")
        if self.input.is_stream:
            raise ChainError(
                "window of a stream: which records are neighbours is not known. Put .window(...) "
                "before the stage that makes the stream (filter, flat_map, pack, ...)."
            )
        for below in self.input.below():
            removes = below.removed is not None and below.removed.fill == "replace"
            replaces = removes or below.error_policy is not None
            if replaces or below.shuffle_span is not None or below.is_repeat:
                advice = 'Write fill="mask" there' if removes else "Put .window(...) before it"
                raise ChainError(
                    f"window after .{below.stage}: the records of a window would not be "
                    f"neighbours. {advice}."
                )
        if self.input.length is None:
            raise ChainError("window needs a dataset that ends: write .take(n) first.")
        if self.input.length < self.span:
            raise ArgumentError(
                f"{self.stage} spans {self.span} records, and there are {self.input.length}."
            )

    @property
    def span(self) -> int:
        """Records from the first to the last of a window."""
        return (self.size - 1) * (self.gap + 1) + 1

    @property
    def length(self) -> int:
        assert self.input.length is not None
        return (self.input.length - self.span) // self.stride + 1

    @cached_property
    def spec(self) -> Tree | None:
        below = self.input.spec
        return below and map_leaves(
            lambda leaf: ArraySpec((self.size, *leaf.shape), leaf.dtype), below
        )

    @property
    def stage(self) -> str:
        stride = "" if self.stride == 1 else f", stride={self.stride}"
        return f"window({self.size}{stride}{f', gap={self.gap}' if self.gap else ''})"

    def fingerprint(self, seed: int) -> str:
        return stage_text("window", {}, self)

    @property
    def repeats_here(self) -> int:
        return int(self.stride < self.span)

    def make_record_operator(self, request: Request) -> RecordOperator:
        full = None if request.full is None else request.full * self.size
        below = request.replace(stacked=True, guarded=False, full=full)
        return WindowRecords(self, self.input.record_operator(below))

    def batch_operator(self, request: Request) -> BatchOperator:
        raise AssertionError("its elements are records")


class WindowRecords(OverRecords[SourceAddresses]):
    """Windows, each addressed by its first record."""

    def __init__(self, node: Windowed, child: RecordOperator) -> None:
        super().__init__(node.stage, child)
        self.size, self.stride, self.length = node.size, node.stride, node.length
        self.places = np.arange(node.size) * (node.gap + 1)

    def locate(self, epochs: Keys, positions: Positions) -> SourceAddresses:
        return SourceAddresses(epochs, positions * self.stride)

    def _each(self, epochs: Keys, firsts: Positions) -> tuple[Keys, Positions]:
        """The records of all windows."""
        epochs = epochs if epochs.size == 1 else np.repeat(epochs, self.size)
        return epochs, np.add.outer(firsts, self.places).reshape(-1)

    def inner(self, addresses: SourceAddresses) -> Addresses:
        found: Addresses = self.child.resolve(*self._each(addresses.epochs, addresses.index))
        return found

    def read(self, addresses: SourceAddresses, context: ReadContext) -> Rows:
        inner, count = self.inner(addresses), len(addresses)
        rows = context.read(self.child, inner)
        tree = rows.columns(context.lend, self.stage, self.child.namer(inner))
        tree = map_leaves(lambda leaf: leaf.reshape(count, self.size, *leaf.shape[1:]), tree)
        return Rows.of_columns(tree, count)

    def keys(self, addresses: SourceAddresses) -> Keys:
        return self.child.keys(self.child.resolve(addresses.epochs, addresses.index))

    def index(self, addresses: SourceAddresses, number: int) -> tuple[int, str]:
        first = addresses.cut(number, number + 1)
        index, name = self.child.index(self.child.resolve(first.epochs, first.index), 0)
        return index, f"the window from {name}"

    def below(self, trail: Trail) -> Iterator[tuple[Traced, Trail]]:
        each = trail.pick(np.repeat(np.arange(len(trail.positions)), self.size))
        _, positions = self._each(trail.epochs, trail.positions * self.stride)
        order = each.order * self.size + np.arange(len(positions)) % self.size
        yield self.child, each._replace(positions=positions, order=order)

    def find_below(self, sought: Sought) -> Found:
        found = self.child.find(sought.within(np.full_like(sought.limits, LIMIT)))
        place, which = numbered(np.full(len(found.positions), self.size))
        firsts = found.positions[which] - self.places[place]
        windows, rest = np.divmod(firsts, self.stride)
        limits = np.minimum(sought.limits, self.length)
        return found.pick(which).at(np.where(rest == 0, windows, -1), limits)


def within_series(labels: Array, window: Windowed, stride: int) -> Positions:
    """The windows, of those that begin at every record, without one that holds two series.

    Every ``stride`` records of a series one begins.
    """
    begins = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
    series = np.repeat(begins, np.diff(np.r_[begins, len(labels)]))  # where that of each begins
    own = series[: window.length]
    is_whole = own == series[window.span - 1 :]
    found = np.flatnonzero(is_whole & ((np.arange(len(own)) - own) % stride == 0))
    if not len(found):
        raise ArgumentError(
            f"{window.stage} spans {window.span} records, and nowhere do {window.span} in a row "
            "have the same label in `groups`. Sort the records by series first."
        )
    return found
