"""64-bit numbers as the 32-bit ones that JAX holds, on the host, where a batch is made.

Unless ``jax_enable_x64`` is set, JAX has no 64-bit numbers: it makes int64 to int32 and float64 to
float32 when an array is put on a device, in the thread that asks for it, and an integer that does
not fit comes out as another one.  Here the same is done by the worker that makes the batch, into a
recycled aligned buffer, and an integer that does not fit is an error.

Which leaves are meant is said by a *prefix*: one value for the whole batch, or dicts of them that
follow the batch's structure as far as they go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from loaderx.errors import ArgumentError, StackError
from loaderx.memory import Layout, Lend
from loaderx.tree import (
    LEAF,
    Array,
    Structure,
    Tree,
    as_array,
    describe,
    field_names,
    flatten,
    is_array_like,
)

Prefix: TypeAlias = Any
"""A value, or a dict of prefixes by the keys of a structure."""

_NARROW = {
    np.dtype(wide): np.dtype(narrow)
    for wide, narrow in (
        (np.int64, np.int32),
        (np.uint64, np.uint32),
        (np.float64, np.float32),
        (np.complex128, np.complex64),
    )
}


def as_prefix(tree: Any, leaf: Callable[[Any, str], Any], path: str = "") -> Prefix:
    """A tree of dicts, lists, tuples and dataclasses as a prefix; ``leaf`` checks each value."""
    children: Mapping[Any, Any] | None = None
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


def map_prefix(f: Callable[[Any], Any], prefix: Prefix) -> Prefix:
    """The prefix with ``f`` applied to its values."""
    if isinstance(prefix, dict):
        return {key: map_prefix(f, value) for key, value in prefix.items()}
    return f(prefix)


def prefix_values(prefix: Prefix) -> list[Any]:
    """All values of a prefix."""
    if isinstance(prefix, dict):
        return [one for value in prefix.values() for one in prefix_values(value)]
    return [prefix]


def spread(prefix: Prefix, structure: Structure, path: str = "") -> list[Any]:
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


def _names(prefix: dict[Any, Any]) -> str:
    return ", ".join(map(repr, prefix)) or "no keys"


def has_wide(spec: Tree | None) -> bool:
    """Could batches of this description have leaves to be made narrow?"""
    return spec is None or any(leaf.dtype in _NARROW for leaf in flatten(spec)[0])


class Narrow:
    """Narrows the leaves that ``chosen``, a prefix of booleans, says."""

    def __init__(self, chosen: Prefix) -> None:
        self._chosen = chosen
        self._known: dict[Structure, list[bool]] = {}

    def __call__(self, batch: Tree, lend: Lend) -> Tree:
        leaves, structure = flatten(batch)
        chosen = self._known.get(structure)
        if chosen is None:
            chosen = self._known[structure] = spread(self._chosen, structure)
        wide = {
            number: array
            for number, leaf in enumerate(leaves)
            if chosen[number] and (array := _wide(leaf)) is not None
        }
        if not wide:
            return batch
        out = lend(Layout.of(*[(one.shape, _NARROW[one.dtype]) for one in wide.values()]))
        for (number, array), target in zip(wide.items(), out, strict=True):
            if target.dtype.kind in "iu":
                _check_fits(array, target.dtype, structure.paths()[number])
            with np.errstate(over="ignore"):  # beyond float32 is infinite, as JAX has it
                np.copyto(target, array, casting="unsafe")
            leaves[number] = target
        return structure.build(leaves)

    def __getstate__(self) -> dict[str, Any]:
        return {"_chosen": self._chosen, "_known": {}}


def _wide(leaf: Any) -> Array | None:
    """The leaf as an array, if JAX would make it narrow."""
    dtype = getattr(leaf, "dtype", None)
    if not isinstance(dtype, np.dtype):  # a list; a tensor of another library
        if not isinstance(leaf, list) and not is_array_like(leaf):
            return None
        try:
            leaf = as_array(leaf)
        except Exception:  # keys of JAX, say: placing knows them, or says what is wrong
            return None
        dtype = leaf.dtype
    return as_array(leaf) if dtype in _NARROW else None


def _check_fits(array: Array, dtype: np.dtype[Any], path: str) -> None:
    if not array.size:
        return
    limits, low, high = np.iinfo(dtype), int(array.min()), int(array.max())
    if limits.min <= low and high <= limits.max:
        return
    raise StackError(
        f"{f'leaf {path!r}' if path else 'the batch'} holds {low if low < limits.min else high}, "
        f"which does not fit into {dtype}, and JAX makes {array.dtype} to {dtype} unless "
        "jax_enable_x64 is set. Set it, or change the numbers in .map(), or leave them on the host "
        "(None in place of a sharding)."
    )
