"""cache: what stands below is made once, and read from then on.

The rows are kept in shared memory (`row_store`), or they are read from a folder into which the
dataset was saved.  A stream is the same with and without it: random stages above find the same
keys, and a saved state says nothing of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from loaderx.errors import ChainError, RecordError
from loaderx.memory import Lend, Pool
from loaderx.reading.addresses import Addresses, SourceAddresses
from loaderx.reading.context import ReadContext
from loaderx.reading.operators import (
    BatchOperator,
    Gather,
    OverRecords,
    RecordOperator,
    Request,
    SourceRecords,
)
from loaderx.reading.row_memory import IN_COLUMNS, MISSING, Flags
from loaderx.reading.row_store import RowStore
from loaderx.reading.rows import Positions, Record, Rows
from loaderx.rng import ROOT, Keys
from loaderx.sources import Source
from loaderx.stages.families import ByIndex, KeepsPlaces
from loaderx.stages.inputs import ReadSource
from loaderx.stages.node import Node
from loaderx.tree import Tree

_SAMPLE = 16  # records from which it is known whether all have one shape


class Cached(ByIndex, KeepsPlaces):
    """Keeps the records of its input."""

    kept: RowStore | Source  # in memory, or saved in a folder

    window = None
    unit_cost = "nothing"
    can_drop = False
    is_ordered = False

    @property
    def stage(self) -> str:
        return "cache()" if isinstance(self.kept, RowStore) else f"cache({self.kept.label()})"

    def fingerprint(self, seed: int) -> str:
        return ""  # the stream is the same without it

    @property
    def random_access(self) -> bool:
        return not isinstance(self.kept, RowStore) or self.input.random_access

    @property
    def user_objects(self) -> tuple[tuple[str, object], ...]:
        return () if isinstance(self.kept, RowStore) else ((self.stage, self.kept),)

    def make_record_operator(self, request: Request) -> RecordOperator:
        kept = self.kept
        below = self.input.record_operator(
            request.replace(stacked=request.stacked or isinstance(kept, RowStore))
        )
        if isinstance(kept, RowStore):
            return KeepRows(self.stage, below, kept, random_access=self.input.random_access)
        return ReadSaved(self.stage, below, kept, stacked=request.stacked)

    def batch_operator(self, request: Request) -> BatchOperator:
        raise AssertionError("its elements are records")


def check_cacheable(node: Node) -> None:
    """Refuses what cannot be kept by position."""
    if node.batched:
        raise ChainError("cache after batch: it keeps records. Put .cache() before .batch(...).")
    if node.is_stream:
        raise ChainError(
            "cache of a stream: its records have no numbers by which they could be found. Put "
            ".cache() before the stage that makes the stream (filter, flat_map, pack, ...), or "
            "save it, .save(folder), and open that."
        )
    if node.length is None or node.repeats:
        raise ChainError("cache after repeat: put .repeat() after .cache().")
    for below in node.below():
        if below.is_random:
            raise ChainError(
                f"cache above {below.stage}: caching would freeze the augmentation, or the order, "
                f"of the first epoch. Put .cache() before it."
            )


class CachedAddresses:
    """Rows with the positions under which they are kept; -1 for one that took another's place."""

    __slots__ = ("index", "inner")

    def __init__(self, inner: Addresses, index: Positions) -> None:
        self.inner, self.index = inner, index

    def __len__(self) -> int:
        return len(self.index)

    def cut(self, start: int, stop: int) -> CachedAddresses:
        return CachedAddresses(self.inner.cut(start, stop), self.index[start:stop])


class OverKept(OverRecords):
    """The base of operators that keep rows by position."""

    def locate(self, epochs: Keys, positions: Positions) -> CachedAddresses:
        return CachedAddresses(self.child.resolve(epochs, positions), positions)

    def keys(self, addresses: CachedAddresses) -> Keys:
        return self.child.keys(addresses.inner)

    def index(self, addresses: CachedAddresses, number: int) -> tuple[int, str]:
        return self.child.index(addresses.inner, number)

    def relocate(self, addresses: CachedAddresses, attempt: int) -> CachedAddresses:
        other = self.child.relocate(addresses.inner, attempt)
        return CachedAddresses(other, np.full(len(addresses), -1, np.int64))


