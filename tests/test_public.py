"""What is public: `__all__` of the public modules, and nothing else that `compat` could import."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import loaderx

ROOT = Path(loaderx.__file__).parent
BELOW_COMPAT = [
    "loaderx",
    "loaderx.engines",
    "loaderx.extend",
    "loaderx.image",
    "loaderx.jax",
    "loaderx.jax.image",
    "loaderx.sources",
    "loaderx.stages",
    "loaderx.testing",
    "loaderx.text",
]
GRAIN = [
    "checkpoint",
    "constants",
    "experimental",
    "multiprocessing",
    "python",
    "samplers",
    "sharding",
    "sources",
    "transforms",
]
PUBLIC = [
    *BELOW_COMPAT,
    "loaderx.compat",
    "loaderx.compat.grain",
    *[f"loaderx.compat.grain.{name}" for name in GRAIN],
    "loaderx.compat.keras",
    "loaderx.compat.torch",
]
# Packages that are imported when they are first asked for, which a star import must not do.
LATE = {"loaderx": {"compat", "extend", "image", "jax", "testing", "text"}}
NEEDS_ORBAX = {"CheckpointRestore", "CheckpointSave"}


def imported(name):
    if name.startswith("loaderx.jax"):
        pytest.importorskip("jax")
    return importlib.import_module(name)


@pytest.mark.parametrize("name", PUBLIC)
def test_dir_shows_the_public_names_only(name):
    module = imported(name)
    assert len(module.__all__) == len({*module.__all__})
    assert {*dir(module)} == {*module.__all__} | LATE.get(name, set())


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there(name):
    module = imported(name)
    for one in dir(module):
        if one.removeprefix("PyGrain") not in NEEDS_ORBAX:
            assert hasattr(module, one), one
    with pytest.raises(AttributeError, match="nothing"):
        module.nothing  # noqa: B018


def imports_of(path):
    """Modules of loaderx that a file imports from, each with the name it takes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "compat").rglob("*.py")),
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_compat_stands_on_public_names(path):
    for module, name in imports_of(path):
        if module.partition(".")[0] != "loaderx" or (module + ".").startswith("loaderx.compat."):
            continue
        if (module, name) == ("loaderx", "compat"):
            continue
        assert module in BELOW_COMPAT, f"{path} imports the private module {module}"
        public = {*importlib.import_module(module).__all__} | LATE.get(module, set())
        assert name in public, f"{path} imports {module}.{name}, which is not public"


def test_public_names_are_documented():
    extend = importlib.import_module("loaderx.extend")
    page = (ROOT.parents[1] / "docs" / "extending.md").read_text()
    for name in extend.__all__:
        assert getattr(extend, name).__doc__, name
        assert f"`{name}" in page, f"docs/extending.md does not say what {name} is"
