"""`DatasetIterator`: an iterator with a state."""

from __future__ import annotations

import abc
import dataclasses
import functools
import json
from collections.abc import Awaitable, Iterator, Sequence
from typing import Generic, TypeVar

from loaderx.compat.grain.checkpoint_files import Directory, read_state, write_state
from loaderx.compat.grain.no_stats import NoStats
from loaderx.compat.grain.options import DatasetOptions
from loaderx.compat.grain.protocols import Element, State

T = TypeVar("T")


@dataclasses.dataclass(kw_only=True, slots=True)
class IteratorContext:
    """What all iterators of a pipeline share; complete when the pipeline has been built."""

    dataset_options: DatasetOptions = dataclasses.field(default_factory=DatasetOptions)

    def merge(self, other: IteratorContext) -> None:
        """Takes over options that are not set here."""
        self.dataset_options = self.dataset_options.merge(other.dataset_options)


class DatasetIterator(Iterator[T], abc.ABC, Generic[T]):
    """An iterator over the elements of an `IterDataset`.  To be subclassed by users, too."""

    _MUTATES_ELEMENT_SPEC = True
    _ONE_FOR_ONE = False  # does each element come of one element below?
    # For subclasses of users' own that do not call `super().__init__`.
    _parents: Sequence[DatasetIterator[Element]] = ()
    _closed = False
    _is_unwanted = False
    _stats = NoStats()

    def __init__(
        self, parents: DatasetIterator[Element] | Sequence[DatasetIterator[Element]] = ()
    ) -> None:
        super().__init__()
        # An iterator that is not one of ours: the `__iter__` of a user's dataset is a generator.
        is_one = isinstance(parents, Iterator)
        self._parents = (parents,) if is_one else tuple(parents)  # type: ignore[assignment]
        contexts = [found for p in self._parents if (found := getattr(p, "_ctx", None)) is not None]
        self._ctx: IteratorContext = contexts[0] if contexts else IteratorContext()
        for context in contexts[1:]:
            self._ctx.merge(context)
        self._share_context(self._parents[1:])

    def __init_subclass__(cls) -> None:
        """States of workers can be set in a pipeline without, whatever it ends with."""
        super().__init_subclass__()
        if "set_state" in vars(cls):
            own = cls.set_state

            @functools.wraps(own)
            def set_state(self: DatasetIterator[T], state: State) -> None:
                own(self, of_workers(self, state, one_for_one=self._is_one_for_one()))

            cls.set_state = set_state  # type: ignore[method-assign]

    def _is_one_for_one(self) -> bool:
        return self._ONE_FOR_ONE and all(parent._is_one_for_one() for parent in self._parents)

    def _share_context(self, parents: Sequence[DatasetIterator[Element]]) -> None:
        """One object for the whole pipeline, so that options set above reach the stages below."""
        for parent in parents:
            if isinstance(parent, DatasetIterator):
                parent._ctx = self._ctx
                self._share_context(parent._parents)

    @property
    def _parent(self) -> DatasetIterator[Element]:
        (parent,) = self._parents
        return parent

    def __iter__(self) -> DatasetIterator[T]:
        return self

    @abc.abstractmethod
    def __next__(self) -> T:
        """The next element."""

    @abc.abstractmethod
    def get_state(self) -> State:
        """The position, as a dict of numbers."""

    @abc.abstractmethod
    def set_state(self, state: State) -> None:
        """Goes on where the state was taken."""

    def start_prefetch(self) -> None:
        """Begins to read ahead now, before the first ``next``."""
        for parent in self._parents:
            if isinstance(parent, DatasetIterator):
                parent.start_prefetch()

    def close(self) -> None:
        """Ends what runs in the background; after that ``next`` is an error."""
        if self._closed:
            return
        self._closed = True
        for parent in self._parents:
            if isinstance(parent, DatasetIterator):
                parent.close()

    async def save(self, directory: Directory) -> Awaitable[None]:
        """Takes the state now, and returns the task that writes it: for Orbax."""
        return write_state(directory, json.dumps(self.get_state(), indent=4))

    async def load(self, directory: Directory) -> Awaitable[None]:
        """Returns the task that reads the state and sets it: for Orbax."""
        return read_state(directory, lambda text: self.set_state(json.loads(text)))

    def _give_up(self) -> None:
        """Lets a ``next`` that is under way in another thread end, if it finds nothing."""
        self._is_unwanted = True
        for parent in self._parents:
            if isinstance(parent, DatasetIterator):
                parent._give_up()

    def _assert_not_closed(self) -> None:
        if self._closed or self._is_unwanted:
            raise ValueError(f"this {type(self).__name__} is closed: it gives no more elements.")

    def _set_next_index(self, index: int) -> None:
        """Goes to the element with this number; a stage that cannot do that raises."""
        raise NotImplementedError(f"{type(self).__name__} cannot go to an element by its number.")

    def _get_next_index(self) -> int:
        """The number of the next element."""
        raise NotImplementedError(f"{type(self).__name__} does not number its elements.")


def worker_positions(position: int, count: int) -> list[int]:
    """How many elements each of several workers has made, which take turns."""
    return [(position - worker + count - 1) // count for worker in range(count)]


def of_workers(iterator: DatasetIterator[Element], state: State, *, one_for_one: bool) -> State:
    """The state of a pipeline, in what Grain has for workers; any other state as it is."""
    inner = state.get("iterators_in_use_states") if isinstance(state, dict) else None
    if not inner:
        return state
    own = iterator.get_state()
    if len(inner) == 1 and (inner[0] or {}).keys() == own.keys():
        return inner[0]  # type: ignore[no-any-return]
    if "iterators_in_use_states" in own:  # it is an interleave
        return state
    if one_for_one:
        positions = [one["next_index"] for one in inner]
        if positions == worker_positions(sum(positions), len(inner)):
            return {"next_index": sum(positions)}
    raise ValueError(
        f"the state is of Grain with {len(inner)} workers, each of which reads a part of the data: "
        "that order depends on the number of workers. Here the order is that of no workers, for "
        "every number of them, so that state cannot be continued. Save one with 0 or 1 workers."
    )


def set_next_index(ds_iter: DatasetIterator[Element], index: int) -> None:
    """Goes to the element with this number."""
    ds_iter._set_next_index(index)


def get_next_index(ds_iter: DatasetIterator[Element]) -> int:
    """The number of the next element."""
    return ds_iter._get_next_index()
