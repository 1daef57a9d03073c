"""Where a step stands in its chain: epoch, records before it."""

from __future__ import annotations

from loaderx import chain
from loaderx.chain.base import Node


def rows_before(node: Node, step: int) -> int:
    """Records handed out before a step: exact unless short batches were moved about."""
    if not node.batched:
        return step
    match node:
        case chain.Repeated():
            assert node.input.length is not None
            rounds, inside = divmod(step, node.input.length)
            whole = rows_before(node.input, node.input.length)
            return rounds * whole + rows_before(node.input, inside)
        case chain.Batched():
            rows = step * node.size
            return rows if node.rows is None else min(rows, node.rows)
        case chain.Transformed() | chain.Seeded() | chain.Guarded() | chain.Shuffled():
            return rows_before(node.input, step)
        case chain.Sliced() if node.step == 1:
            return rows_before(node.input, node.start + step) - rows_before(node.input, node.start)
    return step * (node.batch_size or 1)


def epoch_of(node: Node, step: int) -> int:
    """The epoch of the outermost repeat at a step; 0 where there is none."""
    match node:
        case chain.Repeated():
            assert node.input.length is not None
            return step // node.input.length
        case chain.Batched():
            return epoch_of(node.input, step * node.size)
        case chain.Sliced():
            return epoch_of(node.input, node.start + step * node.step)
        case chain.Transformed() | chain.Seeded() | chain.Guarded():
            return epoch_of(node.input, step)
    return 0
