"""What a source offers that makes padded batches of its lists itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from loaderx.frozen import Frozen
from loaderx.memory import Lend
from loaderx.sources.base import Indices
from loaderx.tree import Array, DType, Tree


class PaddedBatch(Frozen):
    """A batch, and the lengths that its lists had, by the paths of their leaves."""

    tree: Tree
    lengths: dict[str, Array]


class PaddedGather(Protocol):
    """Gathers records with their lists padded."""

    def dtypes(self) -> dict[str, DType]:
        """Of the leaves, by their paths."""
        ...

    def gather(
        self, indices: Indices, values: Mapping[str, Array], lend: Lend
    ) -> PaddedBatch | None:
        """The records at ``indices``, with ``values`` behind lists; None if that cannot be."""
        ...


class PadsLists:
    """A source that pads its lists itself: a batch costs no Python for each record."""

    def padded(self, lengths: Mapping[str, int]) -> PaddedGather | None:
        """Its records with lists padded to these lengths, by path; None if it cannot."""
        raise NotImplementedError
