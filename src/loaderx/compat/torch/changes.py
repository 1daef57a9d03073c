"""Detects changes of a dataset since its workers were started.

Torch starts new workers in every epoch, which see ``dataset.transform = other`` between two epochs.
Starting workers takes long, so here they stay, and get the dataset again if an attribute of it, or
of the objects in it, has changed.  Changes inside an array or a long list are not detected.
"""

from __future__ import annotations

from collections import deque
from types import ModuleType
from typing import NamedTuple

from loaderx.extend import reachable

_PLAIN = (bool, int, float, complex, str, bytes)
_SIZED = (dict, list, set, deque, tuple)


class _Looked(NamedTuple):
    value: object
    attributes: dict[str, object]
    size: int


class Snapshot:
    """The attributes of an object, and of the objects in it, at one time."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._before = _look(root)

    def holds(self) -> bool:
        """Whether nothing has changed."""
        now = _look(self._root)
        return len(now) == len(self._before) and all(map(_same, self._before, now))


def _look(root: object) -> list[_Looked]:
    found = []
    for value in reachable(root):
        size = len(value) if isinstance(value, _SIZED) else 0
        found.append(_Looked(value, _attributes(value), size))
    return found


def _attributes(value: object) -> dict[str, object]:
    if isinstance(value, (type, ModuleType)):
        return {}
    try:
        found = object.__getattribute__(value, "__dict__")  # runs no user code
    except AttributeError:
        return {}
    return dict(found) if type(found) is dict else {}


def _same(before: _Looked, now: _Looked) -> bool:
    if before.value is not now.value or before.size != now.size:
        return False
    one, other = before.attributes, now.attributes
    return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)


def _equal(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and one == other)
