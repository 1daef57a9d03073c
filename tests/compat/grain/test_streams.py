"""The same bytes and the same states as Grain's, from what was recorded with Grain 0.2.18."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import loaderx.compat.grain as grain
from grain_pipelines import PIPELINES, STATEFUL, digest_of, loader_states, update

HERE = Path(__file__).parent
DIGESTS = json.loads((HERE / "digests.json").read_text())
STATES = json.loads((HERE / "states.json").read_text())
LOADERS = [name for name, _ in loader_states(grain)]


def test_all_are_recorded():
    assert DIGESTS.keys() == PIPELINES.keys(), "run tests/owners/grain/record.py"
    assert STATES.keys() == {*STATEFUL, *(f"loader_{name}" for name in LOADERS)}
    assert len(DIGESTS) >= 40


@pytest.mark.parametrize("name", PIPELINES)
def test_bytes_are_those_of_grain(name):
    assert digest_of(PIPELINES[name](grain)) == DIGESTS[name]


def plain(state):
    """As JSON gives it back."""
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("name", STATEFUL)
def test_states_are_those_of_grain(name):
    iterator = iter(STATEFUL[name](grain))
    for recorded in STATES[name]:
        assert plain(iterator.get_state()) == recorded
        next(iterator, None)


@pytest.mark.parametrize("name", STATEFUL)
def test_states_of_grain_are_continued(name):
    elements = list(STATEFUL[name](grain))
    iterator = iter(STATEFUL[name](grain))
    for step, recorded in enumerate(STATES[name]):
        iterator.set_state(recorded)
        assert_same(list(iterator), elements[step:])


@pytest.mark.parametrize("name", LOADERS)
def test_states_of_loaders(name):
    loader = dict(loader_states(grain))[name]
    elements = list(loader)
    iterator = iter(loader)
    for step, recorded in enumerate(STATES[f"loader_{name}"]):
        assert json.loads(iterator.get_state()) == recorded
        restored = iter(loader)
        restored.set_state(json.dumps(recorded).encode())
        assert_same(list(restored), elements[step:])
        next(iterator, None)


def assert_same(given, expected):
    assert len(given) == len(expected)
    assert fingerprint(given) == fingerprint(expected)


def fingerprint(elements):
    found = []

    class Digest:
        update = staticmethod(found.append)

    for element in elements:
        update(Digest, element)
    return found
