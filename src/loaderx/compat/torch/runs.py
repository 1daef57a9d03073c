"""Runs the epochs of a loader on a `loaderx.DataLoader` that is kept from one epoch to the next.

It is made again if the next epoch has another description: other indices of a sampler, or other
arrays.  Its workers get the dataset again if it has changed, or are started again.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Any

from loaderx import DataLoader, Dataset
from loaderx.compat.torch.arguments import is_iterated
from loaderx.compat.torch.chains import ListedBatches, Order, UnsizedBatches, fetched, gathered
from loaderx.compat.torch.changes import Snapshot
from loaderx.compat.torch.collate import Tree, default_collate
from loaderx.compat.torch.fetching import (
    Fetch,
    FetchListed,
    IteratedBatches,
    WorkerInit,
    runs_of,
)
from loaderx.compat.torch.sent import Sent
from loaderx.engines import Auto, Engine, Inline, Processes
from loaderx.extend import warn_user


@dataclasses.dataclass(frozen=True, eq=False)
class Settings:
    """The arguments of a loader that determine its batches and its engine."""

    dataset: Any
    order: Order
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Iterable[Any]] | None
    collate: Callable[[Tree], Tree]
    num_workers: int
    prefetch_factor: int | None
    timeout: float
    worker_init_fn: Callable[[int], object] | None
    persistent_workers: bool | None

    @property
    def is_batched(self) -> bool:
        return self.order.batch_size is not None or self.batch_sampler is not None

    @property
    def is_iterated(self) -> bool:
        return is_iterated(self.dataset)

    @property
    def given_order(self) -> Iterable[Any] | None:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def is_sized(self) -> bool:
        """Whether the order is known when an epoch begins."""
        return not self.is_iterated and (self.given_order is None or is_sized(self.given_order))

    @property
    def gathers(self) -> bool:
        """Whether batches are rows of arrays, with nothing else to be done."""
        return (
            self.is_sized
            and self.order.batch_size is not None
            and self.collate is default_collate
            and gathered(self.dataset) is not None
        )

    def lists(self) -> ListedBatches | None:
        """The indices of the batches of an epoch, read from the sampler; None without one."""
        if self.given_order is None or not self.is_batched or not self.is_sized or self.gathers:
            return None
        if self.batch_sampler is not None:
            return ListedBatches.of(self.batch_sampler)
        assert self.order.batch_size is not None
        size, drop_last = self.order.batch_size, self.order.drop_last
        return ListedBatches.of(runs_of(self.given_order, size, drop_last=drop_last))

    def engine(self) -> Engine:
        if not self.num_workers:
            return Inline()
        if self.gathers:
            return Auto(self.num_workers)  # no user code runs, so workers may not be faster
        if not self.is_sized:
            what = type(self.dataset if self.is_iterated else self.given_order).__name__
            also = " and a __getitem__" if self.is_iterated else ""
            warn_user(
                f"num_workers={self.num_workers} is not used: {what} has no length, and is read in "
                f"order, in this thread. For workers, give it a __len__{also}."
            )
            return Inline()
        ahead = self.num_workers * (self.prefetch_factor or 2)
        init = None if self.worker_init_fn is None else WorkerInit(self.worker_init_fn)
        return Processes(self.num_workers, ahead, timeout_s=self.timeout or None, init=init)


def is_sized(value: object) -> bool:
    """Whether it has a length.  The ``__len__`` of a sampler over another one may raise."""
    try:
        return len(value) >= 0  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return False


class Runs:
    """The loader that runs the epochs."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._process = settings, os.getpid()
        self._runner: DataLoader[Tree] | None = None
        self._records = 0  # of the dataset, when the runner was made
        self._lists: Sent[ListedBatches] | None = None  # the indices of this epoch
        self._seen: Snapshot | None = None  # the dataset as workers, or the chain, have it
        self._sent = Sent((settings.dataset, settings.collate))

    def __reduce__(self) -> tuple[type[Runs], tuple[Settings]]:
        return Runs, (self._settings,)  # a copy of a loader has workers and files of its own

    def runner(self, epoch: int, *, is_idle: bool) -> DataLoader[Tree] | None:
        """The loader that runs an epoch; None if there is nothing to run.

        ``is_idle`` means that the last epoch has ended, and no worker reads its indices any more.
        """
        settings = self._settings
        if self._process != os.getpid():  # in a fork, which must not write into the parent's files
            self.__init__(settings)  # type: ignore[misc]
        lists = settings.lists()
        if lists is not None and not len(lists):
            return None
        if not self._is_fresh(is_idle):
            self.close()
            self._runner = None if settings.gathers else self._runner
        if self._runner is None or not self._goes_on(lists, is_idle):
            self.close()
            self._runner = DataLoader(self._chain(epoch, lists), engine=settings.engine())
        if self._seen is None and (settings.num_workers or settings.gathers):
            self._seen = Snapshot(settings.dataset)
        return self._runner

    def close(self) -> None:
        """Ends the workers; the next epoch starts others."""
        if self._runner is not None:
            self._runner.close()

    def _is_fresh(self, is_idle: bool) -> bool:
        """Whether the next epoch would see the dataset as it is now."""
        keep, gathers = self._settings.persistent_workers, self._settings.gathers
        if self._seen is None or (keep and not gathers):
            return True
        if (keep is None or gathers) and self._seen.holds():
            return True
        self._seen = None
        settings = self._settings
        can_send = keep is None and is_idle and not gathers
        return can_send and self._sent.send((settings.dataset, settings.collate))

    def _goes_on(self, lists: ListedBatches | None, is_idle: bool) -> bool:
        """Whether the runner of the last epoch can also run the next one."""
        settings = self._settings
        if settings.given_order is None:
            return settings.is_iterated or len(settings.dataset) == self._records
        if self._lists is None or lists is None or not is_idle:
            return False
        return len(lists) == len(self._lists.newest()) and self._lists.send(lists)

    def _chain(self, epoch: int, lists: ListedBatches | None) -> Dataset[Tree]:
        settings = self._settings
        order, dataset = settings.order, settings.dataset
        if settings.is_iterated:
            return Dataset.from_iterable(
                IteratedBatches(dataset, order.batch_size, order.drop_last, settings.collate)
            )
        fetch = Fetch(self._sent, settings.is_batched)
        if lists is not None:
            self._lists = Sent(lists)
            # Numbers of batches, as batches of one: an element of the chain is a batch.
            numbers = Dataset.range(len(lists)).batch(1)
            return fetched(numbers, FetchListed(self._lists, fetch), order.seed)
        given = settings.given_order
        if given is not None and not settings.is_sized:
            return Dataset.from_iterable(UnsizedBatches(given, order, fetch, epoch))
        self._records = len(dataset)
        records = gathered(dataset) if settings.gathers else None
        if records is not None:
            rows = order.of_length(len(records), records)
            return rows if given is None else order.of_sampler(given, records)
        indices = order.of_length(len(dataset)) if given is None else Dataset.from_source([*given])
        return fetched(indices, fetch, order.seed)
