"""Stages that change elements and leave them where they are."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from loaderx.chain.base import Node, Single
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
        inside = [str(self.seed(seed))] if self.is_random else []
        inside += ["batched"] if self.stacked else []
        inside += ["seed_globals"] if isinstance(self.transform, SeededMap) else []
        return f"{self.kind}{'(' + ','.join(inside) + ')' if inside else ''} {self.name}"


def _leading(node: Node) -> int | None:
    leaves, _ = flatten(node.spec)
    first = leaves[0].shape[0] if leaves and leaves[0].shape else None
    return first if first is None or isinstance(first, int) else None
