"""Elements of an `IterDataset` made ahead by one thread."""

from __future__ import annotations

import contextlib
import copy
import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol, TypeVar

from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iter_orders import SameSpecIterDataset
from loaderx.compat.grain.iterator import DatasetIterator, get_next_index, set_next_index
from loaderx.compat.grain.protocols import Element, State
from loaderx.compat.grain.worker_states import in_workers

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_CHECK_S = 0.1  # how often a thread that waits for room looks whether it is still wanted


class CheckpointableIterator(Iterator[T_co], Protocol[T_co]):
    """An iterator with a state, of whatever class."""

    def get_state(self) -> State:
        """The position."""

    def set_state(self, state: State) -> None:
        """Goes on where the state was taken."""


class ThreadPrefetchIterDataset(SameSpecIterDataset[T]):
    """Makes up to ``prefetch_buffer_size`` elements ahead in a thread; 0 for no thread."""

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

    def __str__(self) -> str:
        return f"ThreadPrefetchIterDataset(prefetch_buffer_size={self._prefetch_buffer_size})"


class _Ahead:
    """What a thread makes; it knows nothing of the iterator, which may be dropped meanwhile."""

    def __init__(self, parent: CheckpointableIterator[Element], size: int) -> None:
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
        """Nobody wants the element that is being made, and a filter may never find one."""
        self.is_unwanted.set()
        if isinstance(self._parent, DatasetIterator):
            self._parent._give_up()

    def stop(self) -> None:
        """Waits for the element that is being made."""
        self.is_unwanted.set()
        if self.thread is not threading.current_thread():
            self.thread.join()


class ThreadPrefetchDatasetIterator(DatasetIterator[T]):
    """Its state is that of the parent after the element that was handed out last."""

    def __init__(self, parent: CheckpointableIterator[T], prefetch_buffer_size: int) -> None:
        super().__init__(parent if isinstance(parent, DatasetIterator) else ())
        self._source: CheckpointableIterator[T] = parent
        self._size = prefetch_buffer_size
        self._state: State | None = parent.get_state()
        self._number: int | None = 0  # of the next element; None if it is not known
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
        if self._number is not None:
            self._number += 1
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
        """The state after the element that was handed out last."""
        if self._state is None:
            self._state = self._source.get_state()
        return self._state

    def set_state(self, state: State) -> None:
        """Goes on where the state was taken."""
        self._stop()
        self._source.set_state(state)
        self._state = self._source.get_state()
        self._number = None

    def _get_next_index(self) -> int:
        if self._number is None:
            state = self.get_state()
            self._stop()
            self._source.set_state(state)
            self._number = get_next_index(self._native())
        return self._number

    def _set_next_index(self, index: int) -> None:
        self._stop()
        set_next_index(self._native(), index)
        self._number, self._state = index, None

    def _native(self) -> DatasetIterator[T]:
        if not isinstance(self._source, DatasetIterator):
            raise ValueError(
                f"{type(self._source).__name__} is no DatasetIterator, so nothing counts."
            )
        return self._source

    def __str__(self) -> str:
        return f"ThreadPrefetchDatasetIterator(prefetch_buffer_size={self._size})"


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
    """Its states are those of so many threads of Grain's."""

    def __init__(self, parent: IterDataset[T], num_threads: int, buffer_size: int) -> None:
        super().__init__(parent, prefetch_buffer_size=max(1, buffer_size) * num_threads)
        self._num_threads = num_threads

    def __iter__(self) -> DatasetIterator[T]:
        return in_workers(self._parent, super().__iter__(), self._num_threads)
