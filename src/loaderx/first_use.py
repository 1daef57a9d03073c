"""The state of the user's objects before their first use.

"Open it when it is first needed" is good advice for a source that cannot be pickled once its file
is open.  But this process needs it first: to ask for the length, to look at a record, or to read
the first batches before worker processes are tried.  So before loaderx uses an object for the first
time, it remembers which attributes the object had, and the value of those that were empty (None, a
number, a text, an empty dict or list).  If the object cannot be pickled for a worker process later,
the attributes that cannot be pickled are sent with their first value, and the worker opens its own.

Nothing is copied and nothing is kept alive: the value of an attribute that was not empty is not
remembered, and objects are held by weak references.  A class with a `__getstate__` or `__reduce__`
of its own says itself what is sent, and is not changed.
"""

from __future__ import annotations

import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

MOST_OBJECTS = 64
MOST_ITEMS = 64  # of a list, tuple or dict in which objects are looked for
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_CONTAINERS = frozenset({dict, list, set, deque})
_OPAQUE = (type, types.ModuleType)
_HELD = object()  # an attribute that held something

Attributes = dict[str, object]


class AttributesBeforeUse:
    """The attributes of an object, and of the objects in it, when it was given to loaderx."""

    __slots__ = ("_before",)

    def __init__(self, *roots: object) -> None:
        self._before: dict[int, tuple[weakref.ref[object], Attributes]] = {}
        for value in reachable(*roots):
            self._remember(value)

    def __reduce__(self) -> tuple[type[AttributesBeforeUse], tuple[()]]:
        return AttributesBeforeUse, ()  # ids mean nothing in another process

    def _remember(self, value: object) -> None:
        attributes = attributes_of(value)
        if attributes is None or not is_sent_by_attributes(type(value)):
            return
        try:
            self._before[id(value)] = (
                weakref.ref(value),
                {name: _as_it_was(held) for name, held in attributes.items()},
            )
        except TypeError:
            return  # its class has no weak references

    def state(self, value: object, can_be_sent: Callable[[object], bool]) -> Attributes | None:
        """The attributes with which to send an object; None if it can be sent as it is."""
        found = self._before.get(id(value))
        if found is None or found[0]() is not value:
            return None
        before, now = found[1], value.__dict__
        state, is_changed = dict(now), False
        for name, held in now.items():
            was = before.get(name)
            if was is _HELD or type(held) in _PLAIN or can_be_sent(held):
                continue
            is_changed = True
            del state[name]
            if name in before:
                state[name] = was if type(was) in _PLAIN else type(was)()
        return state if is_changed else None

    def had(self, value: object, name: str) -> bool | None:
        """Whether an attribute held something at first; None if not known."""
        found = self._before.get(id(value))
        if found is None or found[0]() is not value or name not in value.__dict__:
            return None
        return found[1].get(name) is _HELD


def reachable(*roots: object) -> list[object]:
    """The objects, and those that can be reached from them; `MOST_OBJECTS` at most."""
    waiting = deque(roots)
    found: dict[int, object] = {}
    while waiting and len(found) < MOST_OBJECTS:
        value = waiting.popleft()
        if id(value) not in found:
            found[id(value)] = value
            waiting.extend(_inside(value))
    return list(found.values())


def attributes_of(value: object) -> Attributes | None:
    """The attributes of an object that has a dict of them."""
    if isinstance(value, _OPAQUE):
        return None
    try:
        found = object.__getattribute__(value, "__dict__")  # runs no user code
    except AttributeError:
        return None
    return found if type(found) is dict else None


def is_sent_by_attributes(kind: type) -> bool:
    """Whether a pickle of such an object holds its attributes, as by default."""
    return all(
        getattr(kind, name) is getattr(object, name)
        for name in ("__reduce_ex__", "__reduce__", "__getstate__")
    )


def _as_it_was(held: object) -> object:
    kind = type(held)
    if kind in _PLAIN:
        return held
    return kind() if kind in _CONTAINERS and not held else _HELD


def _inside(value: object) -> Iterator[object]:
    """The values in it that may be, or hold, objects with attributes."""
    # Exact types: a subclass of dict or list may have attributes, and is looked at for these.
    if type(value) is dict:
        yield from value.values() if len(value) <= MOST_ITEMS else ()
    elif type(value) is list or type(value) is tuple:
        yield from value if len(value) <= MOST_ITEMS else ()
    elif isinstance(value, types.FunctionType):
        yield from (held for _, held in variables_of(value))
    elif isinstance(value, types.MethodType):
        yield value.__self__
    elif isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    else:
        for held in (attributes_of(value) or {}).values():
            if type(held) not in _PLAIN:
                yield held


def variables_of(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """The variables in a pickled function: those of its closure, and globals of its module."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # the variable is not set yet
    for name in function.__code__.co_names:
        held = function.__globals__.get(name)
        if type(held) not in _PLAIN:
            yield name, held
