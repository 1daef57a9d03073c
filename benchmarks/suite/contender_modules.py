"""Which contenders take part: those of the folder, some of them, or files of somebody else's."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import contenders

from suite.environments import name_of


def chosen_contenders(options: argparse.Namespace) -> list[Any]:
    """NumPy by hand is always among them: it is the reference."""
    modules = [importlib.import_module(f"contenders.{name}") for name in contenders.NAMES]
    known = {name for one in modules for name in (one.__name__.rpartition(".")[2], name_of(one))}
    unknown = sorted(set(options.peers or ()) - known)
    if unknown:
        listed = ", ".join(sorted({name_of(one) for one in modules}))
        raise SystemExit(f"no such peer: {', '.join(unknown)}; there are {listed}")
    if options.peers is not None:
        wanted = {"numpy_by_hand", "loaderx_", *options.peers}
        modules = [
            module
            for module in modules
            if {module.__name__.rpartition(".")[2], name_of(module)} & wanted
        ]
    return modules + [from_file(path) for path in options.contender]


def from_file(path: Path) -> Any:
    """A contender of your own."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__dict__["FILE"] = str(path.resolve())
    return module
