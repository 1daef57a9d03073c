"""64-bit numbers as the 32-bit ones that JAX holds: a stage that a loader adds for devices.

Unless ``jax_enable_x64`` is set, JAX has no 64-bit numbers: it makes int64 to int32 and float64 to
float32 when an array is put on a device, in the thread that asks for it, and an integer that does
not fit comes out as another one.  Here the same is done by the worker that makes the batch, into a
recycled aligned buffer, and an integer that does not fit is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderx.chain.families import KeepsPlaces, MadeInUnits
from loaderx.errors import StackError
from loaderx.memory import Layout, Lend, Pool
from loaderx.reading.addresses import Addresses, Steps
from loaderx.reading.batch_readers import AfterBatch, BatchReader
from loaderx.reading.context import ReadContext
from loaderx.reading.operators import (
    BatchOperator,
    Gather,
    OverRecords,
    RecordOperator,
    Request,
    SourceRecords,
)
from loaderx.reading.rows import Positions, Record, Rows
from loaderx.reading.stacking import Padding
from loaderx.reading.unit_stage import UnitStage
from loaderx.rng import Keys
from loaderx.sources.base import Indices
from loaderx.tree import Array, Structure, Tree, as_array, flatten, is_array_like
from loaderx.tree_prefix import Prefix, spread

if TYPE_CHECKING:
    from loaderx.chain.stream_build import StreamBuild

_NARROW = {
    np.dtype(wide): np.dtype(narrow)
    for wide, narrow in (
        (np.int64, np.int32),
        (np.uint64, np.uint32),
        (np.float64, np.float32),
        (np.complex128, np.complex64),
    )
}


def has_wide(spec: Tree | None) -> bool:
    """Could batches of this description have leaves to be made narrow?"""
    return spec is None or any(leaf.dtype in _NARROW for leaf in flatten(spec)[0])


class Narrow:
    """Narrows the leaves that ``chosen``, a prefix of booleans, says."""

    def __init__(self, chosen: Prefix) -> None:
        self._chosen = chosen
        self._known: dict[Structure, list[bool]] = {}

    def __call__(self, batch: Tree, lend: Lend) -> Tree:
        leaves, structure = flatten(batch)
        chosen = self._known.get(structure)
        if chosen is None:
            chosen = self._known[structure] = spread(self._chosen, structure)
        wide = {
            number: array
            for number, leaf in enumerate(leaves)
            if chosen[number] and (array := _wide(leaf)) is not None
        }
        if not wide:
            return batch
        out = lend(Layout.of(*[(one.shape, _NARROW[one.dtype]) for one in wide.values()]))
        for (number, array), target in zip(wide.items(), out, strict=True):
            if target.dtype.kind in "iu":
                _check_fits(array, target.dtype, structure.paths()[number])
            with np.errstate(over="ignore"):  # beyond float32 is infinite, as JAX has it
                np.copyto(target, array, casting="unsafe")
            leaves[number] = target
        return structure.build(leaves)

    def __getstate__(self) -> dict[str, Any]:
        return {"_chosen": self._chosen, "_known": {}}


def _wide(leaf: Any) -> Array | None:
    """The leaf as an array, if JAX would make it narrow."""
    dtype = getattr(leaf, "dtype", None)
    if not isinstance(dtype, np.dtype):  # a list; a tensor of another library
        if not isinstance(leaf, list) and not is_array_like(leaf):
            return None
        try:
            leaf = as_array(leaf)
        except Exception:  # keys of JAX, say: placing knows them, or says what is wrong
            return None
        dtype = leaf.dtype
    return as_array(leaf) if dtype in _NARROW else None


def _check_fits(array: Array, dtype: np.dtype[Any], path: str) -> None:
    if not array.size:
        return
    limits, low, high = np.iinfo(dtype), int(array.min()), int(array.max())
    if limits.min <= low and high <= limits.max:
        return
    raise StackError(
        f"{f'leaf {path!r}' if path else 'the batch'} holds {low if low < limits.min else high}, "
        f"which does not fit into {dtype}, and JAX makes {array.dtype} to {dtype} unless "
        "jax_enable_x64 is set. Set it, or change the numbers in .map(), or leave them on the host "
        "(None in place of a sharding)."
    )


class Narrowed(MadeInUnits, KeepsPlaces):
    """The topmost stage of a loader with ``sharding``; no state and no description has it."""

    narrow: Narrow

    unit_cost = "nothing"
    can_drop = False
    user_objects = ()
    stage = "32-bit numbers"
    spec = None  # a loader tells that of the chain below

    def fingerprint(self, seed: int) -> str:
        return ""

    def make_record_operator(self, request: Request) -> RecordOperator:
        return NarrowRecords(self.stage, self.input.record_operator(request), self.narrow)

    def batch_operator(self, request: Request) -> BatchOperator:
        return NarrowBatches(self.stage, self.input.batch_operator(request), self.narrow)

    def unit_stage(self, build: StreamBuild) -> UnitStage:
        return NarrowInUnit(self.stage, self.narrow)

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        return NarrowAfterBatch(below, self.stage, self.narrow)


class NarrowRecords(OverRecords):
    """Of single records, read by index."""

    def __init__(self, stage: str, child: RecordOperator, narrow: Narrow) -> None:
        super().__init__(stage, child)
        self._narrow = narrow

    def locate(self, epochs: Keys, positions: Positions) -> Addresses:
        return self.child.resolve(epochs, positions)

    def read(self, addresses: Addresses, context: ReadContext) -> Rows:
        records = context.read(self.child, addresses).records()
        return Rows.of_records([self._narrow(record, context.lend) for record in records])

    @property
    def reads_each(self) -> bool:
        return self.child.reads_each

    def each(self, addresses: Addresses) -> Iterator[Record]:
        lend = Pool().lend
        for record in self.child.each(addresses):
            yield self._narrow(record, lend)
            del record  # its memory may be used again


class NarrowBatches(BatchOperator):
    """Of batches, read by index."""

    def __init__(self, stage: str, child: BatchOperator, narrow: Narrow) -> None:
        super().__init__(stage, child.size)
        self.child, self._narrow = child, narrow

    def locate(self, epochs: Keys, numbers: Positions) -> Steps:
        return self.child.steps(epochs, numbers)

    def locate_rows(self, epochs: Keys, positions: Positions) -> Addresses:
        return self.child.rows(epochs, positions)

    def read(self, addresses: Addresses, context: ReadContext) -> Tree:
        return self._narrow(context.read(self.child, addresses), context.lend)

    def source_records(self, addresses: Addresses) -> Iterator[SourceRecords]:
        return self.child.source_records(addresses)

    def keys(self, steps: Steps) -> Keys:
        return self.child.keys(steps)

    def row_keys(self, addresses: Addresses) -> Keys:
        return self.child.row_keys(addresses)

    def index(self, addresses: Addresses, number: int) -> tuple[int, str]:
        return self.child.index(addresses, number)

    def plain_gather(self) -> Gather | None:
        gather = self.child.plain_gather()
        return None if gather is None else partial(_narrow_gathered, gather, self._narrow)

    def shared_rows(self) -> int:
        return self.child.shared_rows()

    @property
    def padding(self) -> Padding:
        return self.child.padding

    def rows_below(self, addresses: Addresses) -> tuple[RecordOperator, Addresses]:
        return self.child.rows_below(addresses)


def _narrow_gathered(gather: Gather, narrow: Narrow, indices: Indices, lend: Lend) -> Tree:
    return narrow(gather(indices, lend), lend)


class NarrowInUnit(UnitStage):
    """Of the records of a stream without a batch."""

    is_one_to_one = True

    def __init__(self, stage: str, narrow: Narrow) -> None:
        super().__init__(stage)
        self._narrow = narrow

    def read(self, rows: Rows, context: ReadContext) -> Rows:
        made = [self._narrow(record, context.lend) for record in rows.records()]
        return rows.with_records(made)


class NarrowAfterBatch(AfterBatch):
    """Of the batches of a stream."""

    def __init__(self, below: BatchReader, stage: str, narrow: Narrow) -> None:
        super().__init__(below)
        self.stage, self._narrow = stage, narrow
        self._lend = Pool().lend

    def next(self) -> Rows | None:
        batch = self.below.next()
        if batch is None:
            return None
        return batch.with_columns(self.timed(self._narrow, batch.tree, self._lend))
