"""The name: PyPI's ``loaderx`` is another project, and may have been installed into our folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import loaderx
from processes import environment

ROOT = Path(__file__).parents[1]


def run(folder, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment(), "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def mixed(tmp_path):
    """Our package with a file of the other project in it."""
    package = tmp_path / "loaderx"
    shutil.copytree(
        Path(loaderx.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    (package / "dataloader.py").write_text("")
    return tmp_path


def test_files_of_the_other_project_are_noticed_at_import(mixed):
    done = run(mixed, "-c", "import loaderx; print(loaderx.__file__)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(mixed / "loaderx" / "__init__.py")
    assert "PyPI's 'loaderx' is an unrelated project" in done.stderr
    assert "pip uninstall loaderx loaderx-jax" in done.stderr


def test_the_command_says_so_even_if_the_import_is_theirs(mixed):
    (mixed / "loaderx" / "__init__.py").write_text("class DataLoader: pass\n")
    done = run(mixed, "-m", "loaderx", "--version")
    assert done.returncode == 2
    assert "PyPI's 'loaderx' is an unrelated project" in done.stderr


def test_nothing_is_said_of_our_own_files():
    done = run(Path(loaderx.__file__).parents[1], "-W", "error", "-c", "import loaderx")
    assert done.returncode == 0, done.stderr


def test_the_name_of_the_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "loaderx-jax"


def test_no_text_tells_to_install_the_other_project():
    files = [ROOT / "README.md", ROOT / "Makefile", ROOT / "pyproject.toml"]
    for folder in ("docs", "examples", "src", "benchmarks"):
        files += [p for p in (ROOT / folder).rglob("*") if p.suffix in {".md", ".py", ".toml"}]
    for file in files:
        text = file.read_text()
        assert not re.search(r"(?<![\w-])loaderx\[", text), file  # an extra of the other project
        commands = re.findall(r"pip install (?:-\S+ )*[\"']?loaderx(?![\w-])", text)
        allowed = (
            ["pip install loaderx"] if file.name == "README.md" else []
        )  # it says what that is
        assert commands == allowed, file
