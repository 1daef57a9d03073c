"""Rows that were made once, kept in shared memory for all workers of a loader.

The memory is a file without a name: a header, a byte for each row that says where it is, the rows
as columns (records whose leaves are NumPy's, all of one shape), and behind them a heap with the
pickles of records that are not like that.  Pages are taken from the system when they are written.

Several processes and threads may write at once, and the same row twice: it is the same bytes.  The
byte of a row is written under a lock, after its data, and read under the lock, before its data: who
sees the one sees the other.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import pickle
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loaderx.errors import LoaderxError, warn_user
from loaderx.memory import Layout, Lend, free_memory
from loaderx.reading.rows import Positions, Record, Rows
from loaderx.sources.base import ForWorkers
from loaderx.tree import Array, DType, Structure, Tree, flatten

MISSING, IN_COLUMNS, IN_HEAP = 0, 1, 2

Flags = npt.NDArray[np.uint8]

_FREE_SHARE = 0.8  # of the memory that is free when the first row is kept
_PAGE = 4096
_HEADER = 8  # numbers in the header, of which these are used
_ROWS, _ROWS_IN_HEAP, _HEAP_USED, _HAS_NO_ROOM = range(4)


class RowLayout(NamedTuple):
    """What a store has room for; ``leaves`` are those of a record in columns."""

    rows: int
    structure: Structure | None  # None: all rows are in the heap
    leaves: tuple[tuple[DType, tuple[int, ...]], ...]
    heap_bytes: int

    @property
    def row_bytes(self) -> int:
        return sum(dtype.itemsize * math.prod(shape) for dtype, shape in self.leaves)


def layout_of(count: int, sample: Sequence[Record]) -> RowLayout:
    """The layout for rows such as these; an error if there is not enough memory for them."""
    looks = {_look(record) for record in sample}
    structure, leaves = looks.pop() if len(looks) == 1 else (None, ())  # one kind, or none
    free = free_memory()
    room = 1 << 40 if free is None else int(free * _FREE_SHARE)
    made = RowLayout(count, structure, leaves, 0)
    needed = count * made.row_bytes
    if needed > room:
        raise LoaderxError(
            f"cache() needs {needed / 1e9:,.1f} GB for {count:,} records of {made.row_bytes:,} "
            f"bytes, and {room / 1e9:,.1f} GB of memory may be used. Give a folder instead, "
            ".cache(path), or put .cache() before the stage that makes records large."
        )
    return made._replace(heap_bytes=(room - needed) // _PAGE * _PAGE)


def _look(record: Record) -> tuple[Structure | None, tuple[tuple[DType, tuple[int, ...]], ...]]:
    """The structure and the leaves of a record that can be in columns; else None."""
    leaves, structure = flatten(record)
    is_plain = leaves and all(
        isinstance(leaf, (np.ndarray, np.generic)) and not leaf.dtype.hasobject for leaf in leaves
    )
    # Rows of columns without an axis are scalars: an array without one would come back as such.
    if not is_plain or any(type(leaf) is np.ndarray and not leaf.ndim for leaf in leaves):
        return None, ()
    return structure, tuple((leaf.dtype, leaf.shape) for leaf in leaves)


class RowStore(ForWorkers):
    """Rows by position.  It has no memory before the first of them is kept.

    Without ``may_begin`` it never gets any: a worker that has no part in the memory of the loader
    must not have one of its own.
    """

    def __init__(self, count: int, *, may_begin: bool = True) -> None:
        self.count, self.may_begin = count, may_begin
        self._lock = threading.Lock()
        self._memory: _Memory | None = None
        self._is_complete = self._is_uniform = False
        self._looks = 0

    @property
    def is_ready(self) -> bool:
        return self._memory is not None

    @property
    def is_uniform(self) -> bool:
        """Are all rows there, and in columns?"""
        return self._is_uniform

    def is_first_look(self) -> bool:
        """True once: a single record that is looked at need not be kept."""
        self._looks += 1
        return self._looks == 1

    def prepare(self, sample: Sequence[Record]) -> None:
        """Takes memory for rows such as these, unless that was done."""
        with self._lock:
            if self._memory is None:
                self._memory = _Memory.create(layout_of(self.count, sample))

    def find(self, positions: Positions) -> Flags:
        """Where each of these rows is; those at negative positions are never kept."""
        memory = self._opened
        if self._is_complete:
            flags = memory.flags[positions]
        else:
            with self._lock, memory.locked():
                flags = memory.flags[positions]
                self._is_complete = int(memory.header[_ROWS]) == self.count
                self._is_uniform = self._is_complete and not memory.header[_ROWS_IN_HEAP]
        flags[positions < 0] = MISSING
        return flags

    def put(self, positions: Positions, rows: Rows) -> None:
        """Keeps rows, as far as there is room."""
        memory = self._opened
        is_kept = positions >= 0
        if not is_kept.all():
            kept = np.flatnonzero(is_kept)
            positions, rows = positions[kept], rows.pick(kept)
        if not len(positions):
            return
        flags = np.full(len(positions), IN_COLUMNS, np.uint8)
        places = np.zeros((len(positions), 2), np.int64)
        if not memory.write_columns(positions, rows):
            self._write_each(positions, rows.records(), flags, places)
        self._publish(positions, flags, places)

    def _write_each(
        self, positions: Positions, records: list[Record], flags: Flags, places: Positions
    ) -> None:
        memory = self._opened
        for number, (position, record) in enumerate(zip(positions.tolist(), records, strict=True)):
            if memory.write_record(position, record):
                continue
            data = pickle.dumps(record, protocol=5)
            with self._lock, memory.locked():
                place = memory.reserve(len(data))
            flags[number] = MISSING if place is None else IN_HEAP
            if place is not None:
                places[number] = place, len(data)
                memory.heap[place : place + len(data)] = np.frombuffer(data, np.uint8)

    def _publish(self, positions: Positions, flags: Flags, places: Positions) -> None:
        memory = self._opened
        with self._lock, memory.locked():
            is_new = (memory.flags[positions] == MISSING) & (flags != MISSING)
            fresh, first = np.unique(positions[is_new], return_index=True)
            chosen = np.flatnonzero(is_new)[first]
            memory.places[fresh] = places[chosen]
            memory.flags[fresh] = flags[chosen]
            memory.header[_ROWS] += len(fresh)
            memory.header[_ROWS_IN_HEAP] += int((flags[chosen] == IN_HEAP).sum())
            has_no_room = (flags == MISSING).any() and not memory.header[_HAS_NO_ROOM]
            if has_no_room:
                memory.header[_HAS_NO_ROOM] = 1
        if has_no_room:
            warn_user(
                f"cache() has used the {memory.layout.heap_bytes / 1e9:,.1f} GB of memory that it "
                "may use: records that are not in it yet are made again in every epoch. Give a "
                "folder instead, .cache(path)."
            )

    def gather(self, positions: Positions, lend: Lend) -> Tree:
        """Rows that are all in columns, as columns."""
        return self._opened.gather(positions, lend)

    def records(self, positions: Positions, flags: Flags) -> list[Record]:
        """Rows that are there, one by one."""
        memory = self._opened
        return [
            memory.row(position) if flag == IN_COLUMNS else memory.from_heap(position)
            for position, flag in zip(positions.tolist(), flags.tolist(), strict=True)
        ]

    @property
    def _opened(self) -> _Memory:
        assert self._memory is not None
        return self._memory

    def for_workers(self) -> tuple[object, ...]:
        """Workers map the same memory."""
        memory = self._memory
        if memory is None or memory.path is None:
            return _attached, (self.count, None, None)
        return _attached, (self.count, memory.path, memory.layout)

    def __reduce__(self) -> tuple[object, ...]:
        return RowStore, (self.count,)  # whoever unpickles it makes the rows again


def _attached(count: int, path: str | None, layout: RowLayout | None) -> RowStore:
    """The store in a worker.  If the memory cannot be opened, rows are made again there."""
    made = RowStore(count, may_begin=False)
    if path is not None and layout is not None:
        with contextlib.suppress(OSError):
            made._memory = _Memory.open(path, layout)
    return made


class _Memory:
    """The file and the arrays in it."""

    def __init__(self, descriptor: int, path: str | None, layout: RowLayout) -> None:
        self._descriptor, self.path, self.layout = descriptor, path, layout
        weakref.finalize(self, os.close, descriptor)
        sizes = [_HEADER * 8, layout.rows, layout.rows * 16]
        sizes += [layout.rows * dtype.itemsize * math.prod(shape) for dtype, shape in layout.leaves]
        starts = np.cumsum([0, *[-(-size // _PAGE) * _PAGE for size in sizes]]).tolist()
        total = starts[-1] + max(_PAGE, layout.heap_bytes)
        if os.fstat(descriptor).st_size < total:
            os.ftruncate(descriptor, total)
        shared = mmap.mmap(descriptor, total)
        self.header = np.ndarray(_HEADER, np.int64, shared, 0)
        self.flags = np.ndarray(layout.rows, np.uint8, shared, starts[1])
        self.places = np.ndarray((layout.rows, 2), np.int64, shared, starts[2])
        self.columns = [
            np.ndarray((layout.rows, *shape), dtype, shared, start)
            for (dtype, shape), start in zip(layout.leaves, starts[3:], strict=False)
        ]
        self.heap = np.ndarray(total - starts[-1], np.uint8, shared, starts[-1])

    @classmethod
    def create(cls, layout: RowLayout) -> _Memory:
        try:
            descriptor = os.memfd_create("loaderx-cache")
        except AttributeError:  # not on Linux: worker processes do not share it
            import tempfile

            with tempfile.TemporaryFile() as named:
                descriptor = os.dup(named.fileno())
            path = None
        else:
            path = f"/proc/{os.getpid()}/fd/{descriptor}"
        return cls(descriptor, path, layout)

    @classmethod
    def open(cls, path: str, layout: RowLayout) -> _Memory:
        return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC), path, layout)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """No other process writes meanwhile."""
        try:
            import fcntl
        except ImportError:  # Windows, where no other process has it
            yield
            return
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1)

    # Columns ----------------------------------------------------------------------------------

    def write_columns(self, positions: Positions, rows: Rows) -> bool:
        """Writes stacked rows at once; False if they are not such rows."""
        layout = self.layout
        if not rows.is_stacked or rows.padding.lengths or layout.structure is None:
            return False
        leaves, structure = flatten(rows.tree)
        looks = tuple((leaf.dtype, leaf.shape[1:]) for leaf in leaves)
        if structure is not layout.structure or looks != layout.leaves:
            return False
        for column, leaf in zip(self.columns, leaves, strict=True):
            column[positions] = leaf
        return True

    def write_record(self, position: int, record: Record) -> bool:
        """Writes a row; False if it has no place in the columns."""
        layout = self.layout
        if layout.structure is None or _look(record) != (layout.structure, layout.leaves):
            return False
        for column, leaf in zip(self.columns, flatten(record)[0], strict=True):
            column[position] = leaf
        return True

    def gather(self, positions: Positions, lend: Lend) -> Tree:
        layout, count = self.layout, len(positions)
        assert layout.structure is not None
        out = lend(Layout.of(*[((count, *shape), dtype) for dtype, shape in layout.leaves]))
        for column, target in zip(self.columns, out, strict=True):
            column.take(positions, 0, target, "clip")  # other modes buffer the output first
        return layout.structure.build(out)

    def row(self, position: int) -> Record:
        assert self.layout.structure is not None
        return self.layout.structure.build([_copied(column, position) for column in self.columns])

    # The heap ---------------------------------------------------------------------------------

    def reserve(self, nbytes: int) -> int | None:
        """Room in the heap; None if there is none.  The lock is held."""
        used = int(self.header[_HEAP_USED])
        if used + nbytes > self.layout.heap_bytes:
            return None
        self.header[_HEAP_USED] = used + nbytes
        return used

    def from_heap(self, position: int) -> Record:
        start, nbytes = self.places[position].tolist()
        return pickle.loads(self.heap[start : start + nbytes].data)


def _copied(column: Array, position: int) -> Array:
    row = column[position]
    copied: Array = row.copy() if isinstance(row, np.ndarray) else row
    return copied
