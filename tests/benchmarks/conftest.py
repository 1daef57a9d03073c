"""The modules of the benchmarks, for their tests."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def suite(monkeypatch):
    """The modules of the benchmarks can be imported."""
    monkeypatch.syspath_prepend(str(FOLDER))
