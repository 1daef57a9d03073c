"""What a saved state says about its chain, and the seeds that stages inherit."""

from __future__ import annotations

from loaderx.chain.base import Node
from loaderx.chain.stages import Repeated, Seeded, Sliced


def default_seed(node: Node, inherited: int) -> int:
    """The seed of stages that have none of their own: the last ``.seed(n)`` of this chain."""
    for stage in reversed(node.chain()):
        if isinstance(stage, Seeded):
            return stage.number
    return inherited


def without_outer_repeat(node: Node) -> Node:
    """The node below the outermost repeat, if nothing but a seed stands above it."""
    outer = node
    while isinstance(outer, Seeded):
        outer = outer.input
    if not isinstance(outer, Repeated):
        return node
    inner = outer.input
    seed = default_seed(node, -1)
    return inner if seed in (-1, default_seed(inner, -1)) else Seeded(inner, seed)


def marks(node: Node, seed: int, *, whole: bool = False) -> list[str]:
    """One short string per stage, source first.

    The outermost repeat and take say how long to run, not what the stream is: they are left out,
    except where the whole node matters (inside a mix).
    """
    stages = [stage for stage in node.chain() if not isinstance(stage, Seeded)]
    while not whole and isinstance(stages[-1], (Repeated, Sliced)):
        last = stages[-1]
        if isinstance(last, Sliced) and (last.start, last.step) != (0, 1):
            break
        stages.pop()
    return [stage.mark(seed) for stage in stages]
