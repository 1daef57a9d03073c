"""Prefixes of trees: one value for a whole batch, or dicts of values that follow its structure.

A prefix follows the structure of a batch as far as it goes, and its values are meant for all leaves
below them, as in JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TypeAlias, TypeVar

from loaderx.errors import ArgumentError
from loaderx.tree import LEAF, Structure, Tree, describe, field_names

V = TypeVar("V")
W = TypeVar("W")

Prefix: TypeAlias = "V | dict[Hashable, Prefix[V]]"
"""A value, or a dict of prefixes by the keys of a structure."""


def as_prefix(tree: Tree, leaf: Callable[[object, str], V], path: str = "") -> Prefix[V]:
    """A tree of dicts, lists, tuples and dataclasses as a prefix; ``leaf`` checks each value."""
    children: Mapping[Hashable, object] | None = None
    if isinstance(tree, Mapping):
        children = tree
    elif type(tree) in (list, tuple) or hasattr(tree, "_fields"):  # no PartitionSpec of older jax
        children = dict(zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True))
    elif hasattr(type(tree), "__dataclass_fields__"):
        children = {name: getattr(tree, name) for name in field_names(tree)}
    if children is None:
        return leaf(tree, path)
    return {
        key: as_prefix(value, leaf, f"{path}.{key}" if path else str(key))
        for key, value in children.items()
    }


def map_prefix(f: Callable[[V], W], prefix: Prefix[V]) -> Prefix[W]:
    """The prefix with ``f`` applied to its values."""
    if isinstance(prefix, dict):
        return {key: map_prefix(f, value) for key, value in prefix.items()}
    return f(prefix)


def prefix_values(prefix: Prefix[V]) -> list[V]:
    """All values of a prefix."""
    if isinstance(prefix, dict):
        return [one for value in prefix.values() for one in prefix_values(value)]
    return [prefix]


def spread(prefix: Prefix[V], structure: Structure, path: str = "") -> list[V]:
    """The value for each leaf of a structure."""
    if not isinstance(prefix, dict):
        return [prefix] * len(structure.paths())
    if structure.kind == "none":
        return []
    if structure is LEAF or set(prefix) != set(structure.keys):
        where = f'at "{path}" ' if path else ""
        listed = all(isinstance(key, int) for key in prefix)
        hint = (
            " To spread rows over several devices write NamedSharding(Mesh(devices, ('data',)), "
            "PartitionSpec('data'))."
        )
        raise ArgumentError(
            f"`sharding` does not match the batch: {where}it has {_names(prefix)}, the batch has "
            f"{'an array' if structure is LEAF else describe(structure)}. Give one sharding for "
            "all leaves, or a tree with the batch's own keys (None: this leaf stays NumPy)."
            f"{hint if listed else ''}"
        )
    children = dict(zip(structure.keys, structure.children, strict=True))
    return [
        one
        for key, child in children.items()
        for one in spread(prefix[key], child, f"{path}.{key}" if path else str(key))
    ]


def _names(prefix: Mapping[Hashable, object]) -> str:
    return ", ".join(map(repr, prefix)) or "no keys"
