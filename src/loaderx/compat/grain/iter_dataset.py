"""`IterDataset`: elements in order."""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import numpy as np

from loaderx.compat.grain import transforms
from loaderx.compat.grain.graph import DatasetNode, apply_transformations, make
from loaderx.compat.grain.iterator import DatasetIterator, NodeIterator
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.options import DatasetOptions, MultiprocessingOptions
from loaderx.compat.grain.protocols import Element

if TYPE_CHECKING:
    from loaderx import Dataset

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
        return make("join_nodes.MixedIterDataset", datasets, weights)  # type: ignore[no-any-return]

    def from_loaderx(cls, ds: Dataset[T]) -> IterDataset[T]:
        """The elements of a `loaderx.Dataset`, run by a `loaderx.DataLoader`."""
        return make("from_loaderx.LoaderxIterDataset", ds)  # type: ignore[no-any-return]


class IterDataset(DatasetNode, Iterable[T], Generic[T], metaclass=IterDatasetMeta):
    """A dataset whose elements come in order.  Users may subclass it."""

    @property
    def parents(self) -> Sequence[MapDataset[Element] | IterDataset[Element]]:
        """The datasets that this one is made from."""
        return self._parents  # type: ignore[return-value]

    @property
    def _parent(self) -> IterDataset[Element]:
        (parent,) = self._parents
        return parent  # type: ignore[return-value]

    def apply(self, transformations: transforms.OneOrMore) -> IterDataset[Element]:
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
            "batch_nodes.BatchIterDataset",
            self,
            batch_size,
            drop_remainder=drop_remainder,
            batch_fn=batch_fn,
        )

    def seed(self, seed: int) -> IterDataset[T]:
        """The seed from which random stages above derive theirs."""
        return make("iter_orders.WithSeedIterDataset", self, seed=seed)  # type: ignore[no-any-return]

    def filter(self, transform: transforms.Filter | Callable[[T], bool]) -> IterDataset[T]:
        """The elements for which ``transform`` is true."""
        return make("function_nodes.FilterIterDataset", self, transform)  # type: ignore[no-any-return]

    def map(self, transform: transforms.Map | Callable[[T], S]) -> IterDataset[S]:
        """Each element transformed."""
        return make("function_nodes.MapIterDataset", self, transform)  # type: ignore[no-any-return]

    def random_map(
        self,
        transform: transforms.RandomMap | Callable[[T, np.random.Generator], S],
        *,
        seed: int | None = None,
    ) -> IterDataset[S]:
        """Each element transformed with random numbers that its position and the seed determine."""
        return make("function_nodes.RandomMapIterDataset", self, transform, seed=seed)  # type: ignore[no-any-return]

    def map_with_index(
        self, transform: transforms.MapWithIndex | Callable[[int, T], S]
    ) -> IterDataset[S]:
        """Each element transformed, together with its position."""
        return make("function_nodes.MapWithIndexIterDataset", self, transform)  # type: ignore[no-any-return]

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

        The stream does not depend on the number of workers.  ``sequential_slice``, which in Grain
        selects the part of the data that a worker reads, is accepted and has no effect.
        """
        options = options or MultiprocessingOptions(num_workers=10)
        return make("process_prefetch.mp_prefetch", self, options, worker_init_fn)  # type: ignore[no-any-return]

    @abc.abstractmethod
    def __iter__(self) -> DatasetIterator[T]:
        """An iterator at the first element."""


class IterNode(IterDataset[T]):
    """Base of the nodes of this package: it names its iterator, which reads its settings."""

    _iterator: ClassVar[type[NodeIterator[Element]]]

    def __iter__(self) -> DatasetIterator[T]:
        return self._iterator(self)


class WithOptionsIterDataset(IterDataset[T]):
    """Sets options for all stages of the pipeline; the last of several has priority."""

    _MUTATES_ELEMENT_SPEC = False
    _shown = ("options",)

    def __init__(self, parent: IterDataset[T], options: DatasetOptions) -> None:
        super().__init__(parent)
        self._options = options

    def __iter__(self) -> DatasetIterator[T]:
        made = self._parent.__iter__()
        made._ctx.dataset_options = self._options.merge(made._ctx.dataset_options)
        return made
