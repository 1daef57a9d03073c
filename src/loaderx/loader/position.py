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


def whole_epoch_of(base: Node, step: int) -> int:
    """The epoch at a step of a stream that reads ``base`` over and over."""
    length = base.length
    if not length:
        return epoch_of(base, step)
    whole, inside = divmod(step, length)
    return whole * (epoch_of(base, length - 1) + 1) + epoch_of(base, inside)


def epoch_end(base: Node, step: int, stop: int) -> int:
    """The first step after one, and not beyond ``stop``, that belongs to another epoch."""
    epoch = whole_epoch_of(base, step)
    reach = 1
    while whole_epoch_of(base, min(step + reach, stop)) == epoch:
        if step + reach >= stop:
            return stop
        reach *= 2
    low, high = step + reach // 2, min(step + reach, stop)  # it ends between these
    while high - low > 1:
        middle = (low + high) // 2
        if whole_epoch_of(base, middle) == epoch:
            low = middle
        else:
            high = middle
    return high
