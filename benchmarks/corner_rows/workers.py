"""Worker processes, beside the gathers by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from corner_rows import Corner, Side
from corner_rows.layouts import BATCH, by_hand
from loaderx import DataLoader, Dataset


def leaves(count: int, _: Path) -> tuple[Side, Side]:
    """Batches of many leaves."""
    arrays = {f"c{number:04}": np.arange(20_000) for number in range(count)}
    dataset = Dataset.from_arrays(arrays).shuffle(seed=0).repeat().batch(BATCH)

    def ours() -> Iterator[Any]:
        with DataLoader(dataset, engine="processes", num_workers=1) as loader:
            yield from loader

    return ours, by_hand(arrays)


CORNERS = [
    Corner(
        "process_leaves",
        leaves,
        (10, 1_000),
        reason="starting a worker counts, and batches made ahead; each leaf is placed and found",
    )
]
