"""`mp_prefetch`: the elements of a dataset, made in worker processes.

One worker runs the whole pipeline (`worker_chain`).  Several workers run all parts whose elements
have numbers (the *roots*), and stages that depend on earlier elements run in the consumer
(`worker_blocks`).  The stream and its states are the same as without workers.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from loaderx.compat.grain.batch_nodes import BatchIterDataset
from loaderx.compat.grain.function_nodes import FilterIterDataset, MapIterDataset
from loaderx.compat.grain.graph import walk
from loaderx.compat.grain.interleave import InterleaveIterDataset
from loaderx.compat.grain.iter_dataset import IterDataset, WithOptionsIterDataset
from loaderx.compat.grain.iter_orders import WithSeedIterDataset
from loaderx.compat.grain.iterator import DatasetIterator, OverIterator
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.options import DatasetOptions, MultiprocessingOptions, ReadOptions
from loaderx.compat.grain.protocols import Element, State
from loaderx.compat.grain.read_iterator import PrefetchIterDataset
from loaderx.compat.grain.stacking import make_batch
from loaderx.compat.grain.thread_prefetch import in_workers
from loaderx.compat.grain.trees import nbytes
from loaderx.compat.grain.worker_blocks import BlockIterDataset, BlocksWork, Root, may_succeed
from loaderx.compat.grain.worker_chain import ChainWork, Chunk
from loaderx.engines import Pending, Processes, Session, Work
from loaderx.extend import cores

T = TypeVar("T")
WorkerInit = Callable[[int, int], None]

_WORKERS_PER_CORE = 4  # further workers would have nothing to do


def mp_prefetch(
    ds: IterDataset[T], options: MultiprocessingOptions, worker_init_fn: WorkerInit | None = None
) -> IterDataset[T]:
    """The same elements from worker processes; the dataset itself if their number is 0."""
    if options.num_workers == 0:
        return ds
    return ProcessPrefetchIterDataset(
        ds, options.num_workers, options.per_worker_buffer_size, worker_init_fn
    )


class ProcessPrefetchIterDataset(IterDataset[T]):
    """The elements of a dataset, made in worker processes."""

    _MUTATES_ELEMENT_SPEC = False
    _shown = ("num_workers",)

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
        roots: list[Root] = []
        made: DatasetIterator[T] | None = None
        if workers > 1:
            check_divisible(self._parent, self._num_workers)
            session = self.session(BlocksWork(roots), workers)
            made = _BlocksPrefetchIterator(with_workers(self._parent, roots, session), session)
        if not roots:
            made = _ChainPrefetchIterator(self)
        assert made is not None
        return in_workers(self._parent, made, self._num_workers)

    def session(self, work: Work, workers: int) -> Session:
        """Workers for some work; they start with the first task."""
        prefetch = max(2, self._buffer_size * workers)
        engine = Processes(workers, prefetch, timeout_s=None, init=self._worker_init_fn)
        return engine.session(work)


class _ChainPrefetchIterator(DatasetIterator[T]):
    """Chunks of elements from one worker; the state is that after the last one handed out."""

    def __init__(self, prefetch: ProcessPrefetchIterDataset[T]) -> None:
        super().__init__()
        self._ds = prefetch._parent
        self._start = prefetch.session
        self._ctx.dataset_options = options_of(self._ds)
        self._session: Session | None = None
        self._run = 0  # each `set_state` begins another run
        self._first: State | None = None  # of the dataset
        self._given: State | None = None  # the other state at which the session can begin
        self._began_at: State | None = None  # of this run
        self._state: State | None = None
        self._is_last = False
        self._drop()

    def _drop(self) -> None:
        self._pending: deque[Pending] = deque()
        self._chunk_number = 0  # of the next chunk to request
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
                self.set_state(self.get_state())  # the chunks that follow are requested again
            raise
        if chunk.first > self._taken:  # a new worker has made larger chunks than the one before
            self.set_state(self.get_state())
            return
        self._is_last = chunk.is_last
        new = [*zip(chunk.elements, chunk.states, strict=True)][self._taken - chunk.first :]
        self._taken += len(new)
        self._made = new[::-1]

    def start_prefetch(self) -> None:
        """Starts the worker, and requests the first chunks."""
        self._assert_not_closed()
        if self._session is None:
            ds = WithOptionsIterDataset(self._ds, self._ctx.dataset_options)
            self._given = self._state
            self._session = self._start(ChainWork(ds, self._given), 1)
        beginning = int(self._given is not None and self._began_at == self._given)
        while len(self._pending) < self._session.window and not self._is_last:
            task = (self._run, beginning, self._chunk_number)
            self._pending.append(self._session.submit(task))
            self._chunk_number += 1

    def get_state(self) -> State:
        """The state of the pipeline without workers."""
        return self._begin() if self._state is None else self._state

    def set_state(self, state: State) -> None:
        """Continues where the state was taken."""
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
        return self._parked()._get_next_index()

    def _set_next_index(self, index: int) -> None:
        iterator = self._parked()
        iterator._set_next_index(index)
        self.set_state(iterator.get_state())

    def close(self) -> None:
        """Ends the worker; after that ``next`` is an error."""
        if not self._closed:
            super().close()
            self._drop()
            if self._session is not None:
                self._session.close()


class _BlocksPrefetchIterator(OverIterator[T]):
    """The pipeline with its roots in workers."""

    _ONE_FOR_ONE = True

    def __init__(self, ds: IterDataset[T], session: Session) -> None:
        super().__init__(ds.__iter__())
        self._session = session

    def __next__(self) -> T:
        self._assert_not_closed()
        return self._pull()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends the workers; after that ``next`` is an error."""
        if not self._closed:
            super().close()
            self._session.close()


