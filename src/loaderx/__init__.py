"""loaderx: a data loader for JAX and Flax, on NumPy.

`Dataset` says what to load, `DataLoader` how.  A batch is a pure function of (description, seed,
step).
"""

from loaderx import engines, sources
from loaderx.dataset import Dataset
from loaderx.errors import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    FileError,
    LoaderxError,
    LoaderxWarning,
    PositionError,
    RecordError,
    StackError,
    StateError,
)
from loaderx.loader import DataLoader, LoaderIterator
from loaderx.rng import BatchGenerator
from loaderx.tree import ArraySpec

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ArraySpec",
    "BatchGenerator",
    "ChainError",
    "DataLoader",
    "Dataset",
    "FileError",
    "LoaderIterator",
    "LoaderxError",
    "LoaderxWarning",
    "PositionError",
    "RecordError",
    "StackError",
    "StateError",
    "__version__",
    "engines",
    "sources",
]
