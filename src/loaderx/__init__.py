"""loaderx: a data loader for JAX and Flax, on NumPy.

`Dataset` says what to load, `DataLoader` how.  A batch is a pure function of (description, seed,
step).
"""

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

import numpy  # noqa: F401, ICN001 (first: it loads 20 ms faster before our type definitions do)

from loaderx import engines, sources, stages
from loaderx.dataset import Dataset
from loaderx.errors import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    FileError,
    LoaderxError,
    LoaderxWarning,
    MissingPackageError,
    PositionError,
    RecordError,
    StackError,
    StateError,
)
from loaderx.hints import MODULE as _MODULE
from loaderx.hints import attribute_error as _attribute_error
from loaderx.installed import warn_if_mixed as _warn_if_mixed
from loaderx.loader import DataLoader, LoaderIterator, merge_states
from loaderx.memory import empty
from loaderx.rng import BatchGenerator
from loaderx.tree import ArraySpec

if _TYPE_CHECKING:
    from loaderx import extend as extend
    from loaderx import image as image
    from loaderx import text as text
    from loaderx.display.show import show
    from loaderx.plans.records import Records
    from loaderx.stages.mixture import ramp

__version__ = "0.1.0"

_warn_if_mixed()

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
    "MissingPackageError",
    "PositionError",
    "RecordError",
    "Records",
    "StackError",
    "StateError",
    "__version__",
    "empty",
    "engines",
    "merge_states",
    "ramp",
    "show",
    "sources",
    "stages",
]


# Not in `__all__`: a star import would import them, jax above all.
_LATE = ("compat", "extend", "image", "jax", "testing", "text")


def __dir__() -> list[str]:
    return sorted([*__all__, *_LATE])


def __getattr__(name: str) -> object:
    if name == "show":  # late: few programs look at pictures
        from loaderx.display.show import show

        return show
    if name == "Records":  # late: few programs ask for the records of a step
        from loaderx.plans.records import Records

        return Records
    if name == "ramp":  # late: few chains have a mix
        from loaderx.stages.mixture import ramp

        return ramp
    if name in _LATE:
        import importlib

        return importlib.import_module(f"loaderx.{name}")
    raise _attribute_error("module 'loaderx'", _MODULE, name, _sys.modules[__name__])
