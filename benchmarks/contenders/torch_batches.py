"""What both files of torch's use."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

from suite.workloads import Array, Record


@cache
def own_threads() -> int:
    """How many threads torch takes for one operation, unless it is told."""
    import torch

    return int(torch.get_num_threads())


class Orders:
    """Whole batches of indices, drawn anew for every epoch; no list of Python's numbers."""

    def __init__(self, records: int, batch_size: int) -> None:
        self.records, self.batch_size = records, batch_size

    def __len__(self) -> int:
        return math.ceil(self.records / self.batch_size)

    def __iter__(self) -> Iterator[Array]:
        import torch

        order = torch.randperm(self.records).numpy()
        for start in range(0, self.records, self.batch_size):
            yield order[start : start + self.batch_size]


def as_it_is(batch: Any) -> Any:
    return batch


def in_numpy(batches: Any) -> Iterator[Record]:
    """Tensors as NumPy arrays; texts as they are."""
    for batch in batches:
        yield {
            name: leaf if isinstance(leaf, list) else leaf.numpy() for name, leaf in batch.items()
        }
