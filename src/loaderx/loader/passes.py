"""Passes over a loader: the k-th begins with its k-th epoch.

A loader whose dataset has several epochs (`.repeat(3)`) reads them all in one pass, and the next
pass continues with those after them.  If the dataset repeats without end, a pass begins with the
epoch after the last one of which a batch was taken.
"""

from __future__ import annotations

from loaderx.chain.node import Node
from loaderx.order.epochs import LIMIT
from loaderx.stages.repeat import Repeated
from loaderx.stages.select import Sliced


class Passes:
    """Shared by the plain iterators of one loader: which epochs make a pass, and which is next.

    A pass counts once a batch was taken from it.  Without ``counts`` all begin with epoch 0.
    """

    def __init__(self, span: int, *, counts: bool = True) -> None:
        self.span = span  # epochs of a pass
        self.next = 0  # the epoch that the next pass begins with
        self.longest = 0  # most batches taken from one pass; 2 stands for more
        self._counts = counts

    def first_of(self, epoch: int) -> int:
        """The first epoch of the pass that an epoch belongs to."""
        return epoch // self.span * self.span

    def taken(self, epoch: int, batches: int) -> None:
        """Notes that a batch of an epoch was handed out, the ``batches``-th of its iterator."""
        self.longest = max(self.longest, batches)
        if self._counts:
            self.next = self.first_of(epoch) + self.span


class StepPasses(Passes):
    """Passes over a dataset that is read by index: each has its range of steps.

    Steps are numbered continuously over all epochs, so a step determines its pass.
    """

    def __init__(self, node: Node, base: Node, *, counts: bool) -> None:
        self._epoch_steps, self._steps = base.length, node.length
        self._limit = node.limit
        epochs = how_long(node)[1]
        if epochs is None:  # `.repeat()`; a take above it may end each pass
            epochs = -(-(node.length or 1) // (base.length or 1))
        super().__init__(epochs, counts=counts and base.length is not None)

    def steps_of(self, epoch: int) -> range:
        """The steps of the pass that an epoch belongs to."""
        if self._steps is None or self._epoch_steps is None:
            return range(self._limit)
        first = self.first_of(epoch) * self._epoch_steps
        return range(first, first + self._steps)

    def first_step(self, epoch: int) -> int:
        return epoch * (self._epoch_steps or 0)

    def epoch_of(self, step: int) -> int:
        return step // self._epoch_steps if self._epoch_steps else 0


def how_long(node: Node) -> tuple[Node, int | None, int]:
    """The node of one epoch, the number of epochs (None: endless), and the steps to run.

    The outermost take only limits the steps, so it is not part of the epoch.
    """
    base, epochs, steps = node.one_epoch(), 1, LIMIT
    if base is node:
        while base.is_take:
            steps, base = min(steps, most_of(base)), base.inputs[0]
        return base, epochs, steps
    while not isinstance(node, Repeated):
        steps, node = min(steps, most_of(node)), node.inputs[0]
    return base, node.epochs, steps


def most_of(node: Node) -> int:
    """The most elements that a take lets through."""
    return node.count if isinstance(node, Sliced) and node.count is not None else LIMIT


def whole_epoch_of(base: Node, step: int) -> int:
    """The epoch at a step of a stream that reads ``base`` over and over."""
    length = base.length
    if not length:
        return base.epoch_of(step)
    whole, inside = divmod(step, length)
    return whole * (base.epoch_of(length - 1) + 1) + base.epoch_of(inside)


def epoch_end(base: Node, step: int, stop: int) -> int:
    """The first step after ``step`` that belongs to another epoch; at most ``stop``."""
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
