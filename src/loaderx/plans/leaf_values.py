"""The values of one leaf of all elements, read without the other leaves where sources can."""

from __future__ import annotations

import numpy as np

from loaderx.chain.node import Node
from loaderx.errors import ArgumentError, ArgumentTypeError, ChainError
from loaderx.memory import Pool
from loaderx.reading.context import ReadContext
from loaderx.reading.operators import Request
from loaderx.reading.rows import Rows
from loaderx.rng import ROOT
from loaderx.sources.base import OwnSource
from loaderx.stages import nodes as stages
from loaderx.tree import Array, Leaf, flatten

_AT_ONCE = 256  # records, which may be images


def labels_of(node: Node, labels: str | Leaf, argument: str) -> Array:
    """A label for each element: those that were given, or those of a leaf."""
    found = _leaf_values(node, labels, argument) if isinstance(labels, str) else np.asarray(labels)
    if found.shape != (node.length,):
        raise ArgumentError(
            f"`{argument}` must have one label for each of the {node.length} elements, got an "
            f"array of shape {found.shape}."
        )
    kinds = {type(label) for label in found} if found.dtype == object else set()
    if len(kinds) > 1 or type(None) in kinds:
        listed = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ArgumentTypeError(f"`{argument}` must have labels of one type, and has {listed}.")
    return found


def _leaf_values(node: Node, path: str, argument: str) -> Array:
    if node.batched:
        raise ChainError(f"`{argument}` names a leaf of records: write it before .batch(...).")
    request = Request(node.default_seed(), stacked=True)
    operator = (_only(node, path) or node).record_operator(request)
    context, found = ReadContext(Pool().lend), list[Array]()
    assert node.length is not None
    for first in range(0, node.length, _AT_ONCE):
        positions = np.arange(first, min(first + _AT_ONCE, node.length))
        rows = context.read(operator, operator.resolve(ROOT, positions))
        found.append(_values(rows, path, argument))
    return np.concatenate(found)


def _only(node: Node, path: str) -> Node | None:
    """The chain with nothing but this leaf; None if a function or a source is in the way."""
    if isinstance(node, stages.FromSource):
        source = node.source.leaf(path) if isinstance(node.source, OwnSource) else None
        return None if source is None else stages.FromSource(source)
    below = [one for one in (_only(one, path) for one in node.inputs) if one is not None]
    if len(below) == len(node.inputs):
        if isinstance(node, stages.Concatenated):
            return node.replace(components=tuple(below))
        if node.moves:
            return node.replace(input=below[0])
    return None


def _values(rows: Rows, path: str, argument: str) -> Array:
    """The leaf in each row."""
    found: list[Leaf] = []
    for tree in [rows.tree] if rows.is_stacked else rows.records():
        leaves, structure = flatten(tree)
        named = dict(zip(structure.paths(), leaves, strict=True))
        if path not in named:
            listed = ", ".join(map(repr, named))
            raise ArgumentError(f"`{argument}`: records have no leaf {path!r}; they have {listed}.")
        found.append(named[path])
    if rows.is_stacked:
        return np.asarray(found[0])
    if np.ndim(found[0]):
        raise ArgumentError(
            f"`{argument}`: the leaf {path!r} has shape {np.shape(found[0])}, and a label is one "
            "number or text."
        )
    # An array of texts would drop zeros at the end of bytes.
    return np.array(found, object if isinstance(found[0], (str, bytes)) else None)
