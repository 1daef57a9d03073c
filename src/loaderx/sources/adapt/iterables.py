"""Iterables: records in one order, without an index.

A source is opened for a *part*: part i of n, where n is the number of lanes.  The result is an
iterator that knows its position.  Objects that keep a state themselves (``state_dict`` and
``load_state_dict``, or ``get_state`` and ``set_state``, on the iterator or on the iterable) are
asked for it; for all others, records are counted, and skipped when a state is restored.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from loaderx.errors import ArgumentTypeError, StateError
from loaderx.frozen import Frozen
from loaderx.tree import Tree

OwnState: TypeAlias = object
"""The state that an iterable keeps itself; loaderx only copies it."""

_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))


class IterableSource:
    """An iterable, or a function that makes one; ``shards`` if it takes (shard, count)."""

    def __init__(self, made: Iterable[Tree] | Callable[..., Iterable[Tree]]) -> None:
        if isinstance(made, (str, bytes)):
            raise ArgumentTypeError(f"from_iterable needs an iterable of records, got {made!r}.")
        self._made: Any = made  # `is_factory` says which of the two
        self.is_factory = callable(made) and not isinstance(made, Iterable)
        self.name = name_of(made) if self.is_factory else type(made).__name__
        self.shards = callable(made) and self.is_factory and _takes_two(made)
        self._was_read = False
        self._begin: OwnState = None
        if not self.is_factory:
            if isinstance(made, Iterator):
                raise ArgumentTypeError(
                    f"from_iterable was given a {self.name}, which can be read only once. Pass "
                    "the function that makes it (without calling it), so that the stream can be "
                    "read again: Dataset.from_iterable(read)."
                )
            if not isinstance(made, Iterable) and not hasattr(made, "__getitem__"):
                raise ArgumentTypeError(
                    f"from_iterable needs an iterable or a function that makes one; got {made!r} "
                    f"({self.name})."
                )

    def open(self, part: int, parts: int, position: object = None) -> OpenIterable:
        """The records of a part, from a position that `OpenIterable.position` returned."""
        return OpenIterable(self, part, parts, position)

    def make(self, part: int, parts: int) -> Iterable[Tree]:
        """The iterable of a part."""
        made: Iterable[Tree] = self._made
        if not self.is_factory:
            return made
        made = self._made(part, parts) if self.shards else self._made()
        if not isinstance(made, Iterable):
            raise ArgumentTypeError(
                f"{self.name}, given to from_iterable, must return an iterable of records; it "
                f"returned {made!r} ({type(made).__name__})."
            )
        return made

    def beginning(self, save: Callable[[], OwnState]) -> OwnState:
        """The initial state of an object, which a new read must restore; None if not needed."""
        if self.is_factory:
            return None  # the iterable is new
        if not self._was_read:
            self._was_read, self._begin = True, copy.deepcopy(save())
            return None
        return self._begin


def _takes_two(function: Callable[..., object]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    if len(needed) in (0, 2):
        return len(needed) == 2
    listed = ", ".join(parameter.name for parameter in needed)
    raise ArgumentTypeError(
        f"a function given to from_iterable takes no arguments, or (shard, count); "
        f"{name_of(function)} takes ({listed})."
    )


class OpenIterable:
    """An iterator that knows its position: ``[records read, whether it ended, its own state]``.

    Once it has ended, its own state is not used: some iterables would start again from it.
    """

    def __init__(self, source: IterableSource, part: int, parts: int, position: object) -> None:
        self.count, self.ended, own = _parse(position)
        self._save: Callable[[], OwnState] | None = None
        self._records: Iterator[Tree] = iter(())
        if self.ended:
            return
        iterable = source.make(part, parts)
        methods = _state_methods(iterable)
        if methods is not None:
            begin = source.beginning(methods.save)
            state = begin if own is None else own
            if state is not None:
                methods.load(copy.deepcopy(state))
        self._records = iter(iterable)
        if methods is None:
            methods = _state_methods(self._records)
            if methods is not None and own is not None:
                methods.load(copy.deepcopy(own))
        self._save = None if methods is None else methods.save
        if self.count and (methods is None or own is None):
            self._skip(source)

    def _skip(self, source: IterableSource) -> None:
        skipped = sum(1 for _ in itertools.islice(self._records, self.count))
        if skipped < self.count:
            raise StateError(
                f"from_iterable({source.name}): the state was taken after {self.count} records, "
                f"but now the iterable ends after {skipped}."
            )

    def read(self, most: int) -> list[Tree]:
        """The next records, fewer than ``most`` at the end.

        If the iterable fails, ``count`` is the number of the record that it failed on.
        """
        found: list[Tree] = []
        try:
            found.extend(itertools.islice(self._records, most))  # keeps what came before a failure
        finally:
            self.count += len(found)
        self.ended = self.ended or len(found) < most
        return found

    def position(self) -> list[object]:
        if self.ended or self._save is None:
            return [self.count, self.ended, None]
        return [self.count, False, copy.deepcopy(self._save())]


def name_of(made: object) -> str:
    return str(getattr(made, "__name__", type(made).__name__))


def _parse(position: object) -> tuple[int, bool, OwnState]:
    if position is None:
        return 0, False, None
    assert isinstance(position, (list, tuple))  # checked where the state was restored
    count, ended, own = position
    return int(count), bool(ended), own


class _StateMethods(Frozen):
    save: Callable[[], OwnState]
    load: Callable[[OwnState], object]


def _state_methods(obj: object) -> _StateMethods | None:
    """How to save and load the state of an object; None if it has no state."""
    for save, load in _METHODS:
        if callable(getattr(obj, save, None)) and callable(getattr(obj, load, None)):
            return _StateMethods(getattr(obj, save), getattr(obj, load))
    return None
