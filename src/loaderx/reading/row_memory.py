"""The memory of `row_store`: its layout, and the arrays in it.

It has a header, a byte for each row that says where the row is, the rows as columns (records whose
leaves are NumPy's, all of one shape), and behind them a heap with the pickles of other records.
Pages are taken from the system when they are written.

The memory is private to this process, in large pages, which are faster to read, until there are
worker processes: then it is copied, once, into an anonymous file that all of them map.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import pickle
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loaderx.errors import LoaderxError, one_line
from loaderx.free_memory import free_memory
from loaderx.gathering import take_rows
from loaderx.memory import Layout, Lend
from loaderx.reading.rows import Positions, Record, Rows
from loaderx.sources.adapt.arrays import gatherer_of
from loaderx.sources.base import Gather
from loaderx.tree import Array, DType, Leaf, Structure, Tree, flatten

MISSING, IN_COLUMNS, IN_HEAP = 0, 1, 2
"""The byte of a row: where the row is."""

HEADER = 8
"""The numbers in the header; those that are used follow."""
ROWS, ROWS_IN_HEAP, HEAP_USED = range(3)
HAS_NO_ROOM = 3  # its value: 1 once it was found, 2 once a warning was given

Flags = npt.NDArray[np.uint8]

_FREE_SHARE = 0.8  # that may be used of the memory that is free when the first row is kept
_PAGE = 4096
_COPY_BYTES = 1 << 20


class LeafLook(NamedTuple):
    """A leaf of a record, as it is kept in a column."""

    dtype: DType
    shape: tuple[int, ...]
    python: type | None = None  # bool, int or float, if it is a Python number

    @property
    def stacked(self) -> DType:
        """Its dtype in a batch: Python's floats, which are kept as they are, become float32."""
        return np.dtype(np.float32) if self.python is float else self.dtype


class RowLayout(NamedTuple):
    """The layout of a store; ``leaves`` are those of a record in columns."""

    rows: int
    structure: Structure | None  # None: all rows are in the heap
    leaves: tuple[LeafLook, ...]
    heap_bytes: int

    @property
    def has_python_numbers(self) -> bool:
        return any(leaf.python is not None for leaf in self.leaves)

    @property
    def row_bytes(self) -> int:
        return sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in self.leaves)


def layout_of(count: int, sample: Sequence[Record]) -> RowLayout:
    """The layout for rows like these; raises if there is not enough memory for them."""
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


_PYTHON: dict[type, type[np.generic]] = {bool: np.bool_, int: np.int32, float: np.float64}
_LARGEST = {bool: 1, int: 2**31 - 1, float: float(np.finfo(np.float32).max)}


def _look(record: Record) -> tuple[Structure | None, tuple[LeafLook, ...]]:
    """The structure and the leaves of a record if it can be kept in columns; else None."""
    leaves, structure = flatten(record)
    looks = [_leaf_look(leaf) for leaf in leaves]
    found = tuple(look for look in looks if look is not None)
    return (structure, found) if found and len(found) == len(leaves) else (None, ())


def _leaf_look(leaf: Leaf) -> LeafLook | None:
    kind = type(leaf)
    if kind in _PYTHON:
        # A number too large for a batch is refused by `stack`, which names the record.
        is_large = abs(leaf) > _LARGEST[kind] and not math.isinf(leaf)
        return None if is_large else LeafLook(np.dtype(_PYTHON[kind]), (), kind)
    if not isinstance(leaf, (np.ndarray, np.generic)) or leaf.dtype.hasobject:
        return None
    # An array without axes would come back as a scalar.
    if kind is np.ndarray and not leaf.ndim:
        return None
    return LeafLook(leaf.dtype, leaf.shape)


