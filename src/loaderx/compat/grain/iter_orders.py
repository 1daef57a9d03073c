"""Nodes that change which elements of an `IterDataset` come when: limit, repeat, cache, window."""

from __future__ import annotations

import copy
from typing import TypeVar

from loaderx.compat.grain.index_nodes import window_order
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iter_functions import CountingIterator
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.protocols import Element, Spec, State

T = TypeVar("T")


class SameSpecIterDataset(IterDataset[T]):
    """Base of datasets with the elements of their parent."""

    @property
    def _element_spec(self) -> Spec:
        return self._parent._element_spec


class LimitIterDataset(SameSpecIterDataset[T]):
    """The first ``count`` elements."""

    def __init__(self, parent: IterDataset[T], count: int) -> None:
        if count <= 0:
            raise ValueError(f"`count` must be at least 1, got {count}.")
        super().__init__(parent)
        self._count = count

    def __iter__(self) -> DatasetIterator[T]:
        return _LimitIterator(self._parent.__iter__(), self._count)

    def __str__(self) -> str:
        return f"LimitIterDataset(count={self._count})"


class _LimitIterator(CountingIterator[T]):
    _key = "count_elements_read"

    def __init__(self, parent: DatasetIterator[T], limit: int) -> None:
        super().__init__(parent)
        self._limit = limit

    def __next__(self) -> Element:
        if self._count >= self._limit:
            raise StopIteration
        element = self._pull()
        self._count += 1
        return element


class RepeatIterDataset(SameSpecIterDataset[T]):
    """The same elements several times, or endlessly."""

    def __init__(self, parent: IterDataset[T], num_epochs: int | None = None) -> None:
        super().__init__(parent)
        if num_epochs is not None and num_epochs <= 0:
            raise ValueError(f"`num_epochs` must be at least 1, got {num_epochs}.")
        self._num_epochs = num_epochs

    def __iter__(self) -> DatasetIterator[T]:
        return _RepeatIterator(self._parent.__iter__(), self._num_epochs)

    def __str__(self) -> str:
        return f"RepeatIterDataset(num_epochs={self._num_epochs})"


class _RepeatIterator(DatasetIterator[T]):
    def __init__(self, parent: DatasetIterator[T], num_epochs: int | None) -> None:
        super().__init__(parent)
        self._num_epochs = num_epochs
        self._epoch = 0
        self._beginning = self._parent.get_state()

    def __next__(self) -> Element:
        while self._epoch != self._num_epochs:
            try:
                return next(self._parent)
            except StopIteration:
                self._epoch += 1
                if self._epoch != self._num_epochs:
                    self._parent.set_state(self._beginning)
        raise StopIteration

    def get_state(self) -> State:
        """The state of the parent, and the epoch."""
        return {"parent": self._parent.get_state(), "epoch": self._epoch}

    def set_state(self, state: State) -> None:
        """Goes on where the state was taken."""
        self._epoch = state["epoch"]
        self._parent.set_state(state["parent"])


class CacheIterDataset(SameSpecIterDataset[T]):
    """Keeps the elements of the first epoch for those after it (`RepeatIterDataset`)."""

    def __init__(self, parent: IterDataset[T]) -> None:
        super().__init__(parent)

    def __iter__(self) -> DatasetIterator[T]:
        return _CacheIterator(self._parent.__iter__())

    def __str__(self) -> str:
        return f"CacheIterDataset(parent={self._parent})"


class _CacheIterator(DatasetIterator[T]):
    def __init__(self, parent: DatasetIterator[T]) -> None:
        super().__init__(parent)
        self._cache: list[T] = []
        self._position = 0
        self._is_filled = False
        self._is_stale = False  # it lacks elements before the position
        self._beginning = self._parent.get_state()

    def __next__(self) -> Element:
        if self._is_filled:
            if self._position >= len(self._cache):
                raise StopIteration
            self._position += 1
            return self._cache[self._position - 1]
        if self._is_stale:
            self._parent.set_state(self._beginning)
            self._cache = [next(self._parent) for _ in range(self._position)]
            self._is_stale = False
        try:
            element = next(self._parent)
        except StopIteration:
            self._is_filled = True
            raise
        if len(self._cache) == self._position:
            self._cache.append(element)
        self._position += 1
        return element

    def get_state(self) -> State:
        """The state of the parent, the position, and whether the cache was filled."""
        return {
            "parent": self._parent.get_state(),
            "position": self._position,
            "cache_filled": self._is_filled,
        }

    def set_state(self, state: State) -> None:
        """Goes on where the state was taken; a lost cache is filled again."""
        self._parent.set_state(state["parent"])
        self._position = state["position"]
        if not self._is_filled:
            self._is_stale |= state["cache_filled"] or self._position > len(self._cache)


class WindowShuffleIterDataset(SameSpecIterDataset[T]):
    """The elements of each window of consecutive ones in random order."""

    def __init__(self, parent: IterDataset[T], *, window_size: int, seed: int) -> None:
        super().__init__(parent)
        self._window_size = window_size
        self._seed = seed

    def __iter__(self) -> DatasetIterator[T]:
        return _WindowShuffleIterator(self._parent.__iter__(), self._window_size, self._seed)

    def __str__(self) -> str:
        return "WindowShuffleIterDataset"


class _WindowShuffleIterator(DatasetIterator[T]):
    """Its state is that of the parent before the window, and the elements handed out of it."""

    def __init__(self, parent: DatasetIterator[T], window_size: int, seed: int) -> None:
        super().__init__(parent)
        self._window_size = window_size
        self._seed = seed
        self._number = 0
        self._used = 0
        self._window: list[T] = []  # the next element is the last
        self._before = self._parent.get_state()
        self._is_last = False

    def __next__(self) -> T:
        if not self._window:
            if self._is_last:
                raise StopIteration
            self._before = self._parent.get_state()
            self._fill()
            self._used = 0
        if not self._window:
            raise StopIteration
        self._used += 1
        element = self._window.pop()
        if not self._window:
            self._number += 1
        return element

    def _fill(self) -> None:
        window = self._window = []  # what came before an error is handed out after it
        try:
            for _ in range(self._window_size):
                window.append(next(self._parent))  # noqa: PERF401 (what came is kept)
        except StopIteration:
            self._is_last = True
        order = window_order(len(window), self._seed + self._number)
        self._window = [window[place] for place in order]

    def get_state(self) -> State:
        """The state before the window, its number, and the elements handed out."""
        return {
            "parent_window_start_state": copy.deepcopy(self._before),
            "window_index": self._number,
            "pos_in_window": self._used,
        }

    def set_state(self, state: State) -> None:
        """Goes on where the state was taken; its window is filled again."""
        self._before = copy.deepcopy(state["parent_window_start_state"])
        self._parent.set_state(self._before)
        self._number, self._used = state["window_index"], state["pos_in_window"]
        self._is_last = False
        self._fill()
        del self._window[max(0, len(self._window) - self._used) :]
