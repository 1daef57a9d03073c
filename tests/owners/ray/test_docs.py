"""The blocks of the docs that need a cluster of Ray run, in order, as a reader would run them."""

from __future__ import annotations

import logging

import pytest

from tests.test_docs import BLOCK, PAGES, run_blocks

pytestmark = [
    pytest.mark.owners,
    pytest.mark.foreign,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
WITH_RAY = [
    page for page in PAGES if any("ray" in kind for kind, _ in BLOCK.findall(page.read_text()))
]


@pytest.fixture
def _kept_options():
    """Ray Data as it was before; it prints its progress otherwise."""
    data = pytest.importorskip("ray.data", exc_type=ImportError)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = data.DataContext.get_current()
    before = context.execution_options.preserve_order
    yield
    context.execution_options.preserve_order = before


@pytest.mark.usefixtures("_kept_options")
@pytest.mark.parametrize("page", WITH_RAY, ids=lambda page: page.name)
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_blocks(page, {"python", "python ray"}) > run_blocks_without_ray(page)


def run_blocks_without_ray(page):
    return sum(kind == "python" for kind, _ in BLOCK.findall(page.read_text()))
