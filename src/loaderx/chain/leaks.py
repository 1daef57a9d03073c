"""A part of an order that changes from epoch to epoch is another part each time: no split."""

from __future__ import annotations

from loaderx.chain.base import Node
from loaderx.chain.joined import Mixed
from loaderx.chain.moves import Picked, Repeated, Shuffled, Sliced, WindowShuffled
from loaderx.chain.rules import Seeded
from loaderx.chain.transforms import Transformed
from loaderx.errors import warn_user


def warn_of_changing_parts(node: Node) -> bool:
    """Warns if further epochs of ``node`` take other records; says whether it did.

    To be asked where further epochs come in: at a repeat, or when a loader is asked for one.
    """
    for part, shuffle in _changing_parts(node):
        dot = "" if part.stage.startswith("[") else "."
        warn_user(
            f"{dot}{part.stage} stands after {shuffle.stage}, which draws a new order in every "
            "epoch: each epoch takes other records, and in time all of them. As a split it leaks: "
            "validation records come up in training. Write train, valid = ds.split(0.9, 0.1) "
            "and shuffle the parts; to use a fixed part of the data, take before .shuffle()."
        )
        return True
    return False


def _changing_parts(node: Node) -> list[tuple[Node, Node]]:
    """Stages that keep a part of their input, each with a shuffle below that changes it."""
    if isinstance(node, Repeated) and node.epochs != 1:
        return []  # that repeat has been asked about already
    if isinstance(node, Mixed) and node.stop == "repeat":
        return []
    if _is_part(node):
        for below in node.inputs[0].below():
            if isinstance(below, Shuffled) or (
                isinstance(below, WindowShuffled) and _cuts_windows(node, below)
            ):
                return [(node, below)]
    return [found for each in node.inputs for found in _changing_parts(each)]


def _is_part(node: Node) -> bool:
    """Does the stage keep some records and leave out others?"""
    if isinstance(node, Picked):
        return node.length != node.input.length or node.seen is not None
    if not isinstance(node, Sliced) or (node.count is not None and node.count == node.input.length):
        return False
    # The first batches of an epoch are mostly meant as its length, not as a part of the data.
    return not (node.batched and (node.start, node.step) == (0, 1))


def _cuts_windows(node: Node, shuffle: WindowShuffled) -> bool:
    """Does a part begin or end within a window, whose records change places?"""
    if not isinstance(node, Sliced) or node.step != 1:
        return True
    stage: Node = node.input
    while stage is not shuffle:
        if not isinstance(stage, (Transformed, Seeded)):
            return True  # the records stand in other places
        stage = stage.input
    ends = [node.start]
    if node.count is not None and node.start + node.count != node.input.length:
        ends.append(node.start + node.count)
    return any(end % shuffle.window for end in ends)
