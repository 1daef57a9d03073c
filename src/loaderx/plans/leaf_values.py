"""The values of one leaf of all elements, read without the other leaves where sources can."""

from __future__ import annotations

import numpy as np

from loaderx.chain.node import Node
from loaderx.errors import ArgumentError, ChainError
from loaderx.memory import Pool
from loaderx.reading.context import ReadContext
from loaderx.reading.operators import Request
from loaderx.reading.rows import Rows
from loaderx.rng import ROOT
from loaderx.sources.base import OwnSource
from loaderx.stages import nodes as stages
from loaderx.tree import Array, Leaf, flatten

_AT_ONCE = 256  # records, which may be images


def leaf_values(node: Node, path: str, argument: str) -> Array:
    """The leaf of every element; ``argument`` is what named it."""
    if node.batched:
        raise ChainError(f"`{argument}` names a leaf of records: write it before .batch(...).")
    narrow = _only(node, path)
    chosen = node if narrow is None else narrow
    operator = chosen.record_operator(Request(node.default_seed(), stacked=True))
    context, found = ReadContext(Pool().lend), list[Array]()
    assert node.length is not None
    for first in range(0, node.length, _AT_ONCE):
        positions = np.arange(first, min(first + _AT_ONCE, node.length))
        rows = context.read(operator, operator.resolve(ROOT, positions))
        found.append(_values(rows, path if narrow is None else "", argument))
    return np.concatenate(found)


def _only(node: Node, path: str) -> Node | None:
    """The chain with nothing but this leaf; None if a function or a source is in the way."""
    if isinstance(node, stages.FromSource):
        source = node.source.leaf(path) if isinstance(node.source, OwnSource) else None
        return None if source is None else stages.FromSource(source)
    found = [_only(below, path) for below in node.inputs]
    below = [one for one in found if one is not None]
    if len(below) < len(found):
        return None
    if isinstance(node, stages.Concatenated):
        return node.replace(components=tuple(below))
    is_moved = node.moves or isinstance(node, stages.Seeded)
    return node.replace(input=below[0]) if is_moved else None


def _values(rows: Rows, path: str, argument: str) -> Array:
    """The leaf in each row."""
    found: list[Leaf] = []
    for tree in [rows.tree] if rows.is_stacked else rows.records():
        leaves, structure = flatten(tree)
        paths = structure.paths()
        if path not in paths:
            raise ArgumentError(
                f"`{argument}`: records have no leaf {path!r}; they have "
                f"{', '.join(map(repr, paths))}."
            )
        found.append(leaves[paths.index(path)])
    if rows.is_stacked:
        return np.asarray(found[0])
    # An array of texts would drop zeros at the end of bytes.
    return np.array(found, object if isinstance(found[0], (str, bytes)) else None)
