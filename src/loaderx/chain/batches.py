"""Stages between records and batches."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from loaderx.chain.base import LIMIT, Node, ShortBatches, Single
from loaderx.chain.encoding import stage_text
from loaderx.chain.transforms import Transformed
from loaderx.errors import ArgumentError, ChainError
from loaderx.stages.stacking import NO_PADDING, Padding
from loaderx.tree import ArraySpec, Tree, map_leaves


class Batched(Single):
    size: int
    drop_remainder: bool = False
    pad_remainder: bool = False
    mask_key: str = "mask"
    padding: Padding = NO_PADDING
    collate: Any = None
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.size % self.lanes:
            raise ArgumentError(
                f"batch({self.size}, lanes={self.lanes}): the lanes must divide the batch, since "
                "each gives the same number of rows."
            )
        if self.lanes > 1 and not self.input.is_stream:
            raise ChainError(
                f"lanes={self.lanes} is for streams (after filter, flat_map, pack, ...). This "
                "dataset can be cut for any number of hosts as it is: leave `lanes` out."
            )
        if self.input.batched:
            advice = "Write .unbatch() before .batch(...) to cut them anew."
            if self.input.is_stream:
                advice = "Leave one of the two out."
            raise ChainError(f"batch after batch: the elements are batches already. {advice}")
        if self.size > self.input.limit and self.length is None:
            raise ArgumentError(
                f"batch({self.size}): the rows of a batch must have numbers below 2**62."
            )
        if self.length == 0:
            raise ArgumentError(
                f"batch({self.size}, drop_remainder=True) over {self.input.length} records leaves "
                "an empty stream. Use a smaller batch, pad_remainder=True, or .repeat() before it."
            )

    @cached_property
    def length(self) -> int | None:
        records = self.input.length
        if records is None:
            return None
        return records // self.size if self.drop_remainder else -(-records // self.size)

    @cached_property
    def limit(self) -> int:
        if self.is_stream:
            return LIMIT
        return self.input.limit // self.size if self.length is None else self.length

    @cached_property
    def batched(self) -> bool:
        return True

    @cached_property
    def batch_size(self) -> int:
        return self.size

    @cached_property
    def uniform(self) -> bool:
        records = self.input.length
        if records is None:
            return self.drop_remainder or not self.input.ends
        return self.drop_remainder or records % self.size == 0

    @cached_property
    def only_last_is_short(self) -> bool:
        return True

    @cached_property
    def rows_are_known(self) -> bool:
        return True

    @cached_property
    def short_batches(self) -> tuple[ShortBatches, ...] | None:
        records, last = self.input.length, self.length
        if self.uniform or records is None or last is None:
            return () if self.uniform else None
        return (ShortBatches(last - 1, None, records % self.size, self.pad_remainder),)

    @property
    def can_be_short(self) -> bool:
        return not (self.uniform or self.pad_remainder)

    @cached_property
    def rows(self) -> int | None:
        records = self.input.length
        if records is None or not self.drop_remainder:
            return records
        return records // self.size * self.size

    @cached_property
    def spec(self) -> Tree | None:
        if self.input.spec is None or self.collate or self.padding.lengths:
            return None
        rows = None if self.can_be_short else self.size
        spec = map_leaves(lambda leaf: ArraySpec((rows, *leaf.shape), leaf.dtype), self.input.spec)
        if self.pad_remainder and isinstance(spec, dict):
            spec = {**spec, self.mask_key: ArraySpec((rows,), np.dtype(np.bool_))}
        return spec

    @property
    def stage(self) -> str:
        more = [
            f"{name}={value!r}"
            for name, value in (
                ("drop_remainder", self.drop_remainder),
                ("pad_remainder", self.pad_remainder),
                ("pad_to", dict(self.padding.lengths)),
                ("collate_fn", getattr(self.collate, "__name__", self.collate)),
                ("lanes", self.lanes if self.lanes > 1 else None),
            )
            if value
        ]
        return f"batch({', '.join([str(self.size), *more])})"

    def fingerprint(self, seed: int) -> str:
        return stage_text(
            "batch",
            {},
            self,
            self.padding,
            without=("padding", "collate"),
            renamed={"lengths": "pad_to", "value": "pad_value"},
        )


class Unbatched(Single):
    def __post_init__(self) -> None:
        if not self.input.batched:
            raise ChainError("unbatch needs batches: there is no .batch(...) before it.")
        if self.input.is_stream:
            raise ChainError(
                "unbatch of a stream: leave .batch(...) out. Functions get stacked runs of records "
                "with batched=True."
            )
        for node in self.input.below():
            if node is self.input or node.batched:
                self._check(node)
        if not self.input.rows_are_known:
            raise ChainError(
                "unbatch: a short last batch was moved from its place. Use batch(..., "
                "drop_remainder=True) before reordering batches, or unbatch first."
            )

    @staticmethod
    def _check(node: Node) -> None:
        if len(node.inputs) > 1 or not node.is_stage:
            raise ChainError(
                "unbatch after joining batched datasets: write .unbatch() on each of them, "
                "then join the records."
            )
        if isinstance(node, Transformed) and node.kind == "map_with_index":
            raise ChainError(
                "unbatch after map_with_index on batches: records have no batch index. "
                "Put map_with_index before .batch(...)."
            )

    @property
    def length(self) -> int | None:
        return self.input.rows

    @cached_property
    def limit(self) -> int:
        if self.length is not None:
            return self.length
        return min(LIMIT, self.input.limit * (self.input.batch_size or 1))

    @cached_property
    def batched(self) -> bool:
        return False

    @cached_property
    def batch_size(self) -> int | None:
        return None

    @cached_property
    def uniform(self) -> bool:
        return False

    @cached_property
    def spec(self) -> Tree | None:
        below = self.input.spec
        return below and map_leaves(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype), below)

    @property
    def stage(self) -> str:
        return "unbatch()"
