"""`mp_prefetch`: the elements of a dataset, made in worker processes.

With one worker the whole pipeline runs in it (`worker_chain`).  With more, all parts whose elements
have numbers run in them, and what needs to know what came before runs in the consumer
(`worker_blocks`).  The stream and its states are those of no workers at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from loaderx.compat.grain.iter_dataset import IterDataset, WithOptionsIterDataset
from loaderx.compat.grain.iter_orders import SameSpecIterDataset
from loaderx.compat.grain.iterator import DatasetIterator, get_next_index, set_next_index
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.options import DatasetOptions, MultiprocessingOptions
from loaderx.compat.grain.protocols import Element, State
from loaderx.compat.grain.registry import node
from loaderx.compat.grain.worker_blocks import BlocksWork, Root, may_succeed
from loaderx.compat.grain.worker_chain import ChainWork, Chunk
from loaderx.compat.grain.worker_graph import check_divisible, find_roots, with_workers
from loaderx.compat.grain.worker_states import in_workers
from loaderx.engines.base import Pending, Session, Work, cores
from loaderx.engines.processes import Processes

T = TypeVar("T")
WorkerInit = Callable[[int, int], None]

_WORKERS_PER_CORE = 4  # more cannot have anything to do


@node("iter.mp_prefetch")
def mp_prefetch(
    ds: IterDataset[T], options: MultiprocessingOptions, worker_init_fn: WorkerInit | None = None
) -> IterDataset[T]:
    """The same elements from worker processes; the dataset itself if there are none."""
    if options.num_workers == 0:
        return ds
    return ProcessPrefetchIterDataset(
        ds, options.num_workers, options.per_worker_buffer_size, worker_init_fn
    )


class ProcessPrefetchIterDataset(SameSpecIterDataset[T]):
    """The elements of a dataset, made in worker processes."""

    def __init__(
        self,
        parent: IterDataset[T],
        num_workers: int,
        buffer_size: int,
        worker_init_fn: WorkerInit | None = None,
    ) -> None:
        if num_workers < 0:
            raise ValueError(f"`num_workers` must be at least 0, got {num_workers}.")
        if buffer_size <= 0:
            raise ValueError(f"`per_worker_buffer_size` must be at least 1, got {buffer_size}.")
        super().__init__(parent)
        self._num_workers = num_workers
        self._buffer_size = buffer_size
        self._worker_init_fn = worker_init_fn

    def __iter__(self) -> DatasetIterator[T]:
        workers = min(self._num_workers, _WORKERS_PER_CORE * cores())
        start = _Start(workers, self._buffer_size, self._worker_init_fn)
        roots: list[tuple[IterDataset[Element], int]] = []
        if workers > 1:
            check_divisible(self._parent, self._num_workers)
            find_roots(self._parent, roots)
        made: DatasetIterator[T]
        if roots:
            made = _BlocksPrefetchIterator(self._parent, [Root(*root) for root in roots], start)
        else:
            made = _ChainPrefetchIterator(self._parent, start)
        return in_workers(self._parent, made, self._num_workers)

    def __str__(self) -> str:
        return f"ProcessPrefetchIterDataset(num_workers={self._num_workers})"


class _Start:
    """How to start workers."""

    def __init__(self, workers: int, buffered: int, init: WorkerInit | None) -> None:
        self._workers, self._buffered, self._init = workers, buffered, init

    def session(self, work: Work, workers: int | None = None) -> Session:
        """Workers for some work; they start with the first task."""
        count = self._workers if workers is None else workers
        prefetch = max(2, self._buffered * count)
        engine = Processes(count, prefetch, timeout_s=None, init=self._init)
        return engine.session(work)


class _ChainPrefetchIterator(DatasetIterator[T]):
    """Chunks of elements from one worker; the state is that after the last one handed out."""

    def __init__(self, ds: IterDataset[T], start: _Start) -> None:
        super().__init__()
        self._ds = ds
        self._start = start
        self._ctx.dataset_options = options_of(ds)
        self._session: Session | None = None
        self._run = 0  # each set_state begins another
        self._first: State | None = None  # of the dataset
        self._given: State | None = None  # what the session can begin at, besides
        self._began_at: State | None = None  # of this run
        self._state: State | None = None
        self._is_last = False
        self._drop()

    def _drop(self) -> None:
        self._pending: deque[Pending] = deque()
        self._chunk_number = 0  # of the next to be asked for
        self._made: list[tuple[Element, State]] = []  # the next one last
        self._taken = 0  # elements of this run that have come from the worker

    def _begin(self) -> State:
        if self._first is None:
            self._first = self._ds.__iter__().get_state()
        return self._first

    def __next__(self) -> T:
        self._assert_not_closed()
        while not self._made:
            if self._is_last:
                raise StopIteration
            self._take_chunk()
        element, self._state = self._made.pop()
        return element  # type: ignore[no-any-return]

    def _take_chunk(self) -> None:
        self.start_prefetch()
        try:
            chunk: Chunk = self._pending.popleft().result()
        except BaseException as error:
            if may_succeed(error):
                self.set_state(self.get_state())  # what follows is asked for again
            raise
        if chunk.first > self._taken:  # a new worker has made larger chunks than the one before
            self.set_state(self.get_state())
            return
        self._is_last = chunk.is_last
        new = [*zip(chunk.elements, chunk.states, strict=True)][self._taken - chunk.first :]
        self._taken += len(new)
        self._made = new[::-1]

    def start_prefetch(self) -> None:
        """Starts the worker, and asks it for the first chunks."""
        self._assert_not_closed()
        if self._session is None:
            ds = WithOptionsIterDataset(self._ds, self._ctx.dataset_options)
            self._given = self._state
            self._session = self._start.session(ChainWork(ds, self._given), 1)
        beginning = int(self._given is not None and self._began_at == self._given)
        while len(self._pending) < self._session.window and not self._is_last:
            task = (self._run, beginning, self._chunk_number)
            self._pending.append(self._session.submit(task))
            self._chunk_number += 1

    def get_state(self) -> State:
        """The state of the pipeline without workers."""
        return self._begin() if self._state is None else self._state

    def set_state(self, state: State) -> None:
        """Goes on where the state was taken."""
        for pending in self._pending:
            pending.cancel()
        self._drop()
        self._is_last = False
        self._run += 1
        self._state = self._began_at = state
        if self._session is not None and state not in (self._begin(), self._given):
            self._session.close()
            self._session = None

    def _parked(self) -> DatasetIterator[T]:
        """An iterator of the pipeline at the position, in this process."""
        iterator = self._ds.__iter__()
        if self._state is not None:
            iterator.set_state(self._state)
        return iterator

    def _get_next_index(self) -> int:
        return get_next_index(self._parked())

    def _set_next_index(self, index: int) -> None:
        iterator = self._parked()
        set_next_index(iterator, index)
        self.set_state(iterator.get_state())

    def close(self) -> None:
        """Ends the worker; after that ``next`` is an error."""
        if not self._closed:
            super().close()
            self._drop()
            if self._session is not None:
                self._session.close()

    def __str__(self) -> str:
        return f"ProcessPrefetchDatasetIterator of {self._ds}"


class _BlocksPrefetchIterator(DatasetIterator[T]):
    """The pipeline with its roots in workers."""

    def __init__(self, ds: IterDataset[T], roots: list[Root], start: _Start) -> None:
        self._session = start.session(BlocksWork(roots))
        self._inner = with_workers(ds, iter(enumerate(roots)), self._session).__iter__()
        super().__init__(self._inner)

    def __next__(self) -> T:
        self._assert_not_closed()
        return next(self._inner)

    def get_state(self) -> State:
        """The state of the pipeline without workers."""
        return self._inner.get_state()

    def set_state(self, state: State) -> None:
        """Goes on where the state was taken."""
        self._inner.set_state(state)

    def _get_next_index(self) -> int:
        return get_next_index(self._inner)

    def _set_next_index(self, index: int) -> None:
        set_next_index(self._inner, index)

    def close(self) -> None:
        """Ends the workers; after that ``next`` is an error."""
        if not self._closed:
            super().close()
            self._session.close()

    def __str__(self) -> str:
        return f"ProcessPrefetchDatasetIterator of {self._inner}"


def options_of(ds: IterDataset[Element]) -> DatasetOptions:
    """The options that a pipeline sets."""
    found = DatasetOptions()
    to_visit: list[IterDataset[Element] | MapDataset[Element]] = [ds]
    while to_visit:
        below = to_visit.pop()
        if isinstance(below, WithOptionsIterDataset):
            found = found.merge(below.options)
        to_visit += below.parents
    return found
