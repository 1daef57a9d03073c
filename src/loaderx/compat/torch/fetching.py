"""Makes one batch: reads the records at its indices and collates them.

Datasets written for torch draw from the global generators (``np.random``, ``random``, torch's own).
These are seeded for each batch, from the seed, the epoch and the batch, so that the stream is the
same for any number of workers.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from loaderx.compat.torch.collate import Tree, arrays_of
from loaderx.compat.torch.sent import Sent

if TYPE_CHECKING:
    from numpy.random import MT19937

    from loaderx.compat.torch.chains import ListedBatches

_turn = threading.RLock()  # threads share the generators; a dataset may use another loader


_spare: list[MT19937] = []  # generators that are not in use, since making one takes long


class MapStyle(Protocol):
    """A dataset that is read by index, or by any other key that its sampler gives."""

    def __getitem__(self, index: object, /) -> Tree: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Fetch:
    """A batch, ``collate([dataset[i] for i in indices])``; or a record, ``collate(dataset[i])``."""

    parts: Sent[tuple[MapStyle, Callable[[Tree], Tree]]]  # the dataset, and `collate`
    is_batched: bool

    def __call__(self, wanted: Any, words: Sequence[int]) -> Tree:
        if isinstance(wanted, (np.ndarray, np.generic)):
            wanted = wanted.tolist()
        dataset, collate = self.parts.newest()
        many = getattr(dataset, "__getitems__", None)
        with seeded(words):
            if not self.is_batched:
                records = dataset[wanted]
            else:
                records = many(wanted) if many else [dataset[index] for index in wanted]
            return arrays_of(collate(records))


@dataclasses.dataclass(frozen=True, eq=False)
class FetchListed:
    """A batch of the indices that a sampler has listed; it is called with the list's number."""

    lists: Sent[ListedBatches]
    fetch: Fetch

    def __call__(self, number: npt.NDArray[np.int64], words: Sequence[int]) -> Tree:
        return self.fetch(self.lists.newest()[int(number[0])], words)


@contextmanager
def seeded(words: Sequence[int]) -> Iterator[None]:
    """Seeds the global generators for one batch, and restores them afterwards.

    NumPy's generator is replaced for that time, since saving its state takes as long as ten
    records.  This loses a pending second number of a pair of legacy normals (``np.random.randn``).
    """
    from numpy.random import MT19937, mtrand  # slow to import

    torch = getattr(sys.modules.get("torch"), "default_generator", None)
    with _turn:
        before, numpys = random.getstate(), mtrand.get_bit_generator()
        torchs = None if torch is None else torch.get_state()
        own = _spare.pop() if _spare else MT19937(0)
        mtrand.set_bit_generator(own)
        try:
            random.seed(words[0])
            mtrand.seed(words[1] >> 32)
            if torch is not None:
                torch.manual_seed(words[2] >> 1)
            yield
        finally:
            random.setstate(before)
            mtrand.set_bit_generator(numpys)
            _spare.append(own)
            if torch is not None:
                torch.set_state(torchs)


@dataclasses.dataclass(frozen=True, eq=False)
class WorkerInit:
    """Called first in each worker; torch's function takes only the number of the worker."""

    worker_init_fn: Callable[[int], object]

    def __call__(self, index: int, count: int) -> None:
        self.worker_init_fn(index)


@dataclasses.dataclass(frozen=True, eq=False)
class IteratedBatches:
    """The batches of a dataset that can only be iterated; each call starts from the beginning."""

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
    """Lists of ``size`` values; the last may be shorter, unless it is dropped."""
    left = iter(values)
    while found := list(islice(left, size)):
        if drop_last and len(found) < size:
            return
        yield found
