"""One epoch of a torch loader as a chain of loaderx: the order of the records, and their fetching.

The elements of the chain are indices until the last stage, which fetches a batch of records.  If
the dataset consists of arrays and nothing else is to be done, rows are gathered instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderx import Dataset
from loaderx.compat.torch.collate import Tree
from loaderx.compat.torch.fetching import Fetch, FetchListed, runs_of
from loaderx.extend import map_with_words, seed_words
from loaderx.sources import ArraySource, adapt


@dataclasses.dataclass(frozen=True, eq=False)
class Order:
    """The order of the records of a loader, and the number of records in a batch."""

    batch_size: int | None
    drop_last: bool
    shuffle: bool
    seed: int

    def of_length(self, length: int, records: Dataset[Tree] | None = None) -> Dataset[Tree]:
        """All records, or their indices; the order is drawn by loaderx."""
        found = Dataset.range(length) if records is None else records
        return self._cut(found.shuffle(seed=self.seed) if self.shuffle else found)

    def of_sampler(self, sampler: Iterable[Any], records: Dataset[Tree]) -> Dataset[Tree]:
        """The records that a sampler names."""
        return self._cut(records[np.fromiter(map(operator.index, sampler), np.int64)])

    def _cut(self, records: Dataset[Tree]) -> Dataset[Tree]:
        if self.batch_size is None:
            return records
        return records.batch(self.batch_size, drop_remainder=self.drop_last)


def gathered(dataset: object) -> Dataset[Tree] | None:
    """The records of arrays, or of a loaderx dataset; None for other datasets."""
    if isinstance(dataset, Dataset):
        return dataset
    is_tensors = type(dataset).__name__ == "TensorDataset"
    if isinstance(dataset, np.ndarray) or (is_tensors and isinstance(adapt(dataset), ArraySource)):
        return Dataset.from_source(dataset)
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class ListedBatches:
    """The indices of each batch of one epoch, as a sampler gave them."""

    indices: npt.NDArray[np.int64] | list[Any]  # numbers, or keys of any kind
    ends: npt.NDArray[np.int64]

    @staticmethod
    def of(batches: Iterable[Iterable[Any]]) -> ListedBatches:
        lists = list(map(list, batches))
        indices: Any = [*chain.from_iterable(lists)]
        with contextlib.suppress(TypeError):
            indices = np.array(list(map(operator.index, indices)), np.int64)
        return ListedBatches(indices, np.cumsum([0, *map(len, lists)]))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, number: int) -> npt.NDArray[np.int64] | list[Any]:
        return self.indices[self.ends[number] : self.ends[number + 1]]


def fetched(indices: Dataset[Tree], fetch: Fetch | FetchListed, seed: int) -> Dataset[Tree]:
    """The batches, or records, of these indices."""
    return map_with_words(indices, fetch, seed=seed, name="fetch")


@dataclasses.dataclass(frozen=True, eq=False)
class UnsizedBatches:
    """The batches of a sampler without a length, which may be endless and is read on demand."""

    sampler: Iterable[Any]
    order: Order
    fetch: Fetch
    epoch: int

    def __call__(self) -> Iterator[Tree]:
        for number, indices in enumerate(self._indices()):
            yield self.fetch(indices, seed_words(self.order.seed, self.epoch, number))

    def _indices(self) -> Iterator[Any]:
        size = self.order.batch_size
        if size is None:  # single indices, or the lists of a batch sampler
            yield from self.sampler
            return
        yield from runs_of(self.sampler, size, drop_last=self.order.drop_last)
