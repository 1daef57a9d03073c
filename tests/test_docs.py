"""Every Python block of the README and the docs runs, in order, as a reader would run them."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOREIGN = {
    "README.md",
    "jax.md",
    "formats.md",
}  # these use libraries with threads of their own
MARKED = [
    pytest.param(page, marks=[pytest.mark.foreign] if page.name in FOREIGN else [], id=page.name)
    for page in PAGES
]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", MARKED)
def test_blocks_run(page, tmp_path, monkeypatch):
    """A `text` block after a Python block is what that one prints."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for kind, block in BLOCK.findall(page.read_text()):
        if kind == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block, f"{page.name}", "exec"), names)
            printed = out.getvalue()
        elif kind == "text" and printed:
            assert printed.strip() == block.strip()
            printed = ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([\w./]+\.\w+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
