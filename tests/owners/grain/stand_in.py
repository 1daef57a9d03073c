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

OURS = "loaderx.compat.grain"

# Helpers of the tests, not tested themselves.
FROM_GRAIN = {
    "grain._src.core.tree_lib",
    "grain._src.core.pytest",
    "grain._src.core.exceptions",
    "grain._src.python.testing.experimental",
    "grain._src.python.dataset.transformations.testing_util",
}


class _StandIn(ModuleType):
    """A module of Grain's whose names are looked up in ours."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _find(name, self.__name__)


@functools.cache
def _our_modules() -> list[ModuleType]:
    package = importlib.import_module(OURS)
    names = sorted(found.name for found in pkgutil.iter_modules(package.__path__))
    return [package, *(importlib.import_module(f"{OURS}.{name}") for name in names)]


def _find(name: str, asked: str) -> object:
    for module in _our_modules():
        if name in vars(module):
            return vars(module)[name]
    try:
        return importlib.import_module(f"{asked}.{name}")  # a folder of Grain's
    except ImportError:
        raise AttributeError(f"{OURS} has nothing for {asked}.{name}") from None


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
        if inner and not inner.startswith("_src"):
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
