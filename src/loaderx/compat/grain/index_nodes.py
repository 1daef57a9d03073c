"""Nodes that only map an index to an index of their parent."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from loaderx.compat.grain.index_shuffle import Permutations
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
from loaderx.compat.grain.map_dataset import MapDataset, MapNode
from loaderx.compat.grain.protocols import Element
from loaderx.sources import Lend

T = TypeVar("T")


class IndexNode(MapNode[T]):
    """Base of the nodes below: `_index` for one element, `_indices` for many."""

    _MUTATES_ELEMENT_SPEC = False

    def __init__(self, parent: MapDataset[T]) -> None:
        super().__init__(parent)
        self._length = self._parent_length = len(parent)

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


class WithSeedMapDataset(IndexNode[T]):
    """Holds a seed for the stages above."""

    def __init__(self, parent: MapDataset[T], *, seed: int) -> None:
        super().__init__(parent)
        self._seed_rng_seed = seed


class SliceMapDataset(IndexNode[T]):
    """Some elements of every epoch."""

    def __init__(self, parent: MapDataset[T], sl: builtins.slice) -> None:
        super().__init__(parent)
        if not isinstance(sl, slice):
            raise ValueError(f"sl is not a slice: {type(sl)}. Write slice(start, stop, step).")
        self._start, self._stop, self._step = sl.indices(self._parent_length)
        self._length = len(range(self._start, self._stop, self._step))

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


class RepeatMapDataset(IndexNode[T]):
    """Several epochs, or an endless number of epochs."""

    _shown = ("num_epochs",)

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

    def _index(self, index: int) -> int:
        return index if self._reseed_each_epoch else index % self._parent_length

    def _indices(self, indices: Indices) -> Indices:
        return indices if self._reseed_each_epoch else modulo(indices, self._parent_length)


class _Permuted(IndexNode[T]):
    """Runs of ``span`` consecutive elements, each run in its own order."""

    _seed: int

    def __init__(self, parent: MapDataset[T], span: int) -> None:
        super().__init__(parent)
        self._span = span
        self._permutations = Permutations(span)

    def _run_seed(self, number: int) -> int:
        return (self._seed + number) % 2**32

    def _index(self, index: int) -> int:
        number, position = divmod(index, some(self._span))
        return self._permutations.one(self._run_seed(number), position) + number * self._span

    def _indices(self, indices: Indices) -> Indices:
        span, many = self._span, self._permutations.many
        number = epoch_of(indices, span)
        if number is not None:
            inside = shifted(indices, -number * span)
            return shifted(many(self._run_seed(number), inside), number * span)
        numbers, positions = np.divmod(as_array(indices), some(span))
        found = np.empty(len(positions), np.int64)
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            found[chosen] = many(self._run_seed(number), positions[chosen]) + number * span
        return found


class ShuffleMapDataset(_Permuted[T]):
    """Every epoch in its own random order."""

    def __init__(self, parent: MapDataset[T], *, seed: int | None = None) -> None:
        super().__init__(parent, len(parent))
        seed = self._default_seed if seed is None else seed
        if seed is None:
            raise ValueError(
                "`shuffle` requires a seed: write shuffle(seed=n), or ds.seed(n) below it."
            )
        if not 0 <= seed < 2**32:
            raise ValueError(f"`seed` must be from 0 to 2**32 - 1, got {seed}.")
        self._seed = int(seed)


class WindowShuffleMapDataset(_Permuted[T]):
    """The elements of each window of consecutive elements in random order."""

    def __init__(self, parent: MapDataset[T], *, window_size: int, seed: int) -> None:
        super().__init__(parent, window_size)
        self._seed = seed
