"""What a mix gives up to a position, and the leaf that names the part of each row."""

from __future__ import annotations

import numpy as np

from loaderx.chain.node import Node
from loaderx.errors import ArgumentError, ChainError
from loaderx.order.epochs import LIMIT
from loaderx.sources.columns.run_columns import ListColumn
from loaderx.sources.columns.table import TableSource
from loaderx.stages.inputs import FromSource
from loaderx.stages.mix import Mixed
from loaderx.stages.mixture import MixPlan, PartPlan
from loaderx.stages.select import Sliced
from loaderx.tree import Tree, flatten


def mix_plan(node: Node, n: int) -> MixPlan:
    """The plan of the mix below ``node`` for its first ``n`` elements."""
    found = found_mix(node, n)
    if found is None:
        raise ChainError(
            "plan needs a mix below this stage, with nothing but stages between them that keep "
            "every element in its place (map and the like) and one batch."
        )
    mix, position = found
    rows = mix.timetable.counts(position).tolist()
    sizes = mix.sizes or (1,) * len(rows)
    weighed = [count * size for count, size in zip(rows, sizes, strict=True)]
    whole = sum(weighed) or 1
    parts = [
        PartPlan(
            name=mix.part_names[c],
            rows=rows[c],
            share=weighed[c] / whole,
            epochs=rows[c] / each if (each := mix.epoch_rows(c)) else None,
            tokens=round(weighed[c]) if mix.sizes else None,
            cap_at=mix.timetable.used_up.get(c) if c in mix.capped else None,
        )
        for c in range(len(rows))
    ]
    return MixPlan(position, tuple(parts))


def rows_by_part(base: Node, step: int) -> dict[str, int]:
    """The rows of each part before a step, over all epochs of ``base``; empty if not known."""
    length = base.length
    epochs, inside = divmod(step, length) if length else (0, step)
    found, whole = found_mix(base, inside), found_mix(base, length or LIMIT)
    if found is None or whole is None or (base.is_stream and base.ends):
        return {}
    mix = found[0]
    rows = mix.timetable.counts(found[1])
    if epochs:
        rows = rows + epochs * mix.timetable.counts(whole[1])
    return dict(zip(mix.part_names, rows.tolist(), strict=True))


def found_mix(node: Node, n: int, *, at_most: bool = False) -> tuple[Mixed, int] | None:
    """The mix below ``node``, and its elements that make the first ``n`` of ``node``.

    None if there is no mix, or if they are not its first ones.  With ``at_most``, they may be
    among the first ones, as those of a shuffled window are.
    """
    while not isinstance(node, Mixed):
        if not node.is_stage:
            return None
        below = node.inputs[0]
        most = node.count if isinstance(node, Sliced) else node.length
        n = n if most is None else min(n, most)
        if node.batched and not below.batched:
            n = node.rows_before(n)
        elif at_most and node.shuffle_span:
            n = -(-n // node.shuffle_span) * node.shuffle_span
        elif node.is_repeat:
            if below.length is not None and n > below.length:
                return None
        elif not (node.keeps_places or node.is_take):
            return None
        node = below
    ends = [end for end in (node.length, node.timetable.end) if end is not None]
    return node, min([n, *ends])


# Lengths ----------------------------------------------------------------------------------------

_AT_ONCE = 1 << 20  # records


def mean_length(node: Node, leaf: str, name: str) -> float:
    """The mean number of elements in a leaf of the records, from what their source knows."""
    if node.is_stream:
        raise ChainError(
            f"mix: `count` for {name!r}, a stream, whose lengths are not known ahead. Pack each "
            "dataset first, and mix the rows by their number."
        )
    mean = _known_length(node, leaf)
    if not mean:
        raise ChainError(
            f"mix: `count={leaf!r}` for {name!r}: the lengths of this leaf are not known without "
            "reading its records. They are for files with offsets (Dataset.save, Arrow, Megatron) "
            "and for arrays of one length, where no map stands between them and the mix."
        )
    return mean


def _known_length(node: Node, leaf: str) -> float | None:
    if node.batched:
        return None
    if node.spec is not None:
        leaves, structure = flatten(node.spec)
        spec = dict(zip(structure.paths(), leaves, strict=True)).get(leaf)
        return spec.shape[0] if spec is not None and spec.shape else None
    while node.moves:
        node = node.inputs[0]
    if not isinstance(node, FromSource) or not isinstance(node.source, TableSource):
        return None
    columns, structure = node.source.columns
    column = dict(zip(structure.paths(), columns, strict=True)).get(leaf)
    if not isinstance(column, ListColumn):
        return None
    count = len(node.source)
    blocks = (np.arange(i, min(i + _AT_ONCE, count)) for i in range(0, count, _AT_ONCE))
    return sum(column.total(column.parts.at(block)) for block in blocks) / max(1, count)


# The part of each row ---------------------------------------------------------------------------


class NamePart:
    """Adds the number of a part to its elements."""

    def __init__(self, leaf: str, number: int, *, stacked: bool) -> None:
        self.leaf, self.number, self.stacked = leaf, number, stacked

    def __call__(self, element: Tree) -> Tree:
        if not isinstance(element, dict) or self.leaf in element:
            what = "has that leaf already" if isinstance(element, dict) else "is not a dict"
            raise ArgumentError(f"mix: `part={self.leaf!r}`: an element {what}.")
        number = np.int32(self.number)
        if not self.stacked:
            return {**element, self.leaf: number}
        rows = len(flatten(element)[0][0])
        return {**element, self.leaf: np.full(rows, number)}
