"""Trees of arrays with Grain's rules.

Dicts, lists, tuples and named tuples are structure, and None is an empty tree.  Types registered
with JAX are structure as well.  They exist only after JAX was imported; it is not imported here.
"""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

import numpy as np

from loaderx.compat.grain.protocols import Element

_PLAIN = (dict, list, tuple)
_LEAVES = frozenset({np.ndarray, int, float, bool, str, bytes, np.float32, np.int32, np.int64})


class StructureError(ValueError):
    """Trees do not have the same structure."""


def map_structure(function: Callable[..., Element], *trees: Element) -> Element:
    """The tree of ``function`` of the leaves of one or more trees of the same structure."""
    first = trees[0]
    kind = type(first)
    if kind in _LEAVES:
        return function(*trees)
    if kind is dict or kind is OrderedDict or kind is defaultdict:
        _check_alike(trees, kind)
        try:
            found = {key: map_structure(function, *[t[key] for t in trees]) for key in _keys(first)}
        except KeyError as error:
            raise StructureError(f"an element lacks the key {error}") from error
        return found if kind is dict else _like(first, found)
    if isinstance(first, (list, tuple)) and (kind in _PLAIN or hasattr(first, "_fields")):
        _check_alike(trees, kind)
        items = [map_structure(function, *parts) for parts in zip(*trees, strict=True)]
        return kind(*items) if hasattr(first, "_fields") else kind(items)
    if first is None:
        if any(other is not None for other in trees):
            raise StructureError
        return None
    return _map_registered(function, trees)


def _check_alike(trees: Sequence[Element], kind: type) -> None:
    """Raises unless all trees, possibly hundreds, have one type and length."""
    if {*map(type, trees)} != {kind} or len({*map(len, trees)}) > 1:
        raise StructureError


def _like(first: Element, found: dict[Element, Element]) -> Element:
    if isinstance(first, defaultdict):
        return defaultdict(first.default_factory, found)
    return OrderedDict(found)


def _map_registered(function: Callable[..., Element], trees: Sequence[Element]) -> Element:
    """The same for an object whose type may be registered with JAX; otherwise it is a leaf."""
    tree_util = sys.modules.get("jax.tree_util")
    first = trees[0]
    if tree_util is None or not hasattr(tree_util, "tree_flatten"):
        return function(*trees)
    parts, structure = tree_util.tree_flatten(first, is_leaf=lambda node: node is not first)
    if len(parts) == 1 and parts[0] is first:
        return function(*trees)
    several = [parts]
    for other in trees[1:]:
        inner, same = tree_util.tree_flatten(other, is_leaf=_is_not(other))
        if same != structure:
            raise StructureError
        several.append(inner)
    return structure.unflatten(
        [map_structure(function, *those) for those in zip(*several, strict=True)]
    )


def _is_not(tree: Element) -> Callable[[Element], bool]:
    return lambda node: node is not tree


def _keys(tree: dict[Element, Element]) -> Sequence[Element]:
    """The keys in JAX's order: sorted."""
    if type(tree) is not OrderedDict:
        with contextlib.suppress(TypeError):  # keys that cannot be compared
            return sorted(tree)
    return [*tree]


def flatten(tree: Element) -> list[Element]:
    """The leaves of a tree; those of a dict in the order of its keys."""
    leaves: list[Element] = []
    map_structure(leaves.append, tree)
    return leaves


def unflatten_as(structure: Element, leaves: Sequence[Element]) -> Element:
    """A tree of the structure of another, of the leaves that `flatten` gives."""
    left: Iterator[Element] = iter(leaves)
    return map_structure(lambda _: next(left), structure)


def nbytes(tree: Element) -> int:
    """The bytes that the leaves of a tree take."""
    return sum(
        leaf.nbytes if isinstance(leaf, np.ndarray) else sys.getsizeof(leaf)
        for leaf in flatten(tree)
    )


def spec_text(tree: Element) -> str:
    """The types and shapes of a tree, for messages."""
    return import_module("pprint").pformat(_spec_like(tree))  # type: ignore[no-any-return]


def _spec_like(tree: Element) -> Element:
    if isinstance(tree, dict):
        return {key: _spec_like(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_spec_like(value) for value in tree]
    if isinstance(tree, np.ndarray):
        return f"{tree.dtype}{list(tree.shape)}"
    return f"{type(tree).__name__}{'[]' if np.isscalar(tree) else ''}"
