"""A server on loopback, a cold cache, and no waiting."""

from __future__ import annotations

import pytest

from file_server import serving


@pytest.fixture
def server():
    with serving() as made:
        yield made


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The pauses before further attempts, which are not made."""
    made: list[float] = []
    monkeypatch.setattr(
        "loaderx.sources.remote.store.pause", lambda seconds, is_stopped=None: made.append(seconds)
    )
    return made


@pytest.fixture
def small_ranges(monkeypatch):
    """Pieces of 1,000 bytes, each asked for by itself."""
    monkeypatch.setattr("loaderx.sources.remote.pieces.PIECE_BYTES", 1000)
    monkeypatch.setattr("loaderx.sources.remote.pieces.REQUEST_BYTES", 1000)
