"""The chain in a saved state."""

from __future__ import annotations

from loaderx.chain.encoding import parse_stage
from loaderx.chain.node import Node


def fingerprints(node: Node, seed: int, *, whole: bool = False) -> list[str]:
    """One short string per stage, source first.

    The outermost take and repeat only set the length of a run, so they are left out, except where
    the whole node matters (inside a mix, or within an epoch).
    """
    kept = node if whole else node.one_epoch()
    stages = kept.chain()
    free = None
    if kept is node and not whole:  # else the whole chain is repeated
        while stages[-1].is_take or not stages[-1].fingerprint(seed):
            seed = stages.pop().seed_below(seed)
        free = _free_repeat(stages)
    texts: list[str] = []
    for stage in reversed(stages):
        texts.insert(0, "repeat()" if stage is free else stage.fingerprint(seed))
        seed = stage.seed_below(seed)
    return [text for text in texts if text]


def identity(fingerprint: str) -> str:
    """A fingerprint without the name of its function: names may change."""
    stage = parse_stage(fingerprint) if "function=" in fingerprint else None
    if stage is None or "function" not in stage.values:
        return fingerprint
    del stage.values["function"]
    return stage.text()


def _free_repeat(stages: list[Node]) -> Node | None:
    """The repeat whose count only sets the end of the stream: stages above keep the order."""
    for stage in reversed(stages):
        if stage.is_repeat:
            return stage
        if not stage.keeps_order:
            return None
    return None
