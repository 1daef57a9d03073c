"""Streams: the same exactness as for datasets that are read by index."""

from __future__ import annotations

import functools
import itertools
import json
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stream_oracle
from chains import arrays
from executors import process_pool
from loaderx import DataLoader, Dataset, LoaderxWarning, merge_states
from loaderx.engines import Auto, Executor, Inline, Processes, Threads
from one_pool import over_one_pool
from oracle import assert_same
from plain import grow, jitter
from stream_chains import batched_streams, odd, record_streams

# Generated streams run on every engine, also those for which workers have nothing to do.
pytestmark = pytest.mark.filterwarnings("ignore:.*what stands above from_iterable runs in the")

EXECUTOR = Executor(functools.partial(ThreadPoolExecutor, 2), prefetch=1)
ENGINES = [Inline(), Threads(1), Threads(2), Threads(5, prefetch=1), Auto(), EXECUTOR]
PROCESSES = {
    "processes1": Processes(1),
    "processes3": Processes(3, prefetch=1),
    "executor2": Executor(process_pool),
}
"""Whichever engine runs is never visible in the data.  A new engine is one more entry."""

MOST = 60  # elements compared of each generated stream


def head(stream, count=MOST):
    return list(itertools.islice(iter(stream), count))


@settings(max_examples=150)
@given(batched_streams())
def test_streams_equal_the_slow_twin(dataset):
    assert_same(head(dataset), head(stream_oracle.elements(dataset)))


@settings(max_examples=80)
@given(record_streams())
def test_streams_of_records_equal_the_slow_twin(dataset):
    assert_same(head(dataset), head(stream_oracle.elements(dataset)))


@settings(max_examples=30)
@given(batched_streams(), st.sampled_from(ENGINES))
def test_engines_equal_inline(dataset, engine):
    with DataLoader(dataset, engine=engine) as loader:
        assert_same(head(loader), head(dataset))


@pytest.mark.parametrize("engine", PROCESSES.values(), ids=PROCESSES)
def test_processes_equal_inline(engine):
    @settings(max_examples=2)
    @given(st.lists(batched_streams(), min_size=4, max_size=4))
    def check(datasets):
        with over_one_pool([*datasets, *datasets], engine) as loaders:
            for dataset, loader, other in zip(datasets, loaders, loaders[len(datasets) :]):
                expected = head(dataset, 30)
                assert_same(head(loader, 30), expected)
                if len(expected) > 2:
                    iterator = iter(other)
                    next(iterator)
                    state = rounds(iterator.get_state())
                    next(iterator)
                    iterator.set_state(state)
                    assert_same(head(iterator, 10), expected[1:11])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderxWarning)
        check()


def rounds(state):
    return json.loads(json.dumps(state))


@settings(max_examples=40)
@given(batched_streams(), st.sampled_from([Inline(), Threads(2)]), st.sampled_from(ENGINES))
def test_restoring_at_every_step_gives_the_same_tail(dataset, before, after):
    expected = head(dataset, 12)
    iterator = iter(DataLoader(dataset, engine=before))
    states = [rounds(iterator.get_state())]
    for _ in expected:
        next(iterator)
        states.append(rounds(iterator.get_state()))
    iterator.close()
    for step, state in enumerate(states):
        assert state["step"] == step
        fresh = iter(DataLoader(dataset, engine=after))
        fresh.set_state(state)
        assert_same(head(fresh, 12 - step), expected[step:])
        fresh.close()


@settings(max_examples=30)
@given(batched_streams(), st.data())
def test_two_restores_in_a_row(dataset, data):
    expected = head(dataset, 12)
    steps = sorted(data.draw(st.lists(st.integers(0, len(expected)), min_size=2, max_size=4)))
    at, state = 0, None
    for step in steps:
        iterator = iter(DataLoader(dataset, engine="inline"))
        if state is not None:
            iterator.set_state(state)
        assert_same(head(iterator, step - at), expected[at:step])
        at, state = step, rounds(iterator.get_state())
        iterator.close()
    last = iter(DataLoader(dataset, engine="inline"))
    last.set_state(state)
    assert_same(head(last, 12 - at), expected[at:])


def test_dropping_what_was_made_ahead_and_going_on():
    """Closing in the middle throws away units that were made ahead; nothing is lost."""
    dataset = arrays(400).filter(odd).random_map(jitter).batch(6, lanes=3)
    iterator = iter(DataLoader(dataset, engine=Threads(2)))
    taken = []
    for batch in iterator:
        taken.append(batch)
        iterator.close()
    assert_same(taken, dataset)


# Hosts ----------------------------------------------------------------------------------------


