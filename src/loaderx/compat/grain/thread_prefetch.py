"""Elements of an `IterDataset` made ahead by one thread, and Grain's states of workers.

Grain's state of a pipeline in workers, or threads, is the state of an interleave of their streams.
Worker *w* of *W* reads elements *w*, *w* + *W*, ... of the source.  If each element is made from
one element of the source, the order is the same as without workers, and states mean the same.
Otherwise Grain's order is different, and its states cannot be continued here.
"""

from __future__ import annotations

import contextlib
import copy
import queue
import threading
import weakref
from importlib import import_module
from typing import TypeVar

from loaderx import MissingPackageError
from loaderx.compat.grain.batch_nodes import is_dense
from loaderx.compat.grain.function_nodes import MapIterDataset
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import (
    DatasetIterator,
    OverIterator,
    of_workers,
    worker_positions,
)
from loaderx.compat.grain.protocols import Element, State
from loaderx.compat.grain.read_iterator import PrefetchIterDataset

T = TypeVar("T")

_CHECK_S = 0.1  # the interval at which a thread that waits for room checks `is_unwanted`


class ThreadPrefetchIterDataset(IterDataset[T]):
    """Makes up to ``prefetch_buffer_size`` elements ahead in a thread; 0 for no thread."""

    _MUTATES_ELEMENT_SPEC = False
    _shown = ("prefetch_buffer_size",)

    def __init__(self, parent: IterDataset[T], *, prefetch_buffer_size: int) -> None:
        super().__init__(parent)
        if prefetch_buffer_size < 0:
            raise ValueError(
                "`prefetch_buffer_size` must be greater than or equal to 0, got "
                f"{prefetch_buffer_size}."
            )
        self._prefetch_buffer_size = prefetch_buffer_size

    def __iter__(self) -> DatasetIterator[T]:
        return ThreadPrefetchDatasetIterator(self._parent.__iter__(), self._prefetch_buffer_size)


class _Ahead:
    """A thread and its elements; it has no reference to the iterator, which may be dropped."""

    def __init__(self, parent: Element, size: int) -> None:
        self.made: queue.Queue[tuple[Element, State | None, BaseException | None]]
        self.made = queue.Queue(size)
        self.is_unwanted = threading.Event()
        self._parent = parent
        self.thread = threading.Thread(target=self._run, name="grain-thread-prefetch", daemon=True)

    def _run(self) -> None:
        try:
            while not self.is_unwanted.is_set():
                element = next(self._parent)
                self._put((element, copy.deepcopy(self._parent.get_state()), None))
        except BaseException as error:
            self._put((None, None, error))

    def _put(self, one: tuple[Element, State | None, BaseException | None]) -> None:
        while not self.is_unwanted.is_set():
            with contextlib.suppress(queue.Full):
                self.made.put(one, timeout=_CHECK_S)
                return

    def give_up(self) -> None:
        """Abandons the element being made, since a filter may never find one."""
        self.is_unwanted.set()
        if isinstance(self._parent, DatasetIterator):
            self._parent._give_up()

    def stop(self) -> None:
        """Waits for the element that is being made."""
        self.is_unwanted.set()
        if self.thread is not threading.current_thread():
            self.thread.join()


class ThreadPrefetchDatasetIterator(DatasetIterator[T]):
    """Its state is that of the parent after the last element that was handed out.

    The parent is any iterator with `get_state` and `set_state`.
    """

    def __init__(self, parent: Element, prefetch_buffer_size: int) -> None:
        super().__init__(parent if isinstance(parent, DatasetIterator) else ())
        self._source: Element = parent
        self._size = prefetch_buffer_size
        self._state: State | None = parent.get_state()
        self._ahead: _Ahead | None = None

    def start_prefetch(self) -> None:
        """Begins to make elements."""
        if self._closed:
            raise ValueError("the iterator is closed.")
        if self._ahead is None and self._size > 0:
            self._ahead = _Ahead(self._source, self._size)
            weakref.finalize(self, self._ahead.give_up)
            self._ahead.thread.start()

    def __next__(self) -> T:
        if self._size > 0:
            self.start_prefetch()
            assert self._ahead is not None
            element, state, error = self._ahead.made.get()
            if error is not None:
                self._stop()
                raise error
        else:
            self._assert_not_closed()
            element = next(self._source)
            state = copy.deepcopy(self._source.get_state())
        self._state = state
        return element  # type: ignore[no-any-return]

    def _stop(self) -> None:
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None

    def close(self) -> None:
        """Ends the thread; after that ``next`` is an error."""
        if not self._closed:
            self._closed = True
            if self._ahead is not None:
                self._ahead.give_up()
            self._stop()
            if isinstance(self._source, DatasetIterator):
                self._source.close()

    def get_state(self) -> State:
        """The state after the last element that was handed out."""
        if self._state is None:
            self._state = self._source.get_state()
        return self._state

    def set_state(self, state: State) -> None:
        """Continues where the state was taken."""
        self._stop()
        self._source.set_state(state)
        self._state = self._source.get_state()

    def _get_next_index(self) -> int:
        self.set_state(self.get_state())  # stops the thread, which would move the position
        return self._native()._get_next_index()

    def _set_next_index(self, index: int) -> None:
        self._stop()
        self._native()._set_next_index(index)
        self._state = None

    def _native(self) -> DatasetIterator[T]:
        if not isinstance(self._source, DatasetIterator):
            raise ValueError(
                f"{type(self._source).__name__} is not a DatasetIterator: its elements have no "
                "numbers."
            )
        return self._source


