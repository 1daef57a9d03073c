"""concatenate: one dataset after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from loaderx.chain.encoding import stage_text
from loaderx.chain.families import ByIndex
from loaderx.chain.numbers import checked_length
from loaderx.errors import ChainError
from loaderx.order.epochs import LIMIT
from loaderx.reading.rows import Positions
from loaderx.sources.base import Indices
from loaderx.stages.join import Merged, Router


class Concatenated(ByIndex, Merged):
    """All elements of each component in turn."""

    kind = "concatenate"

    def __post_init__(self) -> None:
        self._check_components()
        self._refuse_streams(
            "Concatenate before the stage that makes it one (filter, flat_map, pack, ...), or use "
            "Dataset.mix."
        )
        self._check_specs()
        for number, node in enumerate(self.components[:-1]):
            if node.length is None:
                raise ChainError(
                    f"concatenate: dataset {number} is endless, so nothing can follow it."
                )

    @cached_property
    def length(self) -> int | None:
        total = 0
        for node in self.components:
            if node.length is None:
                return None
            total += node.length
        return checked_length(total)

    @cached_property
    def limit(self) -> int:
        return min(LIMIT, sum(node.limit for node in self.components))

    @property
    def stage(self) -> str:
        return f"Dataset.concatenate({len(self.components)} datasets)"

    @property
    def block_starts(self) -> Indices | None:
        found, offset = [np.zeros(1, np.int64)], 0
        for node in self.components:
            starts = node.block_starts
            if starts is None or node.length is None:
                return None
            found.append(starts[1:] + offset)
            offset += node.length
        return np.concatenate(found)

    def fingerprint(self, seed: int) -> str:
        return stage_text("concatenate", self.parts(seed), self)

    def router(self) -> Router:
        return ByOffset([part.length for part in self.components])


class ByOffset(Router):
    """One component after the other."""

    def __init__(self, lengths: Sequence[int | None]) -> None:
        ends = np.cumsum([length or 0 for length in lengths[:-1]], dtype=np.int64)
        self.starts = np.concatenate([np.zeros(1, np.int64), ends])

    def locate(self, positions: Positions) -> tuple[npt.NDArray[np.intp], Positions]:
        which = np.searchsorted(self.starts, positions, side="right") - 1
        return which, positions - self.starts[which]

    def counts(self, component: int, limits: Positions) -> Positions:
        ends = [*self.starts[1:].tolist(), LIMIT]
        start = int(self.starts[component])
        found: Positions = np.clip(limits, start, ends[component]) - start
        return found

    def places(self, component: int, numbers: Positions) -> Positions:
        found: Positions = numbers + self.starts[component]
        return found
