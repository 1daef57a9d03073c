"""Nodes that change the order or number of elements of an `IterDataset`, and the seed."""

from __future__ import annotations

import copy
from typing import TypeVar

from loaderx.compat.grain.index_shuffle import Permutations
from loaderx.compat.grain.iter_dataset import IterDataset, IterNode
from loaderx.compat.grain.iterator import (
    CountIterator,
    DatasetIterator,
    NodeIterator,
    NumberingIterator,
)
from loaderx.compat.grain.protocols import Element, State

T = TypeVar("T")


class WithSeedIterDataset(IterDataset[T]):
    """Holds a seed for the stages above."""

    _MUTATES_ELEMENT_SPEC = False

    def __init__(self, parent: IterDataset[T], *, seed: int) -> None:
        super().__init__(parent)
        self._seed_rng_seed = seed

    def __iter__(self) -> DatasetIterator[T]:
        return self._parent.__iter__()


class _LimitIterator(NumberingIterator[T]):
    _key = "count_elements_read"

    def __next__(self) -> Element:
        if self._count >= self._ds._count:
            raise StopIteration
        element = self._pull()
        self._count += 1
        return element


class LimitIterDataset(IterNode[T]):
    """The first ``count`` elements."""

    _MUTATES_ELEMENT_SPEC = False
    _shown = ("count",)
    _iterator = _LimitIterator

    def __init__(self, parent: IterDataset[T], count: int) -> None:
        if count <= 0:
            raise ValueError(f"`count` must be at least 1, got {count}.")
        super().__init__(parent)
        self._count = count


class _RepeatIterator(CountIterator[T]):
    _key = "epoch"

    def __init__(self, ds: RepeatIterDataset[T]) -> None:
        super().__init__(ds)
        self._beginning = self._parent.get_state()

    def __next__(self) -> Element:
        epochs = self._ds._num_epochs
        while self._count != epochs:
            try:
                return self._pull()
            except StopIteration:
                self._count += 1
                if self._count != epochs:
                    self._parent.set_state(self._beginning)
        raise StopIteration


class RepeatIterDataset(IterNode[T]):
    """The same elements several times, or endlessly."""

    _MUTATES_ELEMENT_SPEC = False
    _shown = ("num_epochs",)
    _iterator = _RepeatIterator

    def __init__(self, parent: IterDataset[T], num_epochs: int | None = None) -> None:
        super().__init__(parent)
        if num_epochs is not None and num_epochs <= 0:
            raise ValueError(f"`num_epochs` must be at least 1, got {num_epochs}.")
        self._num_epochs = num_epochs


class _WindowShuffleIterator(NodeIterator[T]):
    """Its state is that of the parent before the window, and the elements handed out of it."""

    def __init__(self, ds: WindowShuffleIterDataset[T]) -> None:
        super().__init__(ds)
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
        window = self._window = []  # elements read before an error are handed out after it
        try:
            for _ in range(self._ds._window_size):
                window.append(next(self._parent))  # noqa: PERF401 (kept if the next one fails)
        except StopIteration:
            self._is_last = True
        seed, count = self._ds._seed + self._number, len(window)
        self._window = [window[place] for place in Permutations(count).many(seed, range(count))]

    def get_state(self) -> State:
        """The state before the window, its number, and the elements handed out."""
        return {
            "parent_window_start_state": copy.deepcopy(self._before),
            "window_index": self._number,
            "pos_in_window": self._used,
        }

    def set_state(self, state: State) -> None:
        """Continues where the state was taken; its window is filled again."""
        self._before = copy.deepcopy(state["parent_window_start_state"])
        self._parent.set_state(self._before)
        self._number, self._used = state["window_index"], state["pos_in_window"]
        self._is_last = False
        self._fill()
        del self._window[max(0, len(self._window) - self._used) :]


class WindowShuffleIterDataset(IterNode[T]):
    """The elements of each window of consecutive elements in random order."""

    _MUTATES_ELEMENT_SPEC = False
    _iterator = _WindowShuffleIterator

    def __init__(self, parent: IterDataset[T], *, window_size: int, seed: int) -> None:
        super().__init__(parent)
        self._window_size = window_size
        self._seed = seed