@st.composite
def endless_streams(draw):
    """Eight lanes, without end."""
    dataset = arrays(draw(st.integers(32, 90))).shuffle(1)
    if draw(st.booleans()):
        dataset = dataset.filter(odd, batched=True).random_map(jitter).repeat()
    else:
        other = arrays(64, 1000).repeat()
        weights = [draw(st.integers(1, 3)), draw(st.integers(1, 3))]
        dataset = Dataset.mix([dataset.filter(odd).shuffle(window=4).repeat(), other], weights)
        if draw(st.booleans()):
            dataset = dataset.filter(odd).shuffle(window=6)
    dataset = dataset.batch(16, lanes=8)
    return dataset.random_map(jitter) if draw(st.booleans()) else dataset.map(grow)


def joined(parts):
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


@settings(max_examples=15)
@given(endless_streams(), st.sampled_from([4, 1, 2, 8]), st.integers(0, 12))
def test_saved_on_some_hosts_continued_on_others(dataset, before, step):
    expected = head(dataset, step + 6)
    hosts = [iter(DataLoader(dataset, shard=(h, before))) for h in range(before)]
    start = [joined([next(host) for host in hosts]) for _ in range(step)]
    assert_same(start, expected[:step])
    state = rounds(merge_states([host.get_state() for host in hosts]))
    for after in (2, 1, 8, 4):
        hosts = [iter(DataLoader(dataset, shard=(h, after))) for h in range(after)]
        for host in hosts:
            host.set_state(state)
        tail = [joined([next(host) for host in hosts]) for _ in range(6)]
        assert_same(tail, expected[step:])


@st.composite
def packed_streams(draw):
    """Texts, filtered and packed, in lanes, without end."""
    lanes = draw(st.sampled_from([1, 2, 4]))
    lengths = draw(st.lists(st.integers(1, 9), min_size=40, max_size=60))
    texts = [
        {"t": np.arange(n, dtype=np.uint16) + 10 * i, "x": np.int64(i)}
        for i, n in enumerate(lengths)
    ]
    dataset = Dataset.from_source(texts).shuffle(1)
    if draw(st.booleans()):
        dataset = dataset.filter(odd)
    if draw(st.booleans()):
        dataset = dataset.filter(lambda r: True).shuffle(window=5)
    dataset = dataset.pack(
        {"t": draw(st.integers(9, 20))},
        strategy=draw(st.sampled_from(["best_fit", "first_fit", "concat"])),
        window=10,
        max_segments=draw(st.sampled_from([2, 20])),
    )
    dataset = dataset.filter(lambda r: r["x"][0] % 11 != 3).repeat().random_keys()
    return dataset.batch(4, lanes=lanes)


@pytest.mark.filterwarnings("ignore:pack:loaderx.LoaderxWarning")  # rows of two segments are sparse
@settings(max_examples=30)
@given(packed_streams(), st.integers(0, 15), st.sampled_from(ENGINES))
def test_packed_streams(dataset, step, engine):
    expected = head(stream_oracle.elements(dataset), 20)
    with DataLoader(dataset, engine=engine) as loader:
        iterator = iter(loader)
        assert_same(head(iterator, step), expected[:step])
        state = rounds(iterator.get_state())
    iterator = iter(DataLoader(dataset))
    iterator.set_state(state)
    assert_same(head(iterator, 20 - step), expected[step:])


def test_the_state_grows_with_lanes_and_components_only():
    def size(lanes, parts, steps):
        one = arrays(10_000).shuffle(0).filter(odd, batched=True).repeat()
        dataset = Dataset.mix([one] * parts).batch(4 * lanes, lanes=lanes)
        iterator = iter(DataLoader(dataset, engine="inline"))
        head(iterator, steps)
        state = iterator.get_state()
        return len(json.dumps({k: v for k, v in state.items() if k != "chain"}))

    beside = 80
    for lanes, parts in [(1, 1), (8, 1), (8, 3), (2, 4)]:
        for steps in (1, 300):
            assert size(lanes, parts, steps) <= beside + 40 * lanes * parts


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
def test_every_engine_reads_filter_pack_and_mix(engine):
    """The one test to look at for a new engine: all kinds of units in one stream."""
    texts = [{"t": np.arange(n % 9 + 1, dtype=np.uint16), "x": np.int64(n)} for n in range(300)]
    one = Dataset.from_source(texts).filter(lambda r: r["x"] % 5 > 0)
    other = Dataset.from_source(texts).flat_map(lambda r: [r, r] if r["x"] % 2 else [])
    packed = [ds.pack({"t": 16}, window=40, max_segments=16).repeat() for ds in (one, other)]
    dataset = Dataset.mix(packed, [2, 1]).shuffle(window=8).random_keys().batch(8, lanes=2)
    with DataLoader(dataset.take(40), engine=engine) as loader:
        ours = list(loader)
    assert_same(ours, head(stream_oracle.elements(dataset), 40))