def options_of(ds: IterDataset[Element]) -> DatasetOptions:
    """The options that a pipeline sets."""
    found = DatasetOptions()
    for node in walk(ds):
        if isinstance(node, WithOptionsIterDataset):
            found = found.merge(node._options)
    return found


def _is_root(ds: IterDataset[Element]) -> bool:
    while type(ds) in (MapIterDataset, FilterIterDataset, WithSeedIterDataset):
        ds = ds._parent
    return type(ds) is PrefetchIterDataset


def check_divisible(ds: IterDataset[Element], num_workers: int) -> None:
    """Raises for a source that can only be read in order: a second worker could do nothing."""
    if isinstance(ds, InterleaveIterDataset) or _is_root(ds):
        return
    if not ds.parents:
        raise ValueError(
            f"{type(ds).__name__} can only be read in order, which leaves nothing to do for "
            f"{num_workers} workers. Use mp_prefetch with num_workers=1."
        )
    for parent in _below(ds):
        check_divisible(parent, num_workers)


def _below(ds: IterDataset[Element]) -> list[IterDataset[Element]]:
    if isinstance(ds, InterleaveIterDataset):
        return [
            one.to_iter_dataset() if isinstance(one, MapDataset) else one for one in ds._datasets
        ]
    return [parent for parent in ds.parents if isinstance(parent, IterDataset)]


def with_workers(
    ds: IterDataset[T], roots: list[Root], session: Session, batch_size: int = 0
) -> IterDataset[T]:
    """A copy of a pipeline whose roots are made in workers, and added to ``roots``.

    ``batch_size`` is that of the batch right above, and is kept in the root.
    """
    if _is_root(ds):
        roots.append(Root(ds, batch_size))
        return BlockIterDataset(ds, roots[-1], len(roots) - 1, session)
    made = copy.copy(ds)
    size = 0
    if type(ds) is BatchIterDataset and ds._batch_fn is make_batch:
        size = ds._batch_size
    below = [with_workers(parent, roots, session, size) for parent in _below(ds)]
    if isinstance(made, InterleaveIterDataset):
        made._datasets = below
    elif len(below) == len(ds.parents):
        made._parents = tuple(below)
    return made


_MB = 1024 * 1024
_MOST_BUFFERED = 1000


@dataclasses.dataclass(slots=True)
class PerformanceConfig:
    """The result of `pick_performance_config`."""

    multiprocessing_options: MultiprocessingOptions | None = None
    read_options: ReadOptions | None = None


def pick_performance_config(
    ds: IterDataset[Element],
    *,
    ram_budget_mb: int,
    max_workers: int | None,
    max_buffer_size: int | None,
    samples_to_check: int = 5,
) -> PerformanceConfig:
    """As many workers and buffered elements as fit into memory, judged by a few elements."""
    workers = cores() if max_workers is None else max_workers
    if size := _element_mb([ds], samples_to_check):
        workers = min(workers, int(ram_budget_mb / size))
    read = [node.map_dataset for node in walk(ds) if isinstance(node, PrefetchIterDataset)]
    buffered = _MOST_BUFFERED if max_buffer_size is None else max_buffer_size
    if size := _element_mb(read, samples_to_check):
        buffered = min(buffered, int(ram_budget_mb / (size * len(read))))
    return PerformanceConfig(
        MultiprocessingOptions(num_workers=workers), ReadOptions(prefetch_buffer_size=buffered)
    )


def _element_mb(datasets: Sequence[Iterable[Element]], samples: int) -> float:
    """The mean size of elements; 0 if there are fewer than ``samples``."""
    each = -(-samples // len(datasets)) if datasets else 0
    sizes = [nbytes(one) for ds in datasets for one in itertools.islice(ds, each)]
    return float(np.mean(sizes)) / _MB if len(sizes) >= samples else 0.0
