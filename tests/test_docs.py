"""Every Python block of the README and the docs runs, in order, as a reader would run them."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
from pathlib import Path

import pytest

from loaderx import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOREIGN = {
    "README.md",
    "detection.md",
    "equinox.md",
    "evaluation.md",
    "formats.md",
    "hdf5.md",
    "image_folder.md",
    "images.md",
    "jax.md",
    "keras.md",
    "lance.md",
    "llm.md",
    "nnx.md",
    "optax_schedules.md",
    "parquet.md",
    "preference.md",
    "segmentation.md",
    "slurm.md",
    "tfds.md",
    "two_views.md",
}  # these use libraries with threads of their own
MARKED = [
    pytest.param(page, marks=[pytest.mark.foreign] if page.name in FOREIGN else [], id=page.name)
    for page in PAGES
]
# "python ray" needs a cluster of Ray: `tests/owners/ray/test_docs.py` runs these.
BLOCK = re.compile(r"^```(\w+(?: ray)?)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def _fast_compiles():
    """XLA compiles in a third of the time; what it makes runs slower."""
    option = "jax_disable_most_optimizations"
    jax = pytest.importorskip("jax")
    before = jax.config.read(option)
    jax.config.update(option, True)
    yield
    jax.config.update(option, before)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras
@pytest.mark.usefixtures("_fast_compiles")
@pytest.mark.parametrize("page", MARKED)
def test_blocks_run(page, tmp_path, monkeypatch):
    """A `text` block after a Python block is what that one prints.

    In a `console` block, commands stand behind a `$`, and below each is what it prints.
    """
    monkeypatch.chdir(tmp_path)
    run_blocks(page, {"python", "console"})


def run_blocks(page, kinds):
    """Runs the blocks of these kinds, and compares what they print."""
    names: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for kind, block in BLOCK.findall(page.read_text()):
        if kind == "console" and kind in kinds:
            _run_commands(block)
        elif kind in kinds:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block, f"{page.name}", "exec"), names)
            printed = out.getvalue()
        elif kind == "text" and printed:
            assert printed.strip() == block.strip()
            printed = ""
        elif kind.startswith("python"):
            printed = ""  # the text of another block follows


def _run_commands(block):
    """Runs the commands of loaderx; "..." stands for any text in what they print."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        name, *arguments = shlex.split(command)
        assert name == "loaderx"
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            cli.main(arguments)
        found = doctest.OutputChecker().check_output(expected, out.getvalue(), doctest.ELLIPSIS)
        assert found, f"{command} printed\n{out.getvalue()}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for path, heading in re.findall(r"\]\((?!http)([\w./]*)(#[\w-]+)?\)", page.read_text()):
        if "." not in path and not heading:
            continue  # a formula such as π[seed](p)
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not heading or heading[1:] in _headings(target), path + heading


def _headings(page):
    """As GitHub makes anchors of them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in found}


@pytest.mark.parametrize("page", sorted((ROOT / "docs/recipes").glob("*.md")), ids=lambda p: p.name)
def test_recipes_are_shorter_than_what_they_replace(page):
    """A `py` block has the same work with another library; the block before it is loaderx's."""
    blocks = BLOCK.findall(page.read_text())
    kinds = [kind for kind, _ in blocks]
    (other,) = (place for place, kind in enumerate(kinds) if kind == "py")
    ours = next(block for _, block in blocks if "DataLoader(" in block)
    assert _lines(ours) < _lines(blocks[other][1])


def _lines(block):
    return sum(bool(line.strip()) for line in block.splitlines())
