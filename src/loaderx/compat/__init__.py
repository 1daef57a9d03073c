"""The interfaces of other libraries: programs that were written for them run on loaderx.

Each library has a module here, which is imported when it is first used.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["grain", "keras", "torch"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"loaderx.compat.{name}")
    raise AttributeError(f"module 'loaderx.compat' has no attribute {name!r}")
