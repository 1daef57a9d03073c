"""`DataLoader` with torch's arguments.

Every ``iter(loader)`` is the next epoch, and one epoch of a `loaderx.DataLoader`: its chain has the
indices of the records in order, and a function that fetches and collates a batch.  A sampler is
read at the start of its epoch, in this process; it need not be a torch sampler.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from loaderx import ArgumentError, ArgumentTypeError, StateError
from loaderx.compat.torch import arguments, seeds
from loaderx.compat.torch.chains import Order
from loaderx.compat.torch.collate import Tree, default_collate, default_convert
from loaderx.compat.torch.epoch import Epoch, State
from loaderx.compat.torch.runs import Runs, Settings, is_sized

T_co = TypeVar("T_co", covariant=True)
STATE_VERSION = 1
_FIXED = frozenset(
    [
        "dataset",
        "batch_size",
        "sampler",
        "batch_sampler",
        "num_workers",
        "collate_fn",
        "drop_last",
        "timeout",
        "worker_init_fn",
        "generator",
        "prefetch_factor",
        "persistent_workers",
    ]
)


class Dataset(Generic[T_co]):
    """A base class for datasets if torch is not installed.  Torch datasets are taken as well."""

    def __getitem__(self, index: int) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} needs a __getitem__(index).")

    def __add__(self, other: object) -> Any:
        words = importlib.import_module("loaderx.compat.torch")  # which imports this module
        return words.ConcatDataset([self, other])


def get_worker_info() -> None:
    """None, as in torch's main process: the batches do not depend on workers."""


class DataLoader:
    """NumPy batches of a dataset.

    >>> loader = DataLoader([(i, i / 2) for i in range(5)], batch_size=2)
    >>> [x.tolist() for x, y in loader]
    [[0, 1], [2, 3], [4]]

    The arguments are torch's.  These have no effect: ``pin_memory``, ``pin_memory_device``,
    ``multiprocessing_context``, ``in_order``.

    Args:
        dataset: anything with ``__len__`` and ``__getitem__``; ``__getitems__`` is used if it
            exists.  A dataset that can only be iterated is read in this thread.
        batch_size: None gives single records.
        shuffle: whether every epoch has a new order.
        sampler, batch_sampler: indices, or lists of indices; read again for every epoch.
        num_workers: the number of worker processes, which does not change the batches.
        collate_fn: makes a batch from a list of records; `default_collate` if None.
        drop_last: whether to leave out a last batch that is not full.
        timeout: a batch that takes longer (in seconds) is reported, with the stack of its worker.
        worker_init_fn: called first in each worker, with the worker's number.
        generator: the seed, or a generator of torch or NumPy from which it is drawn.  Without it
            the seed is drawn from torch's global generator, so `torch.manual_seed` decides.  In a
            program without torch each loader has a seed of its own, the same in every run.
        prefetch_factor: the number of batches made ahead per worker; 2 by default.
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
        is_batched = batch_size is not None or batch_sampler is not None
        default = default_collate if is_batched else default_convert
        self.collate_fn: Callable[[Tree], Tree] = default if collate_fn is None else collate_fn
        self.timeout, self.worker_init_fn = timeout, worker_init_fn
        self.generator, self.multiprocessing_context = generator, multiprocessing_context
        self.pin_memory, self.pin_memory_device = pin_memory, pin_memory_device
        self.persistent_workers, self.in_order = persistent_workers, in_order
        self._seed = seeds.fixed_seed(generator)
        self._draws_seed = self._seed is None
        # Numbered here, so that a seed from a state leaves the numbers of other loaders alone.
        self._number = next(seeds.numbers) if generator is None else 0
        order = Order(self.batch_size, self.drop_last, shuffle, self._seed or 0)
        self._settings = Settings(
            dataset, order, sampler, batch_sampler, self.collate_fn, num_workers, prefetch_factor,
            timeout, worker_init_fn, persistent_workers,
        )  # fmt: skip
        self._epoch = 0  # the next to begin
        self._resumed: State | None = None
        self._current: Epoch | None = None
        self._runs = Runs(self._settings)  # last: from here on, arguments are fixed

    def __setattr__(self, name: str, value: object) -> None:
        if name in _FIXED and "_runs" in self.__dict__:
            raise ArgumentError(f"`{name}` of a loader is fixed: make a new DataLoader.")
        super().__setattr__(name, value)

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
        return True  # otherwise `if loader` would call `len`, which some loaders do not have

    def __iter__(self) -> Iterator[Tree]:
        self._draw_seed()
        resumed, self._resumed = self._resumed, None
        number = self._epoch if resumed is None else resumed["epoch"]
        self._epoch = number + 1
        is_idle = self._current is None or self._current.is_done
        has_batches = not self._settings.is_sized or len(self) > 0
        runner = self._runs.runner(number, is_idle=is_idle) if has_batches else None
        self._current = Epoch(runner, number, as_lists=self._settings.gathers)
        if resumed is not None and resumed["state"] is not None:
            self._current.set_state(resumed["state"])
        return self._current

    def _draw_seed(self) -> None:
        # Only now: programs call `torch.manual_seed` after they have made a loader, too.
        if self._seed is None:
            self._use_seed(seeds.drawn_seed(self.generator, self._number))

    def _use_seed(self, seed: int) -> None:
        order = dataclasses.replace(self._settings.order, seed=seed)
        self._seed, self._settings = seed, dataclasses.replace(self._settings, order=order)
        self._runs.close()
        self._runs = Runs(self._settings)

    # State, as in torchdata's StatefulDataLoader ------------------------------------------

    def state_dict(self) -> State:
        """The position, an epoch and its next batch, and the seed, as a small dict for JSON."""
        self._draw_seed()
        if self._resumed is not None:
            return dict(self._resumed)
        number, state = self._epoch, None
        if self._current is not None and not self._current.is_done:
            number, state = self._current.number, self._current.get_state()
        return {"version": STATE_VERSION, "epoch": number, "seed": self._seed, "state": state}

    def load_state_dict(self, state_dict: State) -> None:
        """Continues where a state was taken: the next ``iter(loader)`` gives the rest of its epoch.

        A sampler is read again for it, and must give the same indices: seed it, or call its
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
        seed = state_dict.get("seed", 0)  # states had none when it was 0 for all loaders
        for name, value in {"epoch": state_dict["epoch"], "seed": seed}.items():
            if type(value) is not int or value < 0:
                raise StateError(f"the state's {name} must be a whole number, got {value!r}.")
        if self._draws_seed and seed != self._seed:
            self._use_seed(seed)
        self._resumed = dict(state_dict)
        self._current = None


def _length(name: str, value: Any) -> int:
    if not is_sized(value):
        raise ArgumentTypeError(
            f"this loader has no length: its `{name}`, {type(value).__name__}, has no __len__."
        )
    return len(value)
