"""shuffle with blocks: blocks of records in random order, then the records of each window."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from loaderx.chain.encoding import stage_text
from loaderx.chain.families import MovedByIndex
from loaderx.chain.numbers import BlockSize
from loaderx.errors import ArgumentError, ChainError
from loaderx.order.blocks import Blocks, EqualBlocks, UnequalBlocks, shuffle_inside
from loaderx.reading.operators import Move
from loaderx.reading.rows import Positions
from loaderx.reading.unit_plan import UnitBounds
from loaderx.rng import BLOCK, ORDER, Keys, fold, fold_int
from loaderx.stages.seed import seed_of


class BlockShuffled(MovedByIndex):
    """Shuffles blocks of consecutive elements, anew in every epoch; then windows of the result."""

    block: BlockSize
    span: int | None = None  # elements in a window; None: each block stays in order
    own_seed: int | None = None

    is_random = True

    def __post_init__(self) -> None:
        if self.input.is_stream:
            window = "" if self.span is None else f", and .shuffle(window={self.span}) after it"
            raise ChainError(
                f"shuffle(block={self.block!r}) needs a dataset whose length is known: put it "
                f"before the stage that makes it a stream (filter, flat_map, pack, ...){window}."
            )
        if self.input.length is None:
            raise ChainError(
                f"shuffle(block={self.block!r}) needs a dataset that ends: put it before .repeat()."
            )
        if self.block == "source":
            self._check_source()
        else:
            _check_sizes(self.block, self.span, self.input.length)

    def _check_source(self) -> None:
        if self.input.block_starts is not None:
            return
        if self.batched:
            raise ChainError(
                'shuffle(block="source") moves blocks of records: put it before .batch(...).'
            )
        raise ChainError(
            'shuffle(block="source") needs a source that says its blocks, such as the row groups '
            "of Parquet files, chunks of HDF5 or the shards of a dataset, with nothing but maps, "
            "slices and concatenate in between. Here there are none: say how many records make a "
            "block, .shuffle(block=1000, window=10_000)."
        )

    @property
    def stage(self) -> str:
        seed = "" if self.own_seed is None else f"seed={self.own_seed}, "
        window = "" if self.span is None else f", window={self.span}"
        block = '"source"' if self.block == "source" else self.block
        return f"shuffle({seed}block={block}{window})"

    def fingerprint(self, seed: int) -> str:
        values: dict[str, object] = {"seed": seed_of(self.own_seed, seed)}
        if self.block == "source":  # the order depends on where the blocks begin
            values["blocks"] = self.input.block_starts
        return stage_text(
            "shuffle", values, self, without=("own_seed",), renamed={"span": "window"}
        )

    @property
    def shuffle_span(self) -> int | None:
        return self.length

    def batch_rows_before(self, step: int) -> int:
        return self.input.batch_rows_before(step)

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks, in the order of any epoch."""
        if self.block != "source":
            assert self.length is not None
            return EqualBlocks(self.length, self.block)
        assert self.input.block_starts is not None
        return UnequalBlocks(self.input.block_starts)

    @property
    def shuffled_blocks(self) -> BlockShuffled:
        return self

    def whole_windows(self, least: int) -> int:
        """The approximate size of whole windows that hold ``least`` elements, and a block."""
        size = self.span or self.blocks.least
        return -(-max(least, self.blocks.largest) // size) * size

    def unit_bounds(self, seed: int, rows: int) -> UnitBounds:
        """Where units of about ``rows`` elements begin and end."""
        return self.move(seed).in_windows_of(rows)

    def move(self, seed: int) -> BlockShuffle:
        return BlockShuffle(
            self.blocks, self.span, seed_of(self.own_seed, seed), self.random_stages
        )


def _check_sizes(block: int, window: int | None, length: int) -> None:
    if block > length > 0:
        raise ArgumentError(
            f"shuffle(block={block}): there are {length} records, so they are one block, and no "
            "block would move. Use smaller blocks, or .shuffle() for all records."
        )
    if window is None or window % block == 0:
        return
    if window < block:
        raise ArgumentError(
            f"shuffle(block={block}, window={window}): a window is made of whole blocks, so it "
            f"cannot be smaller than one. Write window={block} or a multiple of it."
        )
    less = window // block * block
    raise ArgumentError(
        f"shuffle(block={block}, window={window}): a window is made of whole blocks, so it must be "
        f"a multiple of {block}. Write window={less} or window={less + block}."
    )


class BlockShuffle(Move):
    """Where the elements of shuffled blocks, and of windows of them, are found."""

    def __init__(self, blocks: Blocks, window: int | None, seed: int, ordinal: int) -> None:
        self.blocks, self.window = blocks, window
        self.stage = np.array([fold_int(seed, ordinal, ORDER)], np.uint64)

    def steps(self, epochs: Keys, positions: Positions) -> tuple[Keys, Positions]:
        if not positions.size:
            return epochs, positions
        order = fold(epochs, self.stage, BLOCK)
        positions = self._in_windows(epochs, order, positions, undo=False)
        return epochs, self.blocks.find(order, positions)

    def back(self, epochs: Keys, positions: Positions) -> Positions:
        if not positions.size:
            return positions
        order = fold(epochs, self.stage, BLOCK)
        positions = self.blocks.places(order, positions)
        return self._in_windows(epochs, order, positions, undo=True)

    def _in_windows(
        self, epochs: Keys, order: Keys, positions: Positions, *, undo: bool
    ) -> Positions:
        """The positions within shuffled blocks, before or after their windows are shuffled."""
        if self.window is None:
            return positions
        number, start, size = self.blocks.windows(order, positions, self.window)
        keys = fold(fold(epochs, self.stage, ORDER), number, ORDER)
        return start + shuffle_inside(positions - start, size, keys, undo=undo)

    def windows(self, epochs: Keys, positions: Positions) -> Keys:
        """A number for the window of each position, another one in every epoch.

        Without windows, each block is one.
        """
        order = fold(epochs, self.stage, BLOCK)
        found = self.blocks.windows(order, positions, self.window or self.blocks.least)
        return fold(order, found.number, BLOCK)

    def in_windows_of(self, size: int) -> WholeWindows:
        """The bounds of larger windows, a multiple of its own."""
        return WholeWindows(self, size)


class WholeWindows:
    """Runs of whole windows, each about ``size`` elements long."""

    def __init__(self, order: BlockShuffle, size: int) -> None:
        self._order, self._size = order, size

    def bounds(self, epoch: Keys, number: int) -> tuple[int, int]:
        """Where a run begins and ends in an epoch; it may be empty."""
        order = self._order
        return order.blocks.bounds(fold(epoch, order.stage, BLOCK), number, self._size)
