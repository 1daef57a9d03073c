"""Iterables: records in one order, with no index.

A source is opened for a *part*: part i of n, where n is the number of lanes.  What is opened is an
iterator that can tell where it is.  Objects that can do that themselves (``state_dict`` and
``load_state_dict``, or ``get_state`` and ``set_state``, on the iterator or on the iterable) are
asked; for all others the records are counted, and skipped when a state is restored.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from loaderx.errors import ArgumentTypeError, StateError

_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))


class IterableSource:
    """An iterable, or a function that makes one; ``shards`` if it takes (shard, count)."""

    def __init__(self, made: Any) -> None:
        if isinstance(made, (str, bytes)):
            raise ArgumentTypeError(f"from_iterable needs an iterable of records, got {made!r}.")
        self._made = made
        self.is_factory = callable(made) and not isinstance(made, Iterable)
        self.name = name_of(made) if self.is_factory else type(made).__name__
        self.shards = self.is_factory and _takes_two(made)
        self._was_read, self._begin = False, None
        if not self.is_factory:
            if isinstance(made, Iterator):
                raise ArgumentTypeError(
                    f"from_iterable was given a {self.name}, which can be read only once. Give "
                    "the function that makes it (without calling it), so that the stream can be "
                    "read again: Dataset.from_iterable(read)."
                )
            if not isinstance(made, Iterable) and not hasattr(made, "__getitem__"):
                raise ArgumentTypeError(
                    f"from_iterable needs an iterable or a function that makes one; got {made!r} "
                    f"({self.name})."
                )

    def open(self, part: int, parts: int, position: Any = None) -> OpenIterable:
        """The records of a part from a position on, which an `OpenIterable` told."""
        return OpenIterable(self, part, parts, position)

    def make(self, part: int, parts: int) -> Any:
        """The iterable of a part."""
        if not self.is_factory:
            return self._made
        made = self._made(part, parts) if self.shards else self._made()
        if not isinstance(made, Iterable):
            raise ArgumentTypeError(
                f"{self.name}, given to from_iterable, must return an iterable of records; it "
                f"returned {made!r} ({type(made).__name__})."
            )
        return made

    def beginning(self, save: Any) -> Any:
        """The state in which an object that is read again was given; None if it is in it."""
        if self.is_factory:
            return None  # it was made just now
        if not self._was_read:
            self._was_read, self._begin = True, copy.deepcopy(save())
            return None
        return self._begin


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not tell
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
    """An iterator that knows its position: ``[records read, did it end, the source's own state]``.

    Once it has ended, its own state no longer counts: some begin anew there.
    """

    def __init__(self, source: IterableSource, part: int, parts: int, position: Any) -> None:
        self.count, self.ended, own = _parse(position)
        self._save: Any = None
        self._records: Iterator[Any] = iter(())
        if self.ended:
            return
        iterable = source.make(part, parts)
        keeper, self._save, load = _state_methods(iterable)
        if keeper is not None:
            begin = source.beginning(self._save)
            state = begin if own is None else own
            if state is not None:
                load(copy.deepcopy(state))
        self._records = iter(iterable)
        if keeper is None:
            keeper, self._save, load = _state_methods(self._records)
            if load is not None and own is not None:
                load(copy.deepcopy(own))
        if self.count and (keeper is None or own is None):
            self._skip(source)

    def _skip(self, source: IterableSource) -> None:
        skipped = sum(1 for _ in itertools.islice(self._records, self.count))
        if skipped < self.count:
            raise StateError(
                f"from_iterable({source.name}): the state was taken after {self.count} records, "
                f"but now the iterable ends after {skipped}."
            )

    def read(self, most: int) -> list[Any]:
        """The next records, fewer than ``most`` at the end.

        If the iterable fails, ``count`` is the number of the record that it failed on.
        """
        found: list[Any] = []
        try:
            found.extend(itertools.islice(self._records, most))  # also what came before a failure
        finally:
            self.count += len(found)
        self.ended = self.ended or len(found) < most
        return found

    def position(self) -> list[Any]:
        if self.ended or self._save is None:
            return [self.count, self.ended, None]
        return [self.count, False, copy.deepcopy(self._save())]


def name_of(made: Any) -> str:
    return str(getattr(made, "__name__", type(made).__name__))


def _parse(position: Any) -> tuple[int, bool, Any]:
    if position is None:
        return 0, False, None
    count, ended, own = position
    return int(count), bool(ended), own


def _state_methods(obj: Any) -> tuple[Any, Any, Any]:
    """The object itself, how to save its state, how to load it; None where it has no state."""
    for save, load in _METHODS:
        if callable(getattr(obj, save, None)) and callable(getattr(obj, load, None)):
            return obj, getattr(obj, save), getattr(obj, load)
    return None, None, None
