"""``grain.experimental``."""
# ruff: noqa: F822 (names that are imported late)

from loaderx.compat.grain.function_nodes import FlatMapIterDataset, FlatMapMapDataset
from loaderx.compat.grain.graph import apply_transformations, get_element_spec
from loaderx.compat.grain.index_nodes import WindowShuffleMapDataset
from loaderx.compat.grain.index_shuffle import index_shuffle
from loaderx.compat.grain.interleave import InterleaveIterDataset
from loaderx.compat.grain.iter_dataset import WithOptionsIterDataset
from loaderx.compat.grain.iter_orders import (
    LimitIterDataset,
    RepeatIterDataset,
    WindowShuffleIterDataset,
)
from loaderx.compat.grain.iterator import get_next_index, set_next_index
from loaderx.compat.grain.join_nodes import ZipIterDataset, ZipMapDataset
from loaderx.compat.grain.late_names import late_name
from loaderx.compat.grain.options import DatasetOptions, ExecutionTrackingMode
from loaderx.compat.grain.protocols import ShapeDtypeStruct, ShapeDtypeStructProtocol
from loaderx.compat.grain.stacking import batch_and_pad
from loaderx.compat.grain.thread_prefetch import (
    ThreadPrefetchDatasetIterator,
    ThreadPrefetchIterDataset,
    device_put,
    multithread_prefetch,
)
from loaderx.compat.grain.transforms import FlatMap as FlatMapTransform
from loaderx.compat.grain.transforms import MapWithIndex as MapWithIndexTransform

# Names whose modules have heavy imports, or are not needed by workers.
_HOMES = {
    "BOSHandling": "concat_split",
    "BestFitPackIterDataset": "packing",
    "ConcatThenSplitIterDataset": "concat_split",
    "ElasticIterator": "elastic",
    "FirstFitPackIterDataset": "packing",
    "PackAndBatchOperation": "operations",
    "ParquetIterDataset": "record_files",
    "PerformanceConfig": "process_prefetch",
    "TFRecordIterDataset": "record_files",
    "assert_equal_output_after_checkpoint": "checkpoint",
    "pick_performance_config": "process_prefetch",
}

__all__ = [
    "BOSHandling",
    "BestFitPackIterDataset",
    "ConcatThenSplitIterDataset",
    "DatasetOptions",
    "ElasticIterator",
    "ExecutionTrackingMode",
    "FirstFitPackIterDataset",
    "FlatMapIterDataset",
    "FlatMapMapDataset",
    "FlatMapTransform",
    "InterleaveIterDataset",
    "LimitIterDataset",
    "MapWithIndexTransform",
    "PackAndBatchOperation",
    "ParquetIterDataset",
    "PerformanceConfig",
    "RepeatIterDataset",
    "ShapeDtypeStruct",
    "ShapeDtypeStructProtocol",
    "TFRecordIterDataset",
    "ThreadPrefetchDatasetIterator",
    "ThreadPrefetchIterDataset",
    "WindowShuffleIterDataset",
    "WindowShuffleMapDataset",
    "WithOptionsIterDataset",
    "ZipIterDataset",
    "ZipMapDataset",
    "apply_transformations",
    "assert_equal_output_after_checkpoint",
    "batch_and_pad",
    "device_put",
    "get_element_spec",
    "get_next_index",
    "index_shuffle",
    "multithread_prefetch",
    "pick_performance_config",
    "set_next_index",
]


def __getattr__(name: str) -> object:
    return late_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return __all__
