"""Where a pipeline is cut for workers: its roots, and a copy that takes them from workers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TypeVar

from loaderx.compat.grain.interleave import InterleaveIterDataset
from loaderx.compat.grain.iter_batch import BatchIterDataset
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iter_functions import FilterIterDataset, MapIterDataset
from loaderx.compat.grain.iter_mix import WithSeedIterDataset
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.protocols import Element
from loaderx.compat.grain.read_iterator import PrefetchIterDataset
from loaderx.compat.grain.stacking import make_batch
from loaderx.compat.grain.worker_blocks import BlockIterDataset, Root
from loaderx.engines.base import Session

T = TypeVar("T")


def _is_root(ds: IterDataset[Element]) -> bool:
    while type(ds) in (MapIterDataset, FilterIterDataset, WithSeedIterDataset):
        ds = ds._parent
    return type(ds) is PrefetchIterDataset


def check_divisible(ds: IterDataset[Element], num_workers: int) -> None:
    """A source that can only be read in order leaves nothing to do for a second worker."""
    if isinstance(ds, InterleaveIterDataset) or _is_root(ds):
        return
    if not ds.parents:
        raise ValueError(
            f"{type(ds).__name__} can only be read in order, which leaves nothing to do for "
            f"{num_workers} workers. Use mp_prefetch with num_workers=1."
        )
    for parent in _below(ds):
        check_divisible(parent, num_workers)


def find_roots(
    ds: IterDataset[Element], found: list[tuple[IterDataset[Element], int]], batch_size: int = 0
) -> None:
    """All roots of a pipeline in a fixed order, each with the size of the batch right above it."""
    if _is_root(ds):
        found.append((ds, batch_size))
        return
    size = 0
    if type(ds) is BatchIterDataset and ds._batch_fn is make_batch:
        size = ds._batch_size
    for parent in _below(ds):
        find_roots(parent, found, size)


def _below(ds: IterDataset[Element]) -> list[IterDataset[Element]]:
    if isinstance(ds, InterleaveIterDataset):
        return [
            one.to_iter_dataset() if isinstance(one, MapDataset) else one for one in ds._datasets
        ]
    return [parent for parent in ds.parents if isinstance(parent, IterDataset)]


def with_workers(
    ds: IterDataset[T], roots: Iterator[tuple[int, Root]], session: Session
) -> IterDataset[T]:
    """A copy of a pipeline whose roots take their elements from workers."""
    if _is_root(ds):
        number, root = next(roots)
        return BlockIterDataset(ds, root, number, session)
    made = copy.copy(ds)
    below = [with_workers(parent, roots, session) for parent in _below(ds)]
    if isinstance(made, InterleaveIterDataset):
        made._datasets = below
    elif len(below) == len(ds.parents):
        made._parents = tuple(below)
    return made
