"""`MapDataset`: elements by index.

The index has no end: ``ds[i]`` beyond the length is an element of the next epoch.  An element that
a filter has left out is None.

A node that reads many elements at once overrides `_getitems`.  A node that can give them as a
stacked batch, in one gather of arrays, overrides `_gather`.  The defaults are here.
"""

from __future__ import annotations

import abc
import builtins
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar, overload

import numpy as np

from loaderx.compat.grain import transforms
from loaderx.compat.grain.graph import DatasetNode, apply_transformations, make
from loaderx.compat.grain.indices import Indices, as_ints
from loaderx.compat.grain.options import ReadOptions
from loaderx.compat.grain.protocols import DatasetSelectionMap, Element, RandomAccessDataSource
from loaderx.sources import Lend

if TYPE_CHECKING:
    from loaderx import Dataset
    from loaderx.compat.grain.iter_dataset import IterDataset
    from loaderx.compat.grain.iterator import DatasetIterator

T = TypeVar("T")
S = TypeVar("S")


class MapDatasetMeta(abc.ABCMeta):
    """The factories of `MapDataset`."""

    def source(cls, source: Sequence[T] | RandomAccessDataSource[T]) -> MapDataset[T]:
        """The records of a source: anything with a length and an index."""
        return make("source_nodes.SourceMapDataset", source)  # type: ignore[no-any-return]

    def range(cls, start: int, stop: int | None = None, step: int = 1) -> MapDataset[int]:
        """The integers of Python's `range`."""
        return make("source_nodes.RangeMapDataset", start, stop, step)  # type: ignore[no-any-return]

    def mix(
        cls, datasets: Sequence[MapDataset[T]], weights: Sequence[float] | None = None
    ) -> MapDataset[T]:
        """Elements of several datasets in proportion, until the first of them would end."""
        return make("join_nodes.MixedMapDataset", datasets, weights)  # type: ignore[no-any-return]

    def select_from_datasets(
        cls, datasets: Sequence[MapDataset[T]], selection_map: DatasetSelectionMap
    ) -> MapDataset[T]:
        """Elements of several datasets as a map selects them."""
        return make("join_nodes.MixedMapDataset", datasets, selection_map=selection_map)  # type: ignore[no-any-return]

    def concatenate(cls, datasets: Sequence[MapDataset[T]]) -> MapDataset[T]:
        """One dataset after the other."""
        return make("join_nodes.ConcatenateMapDataset", datasets)  # type: ignore[no-any-return]

    def from_loaderx(cls, ds: Dataset[T]) -> MapDataset[T]:
        """The elements of a `loaderx.Dataset` that is read by index."""
        return make("from_loaderx.LoaderxMapDataset", ds)  # type: ignore[no-any-return]


class MapDataset(DatasetNode, Generic[T], metaclass=MapDatasetMeta):
    """A dataset whose elements are read by index.  Users may subclass it."""

    @property
    def parents(self) -> Sequence[MapDataset[Element]]:
        """The datasets that this one is made from."""
        return self._parents  # type: ignore[return-value]

    @property
    def _parent(self) -> MapDataset[Element]:
        (parent,) = self.parents
        return parent

    @abc.abstractmethod
    def __len__(self) -> int:
        """The length of one epoch; `sys.maxsize` if endless."""

    @overload
    def __getitem__(self, index: builtins.slice) -> MapDataset[T]: ...

    @overload
    def __getitem__(self, index: int) -> T | None: ...

    @abc.abstractmethod
    def __getitem__(self, index: builtins.slice | int) -> MapDataset[T] | T | None:
        """The element at an index, which may be beyond the length; a dataset for a slice."""

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[T | None]:
        """The elements at several indices."""
        return [self[i] for i in as_ints(indices)]

    def _gather(self, indices: Indices, lend: Lend) -> Element:
        """The elements at several indices, stacked; None if one gather cannot give them."""
        return None

    @property
    def _gathers(self) -> bool:
        """Whether `_gather` may give a batch."""
        return False

    def apply(self, transformations: transforms.OneOrMore) -> MapDataset[Element]:
        """The dataset with one or more transformations applied in order."""
        return apply_transformations(self, transformations)

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[T]], S] | None = None,
    ) -> MapDataset[S]:
        """Elements stacked, or given as a list to ``batch_fn``; not after a filter."""
        return make(  # type: ignore[no-any-return]
            "batch_nodes.BatchMapDataset",
            self,
            batch_size,
            drop_remainder=drop_remainder,
            batch_fn=batch_fn,
        )

    def filter(self, transform: transforms.Filter | Callable[[T], bool]) -> MapDataset[T]:
        """None in place of elements for which ``transform`` is false; the length stays."""
        return make("function_nodes.FilterMapDataset", self, transform)  # type: ignore[no-any-return]

    def map(self, transform: transforms.Map | Callable[[T], S]) -> MapDataset[S]:
        """Each element transformed."""
        return make("function_nodes.MapMapDataset", self, transform)  # type: ignore[no-any-return]

    def map_with_index(
        self, transform: transforms.MapWithIndex | Callable[[int, T], S]
    ) -> MapDataset[S]:
        """Each element transformed, together with its index."""
        return make("function_nodes.MapWithIndexMapDataset", self, transform)  # type: ignore[no-any-return]

    def random_map(
        self,
        transform: transforms.RandomMap | Callable[[T, np.random.Generator], S],
        *,
        seed: int | None = None,
    ) -> MapDataset[S]:
        """Each element transformed with random numbers that its index and the seed determine."""
        return make("function_nodes.RandomMapMapDataset", self, transform, seed=seed)  # type: ignore[no-any-return]

    def seed(self, seed: int) -> MapDataset[T]:
        """The seed from which random stages above derive theirs."""
        return make("index_nodes.WithSeedMapDataset", self, seed=seed)  # type: ignore[no-any-return]

    def shuffle(self, seed: int | None = None) -> MapDataset[T]:
        """The elements of an epoch in random order, another in every epoch."""
        return make("index_nodes.ShuffleMapDataset", self, seed=seed)  # type: ignore[no-any-return]

    def slice(self, sl: builtins.slice) -> MapDataset[T]:
        """Some elements of every epoch, as ``ds[start:stop:step]``."""
        return make("index_nodes.SliceMapDataset", self, sl)  # type: ignore[no-any-return]

    def repeat(
        self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True
    ) -> MapDataset[T]:
        """``num_epochs`` epochs, or endlessly many; each has its own random numbers if reseeded."""
        return make(  # type: ignore[no-any-return]
            "index_nodes.RepeatMapDataset", self, num_epochs, reseed_each_epoch=reseed_each_epoch
        )

    def to_iter_dataset(
        self, read_options: ReadOptions | None = None, *, allow_nones: bool = False
    ) -> IterDataset[T]:
        """One epoch as an `IterDataset`, without the Nones unless they are allowed."""
        return make(  # type: ignore[no-any-return]
            "read_iterator.PrefetchIterDataset", self,
            read_options=read_options or ReadOptions(), allow_nones=allow_nones,
        )  # fmt: skip

    def __iter__(self) -> DatasetIterator[T]:
        return self.to_iter_dataset().__iter__()


class MapNode(MapDataset[T]):
    """Base of nodes with a fixed length, which override `_item` or `_getitems`."""

    _length: int

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: builtins.slice | int) -> Element:
        return self.slice(index) if isinstance(index, slice) else self._item(index)

    def _item(self, index: int) -> Element:
        return self._getitems([index])[0]
