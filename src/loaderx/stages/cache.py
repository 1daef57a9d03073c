"""cache: the records of the stages below are made once, and read from then on.

They are kept in shared memory (`row_store`) or in a folder (`row_folder`) when they are made; a
folder that has all of them is read like any other dataset.  The stream is the same without the
cache: random stages above find the same keys, and a saved state does not mention it.
"""

from __future__ import annotations

from typing import TypeAlias

from loaderx.chain.families import ByIndex, KeepsPlaces
from loaderx.chain.node import Node
from loaderx.errors import ChainError
from loaderx.reading.operators import BatchOperator, RecordOperator, Request
from loaderx.reading.row_store import RowStore
from loaderx.sources import Source
from loaderx.sources.native.row_folder import RowFolder
from loaderx.stages.cache_rows import FillFolder, KeepRows, ReadSaved

Kept: TypeAlias = RowStore | RowFolder | Source
"""Where records are kept: in memory, in a folder that is being filled, or saved in one."""


class Cached(ByIndex, KeepsPlaces):
    """Keeps the records of its input."""

    kept: Kept

    window = None
    unit_cost = "nothing"
    can_drop = False
    is_ordered = False

    @property
    def stage(self) -> str:
        kept = self.kept
        if isinstance(kept, RowStore):
            return "cache()"
        return f"cache({kept.folder if isinstance(kept, RowFolder) else kept.label()})"

    def fingerprint(self, seed: int) -> str:
        return ""  # the stream is the same without it

    def seed_below(self, seed: int) -> int:
        return self.input.default_seed()  # rows are made once, for all branches of a chain

    @property
    def random_access(self) -> bool:
        return isinstance(self.kept, Source) or self.input.random_access

    @property
    def user_objects(self) -> tuple[tuple[str, object], ...]:
        return ((self.stage, self.kept),) if isinstance(self.kept, Source) else ()

    def make_record_operator(self, request: Request) -> RecordOperator:
        kept, stage, stacked = self.kept, self.stage, request.stacked
        request = request.replace(seed=self.seed_below(request.seed))
        is_guarded = any(node.error_policy or node.removed for node in self.input.below())
        if isinstance(kept, Source):
            below = self.input.record_operator(request)
            return ReadSaved(stage, below, kept, is_guarded=is_guarded, stacked=stacked)
        below = self.input.record_operator(request.replace(stacked=True))
        if isinstance(kept, RowFolder):
            return FillFolder(stage, below, kept, is_guarded=is_guarded, stacked=stacked)
        random_access = self.input.random_access
        return KeepRows(stage, below, kept, is_guarded=is_guarded, random_access=random_access)

    def batch_operator(self, request: Request) -> BatchOperator:
        raise AssertionError("its elements are records")


def check_cacheable(node: Node) -> None:
    """Refuses chains whose records cannot be kept by position."""
    if node.batched:
        raise ChainError("cache after batch: it keeps records. Put .cache() before .batch(...).")
    if node.is_stream:
        raise ChainError(
            "cache of a stream: its records have no numbers by which they could be found. Put "
            ".cache() before the stage that makes the stream (filter, flat_map, pack, ...), or "
            "save it, .save(folder), and open that."
        )
    for below in node.below():
        if below.repeats_here:
            raise ChainError(
                f"cache after {below.stage}: records come again there, and each would be kept "
                "again. Put .cache() before it."
            )
        if below.is_random:
            raise ChainError(
                f"cache above {below.stage}: caching would freeze the augmentation, or the order, "
                f"of the first epoch. Put .cache() before it."
            )
