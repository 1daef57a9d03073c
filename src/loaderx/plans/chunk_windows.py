"""Windows over a source that decodes chunks: the rows that one worker makes alone.

A worker that makes a batch of such a chain needs all chunks of the batch's window, and so does any
other worker that makes a batch of that window.  So a worker is given the rows of a whole window:
one of a block shuffle, or a single chunk where the records come in their order.  Windows end where
blocks do, and batches do not: a batch that lies in two windows is joined from the rows of both.
Windows of few rows are made together, so that few batches have to be joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from loaderx.chain.families import Moved
from loaderx.chain.node import Node
from loaderx.reading.operators import Move
from loaderx.reading.rows import Positions
from loaderx.rng import BLOCK, ROOT, Keys, fold
from loaderx.sources.base import Indices
from loaderx.stages import nodes as stages

ROWS_AT_ONCE = 1 << 15  # rows whose windows are looked up together
LEAST_STEPS = 4  # a task has the rows of at least so many steps

RowRange = tuple[int, int, int, int]
"""The first row, as its step and its place in it; and the row behind the last one."""


def chunk_windows(node: Node, shard: tuple[int, int]) -> ChunkWindows | None:
    """The windows of a chain; None if it is not made of windows of chunks."""
    if not node.batched or node.is_stream or node.random_access:
        return None
    seed = node.default_seed()
    above: list[Moved] = []  # stages that move batches
    below: list[Moved] = []  # stages that move records, above the shuffle
    cut: stages.Batched | None = None
    while not isinstance(node, stages.BlockShuffled | stages.FromSource):
        if isinstance(node, stages.Batched):
            cut = node
        elif isinstance(node, stages.Repeated | stages.Sliced):
            if isinstance(node, stages.Sliced) and node.step != 1:
                return None
            (above if cut is None else below).append(node)
        elif not node.keeps_places:
            return None
        if len(node.inputs) != 1:
            return None
        node = node.inputs[0]
    if cut is None:
        return None
    order: Windowed
    if isinstance(node, stages.BlockShuffled):
        order = node.move(seed)
    elif node.block_starts is not None:
        order = SourceOrder(node.block_starts)
    else:
        return None
    moves = [each.move(seed) for each in above], [each.move(seed) for each in below]
    return ChunkWindows(cut, *moves, order, shard)


class Windowed(Protocol):
    """An order whose windows are known."""

    def windows(self, epochs: Keys, positions: Positions) -> Keys:
        """A number for the window of each position."""
        ...


class SourceOrder:
    """Records as they come: each chunk is a window."""

    def __init__(self, starts: Indices) -> None:
        self._starts = starts

    def windows(self, epochs: Keys, positions: Positions) -> Keys:
        chunks = np.searchsorted(self._starts, positions, side="right")
        return fold(epochs, chunks, BLOCK)


class ChunkWindows:
    """Cuts the rows of consecutive steps into windows."""

    def __init__(
        self,
        cut: stages.Batched,
        above: list[Move],
        below: list[Move],
        order: Windowed,
        shard: tuple[int, int],
    ) -> None:
        self.cut = cut
        host, hosts = shard
        self._first = cut.size * host // hosts
        self._width = cut.size * (host + 1) // hosts - self._first
        self._records = None if cut.uniform else cut.input.length
        self._above, self._below, self._order = above, below, order

    def ranges(self, steps: range) -> Iterator[RowRange]:
        """The rows of these steps, one window after the other."""
        begin, last = (steps.start, 0), None
        began = before = 0  # rows before this range, and before those that are looked up
        at_once = max(1, ROWS_AT_ONCE // self._width)
        for first in range(steps.start, steps.stop, at_once):
            numbers = np.arange(first, min(first + at_once, steps.stop))
            windows, starts = self._windows(numbers)
            borders = np.flatnonzero(windows[1:] != windows[:-1]) + 1
            if last is not None and len(windows) and windows[0] != last:
                borders = np.insert(borders, 0, 0)
            last = windows[-1] if len(windows) else last
            places = np.searchsorted(starts, borders, side="right") - 1
            for border, place in zip(borders.tolist(), places.tolist(), strict=True):
                if before + border - began >= LEAST_STEPS * self._width:
                    end = (first + place, border - int(starts[place]))
                    yield (*begin, *end)
                    begin, began = end, before + border
            before += len(windows)
        if begin[0] < steps.stop:
            yield (*begin, steps.stop, 0)

    def _windows(self, steps: Positions) -> tuple[Keys, Positions]:
        """The window of each row of these steps, and where the rows of each step begin."""
        epochs = ROOT
        for move in self._above:
            epochs, steps = move.steps(epochs, steps)
        begins = steps * self.cut.size + self._first
        positions = np.add.outer(begins, np.arange(self._width))
        counts = np.full(len(steps), self._width)
        if self._records is not None:
            counts = np.clip(self._records - begins, 0, self._width)
        is_real = np.arange(self._width) < counts[:, None]
        if epochs.size > 1:
            epochs = np.repeat(epochs, self._width)[is_real.reshape(-1)]
        rows = positions[is_real]
        for move in self._below:
            epochs, rows = move.steps(epochs, rows)
        return self._order.windows(epochs, rows), np.cumsum(counts) - counts
