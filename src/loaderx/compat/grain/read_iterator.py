"""`to_iter_dataset`: the elements of one epoch of a `MapDataset`, in order.

If no user code is called, elements are read in blocks and handed out one by one, or as rows to a
batch above.  Otherwise they come from an engine, which `ReadOptions` selects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from loaderx.compat.grain.batch_nodes import is_dense
from loaderx.compat.grain.index_nodes import IndexNode
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator, IndexedIterator
from loaderx.compat.grain.join_nodes import MixedMapDataset, ZipMapDataset
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.options import ReadOptions
from loaderx.compat.grain.protocols import Element
from loaderx.compat.grain.source_nodes import RangeMapDataset, SourceMapDataset
from loaderx.compat.grain.stacking import buffers
from loaderx.engines import Auto, Session, Task, Threads, Work
from loaderx.extend import Run, elements_in_order
from loaderx.sources import Lend

T = TypeVar("T")

_AHEAD = 32  # the most elements to keep ready, even with a larger buffer
_BLOCK = 256  # elements to read at once if no user code is called
_FIRST = 8  # elements that `start_prefetch` reads ahead


class ElementWork(Work):
    """Makes elements by their index."""

    noun = "element"
    why_no_processes = "mp_prefetch asks for worker processes, and ReadOptions for threads"

    def __init__(self, ds: MapDataset[Element]) -> None:
        self._ds = ds

    def __call__(self, task: Task, lend: Lend) -> Element:
        buffers.lend = lend  # type: ignore[assignment]
        try:
            return self._ds[task[0]]
        except StopIteration:
            raise _SourceEnd from None

    def describe(self, task: Task) -> str:
        """For messages."""
        return f"element {task[0]}"

    def parts(self) -> Iterator[tuple[str, object]]:
        """The work itself: an engine that measures checks whether processes may run its parts."""
        yield str(self._ds), self


class _SourceEnd(Exception):  # noqa: N818 (it is no error)
    """A source has raised StopIteration, which has another meaning in a generator."""


class Rows(MapDataset[Element]):
    """The results of ``make`` for ``size`` consecutive indices at a time, from ``start`` on."""

    def __init__(
        self, ds: MapDataset[Element], start: int, size: int, make: Callable[[range], Element]
    ) -> None:
        super().__init__(ds)
        self._start, self._size, self._end = start, size, len(ds)
        self._make = make

    def __len__(self) -> int:
        return max(0, self._end - self._start + self._size - 1) // self._size

    def __getitem__(self, index: slice | int) -> Element:
        assert isinstance(index, int)
        first = self._start + index * self._size
        return self._make(range(first, min(first + self._size, self._end)))


def named_threads(ds: MapDataset[Element], threads: int, buffer_size: int) -> Session:
    """Threads with Grain's names, which some users' sources read."""
    ahead = min(buffer_size, _AHEAD)
    return Threads(threads, ahead, name="grain-prefetch_{}").session(ElementWork(ds))


def measured(ds: MapDataset[Element], threads: int, buffer_size: int) -> Session:
    """The caller's thread or several, whichever is measured to be faster."""
    # A buffer larger than the engine's default would only take memory.
    prefetch = buffer_size if buffer_size < threads else None
    return Auto(threads, prefetch).session(ElementWork(ds))


class PrefetchIterDataset(IterDataset[T]):
    """The elements of a `MapDataset` in order."""

    _MUTATES_ELEMENT_SPEC = False
    _shown = ("read_options", "allow_nones")

    def __init__(
        self, parent: MapDataset[T], *, read_options: ReadOptions, allow_nones: bool = False
    ) -> None:
        super().__init__(parent)
        self._read_options = read_options
        self._allow_nones = allow_nones

    @property
    def map_dataset(self) -> MapDataset[T]:
        """The dataset that is read."""
        (parent,) = self._parents
        return parent  # type: ignore[return-value]

    def __iter__(self) -> DatasetIterator[T]:
        return PrefetchDatasetIterator(self.map_dataset, self._read_options, self._allow_nones)


