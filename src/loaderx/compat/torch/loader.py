"""`DataLoader` with torch's arguments.

Every ``iter(loader)`` is the next epoch.  Inside, it is one epoch of a `loaderx.DataLoader`: of the
records' indices in their order, and of a function that fetches and collates a batch of them.  A
sampler is read at the start of its epoch, in this process; it need not be torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Generic, TypeVar

from loaderx.compat.torch import arguments
from loaderx.compat.torch.chains import ListedBatches, Order, UnsizedBatches, fetched, gathered
from loaderx.compat.torch.changes import Snapshot
from loaderx.compat.torch.collate import default_collate, default_convert
from loaderx.compat.torch.epoch import Epoch
from loaderx.compat.torch.fetching import (
    FetchBatch,
    FetchListed,
    FetchRecord,
    IteratedBatches,
    Lists,
    WorkerInit,
    runs_of,
)
from loaderx.compat.torch.shared_lists import SharedLists
from loaderx.dataset import Dataset as Chain
from loaderx.engines import Auto, Engine, Inline, Processes
from loaderx.errors import ArgumentTypeError, StateError, warn_user
from loaderx.loader import DataLoader as Runner
from loaderx.loader.state import State
from loaderx.tree import Tree

T_co = TypeVar("T_co", covariant=True)
STATE_VERSION = 1


class Dataset(Generic[T_co]):
    """A base class for datasets, where torch is not installed.  Torch's own are taken as well."""

    def __getitem__(self, index: int) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} needs a __getitem__(index).")


