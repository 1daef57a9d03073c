"""The operators of `cache`: rows by position, kept when they are read for the first time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from loaderx.errors import RecordError
from loaderx.memory import Lend, Pool
from loaderx.reading.addresses import Addresses, SourceAddresses
from loaderx.reading.context import ReadContext
from loaderx.reading.operators import Gather, OverRecords, RecordOperator, SourceRecords
from loaderx.reading.row_memory import IN_COLUMNS, MISSING, Flags, RowMemory
from loaderx.reading.row_store import RowStore
from loaderx.reading.rows import Positions, Record, Rows
from loaderx.reading.stored_rows import decoded_rows, encoded_rows, is_plain
from loaderx.rng import ROOT, Keys
from loaderx.sources import Source
from loaderx.sources.columns.data import ColumnType
from loaderx.sources.columns.record_columns import Encoded
from loaderx.sources.columns.widening import settled, widened
from loaderx.sources.native.row_folder import RowFolder
from loaderx.sources.native.row_parts import saved_source
from loaderx.sources.native.save_parts import merged_types
from loaderx.stages.inputs import ReadSource
from loaderx.tree import Tree

_SAMPLE = 16  # records to look at, to see whether all have one shape


class CachedAddresses:
    """Rows with the positions under which they are kept; -1 for a row that replaces another."""

    __slots__ = ("index", "inner")

    def __init__(self, inner: Addresses, index: Positions) -> None:
        self.inner, self.index = inner, index

    def __len__(self) -> int:
        return len(self.index)

    def cut(self, start: int, stop: int) -> CachedAddresses:
        return CachedAddresses(self.inner.cut(start, stop), self.index[start:stop])


class OverKept(OverRecords[CachedAddresses]):
    """The base of operators that keep rows by position.

    With ``is_guarded`` there is an `on_error` or a `without` below, which draws another replacement
    in each epoch: that of the first epoch is kept, no matter in which epoch a row is first read.
    """

    def __init__(self, stage: str, child: RecordOperator, *, is_guarded: bool) -> None:
        super().__init__(stage, child)
        self.is_guarded = is_guarded

    def make(self, addresses: CachedAddresses, context: ReadContext) -> Rows:
        """The rows to keep."""
        inner = addresses.inner
        if self.is_guarded and (addresses.index >= 0).all():
            inner = self.child.resolve(ROOT, addresses.index)
        return context.read(self.child, inner)

    def records_below(
        self, addresses: CachedAddresses, is_missing: npt.NDArray[np.bool_]
    ) -> Iterator[SourceRecords]:
        """The source records that are read to make the missing rows."""
        for start, stop, missing in missing_runs(is_missing):
            if missing:
                yield from self.child.source_records(addresses.inner.cut(start, stop))

    def locate(self, epochs: Keys, positions: Positions) -> CachedAddresses:
        return CachedAddresses(self.child.resolve(epochs, positions), positions)

    def inner(self, addresses: CachedAddresses) -> Addresses:
        return addresses.inner

    def relocate(self, addresses: CachedAddresses, attempt: int) -> CachedAddresses:
        other = self.child.relocate(addresses.inner, attempt)
        return CachedAddresses(other, np.full(len(addresses), -1, np.int64))


def missing_runs(is_missing: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int, bool]]:
    """Runs of rows that are all kept, or all missing."""
    borders = [0, *(np.flatnonzero(np.diff(is_missing)) + 1).tolist(), len(is_missing)]
    for start, stop in pairwise(borders):
        yield start, stop, bool(is_missing[start])


class KeepRows(OverKept):
    """Keeps rows in shared memory when they are read for the first time."""

    def __init__(
        self,
        stage: str,
        child: RecordOperator,
        store: RowStore,
        *,
        is_guarded: bool,
        random_access: bool,
    ) -> None:
        super().__init__(stage, child, is_guarded=is_guarded)
        self.store, self.random_access = store, random_access

    def read(self, addresses: CachedAddresses, context: ReadContext) -> Rows:
        store, positions = self.store, addresses.index
        if not store.is_ready:
            if not store.may_begin or (len(addresses) == 1 and store.is_first_look()):
                return self.make(addresses, context)
            self._prepare(context.lend)
        flags = store.find(positions)
        if store.gives_columns and (flags == IN_COLUMNS).all():
            return Rows.of_columns(store.gather(positions, context.lend), len(positions))
        if not flags.any():
            rows = self.make(addresses, context)
            store.put(positions, rows)
            return rows
        try:
            return Rows.of_records(self._mended(addresses, flags, context))
        except LookupError:  # kept by another process, of a class that this one does not have
            return self.make(addresses, context)

    def _mended(
        self, addresses: CachedAddresses, flags: Flags, context: ReadContext
    ) -> list[Record]:
        """Rows of which some are missing: these are read, run by run, and kept."""
        found: list[Record] = []
        for start, stop, is_missing in missing_runs(flags == MISSING):
            positions = addresses.index[start:stop]
            if not is_missing:
                found += self.store.records(positions, flags[start:stop])
                continue
            rows = self.make(addresses.cut(start, stop), context)
            self.store.put(positions, rows)
            found += rows.records()
        return found

    def source_records(self, addresses: CachedAddresses) -> Iterator[SourceRecords]:
        if not self.store.is_ready:
            return self.child.source_records(addresses.inner)
        return self.records_below(addresses, self.store.find(addresses.index) == MISSING)

    def _prepare(self, lend: Lend) -> None:
        """Reads and keeps a sample of rows from all over the dataset, and takes memory by it."""
        count = min(_SAMPLE, self.store.count)
        positions = np.arange(count)
        if self.random_access:
            positions = positions * self.store.count // count
        for source, indices in self.child.source_records(self.child.resolve(ROOT, positions)):
            with contextlib.suppress(Exception):  # fetched together, not one by one when read
                source.fetch(indices)
        kept, sample = [], []
        for position in positions:
            address, context = self.child.resolve(ROOT, np.array([position])), ReadContext(lend)
            with contextlib.suppress(RecordError):  # reported when that row is read
                sample += context.read(self.child, address).records()
                # A row that `on_error` has replaced is made, and counted, when it is read.
                kept += [] if context.failures else [(position, sample[-1])]
        self.store.prepare(sample)
        if kept:
            places, records = zip(*kept, strict=True)
            self.store.put(np.array(places), Rows.of_records(list(records)))

    def gather_of(self, width: int) -> Gather | None:
        store = self.store
        memory: RowMemory | None = None
        take: Gather | None = None

        def gather(positions: Positions, lend: Lend) -> Tree:
            nonlocal memory, take
            if take is None or store.uniform is not memory:  # it was copied for worker processes
                memory = store.uniform
                if memory is None:
                    raise LookupError("some of the rows must be made: the general way does it")
                take = memory.gatherer(width)
            return take(positions, lend)

        return gather

    def __getstate__(self) -> dict[str, object]:
        # Pickled for worker processes, which share the memory: it must exist before.
        if not self.store.is_ready:
            self._prepare(Pool().lend)
        return self.__dict__


class ReadSaved(OverKept):
    """Reads rows from the folder in which they were saved."""

    def __init__(
        self, stage: str, child: RecordOperator, source: Source, *, is_guarded: bool, stacked: bool
    ) -> None:
        super().__init__(stage, child, is_guarded=is_guarded)
        self.saved = ReadSource(source, stacked=stacked)

    def read(self, addresses: CachedAddresses, context: ReadContext) -> Rows:
        if (addresses.index < 0).any():
            return as_stored(self.make(addresses, context), addresses.index, context)
        return context.read(self.saved, SourceAddresses(ROOT, addresses.index))

    def source_records(self, addresses: CachedAddresses) -> Iterator[SourceRecords]:
        if (addresses.index < 0).any():
            return self.child.source_records(addresses.inner)
        return self.saved.source_records(SourceAddresses(ROOT, addresses.index))

    def gather_of(self, width: int) -> Gather | None:
        return self.saved.gather_of(width)


def as_stored(rows: Rows, positions: Positions, context: ReadContext) -> Rows:
    """Rows as a folder would return them."""
    found = encoded_rows(rows, positions)
    return _handed_out(rows, found, found.kind, context)


def _handed_out(rows: Rows, found: Encoded, known: ColumnType, context: ReadContext) -> Rows:
    """Rows as a folder with records of type ``known`` returns them."""
    if rows.is_stacked and is_plain(found.kind):
        return rows
    kind = settled(known)
    return decoded_rows(Encoded(kind, widened(found.data, found.kind, kind)), context.lend)


class FillFolder(OverKept):
    """Keeps rows in a folder when they are read for the first time.

    `read` returns what the folder holds, so that a row is the same when it is made and when it is
    read again.  As soon as the folder has all rows, it is saved, and read as by `ReadSaved`.
    """

    def __init__(
        self,
        stage: str,
        child: RecordOperator,
        folder: RowFolder,
        *,
        is_guarded: bool,
        stacked: bool,
    ) -> None:
        super().__init__(stage, child, is_guarded=is_guarded)
        self.folder, self.stacked = folder, stacked
        self.saved: ReadSource | None = None

    def read(self, addresses: CachedAddresses, context: ReadContext) -> Rows:
        positions = addresses.index
        if self._is_saved() and self.saved is not None and (positions >= 0).all():
            return context.read(self.saved, SourceAddresses(ROOT, positions))
        is_missing = self.folder.find(positions)
        if is_missing.all():
            return self._made(addresses, context)
        if not is_missing.any():
            return self._found(addresses, context)
        found: list[Record] = []
        for start, stop, missing in missing_runs(is_missing):
            read = self._made if missing else self._found
            found += read(addresses.cut(start, stop), context).records()
        return Rows.of_records(found)

    def source_records(self, addresses: CachedAddresses) -> Iterator[SourceRecords]:
        if self.saved is not None:
            return iter(())  # the folder is on this machine
        return self.records_below(addresses, self.folder.is_missing(addresses.index))

    def _found(self, addresses: CachedAddresses, context: ReadContext) -> Rows:
        found = self.folder.read(addresses.index)
        if found is not None:
            kind = settled(found.kind)
            found = Encoded(kind, widened(found.data, found.kind, kind))
            return decoded_rows(found, context.lend)
        # The files are damaged, or another process has saved all rows and removed them.
        return self.read(addresses, context) if self._is_saved() else self._made(addresses, context)

    def _made(self, addresses: CachedAddresses, context: ReadContext) -> Rows:
        rows = self.make(addresses, context)
        found = encoded_rows(rows, addresses.index)
        if self.saved is None:
            self.folder.put(addresses.index, found)
            self._is_saved()
        known = merged_types(self.folder.kind, found.kind, "some of them")
        return _handed_out(rows, found, known, context)

    def _is_saved(self) -> bool:
        """Whether the folder is in the native layout.  If it has all rows, this call saves it."""
        if self.saved is None:
            source = saved_source(self.folder)
            if source is not None:
                self.saved = ReadSource(source, stacked=self.stacked)
        return self.saved is not None

    def gather_of(self, width: int) -> Gather | None:
        take: Gather | None = None

        def gather(positions: Positions, lend: Lend) -> Tree:
            nonlocal take
            if take is None:
                take = None if self.saved is None else self.saved.gather_of(width)
                if take is None:
                    raise LookupError("some of the rows must be made: the general way does it")
            return take(positions, lend)

        return gather if self.stacked else None
