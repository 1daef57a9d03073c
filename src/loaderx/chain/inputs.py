"""What chains begin with: sources of known length, and iterables."""

from __future__ import annotations

from functools import cached_property

from loaderx.chain.base import Leaf, checked_length
from loaderx.chain.encoding import array_text, stage_text
from loaderx.sources import Source
from loaderx.sources.iterables import IterableSource
from loaderx.tree import LEAF, Tree, flatten


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
        return stage_text(
            "source", {"length": self.length, "spec": _spec(self.spec)}, self, without=("source",)
        )


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
        return stage_text("iterable", {}, self, without=("source",))


def _spec(spec: Tree | None) -> object:
    """What a state says about records: their leaves by name, in whatever order."""
    if spec is None:
        return None
    leaves, structure = flatten(spec)
    texts = [array_text(leaf.shape, leaf.dtype) for leaf in leaves]
    pairs = sorted(zip(structure.paths(), texts, strict=True))
    if structure is LEAF:
        return texts[0]
    named = dict(pairs)
    return named if len(named) == len(pairs) else pairs  # {"a.b": x, "a": {"b": y}}
