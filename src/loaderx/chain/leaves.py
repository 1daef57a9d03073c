"""What chains begin with: sources of known length, and iterables."""

from __future__ import annotations

from functools import cached_property

from loaderx.chain.base import Leaf, checked_length, digest
from loaderx.sources import Source
from loaderx.sources.iterables import IterableSource
from loaderx.tree import Tree, flatten


class FromSource(Leaf):
    source: Source

    @cached_property
    def length(self) -> int:
        return checked_length(len(self.source))

    @cached_property
    def spec(self) -> Tree | None:
        return self.source.spec

    @property
    def stage(self) -> str:
        return f"Dataset.{self.source.label()}"

    def fingerprint(self, seed: int) -> str:
        if self.spec is None:
            return f"source[{self.length}]"
        leaves, structure = flatten(self.spec)
        return f"source[{self.length}] {digest(structure.paths(), leaves)}"


class FromIterable(Leaf):
    source: IterableSource

    @property
    def length(self) -> int | None:
        return None

    @cached_property
    def ends(self) -> bool:
        return True  # nobody knows; what never ends needs no second pass

    @cached_property
    def is_stream(self) -> bool:
        return True

    @cached_property
    def spec(self) -> Tree | None:
        return None

    @property
    def stage(self) -> str:
        return f"Dataset.from_iterable({self.source.name})"

    def fingerprint(self, seed: int) -> str:
        return "iterable"
