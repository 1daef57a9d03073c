"""What most of these tests need: the contract of sources without its second worker process."""

from __future__ import annotations

import pytest

from loaderx import DataLoader
from loaderx.testing import source_contract


@pytest.fixture(autouse=True)
def _one_worker(request, monkeypatch):
    """`test_worker_processes` reads in this process and one other, for a hundred sources.

    In `test_source_contract.py` it runs with two others, as for any user.
    """
    is_of_contract = (
        request.cls is not None and request.function.__name__ == "test_worker_processes"
    )
    if is_of_contract and "test_source_contract" not in request.module.__name__:
        monkeypatch.setattr(
            source_contract,
            "DataLoader",
            lambda dataset, engine, num_workers: DataLoader(dataset, engine=engine, num_workers=1),
        )
