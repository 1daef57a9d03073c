"""User functions, and Grain-style objects with such a method."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from loaderx.errors import ArgumentTypeError
from loaderx.first_use import AttributesBeforeUse
from loaderx.frozen import Frozen


class Function(Frozen):
    """A function, and its name in messages."""

    call: Callable[..., Any]
    name: str
    given: AttributesBeforeUse | None = None

    def __post_init__(self) -> None:
        self.__dict__["given"] = AttributesBeforeUse(self.call)


_METHODS = ("map", "random_map", "map_with_index", "filter")  # of transform objects


def resolve(f: object, method: str) -> Function:
    """``f`` itself, or the method of a transform object (``obj.map``, ``obj.random_map``, ...)."""
    if isinstance(f, type) and hasattr(f, method):
        raise ArgumentTypeError(
            f"`{method}` was given the class {f.__name__}; pass an instance: {f.__name__}(...)."
        )
    bound = getattr(f, method, None)
    if callable(bound):
        return Function(bound, str(getattr(f, "__name__", type(f).__name__)))
    fitting = next((one for one in _METHODS if callable(getattr(f, one, None))), None)
    # loaderx's own stages can be called, too: with an image, in functions of one's own.
    if not callable(f) or (fitting and isinstance(f, Frozen)):
        advice = f" Write .{fitting}({name_of(f)}(...))." if fitting else ""
        raise ArgumentTypeError(
            f"`{method}` needs a function, or an object with a .{method} method; "
            f"got {f!r} ({type(f).__name__}).{advice}"
        )
    return Function(f, name_of(f))


def name_of(f: object) -> str:
    while isinstance(f, functools.partial):
        f = f.func
    return str(getattr(f, "__name__", type(f).__name__))
