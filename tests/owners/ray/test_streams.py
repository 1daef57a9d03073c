"""What Ray's workers give is what every engine gives: pinned chains, hosts, states, mechanisms."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import arrays, batched_chains
from loaderx import DataLoader, merge_states
from loaderx.engines import Ray, Shared
from one_pool import over_one_pool
from oracle import assert_same
from plain import grow, jitter
from stream_chains import batched_streams, odd
from tests.engines import test_mechanisms as mechanisms
from tests.pinned import test_pinned_orders as pinned
from tests.pinned.inputs import write_files
from tests.pinned.reading import ONE_HOST, SECOND_OF_TWO, START, key, quietly

pytestmark = [
    pytest.mark.owners,
    pytest.mark.foreign,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
ROWS = [key(START, ONE_HOST), key(START, SECOND_OF_TWO)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("files")
    write_files(made)
    return made


@pytest.fixture
def make(folder):
    with quietly():
        yield lambda name: pinned.CHAINS[name](folder)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("names", pinned.tens(pinned.CHAINS), ids=lambda ten: ten[0])
def test_pinned_chains(names, row, make):
    pinned.check_shared(names, row, make, Ray(2))


def chains():
    records = arrays(96).map(grow).shuffle(1).random_map(jitter)
    return {
        "by index": records.batch(8, drop_remainder=True).repeat(),
        "stream": records.filter(odd).repeat().batch(8, lanes=4),
    }


def joined(parts):
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


@pytest.mark.parametrize("kind", chains())
def test_hosts_and_states(kind):
    """Saved by some hosts after three steps, and gone on with by others."""
    dataset, engine = chains()[kind], Shared(Ray(2))
    expected = list(islice(dataset, 8))

    def hosts(count):
        loaders = [DataLoader(dataset, engine=engine, shard=(h, count)) for h in range(count)]
        return [iter(loader) for loader in loaders]

    for before, after in ((1, 2), (2, 4), (4, 1)):
        first, then = hosts(before), hosts(after)
        parts = [joined([next(host) for host in first]) for _ in range(3)]
        assert_same(parts, expected[:3])
        state = json.loads(json.dumps(merge_states([host.get_state() for host in first])))
        for host in then:
            host.set_state(state)
        assert_same([joined([next(host) for host in then]) for _ in range(5)], expected[3:])


@settings(max_examples=5)
@given(st.lists(batched_streams(), min_size=4, max_size=4))
def test_generated_streams(datasets):
    with quietly(), over_one_pool(datasets, Ray(2)) as loaders:
        for dataset, loader in zip(datasets, loaders, strict=True):
            assert_same(list(islice(loader, 30)), list(islice(dataset, 30)))


@settings(max_examples=5)
@given(st.lists(batched_chains(), min_size=4, max_size=4))
def test_generated_chains(datasets):
    with quietly(), over_one_pool(datasets, Ray(2)) as loaders:
        for dataset, loader in zip(datasets, loaders, strict=True):
            assert_same(list(loader), list(dataset))


@pytest.mark.parametrize("sharding", [False, True], ids=["numpy", "sharding"])
@pytest.mark.parametrize("mechanism", mechanisms.MECHANISMS)
def test_the_table_is_true(mechanism, sharding, tmp_path, monkeypatch):
    monkeypatch.setitem(mechanisms.ENGINES, "ray", Ray)
    expected = mechanisms.table()[mechanism, "ray", sharding]
    is_on = mechanisms.MECHANISMS[mechanism]("ray", sharding, tmp_path, monkeypatch)
    assert is_on == (expected == "on"), expected