class RowMemory:
    """The memory and the arrays in it."""

    def __init__(
        self, layout: RowLayout, descriptor: int | None = None, path: str | None = None
    ) -> None:
        """``descriptor`` is that of a file that processes share by its path."""
        self.layout, self._descriptor, self.path = layout, descriptor, path
        rows = layout.rows
        sizes = [HEADER * 8, rows, rows * 16]
        sizes += [rows * leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in layout.leaves]
        starts = np.cumsum([0, *[-(-size // _PAGE) * _PAGE for size in sizes]]).tolist()
        memory = self._map(starts[-1] + layout.heap_bytes + _PAGE)
        self.header = np.ndarray(HEADER, np.int64, memory, 0)
        self.flags = np.ndarray(rows, np.uint8, memory, starts[1])
        self.places = np.ndarray((rows, 2), np.int64, memory, starts[2])
        self.columns = [
            np.ndarray((rows, *leaf.shape), leaf.dtype, memory, start)
            for leaf, start in zip(layout.leaves, starts[3:], strict=False)
        ]
        self.heap = np.ndarray(layout.heap_bytes, np.uint8, memory, starts[-1])
        self._layouts: dict[int, Layout] = {}  # of batches, by their number of rows

    def _map(self, nbytes: int) -> mmap.mmap:
        descriptor = self._descriptor
        if descriptor is not None:
            weakref.finalize(self, os.close, descriptor)
            if os.fstat(descriptor).st_size < nbytes:
                os.ftruncate(descriptor, nbytes)
            return mmap.mmap(descriptor, nbytes)
        if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
            return mmap.mmap(-1, nbytes)
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without large pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    @property
    def is_shared(self) -> bool:
        return self._descriptor is not None

    def has_room_for_copy(self) -> bool:
        """Whether there is memory for a second copy of the rows."""
        free = free_memory()
        kept = int(self.header[ROWS]) * self.layout.row_bytes + int(self.header[HEAP_USED])
        return free is None or kept <= free * _FREE_SHARE

    def shared_copy(self) -> RowMemory:
        """The same rows in memory that worker processes can map.  The lock is held."""
        if not hasattr(os, "memfd_create"):  # not on Linux: workers make the rows themselves
            return self
        descriptor = os.memfd_create("loaderx-cache")
        made = RowMemory(self.layout, descriptor, f"/proc/{os.getpid()}/fd/{descriptor}")
        step = max(1, _COPY_BYTES // max(1, self.layout.row_bytes))
        for start in range(0, self.layout.rows, step):
            rows = slice(start, start + step)
            if self.flags[rows].any():  # else its pages are not taken
                for column, target in zip(self.columns, made.columns, strict=True):
                    target[rows] = column[rows]
        used = int(self.header[HEAP_USED])
        made.heap[:used] = self.heap[:used]
        made.places[:] = self.places
        made.flags[:] = self.flags
        made.header[:] = self.header
        return made

    @staticmethod
    def open(path: str, layout: RowLayout) -> RowMemory:
        return RowMemory(layout, os.open(path, os.O_RDWR | os.O_CLOEXEC), path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from writing."""
        if self._descriptor is None:
            yield
            return
        import fcntl  # not on Windows, where no other process maps the memory

        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1)

    # Columns ----------------------------------------------------------------------------------

    def write_columns(self, positions: Positions, rows: Rows) -> bool:
        """Writes stacked rows at once; False if they do not fit the columns."""
        layout = self.layout
        if not rows.is_stacked or rows.padding.lengths or layout.structure is None:
            return False
        leaves, structure = flatten(rows.tree)
        looks = tuple(LeafLook(leaf.dtype, leaf.shape[1:]) for leaf in leaves)
        if structure is not layout.structure or looks != layout.leaves:
            return False
        for column, leaf in zip(self.columns, leaves, strict=True):
            column[positions] = leaf
        return True

    def write_record(self, position: int, record: Record) -> bool:
        """Writes a row; False if it does not fit the columns."""
        layout = self.layout
        if layout.structure is None or _look(record) != (layout.structure, layout.leaves):
            return False
        for column, leaf in zip(self.columns, flatten(record)[0], strict=True):
            column[position] = leaf
        return True

    def gather(self, positions: Positions, lend: Lend) -> Tree:
        layout, count = self.layout, len(positions)
        assert layout.structure is not None
        known = self._layouts.get(count)
        if known is None:
            shapes = [((count, *leaf.shape), leaf.stacked) for leaf in layout.leaves]
            known = self._layouts[count] = Layout.of(*shapes)
        out = lend(known)
        for column, target in zip(self.columns, out, strict=True):
            if column.dtype == target.dtype:
                take_rows(column, positions, target)
            else:
                target[...] = column[positions]
        return layout.structure.build(out)

    def gatherer(self, count: int) -> Gather:
        """`gather` for ``count`` rows, with all lookups made beforehand."""
        structure = self.layout.structure
        assert structure is not None
        is_plain = all(leaf.stacked == leaf.dtype for leaf in self.layout.leaves)
        if structure.is_flat_dict and is_plain:
            return gatherer_of(structure.keys, self.columns, count)
        return self.gather

    def row(self, position: int) -> Record:
        assert self.layout.structure is not None
        leaves = zip(self.columns, self.layout.leaves, strict=True)
        return self.layout.structure.build(
            [_copied(column, position, leaf.python) for column, leaf in leaves]
        )

    # The heap ---------------------------------------------------------------------------------

    def reserve(self, nbytes: int) -> int | None:
        """Room in the heap; None if there is none.  The lock is held."""
        used = int(self.header[HEAP_USED])
        if used + nbytes > self.layout.heap_bytes:
            self.header[HAS_NO_ROOM] = max(1, self.header[HAS_NO_ROOM])
            return None
        self.header[HEAP_USED] = used + nbytes
        return used

    def from_heap(self, position: int) -> Record:
        start, nbytes = self.places[position].tolist()
        try:
            return pickle.loads(self.heap[start : start + nbytes].data)
        except Exception as error:  # of a class that this process does not know
            raise LookupError(one_line(error)) from error


def _copied(column: Array, position: int, python: type | None) -> Leaf:
    row = column[position]
    if python is not None:
        return python(row)
    return row.copy() if isinstance(row, np.ndarray) else row
