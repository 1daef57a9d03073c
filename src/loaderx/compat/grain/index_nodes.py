"""Nodes that only say which element of their parent an element is."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from loaderx.compat.grain.index_shuffle import permutation, shuffled
from loaderx.compat.grain.indices import (
    Indices,
    Int64s,
    as_array,
    as_indices,
    epoch_of,
    modulo,
    shifted,
    some,
)
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.permutations import Permutations
from loaderx.compat.grain.protocols import Element, Spec
from loaderx.compat.grain.registry import node
from loaderx.memory import Lend

T = TypeVar("T")


class IndexNode(MapDataset[T]):
    """Base of the nodes below: `_index` for one element, `_indices` for many."""

    _MUTATES_ELEMENT_SPEC = False

    def __init__(self, parent: MapDataset[T]) -> None:
        super().__init__(parent)
        self._parent_length = len(parent)

    def __len__(self) -> int:
        return self._parent_length

    def _index(self, index: int) -> int:
        return index

    def _indices(self, indices: Indices) -> Indices:
        return indices

    def __getitem__(self, index: builtins.slice | int) -> Element:
        if isinstance(index, slice):
            return self.slice(index)
        return self._parents[0][self._index(index)]  # type: ignore[index]

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[T | None]:
        return self._parent._getitems(self._indices(as_indices(indices)))

    @property
    def _gathers(self) -> bool:
        return self._parent._gathers

    def _gather(self, indices: Indices, lend: Lend) -> Element:
        return self._parent._gather(self._indices(indices), lend)

    @property
    def _element_spec(self) -> Spec:
        return self._parent._element_spec


@node("map.seed")
class WithSeedMapDataset(IndexNode[T]):
    """Holds a seed for the stages above."""

    def __init__(self, parent: MapDataset[T], *, seed: int) -> None:
        super().__init__(parent)
        self._seed_rng_seed = seed

    def __str__(self) -> str:
        return "WithOptionsMapDataset"


@node("map.slice")
class SliceMapDataset(IndexNode[T]):
    """Some elements of every epoch."""

    def __init__(self, parent: MapDataset[T], sl: builtins.slice) -> None:
        super().__init__(parent)
        if not isinstance(sl, slice):
            raise ValueError(f"sl is not a slice: {type(sl)}. Write slice(start, stop, step).")
        self._start, self._stop, self._step = sl.indices(self._parent_length)
        self._length = len(range(self._start, self._stop, self._step))

    def __len__(self) -> int:
        return self._length

    def _index(self, index: int) -> int:
        epoch, offset = divmod(index, some(self._length))
        return self._start + offset * self._step + epoch * self._parent_length

    def _indices(self, indices: Indices) -> Indices:
        if isinstance(indices, range) and epoch_of(indices, self._length) is not None:
            first, last = self._index(indices[0]), self._index(indices[-1])
            step = indices.step * self._step
            return range(first, last + (1 if step > 0 else -1), step)
        epochs, offsets = np.divmod(as_array(indices), some(self._length))
        found: Int64s = self._start + offsets * self._step + epochs * self._parent_length
        return found

    def __str__(self) -> str:
        return f"SliceMapDataset[{self._start}:{self._stop}:{self._step}]"


@node("map.repeat")
class RepeatMapDataset(IndexNode[T]):
    """Several epochs, or an endless number of them."""

    def __init__(
        self,
        parent: MapDataset[T],
        num_epochs: int | None = None,
        *,
        reseed_each_epoch: bool = True,
    ) -> None:
        super().__init__(parent)
        if num_epochs is not None and num_epochs <= 0:
            raise ValueError(f"`num_epochs` must be at least 1, got {num_epochs}.")
        if self._parent_length >= sys.maxsize:
            raise ValueError(f"{parent} is endless already and cannot be repeated.")
        self._num_epochs = num_epochs
        self._reseed_each_epoch = reseed_each_epoch
        if num_epochs is None:
            self._length = sys.maxsize if self._parent_length else 0
        else:
            self._length = num_epochs * self._parent_length

    def __len__(self) -> int:
        return self._length

    def _index(self, index: int) -> int:
        return index if self._reseed_each_epoch else index % self._parent_length

    def _indices(self, indices: Indices) -> Indices:
        return indices if self._reseed_each_epoch else modulo(indices, self._parent_length)

    def __str__(self) -> str:
        return f"RepeatMapDataset(num_epochs={self._num_epochs})"


@node("map.shuffle")
class ShuffleMapDataset(IndexNode[T]):
    """Every epoch in an order of its own."""

    def __init__(self, parent: MapDataset[T], *, seed: int | None = None) -> None:
        super().__init__(parent)
        seed = self._default_seed if seed is None else seed
        if seed is None:
            raise ValueError(
                "`shuffle` requires a seed: write shuffle(seed=n), or ds.seed(n) below it."
            )
        if not 0 <= seed < 2**32:
            raise ValueError(f"`seed` must be from 0 to 2**32 - 1, got {seed}.")
        self._seed = int(seed)
        self._permutations = Permutations(self._parent_length)

    def _index(self, index: int) -> int:
        epoch, position = divmod(index, some(self._parent_length))
        found = self._permutations.one((self._seed + epoch) % 2**32, position)
        return found + epoch * self._parent_length

    def _indices(self, indices: Indices) -> Indices:
        length = self._parent_length
        epoch = epoch_of(indices, length)
        if epoch is not None:
            inside = shifted(indices, -epoch * length)
            return shifted(self._epoch(epoch, inside), epoch * length)
        epochs, positions = np.divmod(as_array(indices), some(length))
        found = np.empty(len(positions), np.int64)
        for number in np.unique(epochs).tolist():
            chosen = epochs == number
            found[chosen] = self._epoch(number, positions[chosen]) + number * length
        return found

    def _epoch(self, epoch: int, positions: Indices) -> Int64s:
        return self._permutations.many((self._seed + epoch) % 2**32, positions)

    def __str__(self) -> str:
        return "ShuffleMapDataset"


class WindowShuffleMapDataset(IndexNode[T]):
    """The elements of each window of consecutive ones in random order."""

    def __init__(self, parent: MapDataset[T], *, window_size: int, seed: int) -> None:
        super().__init__(parent)
        self._window_size = window_size
        self._seed = seed
        self._permutations = Permutations(window_size)

    def _index(self, index: int) -> int:
        window, position = divmod(index, self._window_size)
        found = self._permutations.one(self._seed + window, position)
        return found + window * self._window_size

    def _indices(self, indices: Indices) -> Indices:
        windows, positions = np.divmod(as_array(indices), self._window_size)
        found = np.empty(len(positions), np.int64)
        for number in np.unique(windows).tolist():
            chosen = windows == number
            inside = self._permutations.many(self._seed + number, positions[chosen])
            found[chosen] = inside + number * self._window_size
        return found

    def __str__(self) -> str:
        return "WindowShuffleMapDataset"


def window_order(length: int, seed: int) -> list[int]:
    """Where each position of a window in memory takes its element from."""
    if length <= 65_537:
        return permutation(seed, length).tolist()  # type: ignore[no-any-return]
    return shuffled(seed, length, np.arange(length)).tolist()  # type: ignore[no-any-return]
