"""Hints to the kernel while rows of mapped files come from disk.

At a page fault the kernel reads ahead: 128 KB or more around the page, of which a shuffled batch
wants one row.  So while a loader waits for the disk, the kernel is told not to read ahead
(``MADV_RANDOM``), and which pages a batch needs (``MADV_WILLNEED``), all at once, before they are
touched.  In addition, files that fit into memory are read from beginning to end (`WholeFiles`).
Once nothing comes from disk any more, hints would cost more than the rows themselves: then none are
given, and the process only checks now and then how much it has read from disk.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from loaderx.free_memory import free_memory
from loaderx.frozen import Frozen
from loaderx.sources.base import Indices
from loaderx.sources.mapping import CAN_REQUEST, mapped_base, request_pages
from loaderx.tree import Array

try:
    import resource
except ImportError:  # Windows, where mmap has no madvise either
    _usage = None
else:
    _usage = resource.getrusage

CHECK_EVERY = 32  # batches, while nothing is read from disk
_RANDOM = getattr(mmap, "MADV_RANDOM", -1)
_NORMAL = getattr(mmap, "MADV_NORMAL", -1)
CAN_ADVISE = _usage is not None and -1 not in (_RANDOM, _NORMAL) and CAN_REQUEST


class MappedRows:
    """Where the rows of an array lie in a mapped file."""

    def __init__(self, mapped: mmap.mmap, offset: int, stride: int, nbytes: int) -> None:
        """Row n has ``nbytes`` bytes, from ``offset + n * stride`` on."""
        self.mapped, self._offset, self._stride, self._nbytes = mapped, offset, stride, nbytes

    @staticmethod
    def of(array: Array) -> MappedRows | None:
        """None if the array is in memory, or a row of it does not lie in one piece."""
        base = mapped_base(array)
        if base is None or not array.nbytes or not array.ndim or array.strides[0] < 0:
            return None
        if not array[:1].flags.c_contiguous:
            return None
        start = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        inside = base.offset % mmap.ALLOCATIONGRANULARITY  # the map begins at a whole page
        mapped = cast("mmap.mmap", base.base)  # NumPy's type hints call it an array
        stride, nbytes = array.strides[0], array.nbytes // len(array)
        return MappedRows(mapped, int(start) + inside, stride, nbytes)

    def read_ahead(self, is_on: bool) -> None:
        """Tells the kernel whether to read ahead."""
        self.mapped.madvise(_NORMAL if is_on else _RANDOM)

    def will_need(self, indices: Indices) -> None:
        """Tells the kernel which rows are read next."""
        self.will_need_runs(indices, indices + 1)

    def will_need_runs(self, starts: Indices, stops: Indices) -> None:
        """The same for runs of rows."""
        first = (starts * self._stride + self._offset) // mmap.PAGESIZE
        ends = (stops - 1) * self._stride + self._offset + self._nbytes
        last = (ends - 1) // mmap.PAGESIZE
        for begin, end in _runs(first, last):
            length = (end - begin + 1) * mmap.PAGESIZE
            request_pages(self.mapped, begin * mmap.PAGESIZE, length)


def _runs(first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges of pages, with touching or overlapping ones merged."""
    if not len(first):
        return []
    order = np.argsort(first)
    first, last = first[order], np.maximum.accumulate(last[order])
    begins = np.flatnonzero(np.concatenate([[True], first[1:] > last[:-1] + 1]))
    ends = np.concatenate([begins[1:], [len(first)]]) - 1
    return list(zip(first[begins].tolist(), last[ends].tolist(), strict=True))


class Span(Frozen):
    """Runs of rows of an array, from start to stop."""

    array: Array
    starts: Indices
    stops: Indices


FindSpans: TypeAlias = Callable[[Indices], Iterator[Span]]
"""The spans that are read for these records, in reading order."""


