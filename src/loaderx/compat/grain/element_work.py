"""The work that loaderx's engines do for a `MapDataset`: element ``i`` for task ``(i,)``."""

from __future__ import annotations

from collections.abc import Iterator

from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.protocols import Element
from loaderx.compat.grain.stacking import buffers
from loaderx.engines.auto.session import AutoSession
from loaderx.engines.base import Session, Task, Work
from loaderx.engines.threads import Threads
from loaderx.loader.run import TaskRun
from loaderx.loader.tasks.steps import StepTasks
from loaderx.memory import Lend

_AHEAD = 32  # elements to keep ready at most, whatever buffer is asked for
_NO_PROCESSES = "worker processes were not asked for with mp_prefetch"


class ElementWork(Work):
    """Makes elements by their index."""

    noun = "element"

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
        """The dataset, for messages about what cannot be sent."""
        yield str(self._ds), self._ds


class _SourceEnd(Exception):  # noqa: N818 (it is no error)
    """A source has raised StopIteration, which means something else in a generator."""


class ElementReader:
    """Elements in order, from an engine."""

    def __init__(self, ds: MapDataset[Element], session: Session, steps: range) -> None:
        self._run = TaskRun(session, ElementWork(ds), StepTasks(session, steps))
        self._left = steps.stop - steps.start
        session.begin(self._left if steps.stop < 2**62 else None)

    def next(self) -> Element:
        """The next element; StopIteration after the last, or if the source says so."""
        try:
            element = self._run.next()
        except _SourceEnd:
            raise StopIteration from None
        self._left -= 1
        return element

    @property
    def is_done(self) -> bool:
        """Are all elements handed out?"""
        return not self._left

    def start(self) -> None:
        """Begins to read ahead."""
        self._run.start()

    def close(self) -> None:
        """Ends the tasks under way; the session stays."""
        self._run.close()


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
