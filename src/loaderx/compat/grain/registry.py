"""Which class stands behind which method of a dataset.

Nodes derive from the datasets whose methods make them.  They sign in here, so that neither file
imports the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from loaderx.compat.grain.protocols import Element

C = TypeVar("C", bound=Callable[..., Element])

_nodes: dict[str, Callable[..., Element]] = {}


def node(name: str) -> Callable[[C], C]:
    """Signs in a class, or a function that makes nodes, under a name."""

    def sign_in(made: C) -> C:
        _nodes[name] = made
        return made

    return sign_in


def make(name: str, *args: Element, **kwargs: Element) -> Element:
    """A node by the name of its class."""
    return _nodes[name](*args, **kwargs)
