"""The blocks of the docs that need a cluster of Ray run, in order, as a reader would run them."""

from __future__ import annotations

import logging

import pytest

from tests.test_docs import PAGES, run_blocks

pytestmark = [
    pytest.mark.owners,
    pytest.mark.foreign,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
WITH_RAY = [page for page in PAGES if "\n```python ray\n" in page.read_text()]


@pytest.fixture
def _quiet_ray_data():
    """Ray Data prints its progress; a page may set its options."""
    data = pytest.importorskip("ray.data", exc_type=ImportError)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    options = data.DataContext.get_current().execution_options
    before = options.preserve_order
    yield
    options.preserve_order = before


@pytest.mark.usefixtures("_quiet_ray_data")
@pytest.mark.parametrize("page", WITH_RAY, ids=lambda page: page.name)
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_blocks(page, {"python", "python ray"})
