"""The epoch of a step."""

from __future__ import annotations

from loaderx.stages.node import Node


def whole_epoch_of(base: Node, step: int) -> int:
    """The epoch at a step of a stream that reads ``base`` over and over."""
    length = base.length
    if not length:
        return base.epoch_of(step)
    whole, inside = divmod(step, length)
    return whole * (base.epoch_of(length - 1) + 1) + base.epoch_of(inside)


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