class PrefetchDatasetIterator(IndexedIterator[T]):
    """Reads the elements that it hands out."""

    def __init__(self, parent: MapDataset[T], read_options: ReadOptions, allow_nones: bool) -> None:
        super().__init__()
        self._ds = parent
        self._length = len(parent)
        self._read_options = read_options
        self._allow_nones = allow_nones
        self._next_index = 0
        self._is_pure = is_pure(parent)
        self._ONE_FOR_ONE = allow_nones or is_dense(parent)
        self._block: list[T | None] = []  # elements read ahead, the next one last
        self._ahead = 8  # elements to read at once; grows, so that the first one comes soon
        self._session: Session | None = None
        self._reader: Run | None = None
        self._first: Run | None = None  # reads the elements that `start_prefetch` requested
        self._rows: tuple[int, int] | None = None  # of batches of rows: the next row, and the size

    @property
    def _is_inline(self) -> bool:
        options = self._read_options
        return options.num_threads == 0 or options.prefetch_buffer_size == 0

    def __next__(self) -> T:
        if self._closed:
            self._assert_not_closed()
        while self._next_index != self._length:
            if self._is_unwanted:
                self._assert_not_closed()
            try:
                element = self._block.pop() if self._block else self._read()
            except StopIteration:
                raise  # the source has ended, and the position stays there
            except Exception:
                self._next_index += 1  # a loop that catches the error continues
                raise
            self._next_index += 1
            if element is not None or self._allow_nones:
                self._filter_check.count(1, 0)
                return element  # type: ignore[return-value]
            self._filter_check.count(0, 1)
        raise StopIteration

    def _read(self) -> T | None:
        """The element at the position."""
        index = self._next_index
        if self._is_pure:
            found = self._ds._getitems(range(index, min(index + self._ahead, self._length)))
            self._ahead = min(2 * self._ahead, _BLOCK)
            self._block = [*found][::-1]
            return self._block.pop()
        if self._is_inline:
            return self._ds[index]
        try:
            return self._from_engine(index)
        except BaseException as error:
            self._stop()
            if isinstance(error, _SourceEnd):
                raise StopIteration from None
            raise

    def _from_engine(self, index: int) -> T | None:
        if self._rows is not None:
            self._stop()
        if self._first is not None:
            try:
                return self._first.next()  # type: ignore[no-any-return]
            except StopIteration:
                self._stop()
        if self._reader is None:
            self._reader = self._run(self._open_session(), range(index, self._length))
        return self._reader.next()  # type: ignore[no-any-return]

    def _run(self, session: Session, steps: range) -> Run:
        return elements_in_order(session, ElementWork(self._ds), steps)

    def _open_session(self) -> Session:
        if self._session is None:
            options = self._read_options
            threads, size = options.num_threads, options.prefetch_buffer_size
            if threads == 1:
                self._session = named_threads(self._ds, 1, size)
            elif asks_for_its_thread(self._ds):
                self._session = named_threads(self._ds, threads, size)
            else:
                self._session = measured(self._ds, threads, size)
        return self._session

    @property
    def gathers(self) -> bool:
        """Whether `take_rows` can give a batch."""
        return self._is_pure and self._ds._gathers and type(self) is PrefetchDatasetIterator

    def take_rows(self, count: int, drop_remainder: bool) -> Element:
        """The next elements stacked, for a batch above."""
        if self._closed:
            self._assert_not_closed()
        start, stop = self._next_index, min(self._next_index + count, self._length)
        self._block = []
        self._next_index = stop
        if start == stop or (drop_remainder and stop - start < count):
            raise StopIteration
        try:
            if self._is_inline:
                return self._gather(range(start, stop))
            return self._rows_from_engine(start, count)
        except BaseException:
            self._stop()
            raise

    def _gather(self, rows: range) -> Element:
        return self._ds._gather(rows, buffers.lend)

    def _rows_from_engine(self, start: int, count: int) -> Element:
        """A batch of rows, made ahead in a thread if that is measured to be faster."""
        if self._rows != (start, count):
            self._stop()
            batches = Rows(self._ds, start, count, self._gather)
            options = self._read_options
            session = measured(batches, options.num_threads, options.prefetch_buffer_size)
            self._reader = elements_in_order(session, ElementWork(batches), range(len(batches)))
        self._rows = (start + count, count)
        assert self._reader is not None
        return self._reader.next()

    def _go_to(self, index: int) -> None:
        self._stop()
        self._next_index = index

    def start_prefetch(self) -> None:
        """Begins to read the first elements in the background."""
        if self._is_inline or self._is_pure or self._reader is not None or self._first is not None:
            return
        start = self._next_index
        options = self._read_options
        if options.num_threads == 1:  # the only reader, which continues afterwards
            self._reader = self._run(self._open_session(), range(start, self._length))
            self._reader.start()
            return
        threads = named_threads(self._ds, min(options.num_threads, _FIRST), _FIRST)
        self._first = self._run(threads, range(start, min(start + _FIRST, self._length)))
        self._first.start()

    def _stop(self) -> None:
        """Drops the elements that were read ahead."""
        self._block = []
        for reader in (self._reader, self._first):
            if reader is not None:
                reader.close()
        self._reader = self._first = self._rows = None

    def close(self) -> None:
        """Ends the threads; after that ``next`` is an error."""
        if self._closed:
            return
        super().close()
        self._stop()
        if self._session is not None:
            self._session.close()


def is_pure(ds: MapDataset[Element]) -> bool:
    """Whether no function or source of the user is called, so that blocks may be read."""
    if isinstance(ds, SourceMapDataset):
        source = ds._source
        return type(source) in (list, tuple, range) or ds._arrays is not None
    if isinstance(ds, MixedMapDataset):
        is_ours = ds.has_own_map
    else:
        is_ours = ds._gathers or isinstance(ds, (IndexNode, ZipMapDataset, RangeMapDataset))
    # A user's subclass may do anything.
    is_ours = is_ours and type(ds).__module__.startswith(__package__)
    return is_ours and all(map(is_pure, ds.parents))


def asks_for_its_thread(ds: MapDataset[Element]) -> bool:
    """Whether a source looks at the thread that reads it, as a source of MaxText does."""
    if isinstance(ds, SourceMapDataset):
        code = getattr(getattr(type(ds._source), "__getitem__", None), "__code__", None)
        return code is not None and "current_thread" in code.co_names
    return any(map(asks_for_its_thread, ds.parents))
