"""`mp_prefetch`: the elements of a dataset, made in worker processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.options import MultiprocessingOptions
from loaderx.compat.grain.registry import node

T = TypeVar("T")


@node("iter.mp_prefetch")
def mp_prefetch(
    ds: IterDataset[T],
    options: MultiprocessingOptions,
    worker_init_fn: Callable[[int, int], None] | None = None,
) -> IterDataset[T]:
    """The same elements from worker processes; the dataset itself if there are none."""
    return ds