class KeepRows(OverKept):
    """Keeps rows in shared memory when they are read for the first time."""

    def __init__(
        self, stage: str, child: RecordOperator, store: RowStore, *, random_access: bool
    ) -> None:
        super().__init__(stage, child)
        self.store, self.random_access = store, random_access

    def read(self, addresses: CachedAddresses, context: ReadContext) -> Rows:
        store, positions = self.store, addresses.index
        if not store.is_ready:
            if not store.may_begin or (len(addresses) == 1 and store.is_first_look()):
                return context.read(self.child, addresses.inner)
            self._prepare(context.lend)
        flags = store.find(positions)
        if (flags == IN_COLUMNS).all():
            return Rows.of_columns(store.gather(positions, context.lend), len(positions))
        if not flags.any():
            rows = context.read(self.child, addresses.inner)
            store.put(positions, rows)
            return rows
        try:
            return Rows.of_records(self._mended(addresses, flags, context))
        except LookupError:  # kept by another process, whose classes this one does not have
            return context.read(self.child, addresses.inner)

    def _mended(
        self, addresses: CachedAddresses, flags: Flags, context: ReadContext
    ) -> list[Record]:
        """Rows of which some are missing: runs of these are read and kept."""
        found: list[Record] = []
        for is_missing, start, stop in _runs(flags):
            positions = addresses.index[start:stop]
            if not is_missing:
                found += self.store.records(positions, flags[start:stop])
                continue
            rows = context.read(self.child, addresses.inner.cut(start, stop))
            self.store.put(positions, rows)
            found += rows.records()
        return found

    def source_records(self, addresses: CachedAddresses) -> Iterator[SourceRecords]:
        if not self.store.is_ready:
            yield from self.child.source_records(addresses.inner)
            return
        for is_missing, start, stop in _runs(self.store.find(addresses.index)):
            if is_missing:
                yield from self.child.source_records(addresses.inner.cut(start, stop))

    def _prepare(self, lend: Lend) -> None:
        """Takes memory for rows such as some that are spread over the dataset, and keeps these."""
        count = min(_SAMPLE, self.store.count)
        positions = np.arange(count)
        if self.random_access:
            positions = positions * self.store.count // count
        for source, indices in self.child.source_records(self.child.resolve(ROOT, positions)):
            with contextlib.suppress(Exception):  # together; reading them would fetch one by one
                source.fetch(indices)
        found, sample = [], []
        for position in positions:
            address = self.child.resolve(ROOT, np.array([position]))
            with contextlib.suppress(RecordError):  # it is reported where that row is read
                sample += ReadContext(lend).read(self.child, address).records()
                found.append(position)
        self.store.prepare(sample)
        if found:
            self.store.put(np.array(found), Rows.of_records(sample))

    def gather_of(self, width: int) -> Gather | None:
        return self._gather

    def _gather(self, positions: Positions, lend: Lend) -> Tree:
        if not self.store.is_uniform:
            raise LookupError("some of the rows must be made: the general way does it")
        return self.store.gather(positions, lend)

    def __getstate__(self) -> dict[str, object]:
        # On the way to worker processes, which share the memory: it must be there before.
        if not self.store.is_ready:
            self._prepare(Pool().lend)
        return self.__dict__


def _runs(flags: Flags) -> Iterator[tuple[bool, int, int]]:
    """Runs of rows that are missing, and of rows that are not: from one place to another."""
    is_missing = flags == MISSING
    borders = [0, *(np.flatnonzero(np.diff(is_missing)) + 1).tolist(), len(flags)]
    for start, stop in pairwise(borders):
        yield bool(is_missing[start]), start, stop


class ReadSaved(OverKept):
    """Reads rows from the folder in which they were saved."""

    def __init__(self, stage: str, child: RecordOperator, source: Source, *, stacked: bool) -> None:
        super().__init__(stage, child)
        self.saved = ReadSource(source, stacked=stacked)

    def read(self, addresses: CachedAddresses, context: ReadContext) -> Rows:
        if (addresses.index < 0).any():
            return context.read(self.child, addresses.inner)
        return context.read(self.saved, SourceAddresses(ROOT, addresses.index))

    def source_records(self, addresses: CachedAddresses) -> Iterator[SourceRecords]:
        if (addresses.index < 0).any():
            return self.child.source_records(addresses.inner)
        return self.saved.source_records(SourceAddresses(ROOT, addresses.index))

    def gather_of(self, width: int) -> Gather | None:
        return self.saved.gather_of(width)
