"""Warns of parts of a shuffled dataset: they hold different records in every epoch."""

from __future__ import annotations

from loaderx.chain.node import Node
from loaderx.errors import warn_user


def warn_of_changing_parts(node: Node) -> bool:
    """Warns if further epochs of ``node`` take different records; True if it warned.

    Called where further epochs begin: at a repeat, or when a loader is asked for an epoch.
    """
    for part, shuffle in changing_parts(node):
        dot = "" if part.stage.startswith("[") else "."
        warn_user(
            f"{dot}{part.stage} stands after {shuffle.stage}, which draws a new order in every "
            "epoch: each epoch takes different records, and eventually all of them. As a split it "
            "leaks: validation records turn up in training. Write train, valid = "
            "ds.split(0.9, 0.1) and shuffle the parts; to use a fixed part of the data, take "
            "before .shuffle()."
        )
        return True
    return False


def changing_parts(node: Node) -> list[tuple[Node, Node]]:
    """Stages that keep a part of their input, each with a shuffle below that changes it."""
    if node.begins_epochs:
        return []  # checked when that stage was made
    if node.is_part:
        for below in node.inputs[0].below():
            if below.shuffle_span is not None and _cuts(node, below, below.shuffle_span):
                return [(node, below)]
    return [found for each in node.inputs for found in changing_parts(each)]


def _cuts(part: Node, shuffle: Node, span: int) -> bool:
    """Whether the part begins or ends within a span that is shuffled."""
    ends = part.ends_of_part
    if ends is None:
        return True
    stage = part.inputs[0]
    while stage is not shuffle:
        if not stage.keeps_places:
            return True  # positions have changed in between
        stage = stage.inputs[0]
    return any(end % span for end in ends)
