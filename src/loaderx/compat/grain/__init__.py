"""Grain's interface on loaderx: the same order, random numbers, batches and states, faster.

``import loaderx.compat.grain as grain`` takes the place of ``import grain`` and of
``import grain.python as grain``.  `docs/grain.md` lists the differences.
"""

import importlib

from loaderx.compat.grain.constants import (
    DATASET_INDEX,
    EPOCH,
    INDEX,
    META_FEATURES,
    RECORD,
    RECORD_KEY,
    SEED,
)
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.late_names import GRAIN_VERSION, late_name
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.options import MultiprocessingOptions, ReadOptions, config
from loaderx.compat.grain.protocols import (
    DatasetSelectionMap,
    RandomAccessDataSource,
    Record,
    RecordMetadata,
)
from loaderx.compat.grain.sharding import NoSharding, ShardByJaxProcess, ShardOptions
from loaderx.compat.grain.transforms import (
    Batch,
    Transformation,
    Transformations,
)
from loaderx.compat.grain.transforms import Filter as FilterTransform
from loaderx.compat.grain.transforms import Map as MapTransform
from loaderx.compat.grain.transforms import MapWithIndex as MapWithIndexTransform
from loaderx.compat.grain.transforms import RandomMap as RandomMapTransform

__version__ = GRAIN_VERSION  # programs compare it
__version_info__ = tuple(map(int, GRAIN_VERSION.split(".")))

# Names whose modules have heavy imports, or are not needed by workers.
_HOMES = {
    "ArrayRecordDataSource": "sources",
    "BatchOperation": "operations",
    "DataLoader": "data_loader",
    "DataLoaderIterator": "data_loader",
    "FilterOperation": "operations",
    "InMemoryDataSource": "sources:SharedMemoryDataSource",
    "IndexSampler": "samplers",
    "MapOperation": "operations",
    "Operation": "operations",
    "PyGrainCheckpointHandler": "checkpoint:CheckpointHandler",
    "PyGrainCheckpointRestore": "checkpoint:CheckpointRestore",
    "PyGrainCheckpointSave": "checkpoint:CheckpointSave",
    "PyGrainDatasetIterator": "data_loader:DataLoaderIterator",
    "RandomMapOperation": "operations",
    "RangeDataSource": "sources",
    "Sampler": "samplers",
    "SequentialSampler": "samplers",
    "SharedMemoryArray": "multiprocessing",
    "load": "data_loader",
}
_SUBMODULES = {
    "checkpoint", "constants", "experimental", "multiprocessing", "python", "samplers", "sharding",
    "sources", "transforms",
}  # fmt: skip

__all__ = [
    "DATASET_INDEX",
    "EPOCH",
    "GRAIN_VERSION",
    "INDEX",
    "META_FEATURES",
    "RECORD",
    "RECORD_KEY",
    "SEED",
    "ArrayRecordDataSource",
    "Batch",
    "BatchOperation",
    "DataLoader",
    "DataLoaderIterator",
    "DatasetIterator",
    "DatasetSelectionMap",
    "FilterOperation",
    "FilterTransform",
    "InMemoryDataSource",
    "IndexSampler",
    "IterDataset",
    "MapDataset",
    "MapOperation",
    "MapTransform",
    "MapWithIndexTransform",
    "MultiprocessingOptions",
    "NoSharding",
    "Operation",
    "PyGrainCheckpointHandler",
    "PyGrainCheckpointRestore",
    "PyGrainCheckpointSave",
    "PyGrainDatasetIterator",
    "RandomAccessDataSource",
    "RandomMapOperation",
    "RandomMapTransform",
    "RangeDataSource",
    "ReadOptions",
    "Record",
    "RecordMetadata",
    "Sampler",
    "SequentialSampler",
    "ShardByJaxProcess",
    "ShardOptions",
    "SharedMemoryArray",
    "Transformation",
    "Transformations",
    "checkpoint",
    "config",
    "constants",
    "experimental",
    "load",
    "multiprocessing",
    "python",
    "samplers",
    "sharding",
    "sources",
    "transforms",
]


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    return late_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return __all__
