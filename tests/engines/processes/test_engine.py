"""`Processes`: its arguments, what it needs of the system, and the same stream as inline."""

from __future__ import annotations

import os
import time
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import arrays, batched_chains, chains
from loaderx import ArgumentError, ArgumentTypeError, DataLoader, LoaderxWarning
from loaderx.engines import Processes
from one_pool import over_one_pool
from oracle import assert_same


def test_one_slow_step_does_not_idle_the_others(tmp_path):
    def wait(record):
        x = int(record["x"])
        if x == 0:
            until = time.monotonic() + 30
            while len(list(tmp_path.iterdir())) < 5:
                assert time.monotonic() < until
                time.sleep(0.001)
        else:
            (tmp_path / str(x)).touch()
        return record

    with DataLoader(arrays(20).map(wait).batch(1), engine=Processes(2, prefetch=4)) as loader:
        first = next(iter(loader))
    assert first["x"].tolist() == [0]
    assert {"1", "2", "3", "4", "5"} <= {path.name for path in tmp_path.iterdir()}


def test_more_prefetch_than_pipes_hold():
    dataset = arrays(6000).batch(2)
    with DataLoader(dataset, engine=Processes(2, prefetch=100_000)) as loader:
        assert_same(loader, dataset)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_workers": 0}, ArgumentError, "`num_workers` must be at least 1, got 0"),
        ({"num_workers": 5000}, ArgumentError, "`num_workers` must be at most 1024, got 5000"),
        ({"prefetch": -1}, ArgumentError, "`prefetch` must be at least 0"),
        ({"timeout_s": 0}, ArgumentError, "`timeout_s` must be above 0, got 0"),
        ({"timeout_s": "1"}, ArgumentTypeError, "`timeout_s` must be a number of seconds or None"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        Processes(**arguments)


def test_a_system_without_what_is_needed_is_told(monkeypatch):
    monkeypatch.setattr(os, "name", "nt")
    with pytest.raises(ArgumentError, match=r"cannot run here: they need a POSIX.*'threads'"):
        Processes()


def test_without_memfd_a_nameless_file_does(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dataset = arrays(40).shuffle(0).batch(4)
    with DataLoader(dataset, engine=Processes(2)) as loader:
        assert_same(loader, dataset)
        assert not list(tmp_path.iterdir())


def test_loaders_and_datasets_can_be_pickled():
    import cloudpickle

    loader = DataLoader(arrays(40).map(lambda r: r).batch(4), engine="processes")
    again = cloudpickle.loads(cloudpickle.dumps(loader))
    with again:
        assert_same(again, loader.dataset)


@pytest.mark.parametrize("workers", [1, 3])
def test_processes_equal_inline_on_generated_chains(workers):
    @settings(max_examples=2)
    @given(st.lists(chains(), min_size=5, max_size=5))
    def check(datasets):
        with over_one_pool(datasets, Processes(workers)) as loaders:
            for loader, dataset in zip(loaders, datasets, strict=True):
                assert_same(loader, dataset)

    check()


@pytest.mark.parametrize("workers", [1, 3])
def test_restoring_at_every_step_gives_the_same_tail(workers):
    @settings(max_examples=2)
    @given(st.lists(batched_chains(), min_size=3, max_size=3))
    def check(datasets):
        with over_one_pool(datasets, Processes(workers, prefetch=1)) as loaders:
            for loader, dataset in zip(loaders, datasets, strict=True):
                check_states(loader, list(dataset))

    def check_states(loader, expected):
        states = []
        iterator = iter(loader)
        for _ in expected:
            states.append(iterator.get_state())
            next(iterator)
        for step, state in list(enumerate(states))[:12]:
            iterator = iter(loader)
            iterator.set_state(state)
            assert_same([next(iterator)], expected[step : step + 1])
            iterator.set_state(state)
            assert_same(iterator, expected[step:])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderxWarning)  # the same order again is what we want
        check()
