"""Finds what in a dataset cannot be sent to a worker process, and advises the user.

The search follows what pickle would include, from a source or a function down to the innermost
attribute or variable of the user's that cannot be pickled.  It does not look inside objects of
libraries, since the user cannot add methods to their classes.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from loaderx.first_use import (
    AttributesBeforeUse,
    attributes_of,
    is_sent_by_attributes,
    variables_of,
)

MOST_STEPS = 32
_WRAPPERS: dict[object, tuple[str, ...]] = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
    type(functools.cache(len)): ("__wrapped__",),
}
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)  # made with their class


class Place(NamedTuple):
    """A value, and the attribute of an object, or the variable of a function, that holds it."""

    owner: object
    name: str
    value: object

    @property
    def text(self) -> str:
        kind = type(self.value)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        held = f"({module}{kind.__qualname__.rpartition('.')[2]})"
        if isinstance(self.owner, types.FunctionType):
            return f"`{self.owner.__name__}` uses `{self.name}` {held}"
        return f"`{_class_of(self.owner).__name__}.{self.name}` {held}"


def advice(
    part: object,
    can_be_sent: Callable[[object], bool],
    given: Sequence[AttributesBeforeUse],
    *,
    is_source: bool,
) -> str:
    """Names what cannot be pickled in a source or a function, and what to do about it."""
    place = _find(part, can_be_sent, given)
    if place is None:
        return (
            "Leave out in __getstate__ what cannot be pickled (an open file, a lock, a connection)."
        )
    owner, name, _ = place
    if isinstance(owner, types.FunctionType):
        return (
            f"{place.text}. Let a function with @functools.cache make it, and call that one where "
            "it is needed: then each worker makes its own."
        )
    if isinstance(owner, type):
        return f"{place.text} belongs to the class. Make it in the object, when it is first needed."
    kind = type(owner).__name__
    if not is_sent_by_attributes(type(owner)):
        return f"{place.text} must be left out in {kind}.__getstate__."
    write = f"rite in {kind}: `{getstate(name)}`."
    if any(each.had(owner, name) for each in given):
        when = "from_source() got the object" if is_source else "the dataset was made"
        return (
            f"{place.text} was set already when {when}. Give a fresh object that makes it when it "
            f"is first needed, or w{write}"
        )
    return f"{place.text} cannot be pickled. W{write}"


def getstate(name: str) -> str:
    """The method that leaves an attribute out."""
    return f"def __getstate__(self): return {{**self.__dict__, {name!r}: None}}"


def _find(
    root: object, can_be_sent: Callable[[object], bool], given: Sequence[AttributesBeforeUse]
) -> Place | None:
    value, places = root, []
    seen: set[int] = set()
    for _ in range(MOST_STEPS):
        seen.add(id(value))
        at_fault = (
            Place(*one)
            for one in _held_by(value)
            if id(one[2]) not in seen and not can_be_sent(one[2])
        )
        place = next((one for one in at_fault if not _is_set_back(one, given)), None)
        if place is None:
            break
        if place.name:
            places.append(place)
        value = place.value
    own = [place for place in places if not _is_installed(place.owner)]
    return own[-1] if own else places[0] if places else None


def _is_set_back(place: Place, given: Sequence[AttributesBeforeUse]) -> bool:
    """True if an attribute is sent with its value from before the first use."""
    return any(each.had(place.owner, place.name) is False for each in given)


def _held_by(value: Any) -> Iterator[tuple[object, str, object]]:
    """What pickle includes with a value; the name is empty where it says nothing."""
    kind = type(value)
    if kind in (list, tuple):
        yield from ((value, "", held) for held in value)
    elif kind is dict:
        yield from ((value, "", held) for held in value.values())
    elif kind is types.FunctionType:
        yield from ((value, name, held) for name, held in variables_of(value))
    elif kind is types.MethodType:
        yield value, "", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((value, "", held) for held in (value.func, *value.args))
        yield from ((value, "", held) for held in value.keywords.values())
    elif kind in _WRAPPERS:
        yield from ((value, "", getattr(value, name, None)) for name in _WRAPPERS[kind])
    elif isinstance(value, type):
        for name, held in vars(value).items():
            if type(held) not in _DESCRIPTORS:
                yield value, name, held
    elif kind.__module__.partition(".")[0] not in sys.stdlib_module_names:
        is_own = kind.__module__.startswith("loaderx.")
        for name, held in (attributes_of(value) or {}).items():
            yield value, "" if is_own else name, held
        yield value, "", kind


def _class_of(owner: object) -> type:
    return owner if isinstance(owner, type) else type(owner)


def _is_installed(owner: object) -> bool:
    """True if its code belongs to an installed package."""
    name = getattr(owner, "__module__", None) or type(owner).__module__
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name != "__main__" and ("site-packages" in file or "dist-packages" in file)
