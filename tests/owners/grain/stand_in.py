"""Puts `loaderx.compat.grain` in Grain's place, for Grain's own tests.

`install()` makes ``import grain`` and everything below it find our package.  Tests import Grain's
inner modules (``grain._src.python.dataset.transformations.map``) and use classes of theirs by name;
our modules are searched for the same name.  A few inner modules are helpers of the tests and are
taken from Grain itself.

Run as ``sitecustomize`` so that worker processes have it as well.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import sys
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

OURS = "loaderx.compat.grain"

# Helpers of the tests, not tested themselves.
FROM_GRAIN = {
    "grain._src.core.tree_lib",
    "grain._src.core.pytest",
    "grain._src.core.exceptions",
    "grain._src.python.testing.experimental",
    "grain.proto.execution_summary_pb2",
    "grain._src.python.dataset.transformations.testing_util",
    "grain._src.python.dataset.transformations.packing_packed_batch",  # one function of it
}


# Functions of Grain's that have another name here.
RENAMED = {
    "get_pretty_transform_name": "transform_name",
    "_ConcatSelectionMap": "ConcatenationMap",
}


def _multiprocess_prefetch(
    ds: Any,
    num_workers: int = 0,
    buffer_size: int = 1,
    worker_init_fn: Any = None,
    sequential_slice: bool = False,
) -> Any:
    """An inner function of Grain's in the words of its public method."""
    if not num_workers:
        return ds
    options = importlib.import_module(f"{OURS}.options").MultiprocessingOptions
    return ds.mp_prefetch(options(num_workers, buffer_size), worker_init_fn, sequential_slice)


def _process_prefetch(parent: Any, buffer_size: int, worker_init_fn: Any = None) -> Any:
    if buffer_size <= 0:
        raise ValueError("`buffer_size` must be greater than 0")
    start = worker_init_fn and (lambda index, count: worker_init_fn())
    return _multiprocess_prefetch(parent, 1, buffer_size, start)


ADAPTED = {
    "multiprocess_prefetch": _multiprocess_prefetch,
    "ProcessPrefetchIterDataset": _process_prefetch,
}


class _StandIn(ModuleType):
    """A module of Grain's whose names are looked up in ours."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ADAPTED:
            return ADAPTED[name]
        if name == "tree_lib":
            return importlib.import_module("grain._src.core.tree_lib")
        try:
            return importlib.import_module(f"{self.__name__}.{name}")
        except ModuleNotFoundError:
            return _find(RENAMED.get(name, name))


@functools.cache
def _our_modules() -> list[ModuleType]:
    package = importlib.import_module(OURS)
    names = sorted(found.name for found in pkgutil.iter_modules(package.__path__))
    return [package, *(importlib.import_module(f"{OURS}.{name}") for name in names)]


def _find(name: str) -> object:
    for module in _our_modules():
        found = vars(module).get(name)
        if found is not None and not isinstance(found, ModuleType):
            return found
    # Named in an annotation, or in one case of many: the file can still be imported.
    return type(name, (_Missing,), {})


class _Missing:
    """The base of classes that stand for what ours does not have."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        if _Missing in type(self).__bases__:
            raise NotImplementedError(f"{OURS} has nothing that is called {type(self).__name__}")


def _exists(module: Path) -> bool:
    """Has Grain a folder, a file or a library of this name?"""
    is_library = bool(list(module.parent.glob(f"{module.name}*.so")))
    return module.is_dir() or module.with_suffix(".py").exists() or is_library


class _Finder(MetaPathFinder, Loader):
    def __init__(self, grain: Path) -> None:
        self._grain = grain

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != "grain" and not name.startswith("grain."):
            return None
        inner = self._grain.joinpath(*name.split(".")[1:])
        if name in FROM_GRAIN:
            return importlib.util.spec_from_file_location(name, inner.with_suffix(".py"))
        if name.startswith("grain._src") and not _exists(inner):
            return None
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec: object) -> ModuleType:
        name: str = spec.name
        _, _, inner = name.partition(".")
        if inner and not inner.startswith(("_src", "proto")):
            return importlib.import_module(f"{OURS}.{inner}")
        module = _StandIn(name)
        module.__file__ = str(self._grain / "__init__.py")
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: names are looked up when they are asked for."""


def install() -> None:
    """From here on ``import grain`` finds our package."""
    spec = importlib.util.find_spec("grain")
    assert spec is not None, "Grain is not installed here."
    assert spec.origin is not None
    sys.meta_path.insert(0, _Finder(Path(spec.origin).parent))
