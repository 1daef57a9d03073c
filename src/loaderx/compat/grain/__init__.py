"""Grain's words on loaderx: the same order, random numbers, batches and states, faster.

``import loaderx.compat.grain as grain`` takes the place of ``import grain`` and of
``import grain.python as grain``.  `docs/grain.md` has the differences.
"""

import importlib
from types import ModuleType

from loaderx.compat.grain.config import config
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
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.options import MultiprocessingOptions, ReadOptions
from loaderx.compat.grain.protocols import DatasetSelectionMap, RandomAccessDataSource
from loaderx.compat.grain.records import Record, RecordMetadata
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

# The version of Grain whose streams these are: programs compare it.
__version__ = "0.2.18"
__version_info__ = (0, 2, 18)

# Names whose modules import something heavy, or are not needed by workers.
_LATE: dict[str, tuple[str, str]] = {
    "ArrayRecordDataSource": ("sources", "ArrayRecordDataSource"),
    "BatchOperation": ("operations", "BatchOperation"),
    "DataLoader": ("data_loader", "DataLoader"),
    "DataLoaderIterator": ("data_loader", "DataLoaderIterator"),
    "FilterOperation": ("operations", "FilterOperation"),
    "InMemoryDataSource": ("sources", "SharedMemoryDataSource"),
    "IndexSampler": ("samplers", "IndexSampler"),
    "MapOperation": ("operations", "MapOperation"),
    "Operation": ("operations", "Operation"),
    "PyGrainCheckpointHandler": ("checkpoint", "CheckpointHandler"),
    "PyGrainCheckpointRestore": ("checkpoint", "CheckpointRestore"),
    "PyGrainCheckpointSave": ("checkpoint", "CheckpointSave"),
    "PyGrainDatasetIterator": ("data_loader", "DataLoaderIterator"),
    "RandomMapOperation": ("operations", "RandomMapOperation"),
    "RangeDataSource": ("sources", "RangeDataSource"),
    "Sampler": ("samplers", "Sampler"),
    "SequentialSampler": ("samplers", "SequentialSampler"),
    "SharedMemoryArray": ("multiprocessing", "SharedMemoryArray"),
    "load": ("data_loader", "load"),
}
_SUBMODULES = {
    "checkpoint", "constants", "experimental", "multiprocessing", "python", "samplers", "sharding",
    "sources", "transforms",
}  # fmt: skip

__all__ = [
    "DATASET_INDEX",
    "EPOCH",
    "INDEX",
    "META_FEATURES",
    "RECORD",
    "RECORD_KEY",
    "SEED",
    "Batch",
    "DatasetIterator",
    "DatasetSelectionMap",
    "FilterTransform",
    "IterDataset",
    "MapDataset",
    "MapTransform",
    "MapWithIndexTransform",
    "MultiprocessingOptions",
    "NoSharding",
    "RandomAccessDataSource",
    "RandomMapTransform",
    "ReadOptions",
    "Record",
    "RecordMetadata",
    "ShardByJaxProcess",
    "ShardOptions",
    "Transformation",
    "Transformations",
    "config",
    "experimental",
]


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return _imported(name)
    if name in _LATE:
        module, inner = _LATE[name]
        return getattr(_imported(module), inner)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _imported(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_LATE, *_SUBMODULES})
