"""The work that loaderx's engines do for a `MapDataset`: element ``i`` for task ``(i,)``."""

from __future__ import annotations

from collections.abc import Iterator

from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.protocols import Element
from loaderx.compat.grain.stacking import buffers
from loaderx.engines.auto import AutoSession
from loaderx.engines.base import OrderedRun, Session, Task
from loaderx.engines.threads import Threads
from loaderx.memory import Lend, Pool

_AHEAD = 32  # elements to keep ready at most, whatever buffer is asked for
_NO_PROCESSES = "worker processes were not asked for with mp_prefetch"


class ElementWork:
    """Makes elements by their index."""

    thread_safe = True  # Grain's threads read sources at once, too
    unsure = ""
    only_gathers = False
    noun = "element"

    def __init__(self, ds: MapDataset[Element]) -> None:
        self._ds = ds

    def __call__(self, task: Task, lend: Lend) -> Element:
        buffers.lend = lend  # type: ignore[assignment]
        return self._ds[task[0]]

    def stream(self, steps: range, lend: Lend) -> Iterator[Element]:
        """Not used: a StopIteration of a source would be an error in a generator."""
        raise NotImplementedError

    def describe(self, task: Task) -> str:
        """For messages."""
        return f"element {task[0]}"

    def parts(self) -> Iterator[tuple[str, object]]:
        """The dataset, for messages about what cannot be sent."""
        yield str(self._ds), self._ds


class ElementReader:
    """Elements in order, from an engine."""

    def __init__(self, ds: MapDataset[Element], session: Session, steps: range) -> None:
        self._ds = ds
        self._session = session
        self._ordered = OrderedRun(session, steps)
        self._search = session.search if isinstance(session, AutoSession) else None
        self._lend = Pool().lend
        self._resting = 0  # elements to make here, without measuring
        session.begin(len(steps) if steps.stop < 2**62 else None)

    def next(self) -> Element:
        """The next element; StopIteration after the last, or if the source says so."""
        ordered = self._ordered
        if self._resting:
            return self._made_here(ordered)
        if self._search is not None and self._search.resting > 0 and ordered.is_empty:
            left = ordered.stop - ordered.position
            self._resting = self._rested = min(self._search.resting, left)
            if self._resting:
                return self._made_here(ordered)
        return ordered.next()

    def _made_here(self, ordered: OrderedRun) -> Element:
        buffers.lend = self._lend
        element = self._ds[ordered.position]
        ordered.position += 1
        self._resting -= 1
        if not self._resting and self._search is not None:
            self._search.rested(self._rested)
        return element

    @property
    def is_done(self) -> bool:
        """Are all elements handed out?"""
        return self._ordered.is_empty and self._ordered.position >= self._ordered.stop

    def start(self) -> None:
        """Begins to read ahead."""
        self._ordered.ready()

    def close(self) -> None:
        """Ends the tasks under way; the session stays."""
        self._ordered.close()


class Rows(MapDataset[Element]):
    """Consecutive elements from an index on, so many at once; the last may be fewer."""

    def __init__(self, ds: MapDataset[Element], start: int, size: int, length: int) -> None:
        super().__init__(ds)
        self._start, self._size, self._end = start, size, length

    def __len__(self) -> int:
        return max(0, self._end - self._start + self._size - 1) // self._size

    def __getitem__(self, index: slice | int) -> Element:
        assert isinstance(index, int)
        first = self._start + index * self._size
        return self._made(range(first, min(first + self._size, self._end)))

    def _made(self, rows: range) -> Element:
        raise NotImplementedError


class RowBatches(Rows):
    """The rows of arrays, as batches."""

    def __init__(self, ds: MapDataset[Element], start: int, size: int, length: int) -> None:
        super().__init__(ds, start, size, length)
        self.follows = (start, size)  # the first row of the next batch, and its size

    def _made(self, rows: range) -> Element:
        return self._parent._gather(rows, buffers.lend)


def one_reader(ds: MapDataset[Element], buffer_size: int) -> Session:
    """One thread, which reads in order."""
    return named_threads(ds, 1, buffer_size)


def named_threads(ds: MapDataset[Element], threads: int, buffer_size: int) -> Session:
    """Threads with Grain's names: sources of users' own look at them."""
    ahead = min(buffer_size, _AHEAD)
    return Threads(threads, ahead, name="grain-prefetch_{}").session(ElementWork(ds))


def measured(ds: MapDataset[Element], threads: int, buffer_size: int) -> Session:
    """The caller's thread or several, whichever is measured to be faster."""
    # A larger buffer than the engine's own would only take memory.
    prefetch = buffer_size if buffer_size < threads else None
    session = AutoSession(ElementWork(ds), threads, prefetch)
    session.no_processes = _NO_PROCESSES
    return session
