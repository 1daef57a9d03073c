"""What `pack` and `bucket` were asked to do.

Kept apart from how they do it, so that describing a dataset imports little.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loaderx.frozen import Frozen

STRATEGIES = ("best_fit", "first_fit", "concat")
OVERFLOWS = ("error", "truncate", "split", "drop")


class Packing(Frozen):
    """The arguments of `Dataset.pack`."""

    lengths: Mapping[str, int]
    strategy: str = "best_fit"
    window: int = 2000
    overflow: str = "error"
    pad_value: Any = 0
    max_segments: int | None = None
    segment_ids: str | None = "{}_segment_ids"
    positions: str | None = "{}_positions"
    bos: Any = None
    whole_documents: bool = False

    def padding(self, path: str) -> Any:
        return (
            self.pad_value.get(path, 0) if isinstance(self.pad_value, Mapping) else self.pad_value
        )

    def first_token(self, path: str) -> Any:
        if isinstance(self.bos, Mapping):
            return self.bos.get(path, self.padding(path))
        return self.bos

    @property
    def heads(self) -> int:
        """Places at the head of each row that no record may take."""
        return 0 if self.bos is None else 1


class Bucketing(Frozen):
    """The arguments of `Dataset.bucket`."""

    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    leaves: tuple[str, ...] | None = None
    window: int = 2000
    drop_remainder: bool = False
    pad_value: Any = 0
    mask_key: str = "mask"
