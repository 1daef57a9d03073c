"""``grain.experimental``."""

import importlib

from loaderx.compat.grain.function_nodes import FlatMapMapDataset
from loaderx.compat.grain.graph import apply_transformations, get_element_spec
from loaderx.compat.grain.index_nodes import WindowShuffleMapDataset
from loaderx.compat.grain.index_shuffle import index_shuffle
from loaderx.compat.grain.interleave import InterleaveIterDataset
from loaderx.compat.grain.iter_batch import RebatchIterDataset
from loaderx.compat.grain.iter_dataset import WithOptionsIterDataset
from loaderx.compat.grain.iter_functions import FlatMapIterDataset
from loaderx.compat.grain.iter_mix import ZipIterDataset
from loaderx.compat.grain.iter_orders import (
    CacheIterDataset,
    LimitIterDataset,
    RepeatIterDataset,
    WindowShuffleIterDataset,
)
from loaderx.compat.grain.iterator import get_next_index, set_next_index
from loaderx.compat.grain.join_nodes import ZipMapDataset
from loaderx.compat.grain.options import DatasetOptions, ExecutionTrackingMode
from loaderx.compat.grain.performance import PerformanceConfig, pick_performance_config
from loaderx.compat.grain.protocols import ShapeDtypeStruct, ShapeDtypeStructProtocol
from loaderx.compat.grain.random_numbers import RngPool
from loaderx.compat.grain.stacking import batch_and_pad
from loaderx.compat.grain.thread_prefetch import (
    ThreadPrefetchDatasetIterator,
    ThreadPrefetchIterDataset,
    multithread_prefetch,
)
from loaderx.compat.grain.transforms import FlatMap as FlatMapTransform
from loaderx.compat.grain.transforms import MapWithIndex as MapWithIndexTransform

# Names whose modules import something heavy, or are not needed by workers.
_LATE: dict[str, str] = {
    "BOSHandling": "concat_split",
    "BestFitPackIterDataset": "packing",
    "ConcatThenSplitIterDataset": "concat_split",
    "ElasticIterator": "elastic",
    "FirstFitPackIterDataset": "packing",
    "PackAndBatchOperation": "pack_and_batch",
    "ParquetIterDataset": "record_files",
    "TFRecordIterDataset": "record_files",
    "assert_equal_output_after_checkpoint": "checkpoint_check",
    "device_put": "device_put",
}

__all__ = [
    "CacheIterDataset",
    "DatasetOptions",
    "ExecutionTrackingMode",
    "FlatMapIterDataset",
    "FlatMapMapDataset",
    "FlatMapTransform",
    "InterleaveIterDataset",
    "LimitIterDataset",
    "MapWithIndexTransform",
    "PerformanceConfig",
    "RebatchIterDataset",
    "RepeatIterDataset",
    "RngPool",
    "ShapeDtypeStruct",
    "ShapeDtypeStructProtocol",
    "ThreadPrefetchDatasetIterator",
    "ThreadPrefetchIterDataset",
    "WindowShuffleIterDataset",
    "WindowShuffleMapDataset",
    "WithOptionsIterDataset",
    "ZipIterDataset",
    "ZipMapDataset",
    "apply_transformations",
    "batch_and_pad",
    "get_element_spec",
    "get_next_index",
    "index_shuffle",
    "multithread_prefetch",
    "pick_performance_config",
    "set_next_index",
]


def __getattr__(name: str) -> object:
    if name in _LATE:
        module = importlib.import_module(f"loaderx.compat.grain.{_LATE[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_LATE])