class DataLoader:
    """NumPy batches of a dataset.

    >>> loader = DataLoader([(i, i / 2) for i in range(5)], batch_size=2)
    >>> [x.tolist() for x, y in loader]
    [[0, 1], [2, 3], [4]]

    The arguments are torch's.  These have no effect: ``pin_memory``, ``pin_memory_device``,
    ``multiprocessing_context``, ``in_order``.

    Args:
        dataset: anything with ``__len__`` and ``__getitem__``; ``__getitems__`` is used where it
            exists.  One that can only be iterated is read in this thread.
        batch_size: None gives single records.
        shuffle: a new order in every epoch.
        sampler, batch_sampler: indices, or lists of them; read anew for every epoch.
        num_workers: worker processes.  The batches are the same for any number of them.
        collate_fn: makes a batch of a list of records; `default_collate` if None.
        drop_last: leave out a last batch that is not full.
        timeout: a batch that takes longer (in seconds) is reported, with the stack of its worker.
        worker_init_fn: called in each worker with its number, first of all.
        generator: the seed: a number, or a generator of torch or NumPy.  0 by default.
        prefetch_factor: batches made ahead, for each worker; 2 by default.
        persistent_workers: None keeps workers until an attribute of the dataset changes; False
            starts new ones in every epoch, as torch does; True keeps them.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[object] | None = None,
        batch_sampler: Iterable[Iterable[object]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Tree], Tree] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: object = None,
        generator: object = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        shuffle = bool(shuffle)
        arguments.check_dataset(dataset)
        arguments.check_order(dataset, batch_size, shuffle, sampler, batch_sampler, drop_last)
        arguments.check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        self.dataset = dataset
        self.batch_size = batch_size if batch_sampler is None else None
        self.drop_last = bool(drop_last)
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        self._is_batched = batch_size is not None or batch_sampler is not None
        default = default_collate if self._is_batched else default_convert
        self.collate_fn: Callable[[Tree], Tree] = default if collate_fn is None else collate_fn
        self.timeout, self.worker_init_fn = timeout, worker_init_fn
        self.generator, self.multiprocessing_context = generator, multiprocessing_context
        self.pin_memory, self.pin_memory_device = pin_memory, pin_memory_device
        self.persistent_workers, self.in_order = persistent_workers, in_order
        seed = arguments.seed_of(generator)
        self._order = Order(self.batch_size, self.drop_last, shuffle, seed)
        self._is_iterated = arguments.is_iterated(dataset)
        self._runner: Runner[Tree] | None = None  # kept from one epoch to the next
        self._shared: SharedLists | None = None  # the indices of this epoch, for workers
        self._sent: Snapshot | None = None  # the dataset as the workers have it
        self._epoch = 0  # the next to begin
        self._resumed: State | None = None
        self._current: Epoch | None = None

    def __len__(self) -> int:
        if self.batch_sampler is not None:
            return _length("batch_sampler", self.batch_sampler)
        if self.sampler is not None:
            records = _length("sampler", self.sampler)
        else:
            records = _length("dataset", self.dataset)
        if self.batch_size is None:
            return records
        return records // self.batch_size if self.drop_last else -(-records // self.batch_size)

    def __bool__(self) -> bool:
        return True  # else `if loader` would ask for its length, which not all have

    def __iter__(self) -> Iterator[Tree]:
        resumed, self._resumed = self._resumed, None
        number = self._epoch if resumed is None else resumed["epoch"]
        self._epoch = number + 1
        self._current = Epoch(self._runner_of(number), number, as_lists=self._gathers)
        if resumed is not None and resumed["state"] is not None:
            self._current.set_state(resumed["state"])
        return self._current

    # State, as torchdata's StatefulDataLoader has it ------------------------------------------

    def state_dict(self) -> State:
        """The position: the epoch, and the next batch of it, as a small dict for JSON."""
        if self._resumed is not None:
            return dict(self._resumed)
        number, state = self._epoch, None
        if self._current is not None and not self._current.is_done:
            number, state = self._current.number, self._current.get_state()
        return {"version": STATE_VERSION, "epoch": number, "state": state}

    def load_state_dict(self, state_dict: State) -> None:
        """Continues where a state was taken: the next ``iter(loader)`` gives the rest of its epoch.

        A sampler is read anew for it, and must give the same indices: seed it, or call its
        ``set_epoch`` first.
        """
        keys = ("version", "epoch", "state")
        if not isinstance(state_dict, dict) or not all(key in state_dict for key in keys):
            raise StateError("this is not a state that state_dict() of this loader has made.")
        if state_dict["version"] != STATE_VERSION:
            raise StateError(
                f"the state has version {state_dict['version']!r}; this loaderx reads "
                f"{STATE_VERSION}."
            )
        number = state_dict["epoch"]
        if type(number) is not int or number < 0:
            raise StateError(f"the state's epoch must be a whole number, got {number!r}.")
        self._resumed = dict(state_dict)
        self._current = None

    # The loader of loaderx that runs the epochs -----------------------------------------------

    def _runner_of(self, epoch: int) -> Runner[Tree] | None:
        """What runs the next epoch, with the workers of the last one where they can stay."""
        if self._is_sized and not len(self):
            return None  # a chain of loaderx cannot be empty
        if self._runner is not None and self._workers_are_stale():
            self._runner.close()
        if self._runner is None or not self._goes_on():
            if self._runner is not None:
                self._runner.close()
            self._runner = Runner(self._chain(epoch), engine=self._engine())
        if self._sent is None and self.num_workers:
            self._sent = Snapshot(self.dataset)
        return self._runner

    def _workers_are_stale(self) -> bool:
        if not self.num_workers or self.persistent_workers:
            return False
        if self.persistent_workers is None and self._sent is not None and self._sent.holds():
            return False
        self._sent = None
        return True

    def _goes_on(self) -> bool:
        """Can the runner of the last epoch run the next one, too?"""
        if self._given_order is None:
            return True
        # The indices of a sampler are others in every epoch; workers may be reading the last ones.
        is_done = self._current is not None and self._current.is_done
        return self._shared is not None and is_done and self._shared.replace(self._lists().lists)

    @property
    def _given_order(self) -> Iterable[Any] | None:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def _is_sized(self) -> bool:
        """Is the order known when an epoch begins?"""
        order = self._given_order
        return not self._is_iterated and (order is None or hasattr(order, "__len__"))

    @property
    def _gathers(self) -> bool:
        """Are batches rows of arrays, with nothing else to be done?"""
        return (
            self._is_sized
            and self.batch_size is not None
            and self.collate_fn is default_collate
            and gathered(self.dataset) is not None
        )

    def _engine(self) -> Engine:
        if not self.num_workers:
            return Inline()
        if self._gathers:
            return Auto(self.num_workers)  # no code of the user's runs: workers may not pay
        if not self._is_sized:
            what = type(self.dataset if self._is_iterated else self._given_order).__name__
            also = " and a __getitem__" if self._is_iterated else ""
            warn_user(
                f"num_workers={self.num_workers} is not used: {what} has no length, and is read in "
                f"order, in this thread. For workers, give it a __len__{also}."
            )
            return Inline()
        ahead = self.num_workers * (self.prefetch_factor or 2)
        init = None if self.worker_init_fn is None else WorkerInit(self.worker_init_fn)
        return Processes(self.num_workers, ahead, timeout_s=self.timeout or None, init=init)

    def _chain(self, epoch: int) -> Chain[Tree]:
        order, dataset, collate = self._order, self.dataset, self.collate_fn
        if self._is_iterated:
            batches = IteratedBatches(dataset, self.batch_size, self.drop_last, collate)
            return Chain.from_iterable(batches)
        given, batch = self._given_order, FetchBatch(dataset, collate)
        fetch = batch if self._is_batched else FetchRecord(dataset, collate)
        if given is not None and not self._is_sized:
            return Chain.from_iterable(UnsizedBatches(given, order, fetch, epoch))
        if self._gathers:
            return self._gathered_chain(gathered(dataset))
        if given is None:
            return fetched(order.of_length(_length("dataset", dataset)), fetch, order.seed)
        if not self._is_batched:
            return fetched(Chain.from_source(list(given)), fetch, order.seed)
        # Numbers of batches, as batches of one: an element of the chain is a batch, not a record.
        lists = self._list_batches()
        numbers = Chain.range(len(lists)).batch(1)
        return fetched(numbers, FetchListed(lists, batch), order.seed)

    def _gathered_chain(self, records: Chain[Tree] | None) -> Chain[Tree]:
        assert records is not None
        if self.sampler is not None:
            return self._order.of_sampler(self.sampler, records)
        return self._order.of_length(len(records), records)

    def _list_batches(self) -> Lists:
        """The indices of each batch, where workers see those of the next epoch if they can."""
        found, self._shared = self._lists(), None
        if not self.num_workers or not found.are_numbers:
            return found.lists
        self._shared = SharedLists(found.lists)
        return self._shared

    def _lists(self) -> ListedBatches:
        if self.batch_sampler is not None:
            return ListedBatches.of(self.batch_sampler)
        assert self.sampler is not None
        assert self.batch_size is not None
        return ListedBatches.of(runs_of(self.sampler, self.batch_size, drop_last=self.drop_last))


def _length(name: str, value: object) -> int:
    if not isinstance(value, Sized):
        raise ArgumentTypeError(
            f"this loader has no length: its `{name}`, {type(value).__name__}, has no __len__."
        )
    return len(value)
