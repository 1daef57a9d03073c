"""The session of `engines.Ray`, without Ray."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

from fake_ray import FakeRay, listener_for
from loaderx import DataLoader, Dataset, LoaderxError
from loaderx.engines import Ray
from loaderx.engines.elsewhere import direct, ray_actor, ray_session, worker_memory
from loaderx.testing.session_contract import SessionContract


@pytest.fixture(autouse=True)
def ray(monkeypatch):
    found = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", found)
    monkeypatch.setattr(ray_actor, "Listener", listener_for(found))
    return found


class TestMemory(SessionContract):
    def make_engine(self):
        return Ray(2)


class TestStore(SessionContract):
    def make_engine(self):
        return Ray(2, direct=False)


def stream(loader):
    return [batch.tolist() for batch in loader]


def numbers():
    return Dataset.range(60).map(np.negative).batch(3)


def ways(loader):
    return {one.way for one in loader.stats().workers if one.made}


def break_lines(monkeypatch, times, error):
    """So many connections fail while they are opened."""
    left = [error] * times

    class Breaking(direct.DirectLine):
        def __init__(self, *arguments):
            if left:
                raise left.pop()
            super().__init__(*arguments)

    monkeypatch.setattr(ray_session, "DirectLine", Breaking)


@pytest.mark.parametrize("way", ["memory", "direct", "store"])
def test_elements_come_this_way(way, monkeypatch):
    if way == "direct":
        monkeypatch.setattr(worker_memory, "readv", None)
    with DataLoader(numbers(), engine=Ray(2, direct=way != "store")) as loader:
        assert stream(loader) == stream(numbers())
        assert ways(loader) == {way}


@pytest.mark.parametrize(
    ("times", "way"),
    [(2, "memory"), (3, "store"), (10, "store")],
    ids=["twice", "thrice", "always"],
)
def test_a_connection_that_breaks_while_it_is_opened_is_tried_again(times, way, monkeypatch):
    break_lines(monkeypatch, times, direct.ConnectionLostError("the connection was closed"))
    with DataLoader(numbers(), engine=Ray(1)) as loader:
        assert stream(loader) == stream(numbers())
        assert ways(loader) == {way}


def test_a_connection_that_nobody_answers_is_not_tried_again(monkeypatch):
    break_lines(monkeypatch, 1, TimeoutError("timed out"))
    with DataLoader(numbers(), engine=Ray(1)) as loader:
        assert stream(loader) == stream(numbers())
        assert ways(loader) == {"store"}


def test_an_actor_that_is_being_started_again_is_waited_for(ray):
    ray.failures = [ray.exceptions.ActorUnavailableError() for _ in range(2)]
    with DataLoader(numbers(), engine=Ray(1)) as loader:
        assert stream(loader) == stream(numbers())


def test_an_actor_that_cannot_be_started_is_an_error(ray):
    ray.failures = [ray.exceptions.ActorDiedError("no module named loaderx")] * 100
    message = (
        "Ray cannot start a worker. Is loaderx installed on all of its machines? It says: Died: no "
        "module named loaderx"
    )
    with (
        DataLoader(numbers(), engine=Ray(1)) as loader,
        pytest.raises(LoaderxError, match=f"^{re.escape(message)}$"),
    ):
        next(iter(loader))
