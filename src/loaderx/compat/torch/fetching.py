"""What is done for one batch: the records of its indices are read and collated.

Datasets written for torch draw from the global generators (``np.random``, ``random``, torch's own).
These are seeded for each batch, from the seed, the epoch and the batch, so that the stream is the
same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

from loaderx.compat.torch.collate import arrays_of
from loaderx.frozen import Frozen
from loaderx.rng import BatchGenerator
from loaderx.stages.global_generators import seeded_generators
from loaderx.tree import Tree


class MapStyle(Protocol):
    """A dataset that is read by index, or by any other key that its sampler gives."""

    def __getitem__(self, index: object, /) -> Tree: ...


class FetchBatch(Frozen):
    """A batch: ``collate([dataset[i] for i in indices])``."""

    dataset: MapStyle
    collate: Callable[[list[Tree]], Tree]

    def __call__(
        self,
        indices: npt.NDArray[np.int64] | list[object],
        rng: BatchGenerator | np.random.Generator,
    ) -> Tree:
        wanted = indices.tolist() if isinstance(indices, np.ndarray) else indices
        with seeded_generators() as seed:
            seed(*_words(rng))
            return arrays_of(self.collate(self._records(wanted)))

    def _records(self, indices: list[object]) -> list[Tree]:
        many = getattr(self.dataset, "__getitems__", None)
        return many(indices) if many else [self.dataset[index] for index in indices]


class FetchRecord(Frozen):
    """A single record, for a loader without batches."""

    dataset: MapStyle
    convert: Callable[[Tree], Tree]

    def __call__(self, index: object, rng: np.random.Generator) -> Tree:
        wanted = index.item() if isinstance(index, np.generic) else index
        with seeded_generators() as seed:
            seed(*_words(rng))
            return arrays_of(self.convert(self.dataset[wanted]))


def _words(rng: BatchGenerator | np.random.Generator) -> list[int]:
    """A seed for each of the three global generators."""
    if isinstance(rng, BatchGenerator):
        # Of the first record: which others are in the batch changes with the batch size only.
        return [int(word) << 32 for word in rng.integers(0, 1 << 32, size=(..., 3))[0]]
    return [int(word) << 32 for word in rng.integers(0, 1 << 32, size=3)]


class IteratedBatches(Frozen):
    """The batches of a dataset that can only be iterated; called, it begins anew."""

    dataset: Iterable[Tree]
    batch_size: int | None
    drop_last: bool
    collate: Callable[[Tree], Tree]

    def __call__(self) -> Iterator[Tree]:
        found: Iterable[Tree] = self.dataset
        if self.batch_size is not None:
            found = runs_of(found, self.batch_size, drop_last=self.drop_last)
        return (arrays_of(self.collate(records)) for records in found)


def runs_of(values: Iterable[Tree], size: int, *, drop_last: bool) -> Iterator[list[Tree]]:
    """Lists of so many values; the last may be shorter, unless it is dropped."""
    left = iter(values)
    while found := list(islice(left, size)):
        if drop_last and len(found) < size:
            return
        yield found
