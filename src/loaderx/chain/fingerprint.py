"""What a saved state says about its chain, and the seeds that stages inherit."""

from __future__ import annotations

from loaderx.chain.base import Node
from loaderx.chain.batches import Batched
from loaderx.chain.encoding import parse_stage
from loaderx.chain.moves import Repeated, Sliced
from loaderx.chain.rules import Guarded, Seeded
from loaderx.chain.transforms import Transformed


def default_seed(node: Node, inherited: int) -> int:
    """The seed of stages that have none of their own: the last ``.seed(n)`` of this chain."""
    for stage in reversed(node.chain()):
        if isinstance(stage, Seeded):
            return stage.number
    return inherited


def without_outer_repeat(node: Node) -> Node:
    """One epoch of the chain: the node without its outermost repeat, or itself if it has none."""
    match node:
        case Repeated():
            return node.input
        case Sliced() if _is_take(node):
            inner = without_outer_repeat(node.input)
            return node if inner is node.input else inner
        case Seeded() | Guarded() | Transformed() if not _counts_positions(node):
            inner = without_outer_repeat(node.input)
            return node if inner is node.input else node.replace(input=inner)
    return node


def _counts_positions(node: Node) -> bool:
    return isinstance(node, Transformed) and node.transform.needs == "positions"


def fingerprints(node: Node, seed: int, *, whole: bool = False) -> list[str]:
    """One short string per stage, source first.

    The outermost take and repeat say how long to run, not what the stream is: they are left out,
    except where the whole node matters (inside a mix, or within an epoch).
    """
    kept = node if whole else without_outer_repeat(node)
    stages = [stage for stage in kept.chain() if not isinstance(stage, Seeded)]
    free = None
    if kept is node and not whole:  # else what is left is repeated as a whole
        while isinstance(stages[-1], Sliced) and _is_take(stages[-1]):
            stages.pop()
        free = _free_repeat(stages)
    return ["repeat()" if stage is free else stage.fingerprint(seed) for stage in stages]


def identity(fingerprint: str) -> str:
    """A fingerprint without the name of its function: names may change."""
    stage = parse_stage(fingerprint)
    if stage is None or "function" not in stage.values:
        return fingerprint
    del stage.values["function"]
    return stage.text()


def _free_repeat(stages: list[Node]) -> Node | None:
    """A repeat whose count only says when the stream ends: nothing above it moves elements."""
    for stage in reversed(stages):
        if isinstance(stage, Repeated):
            return stage
        if not isinstance(stage, (Batched, Guarded, Transformed)):
            return None
    return None


def _is_take(node: Sliced) -> bool:
    return (node.start, node.step) == (0, 1)
