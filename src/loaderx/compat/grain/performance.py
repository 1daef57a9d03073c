"""Options for a pipeline, from the size of its elements."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterable, Sequence

import numpy as np

from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.options import MultiprocessingOptions, ReadOptions
from loaderx.compat.grain.protocols import Element
from loaderx.compat.grain.read_iterator import PrefetchIterDataset
from loaderx.engines.base import cores

_MB = 1024 * 1024
_MOST_BUFFERED = 1000


@dataclasses.dataclass(slots=True)
class PerformanceConfig:
    """What `pick_performance_config` has chosen."""

    multiprocessing_options: MultiprocessingOptions | None = None
    read_options: ReadOptions | None = None


def pick_performance_config(
    ds: IterDataset[Element],
    *,
    ram_budget_mb: int,
    max_workers: int | None,
    max_buffer_size: int | None,
    samples_to_check: int = 5,
) -> PerformanceConfig:
    """As many workers and buffered elements as fit into memory, by the size of some elements."""
    workers = cores() if max_workers is None else max_workers
    if size := _element_mb([ds], samples_to_check):
        workers = min(workers, int(ram_budget_mb / size))
    read = [below.map_dataset for below in _read_datasets(ds)]
    buffered = _MOST_BUFFERED if max_buffer_size is None else max_buffer_size
    if size := _element_mb(read, samples_to_check):
        buffered = min(buffered, int(ram_budget_mb / (size * len(read))))
    return PerformanceConfig(
        MultiprocessingOptions(num_workers=workers), ReadOptions(prefetch_buffer_size=buffered)
    )


def _read_datasets(ds: IterDataset[Element] | MapDataset[Element]) -> list[PrefetchIterDataset]:  # type: ignore[type-arg]
    if isinstance(ds, PrefetchIterDataset):
        return [ds]
    return [found for parent in ds.parents for found in _read_datasets(parent)]


def _element_mb(datasets: Sequence[Iterable[Element]], samples: int) -> float:
    """The mean size of elements; 0 if there are too few to say."""
    each = -(-samples // len(datasets)) if datasets else 0
    sizes = [_nbytes(one) for ds in datasets for one in itertools.islice(ds, each)]
    return float(np.mean(sizes)) / _MB if len(sizes) >= samples else 0.0


def _nbytes(element: Element) -> int:
    if isinstance(element, dict):
        return sum(map(_nbytes, element.values()))
    if isinstance(element, (list, tuple)):
        return sum(map(_nbytes, element))
    return element.nbytes if isinstance(element, np.ndarray) else sys.getsizeof(element)
