"""`DatasetIterator`, an iterator with a state; the bases of its subclasses; files of states."""

from __future__ import annotations

import abc
import dataclasses
import functools
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import monotonic
from typing import Generic, TypeVar

from loaderx import StateError
from loaderx.compat.grain.graph import NoStats
from loaderx.compat.grain.options import DatasetOptions
from loaderx.compat.grain.protocols import Element, State
from loaderx.compat.grain.sharding import process_index_and_count

T = TypeVar("T")

_log = logging.getLogger(__package__)
_WINDOW = 1000  # elements, of which few should be left out
_QUIET_S = 60.0  # between two warnings

last_warning = float("-inf")


@dataclasses.dataclass(kw_only=True, slots=True)
class IteratorContext:
    """Shared by all iterators of a pipeline, and complete when the pipeline has been built."""

    dataset_options: DatasetOptions = dataclasses.field(default_factory=DatasetOptions)

    def merge(self, other: IteratorContext) -> None:
        """Takes over the options that are not set here."""
        self.dataset_options = self.dataset_options.merge(other.dataset_options)


class FilterCheck:
    """Counts elements in windows of a thousand."""

    def __init__(self, name: str, context: IteratorContext) -> None:
        self._name = name
        self._warn, self._raise = context.dataset_options.filter_limits()
        self._passed = self._skipped = 0

    def count(self, passed: int, skipped: int) -> None:
        """Adds to the counts; raises or warns at the end of a window."""
        self._passed += passed
        self._skipped += skipped
        seen = self._passed + self._skipped
        if seen < _WINDOW:
            return
        share = self._skipped / seen
        if share >= self._raise:
            raise ValueError(self._text(share, seen, "filter_raise_threshold_ratio"))
        if share >= self._warn:
            _warn(self._text(share, seen, "filter_warn_threshold_ratio"))
        self._passed = self._skipped = 0

    def _text(self, share: float, seen: int, option: str) -> str:
        return (
            f"{self._name} has left out {share * 100:.2f} % of the last {seen} elements. If that "
            f"is meant, filter the data beforehand, or switch this check off: `DatasetOptions("
            f"{option}=None)` in `WithOptionsIterDataset`."
        )


def _warn(text: str) -> None:
    global last_warning
    if monotonic() - last_warning >= _QUIET_S:
        last_warning = monotonic()
        _log.warning(text)


class SavedIterator(Iterator[T], abc.ABC, Generic[T]):
    """An iterator whose state is a dict, or its JSON in bytes, and can be saved with Orbax."""

    _state_is_bytes = False

    async def save(self, directory: Element) -> Awaitable[None]:
        """Takes the state now, and returns the task that writes it: for Orbax."""
        return write_state(directory, state_text(self))

    async def load(self, directory: Element) -> Awaitable[None]:
        """Returns the task that reads the state and sets it: for Orbax."""
        return read_state(directory, functools.partial(set_state_text, self))


class DatasetIterator(SavedIterator[T]):
    """An iterator over the elements of an `IterDataset`.  Users may subclass it."""

    _MUTATES_ELEMENT_SPEC = True
    _ONE_FOR_ONE = False  # whether each element is made from one element below
    # Defaults for users' subclasses that do not call `super().__init__`.
    _parents: Sequence[DatasetIterator[Element]] = ()
    _closed = False
    _is_unwanted = False
    _stats = NoStats()

    def __init__(
        self, parents: DatasetIterator[Element] | Sequence[DatasetIterator[Element]] = ()
    ) -> None:
        super().__init__()
        # Any iterator: the `__iter__` of a user's dataset may be a generator.
        is_one = isinstance(parents, Iterator)
        self._parents = (parents,) if is_one else tuple(parents)  # type: ignore[assignment]
        contexts = [found for p in self._parents if (found := getattr(p, "_ctx", None)) is not None]
        self._ctx: IteratorContext = contexts[0] if contexts else IteratorContext()
        for context in contexts[1:]:
            self._ctx.merge(context)
        for parent in self._native_parents[1:]:
            parent._share_context(self._ctx)

    def __init_subclass__(cls) -> None:
        """Lets `set_state` of every subclass accept states of a pipeline with workers."""
        super().__init_subclass__()
        if "set_state" in vars(cls):
            own = cls.set_state

            @functools.wraps(own)
            def set_state(self: DatasetIterator[T], state: State) -> None:
                own(self, of_workers(self, state, one_for_one=self._is_one_for_one()))

            cls.set_state = set_state  # type: ignore[method-assign]

    @functools.cached_property
    def _filter_check(self) -> FilterCheck:
        return FilterCheck(str(self), self._ctx)  # late: options may be set above

    def _is_one_for_one(self) -> bool:
        return self._ONE_FOR_ONE and all(parent._is_one_for_one() for parent in self._parents)

    @property
    def _native_parents(self) -> list[DatasetIterator[Element]]:
        """The parents without iterators of other types, which have none of the methods below."""
        return [parent for parent in self._parents if isinstance(parent, DatasetIterator)]

    def _share_context(self, context: IteratorContext) -> None:
        """One object for the whole pipeline, so that options set above reach the stages below."""
        self._ctx = context
        for parent in self._native_parents:
            parent._share_context(context)

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
        """Continues where the state was taken."""

    def start_prefetch(self) -> None:
        """Begins to read ahead now, before the first ``next``."""
        for parent in self._native_parents:
            parent.start_prefetch()

    def close(self) -> None:
        """Ends all work in the background; after that ``next`` is an error."""
        if self._closed:
            return
        self._closed = True
        for parent in self._native_parents:
            parent.close()

    def _give_up(self) -> None:
        """Lets a ``next`` in another thread end, which may never find an element."""
        self._is_unwanted = True
        for parent in self._native_parents:
            parent._give_up()

    def _assert_not_closed(self) -> None:
        if self._closed or self._is_unwanted:
            raise ValueError(f"this {type(self).__name__} is closed: it gives no more elements.")

    def __str__(self) -> str:
        return type(self).__name__

    def _set_next_index(self, index: int) -> None:
        """Goes to the element with this number; a stage that cannot do that raises."""
        self._numbered()._set_next_index(index)

    def _get_next_index(self) -> int:
        """The number of the next element."""
        return self._numbered()._get_next_index()

    def _numbered(self) -> DatasetIterator[Element]:
        """The iterator below whose numbers are those of this one."""
        if not self._ONE_FOR_ONE or not self._parents:
            raise NotImplementedError(f"{type(self).__name__} does not number its elements.")
        return self._parent


