"""One epoch of a torch loader as a chain of loaderx: the order of the records, and their fetching.

The elements of the chain are indices until the last stage, which fetches a batch of records.  If
the dataset consists of arrays and nothing else is to be done, rows are gathered instead.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from loaderx import Dataset
from loaderx.compat.torch.collate import Tree
from loaderx.compat.torch.fetching import FetchBatch, FetchListed, FetchRecord, runs_of
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
        chain = Dataset.range(length) if records is None else records
        return self._cut(chain.shuffle(seed=self.seed) if self.shuffle else chain)

    def of_sampler(self, sampler: Iterable[Any], records: Dataset[Tree]) -> Dataset[Tree]:
        """The records that a sampler names."""
        return self._cut(records[np.fromiter(map(operator.index, sampler), np.int64)])

    def _cut(self, chain: Dataset[Tree]) -> Dataset[Tree]:
        if self.batch_size is None:
            return chain
        return chain.batch(self.batch_size, drop_remainder=self.drop_last)


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

    lists: list[Any]  # arrays of numbers, or lists of keys of any kind
    are_numbers: bool

    @staticmethod
    def of(batches: Iterable[Iterable[Any]]) -> ListedBatches:
        lists = list(map(list, batches))
        try:
            return ListedBatches(
                [np.array(list(map(operator.index, one)), np.int64) for one in lists], True
            )
        except TypeError:
            return ListedBatches(lists, False)


def fetched(
    indices: Dataset[Tree], fetch: FetchBatch | FetchRecord | FetchListed, seed: int
) -> Dataset[Tree]:
    """The batches, or records, of these indices."""
    return map_with_words(indices, fetch, seed=seed, name="fetch")


@dataclasses.dataclass(frozen=True, eq=False)
class UnsizedBatches:
    """The batches of a sampler without a length, which may be endless and is read on demand."""

    sampler: Iterable[Any]
    order: Order
    fetch: FetchBatch | FetchRecord
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