class MappedSpans:
    """Records in files that are mapped one by one, as they are needed."""

    def __init__(self, find: FindSpans, files: WholeFiles) -> None:
        self._find, self._files = find, files
        self._random: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

    def read_ahead(self, is_on: bool) -> None:
        if is_on:
            for mapped in list(self._random):
                mapped.madvise(_NORMAL)
            self._random.clear()

    def will_need(self, indices: Indices) -> None:
        # A hint ignores damaged data: the reader will report it.
        with contextlib.suppress(ValueError, IndexError, OSError):
            for span in self._find(indices):
                self._advise(span)

    def _advise(self, span: Span) -> None:
        rows = MappedRows.of(span.array)
        if rows is None:
            return
        if rows.mapped not in self._random:
            rows.read_ahead(False)
            self._random.add(rows.mapped)
            self._files.add(rows.mapped)
        some = span.stops > span.starts
        rows.will_need_runs(span.starts[some].astype(np.int64), span.stops[some].astype(np.int64))


class Hinted(Protocol):
    """Takes hints."""

    def read_ahead(self, is_on: bool) -> None: ...

    def will_need(self, indices: Indices) -> None: ...


class ColdReads:
    """Gives hints for the batches of one source, while they come from disk.

    Its records are rows of ``arrays``, or else ``find`` says where they lie.
    """

    def __init__(self, arrays: Sequence[Array] = (), find: FindSpans | None = None) -> None:
        self._given = arrays, find
        self._files = WholeFiles()
        of_arrays = [MappedRows.of(array) for array in arrays] if CAN_ADVISE else []
        self._arrays = [rows for rows in of_arrays if rows is not None]
        self._rows: list[Hinted] = [*self._arrays]
        if find is not None and CAN_ADVISE:
            self._rows.append(MappedSpans(find, self._files))
        self.is_needed = bool(self._rows)
        self._left = 0  # batches until the next check
        self._blocks = -1
        self._is_cold = False

    def __reduce__(self) -> tuple[object, ...]:
        return ColdReads, self._given

    def before(self, indices: Indices) -> None:
        """Called before each batch is gathered."""
        if self._left:
            self._left -= 1
            return
        if len(indices) < 2:  # one record says nothing about batches
            return
        blocks = blocks_read()
        is_cold, self._blocks = blocks != self._blocks, blocks
        if is_cold and _are_in_sequence(indices):
            is_cold = False  # the kernel's own read-ahead suffices
        if is_cold != self._is_cold:
            self._is_cold = is_cold
            for rows in self._rows:
                rows.read_ahead(not is_cold)
        if not is_cold:
            self._left = CHECK_EVERY
            return
        for rows in self._rows:
            rows.will_need(indices)
        for array in self._arrays:
            self._files.add(array.mapped)
        self._files.read_on()


def blocks_read() -> int:
    """Blocks that this process has read from disk, by faults and by hints."""
    assert _usage is not None
    usage = _usage(resource.RUSAGE_SELF)
    return int(usage.ru_inblock + usage.ru_majflt)


def _are_in_sequence(indices: Indices) -> bool:
    return bool((np.diff(indices) == 1).all())


# Files that fit into memory are read from beginning to end while their rows come from disk.
#
# The rows of a shuffled batch lie apart, and many disks deliver only a few thousand of them a
# second, while a file of 300 MB takes half a second in sequence.  An epoch needs all of it anyway,
# so with every batch the kernel is also asked for the next piece.

PIECE_BYTES = 8 << 20  # with each batch: little compared with what a disk delivers in a step
_MEMORY_SHARE = 0.5  # of the free memory: the training program needs some


class WholeFiles:
    """The mapped files of one source, and how far each has been read.

    If one of them does not fit beside the others, no more is read: pages would evict each other.
    """

    def __init__(self) -> None:
        self._room: int | None = None
        self._done: weakref.WeakKeyDictionary[mmap.mmap, int] = weakref.WeakKeyDictionary()

    def add(self, mapped: mmap.mmap) -> None:
        """Adds a file that is going to be read.  One that is mapped again counts again."""
        if mapped in self._done:
            return
        if self._room is None:
            self._room = int((free_memory() or 0) * _MEMORY_SHARE)
        self._room -= len(mapped)
        self._done[mapped] = 0

    def read_on(self) -> None:
        """Asks the kernel for the next piece of a file."""
        if self._room is None or self._room < 0:
            return
        for mapped, done in list(self._done.items()):
            with contextlib.suppress(ValueError, OSError):  # closed: no longer read
                if done < len(mapped):
                    piece = min(PIECE_BYTES, len(mapped) - done)
                    self._done[mapped] = done + piece
                    request_pages(mapped, done, piece)
                    return