class OverIterator(DatasetIterator[T]):
    """An iterator over others; over a single one, it has the position of that iterator."""

    def __init__(
        self, parents: DatasetIterator[Element] | Sequence[DatasetIterator[Element]]
    ) -> None:
        super().__init__(parents)
        if len(self._parents) == 1:
            self._pull = self._parents[0].__next__

    def __next__(self) -> T:
        return self._pull()  # type: ignore[no-any-return]

    def get_state(self) -> State:
        """The state of the parent."""
        return self._parent.get_state()

    def set_state(self, state: State) -> None:
        """Continues where the state was taken."""
        self._parent.set_state(state)


class NodeIterator(OverIterator[T]):
    """An iterator over the iterators of a node's parents."""

    def __init__(self, ds: Element) -> None:
        super().__init__([parent.__iter__() for parent in ds.parents])
        self._ds = ds


class IndexedIterator(DatasetIterator[T]):
    """An iterator whose position is the index of the next of ``_length`` elements."""

    _length: int
    _next_index: int

    def get_state(self) -> State:
        """The index of the next element."""
        return {"next_index": self._next_index}

    def set_state(self, state: State) -> None:
        """Continues where the state was taken."""
        self._set_next_index(state["next_index"])

    def _get_next_index(self) -> int:
        return self._next_index

    def _set_next_index(self, index: int) -> None:
        if not 0 <= index <= self._length:
            raise IndexError(
                f"the state is at element {index}, and the dataset has a length of {self._length}."
            )
        self._go_to(index)

    @abc.abstractmethod
    def _go_to(self, index: int) -> None:
        """Drops the elements read ahead, and continues with this one."""


class CountIterator(NodeIterator[T]):
    """An iterator with a count; ``_key`` is the name of the count in a state."""

    _key: str
    _count = 0

    def get_state(self) -> State:
        """The state of the parent, and the count."""
        return {"parent": self._parent.get_state(), self._key: self._count}

    def set_state(self, state: State) -> None:
        """Continues where the state was taken."""
        self._parent.set_state(state["parent"])
        self._count = state[self._key]


class NumberingIterator(CountIterator[T]):
    """An iterator whose count is the number of the next element."""

    def _get_next_index(self) -> int:
        return self._count

    def _set_next_index(self, index: int) -> None:
        self._parent._set_next_index(index)
        self._count = index


def worker_positions(position: int, count: int) -> list[int]:
    """The number of elements that each of ``count`` workers has made, if they take turns."""
    return [(position - worker + count - 1) // count for worker in range(count)]


def of_workers(iterator: DatasetIterator[Element], state: State, *, one_for_one: bool) -> State:
    """The state of a pipeline, taken out of Grain's state of workers; other states unchanged."""
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


def state_text(iterator: Element) -> str:
    """The state of an iterator, for a file."""
    state = iterator.get_state()
    return state.decode() if isinstance(state, bytes) else json.dumps(state, indent=4)


def set_state_text(iterator: Element, text: str) -> None:
    """Sets a state from a file."""
    in_bytes = getattr(iterator, "_state_is_bytes", False)
    iterator.set_state(text.encode() if in_bytes else json.loads(text))


def state_file(directory: Element) -> Element:
    """The file of this process in a directory: a `pathlib.Path`, or a similar remote path."""
    index, count = process_index_and_count()
    return directory / f"process_{index}-of-{count}.json"


def read_text(directory: Element) -> str:
    """The text that this process wrote."""
    file = state_file(directory)
    if not file.exists():
        raise StateError(
            f"File {file} does not exist. Was the checkpoint saved by another number of processes?"
        )
    return file.read_text()  # type: ignore[no-any-return]


async def write_state(directory: Element, text: str) -> None:
    """Writes a state in a thread, when the directory has been created."""
    import asyncio  # late: only programs that await this need it

    created = getattr(directory, "await_creation", None)
    place = directory if created is None else await created()
    await asyncio.to_thread(state_file(place).write_text, text)


async def read_state(directory: Element, use: Callable[[str], None]) -> None:
    """Reads a state in a thread, and gives it to ``use``."""
    import asyncio

    use(await asyncio.to_thread(read_text, directory))
