"""The tests themselves: they look at what is public, and their folders are packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# Public, whatever they look like.
PUBLIC = {"os._exit"}

# Private names that are still looked at.  Take out what is no longer needed; add nothing.
STILL_USED = {
    "engines/test_interrupts.py": {"_wait"},
    "jax/test_placement.py": {"_cache_size"},  # jax has no public way to count compilations
    "loader/test_loader.py": {"_counters"},
    "stages/test_batch.py": {"_stretch_steps", "_work"},
    "support/inside.py": {
        "_compiled",
        "_gather",
        "_gathers",
        "_getitems",
        "_lines",
        "_maps",
        "_node",
        "_of",
        "_pool",
        "_processes",
        "_session",
    },  # the one place for all tests that need it
}


def is_private(name: str) -> bool:
    """``_name`` is; ``__name__``, ``_repr_html_`` and a named tuple's ``_fields`` are protocols."""
    return name.startswith("_") and not name.endswith("_") and name != "_fields"


def is_its_own(owner: ast.expr) -> bool:
    """Is it ``self``, ``cls`` or ``super()``?"""
    if isinstance(owner, ast.Call):
        owner = owner.func
    return isinstance(owner, ast.Name) and owner.id in ("self", "cls", "super")


def private_names(tree: ast.AST) -> Iterator[str]:
    """The private names that a module takes from others: attributes, imports, names as text."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=owner, attr=name) if not is_its_own(owner):
                if is_private(name) and ast.unparse(node) not in PUBLIC:
                    yield name
            case ast.ImportFrom(names=names):
                yield from (each.name for each in names if is_private(each.name))
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=given):
                if called in ("getattr", "setattr", "hasattr", "delattr"):
                    texts = [each.value for each in given if isinstance(each, ast.Constant)]
                    last = [each.rpartition(".")[2] for each in texts if isinstance(each, str)]
                    yield from filter(is_private, last)


FILES = sorted(str(path.relative_to(TESTS)) for path in TESTS.rglob("*.py"))


@pytest.mark.parametrize("file", FILES)
def test_no_test_looks_into_private_attributes(file):
    found = set(private_names(ast.parse((TESTS / file).read_text())))
    allowed = STILL_USED.get(file, set())
    assert not found - allowed, f"{file} looks at {found - allowed}: test what users see"
    assert not allowed - found, f"take {allowed - found} of {file} out of STILL_USED"


def test_the_list_of_private_names_names_files():
    assert set(STILL_USED) <= set(FILES)


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("loader._run", ["_run"]),
        ("loader.run()._crew.size", ["_crew"]),
        ("self._run, cls._made, super()._run()", []),
        ("self.loader._run", ["_run"]),
        ("from loaderx.rng import _mix, hash_of", ["_mix"]),
        ("monkeypatch.setattr(ship, '_free_memory', f)", ["_free_memory"]),
        ("monkeypatch.setattr('loaderx.ship._free_memory', f)", ["_free_memory"]),
        ("os._exit(1), thing.__dict__, stats._repr_html_()", []),
    ],
)
def test_what_counts_as_private(code, names):
    assert list(private_names(ast.parse(code))) == names


def test_folders_of_tests_are_packages():
    """So that two of them may have files of the same name."""
    folders = {path.parent for path in TESTS.rglob("test_*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]
