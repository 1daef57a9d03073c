"""`engines.Ray` and the engine contract, with all ways on which elements come."""

from __future__ import annotations

import pytest

from loaderx.engines import Ray
from loaderx.testing import EngineContract
from loaderx.testing.session_contract import SessionContract
from tests.owners.ray.actors import actors
from workers import loader_threads

pytestmark = [
    pytest.mark.owners,
    pytest.mark.foreign,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def crew():
    return {*loader_threads(), *(f"actor {pid}" for pid in actors())}


class TestMemory(EngineContract):
    def workers(self):
        return crew()

    def make_engine(self):
        return Ray(2)


@pytest.mark.usefixtures("other_machine")
class TestDirect(SessionContract):
    def workers(self):
        return crew()

    def make_engine(self):
        return Ray(2)


class TestStore(EngineContract):
    def workers(self):
        return crew()

    def make_engine(self):
        return Ray(2, direct=False)


class TestOneActor(SessionContract):
    def workers(self):
        return crew()

    def make_engine(self):
        return Ray(1, prefetch=0)


class TestThreadsOfActors(SessionContract):
    def workers(self):
        return crew()

    def make_engine(self):
        return Ray(2, threads=2)
