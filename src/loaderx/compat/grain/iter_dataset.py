"""`IterDataset`: elements in order."""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from loaderx.compat.grain.graph import DatasetNode, apply_transformations
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.options import DatasetOptions, MultiprocessingOptions
from loaderx.compat.grain.protocols import Element, Spec
from loaderx.compat.grain.registry import make
from loaderx.compat.grain.transforms import (
    Filter,
    Map,
    MapWithIndex,
    RandomMap,
    Transformation,
    Transformations,
)

if TYPE_CHECKING:
    from loaderx.dataset import Dataset

T = TypeVar("T")
S = TypeVar("S")


class IterDatasetMeta(abc.ABCMeta):
    """The factories of `IterDataset`."""

    def mix(
        cls,
        datasets: Sequence[IterDataset[T]] | Mapping[str, IterDataset[T]],
        weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> IterDataset[T]:
        """Elements of several datasets in proportion, until the first of them ends.

        The state of a mix of a mapping is restored by name: components may come and go.
        """
        return make("iter.mix", datasets, weights)  # type: ignore[no-any-return]

    def from_loaderx(cls, ds: Dataset[T]) -> IterDataset[T]:
        """The elements of a `loaderx.Dataset`, run by a `loaderx.DataLoader`."""
        return make("iter.from_loaderx", ds)  # type: ignore[no-any-return]


class IterDataset(DatasetNode, Iterable[T], Generic[T], metaclass=IterDatasetMeta):
    """A dataset whose elements come in order.  To be subclassed by users, too."""

    def __init__(self, parents: DatasetNode | Sequence[DatasetNode] = ()) -> None:
        super().__init__((parents,) if isinstance(parents, DatasetNode) else tuple(parents))

    @property
    def parents(self) -> Sequence[MapDataset[Element] | IterDataset[Element]]:
        """The datasets that this one is made from."""
        return self._parents  # type: ignore[return-value]

    @property
    def _parent(self) -> IterDataset[Element]:
        (parent,) = self._parents
        return parent  # type: ignore[return-value]

    def apply(self, transformations: Transformation | Transformations) -> IterDataset[Element]:
        """The dataset with one or more transformations applied in order."""
        return apply_transformations(self, transformations)

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[T]], S] | None = None,
    ) -> IterDataset[S]:
        """Elements stacked, or given as a list to ``batch_fn``."""
        return make(  # type: ignore[no-any-return]
            "iter.batch", self, batch_size, drop_remainder=drop_remainder, batch_fn=batch_fn
        )

    def seed(self, seed: int) -> IterDataset[T]:
        """The seed from which random stages above derive theirs."""
        return make("iter.seed", self, seed=seed)  # type: ignore[no-any-return]

    def filter(self, transform: Filter | Callable[[T], bool]) -> IterDataset[T]:
        """The elements for which ``transform`` is true."""
        return make("iter.filter", self, transform)  # type: ignore[no-any-return]

    def map(self, transform: Map | Callable[[T], S]) -> IterDataset[S]:
        """Each element transformed."""
        return make("iter.map", self, transform)  # type: ignore[no-any-return]

    def random_map(
        self,
        transform: RandomMap | Callable[[T, np.random.Generator], S],
        *,
        seed: int | None = None,
    ) -> IterDataset[S]:
        """Each element transformed with random numbers that its number and the seed determine."""
        return make("iter.random_map", self, transform, seed=seed)  # type: ignore[no-any-return]

    def map_with_index(self, transform: MapWithIndex | Callable[[int, T], S]) -> IterDataset[S]:
        """Each element transformed, knowing its number."""
        return make("iter.map_with_index", self, transform)  # type: ignore[no-any-return]

    def prefetch(self, multiprocessing_options: MultiprocessingOptions) -> IterDataset[T]:
        """The old name of `mp_prefetch`."""
        warnings.warn(
            "`prefetch` is the old name of `mp_prefetch`.", DeprecationWarning, stacklevel=2
        )
        return self.mp_prefetch(multiprocessing_options)

    def mp_prefetch(
        self,
        options: MultiprocessingOptions | None = None,
        worker_init_fn: Callable[[int, int], None] | None = None,
        sequential_slice: bool = False,
    ) -> IterDataset[T]:
        """The same elements, made in worker processes.

        The stream is that of no workers, for every number of them: ``sequential_slice``, which
        says what part of the data a worker of Grain's reads, is accepted and has no effect.
        """
        options = options or MultiprocessingOptions(num_workers=10)
        return make("iter.mp_prefetch", self, options, worker_init_fn)  # type: ignore[no-any-return]

    @abc.abstractmethod
    def __iter__(self) -> DatasetIterator[T]:
        """An iterator at the first element."""


class WithOptionsIterDataset(IterDataset[T]):
    """Sets options for all stages of the pipeline; of several the last wins."""

    def __init__(self, parent: IterDataset[T], options: DatasetOptions) -> None:
        super().__init__(parent)
        self.options = options

    def __iter__(self) -> DatasetIterator[T]:
        made = self._parent.__iter__()
        made._ctx.dataset_options = self.options.merge(made._ctx.dataset_options)
        return made

    def __str__(self) -> str:
        return f"WithOptionsIterDataset(options={self.options})"

    @property
    def _element_spec(self) -> Spec:
        return self._parent._element_spec