def multithread_prefetch(
    ds: IterDataset[T], num_threads: int, buffer_size: int, sequential_slice: bool = False
) -> IterDataset[T]:
    """Makes elements ahead in a thread.

    The stream is that of the dataset, in order, for every number of threads; ``sequential_slice``
    has no effect.
    """
    if num_threads == 0:
        return ds
    return _ThreadsIterDataset(ds, num_threads, buffer_size)


class _ThreadsIterDataset(ThreadPrefetchIterDataset[T]):
    """Its states are those of Grain with ``num_threads`` threads."""

    def __init__(self, parent: IterDataset[T], num_threads: int, buffer_size: int) -> None:
        super().__init__(parent, prefetch_buffer_size=max(1, buffer_size) * num_threads)
        self._num_threads = num_threads

    def __iter__(self) -> DatasetIterator[T]:
        return in_workers(self._parent, super().__iter__(), self._num_threads)


def in_workers(ds: IterDataset[T], iterator: DatasetIterator[T], count: int) -> DatasetIterator[T]:
    """The iterator, with states of ``count`` workers if the pipeline allows them."""
    one_for_one = _is_one_for_one(ds)
    return iterator if count > 1 and not one_for_one else _InWorkers(iterator, count, one_for_one)


def _is_one_for_one(ds: IterDataset[T]) -> bool:
    while type(ds) is MapIterDataset:
        ds = ds._parent
    return type(ds) is PrefetchIterDataset and (ds._allow_nones or is_dense(ds.map_dataset))


class _InWorkers(OverIterator[T]):
    _ONE_FOR_ONE = True

    def __init__(self, parent: DatasetIterator[T], count: int, one_for_one: bool) -> None:
        super().__init__(parent)
        self._count = count
        self._one_for_one = one_for_one

    def get_state(self) -> State:
        inner, count = self._parent.get_state(), self._count
        states, position = [inner], 0
        if count > 1:
            position = inner["next_index"]
            states = [{"next_index": at} for at in worker_positions(position, count)]
        return {
            "next_index_in_cycle": position % count,
            "next_index_in_datasets": count,
            "iterators_in_use_indices": [*range(count)],
            "iterators_in_use_states": states,
            "exhausted": [0] * count,
            "future_states": {},
        }

    def set_state(self, state: State) -> None:
        self._parent.set_state(of_workers(self._parent, state, one_for_one=self._one_for_one))

    def __str__(self) -> str:
        return str(self._parent)


def device_put(
    ds: IterDataset[Element],
    device: Element,
    *,
    cpu_buffer_size: int = 4,
    device_buffer_size: int = 2,
) -> IterDataset[Element]:
    """The elements of a dataset as ``jax.Array``.

    Args:
        ds: the dataset.
        device: a device or a sharding, as `jax.device_put` takes it.
        cpu_buffer_size: elements made ahead.
        device_buffer_size: elements copied to the devices ahead.
    """
    try:
        put = import_module("jax").device_put
    except ImportError as error:
        raise MissingPackageError("device_put needs jax: pip install 'loaderx-jax[jax]'") from error
    ahead = ThreadPrefetchIterDataset(ds, prefetch_buffer_size=cpu_buffer_size)
    placed = ahead.map(lambda element: put(element, device))
    return ThreadPrefetchIterDataset(placed, prefetch_buffer_size=device_buffer_size)
