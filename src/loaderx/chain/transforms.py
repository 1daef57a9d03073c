"""Stages that change elements and leave them where they are."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from loaderx.chain.base import Node, Single
from loaderx.chain.encoding import stage_text
from loaderx.stages.global_generators import SeededMap
from loaderx.stages.transforms import RandomKeys, RandomMap, Transform
from loaderx.tree import ArraySpec, Tree, flatten


class Transformed(Single):
    """map, random_map, map_with_index, random_keys"""

    kind: str
    transform: Transform
    name: str
    stacked: bool = False
    own_seed: int | None = None

    @property
    def is_random(self) -> bool:
        return isinstance(self.transform, (RandomMap, RandomKeys, SeededMap))

    def seed(self, default: int) -> int:
        return default if self.own_seed is None else self.own_seed

    @cached_property
    def spec(self) -> Tree | None:
        below = self.input.spec
        if not isinstance(self.transform, RandomKeys) or not isinstance(below, dict):
            return None
        rows = (_leading(self.input),) if self.batched else ()
        return {**below, self.transform.name: ArraySpec((*rows, 2), np.dtype(np.uint32))}

    @property
    def stage(self) -> str:
        name = repr(self.name) if isinstance(self.transform, RandomKeys) else self.name
        seed = "" if self.own_seed is None else f", seed={self.own_seed}"
        stacked = ", batched=True" if self.stacked else ""
        seeded = ", seed_globals=True" if isinstance(self.transform, SeededMap) else ""
        return f"{self.kind}({name}{seed}{stacked}{seeded})"

    def fingerprint(self, seed: int) -> str:
        # The name of a function may change; that of a leaf which is added is the stage's meaning.
        is_leaf = isinstance(self.transform, RandomKeys)
        named: dict[str, object] = {"name" if is_leaf else "function": self.name}
        if self.is_random:
            named["seed"] = self.seed(seed)
        if isinstance(self.transform, SeededMap):
            named["seed_globals"] = True
        return stage_text(
            self.kind,
            named,
            self,
            without=("kind", "transform", "name", "own_seed"),
            renamed={"stacked": "batched"},
        )


def _leading(node: Node) -> int | None:
    leaves, _ = flatten(node.spec)
    first = leaves[0].shape[0] if leaves and leaves[0].shape else None
    return first if first is None or isinstance(first, int) else None
