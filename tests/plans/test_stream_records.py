"""Which records the steps of a stream have."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import arrays
from inside import node_of
from loaderx import DataLoader, Dataset, LoaderxError, StateError
from loaderx.engines import Inline, Threads
from loaderx.loader import stream_iterator
from plain import drop_extras, tag
from stream_chains import batched_streams, mixed, odd, record_streams

ITERABLE = (
    "the records of Dataset.from_iterable are not known: it can be read in its own order only. Use "
    "a source that is read by index (Dataset.from_source, Dataset.open)."
)


def ids(element):
    """The ids of the rows of a batch, or of a record."""
    found = np.atleast_1d(element["x"])
    return found[np.atleast_1d(element.get("mask", np.ones(len(found), bool)))].tolist()


def read_ids(records):
    return [int(record["x"]) for record in records.read()]


def rows_of(element):
    return np.flatnonzero(np.atleast_1d(element.get("mask", np.ones(np.size(element["x"]), bool))))


def is_known(dataset):
    return all(node.inputs or node.length is not None for node in node_of(dataset).below())


@settings(max_examples=50)
@given(st.one_of(batched_streams(), record_streams()))
def test_the_records_of_an_element_are_those_that_it_is_made_of(dataset):
    elements = list(itertools.islice(dataset, 12))
    loader = DataLoader(dataset, engine=Inline())
    if not is_known(dataset):
        for of in (dataset, loader):
            with pytest.raises(LoaderxError) as error:
                of.records(0)
            assert str(error.value) == ITERABLE
        return
    found = [loader.records(number) for number in range(len(elements))]
    for element, records in zip(elements, found, strict=True):
        assert read_ids(records) == ids(element)
        assert records.row.tolist() == rows_of(element).tolist()
    if found and len(found[-1]):
        assert repr(dataset.records(len(found) - 1)) == repr(found[-1])
        part, index = found[-1].part[-1], found[-1].index[-1]
        have = [n for n, one in enumerate(found) if (one.index[one.part == part] == index).any()]
        for of in (dataset, loader):
            steps = of.steps_of(int(index), part=str(part), until=len(found))
            assert steps.tolist() == have


@pytest.mark.parametrize("ending", [{"pad_remainder": True}, {"drop_remainder": True}])
def test_hosts_have_the_records_of_their_lanes(ending):
    dataset = arrays(60).shuffle(1).filter(odd).batch(6, lanes=3, **ending)
    for host in range(3):
        loader = DataLoader(dataset, engine=Inline(), shard=(host, 3))
        batches = list(loader)  # counts the rows
        assert [read_ids(loader.records(n)) for n in range(len(batches))] == [
            ids(batch) for batch in batches
        ]


@pytest.mark.parametrize(
    "dataset",
    [
        mixed([2, 1]),
        mixed([2, 1]).map(drop_extras).map_with_index(tag).skip(2),
        Dataset.mix([arrays(40).filter(odd).repeat(), arrays(9).repeat()], [1, 1])
        .shuffle(window=8)
        .batch(4),
    ],
    ids=["mix", "skip", "window over a mix"],
)
def test_every_state_leads_to_the_same_records(dataset):
    loader = DataLoader(dataset, engine=Inline())
    iterator = iter(loader)
    expected = [repr(loader.records(step)) for step in range(9)]
    for step in range(7):
        state = json.loads(json.dumps(iterator.get_state()))
        assert repr(loader.records(step, near=state)) == expected[step]
        assert repr(loader.records(step + 2, near=state)) == expected[step + 2]
        next(iterator)
    assert repr(loader.records(1, near=state)) == expected[1]  # before it: from the beginning


def test_marks_are_kept_while_a_loader_runs(monkeypatch):
    monkeypatch.setattr(stream_iterator, "MARK_EVERY", 5)
    seen = []

    def noted(record):
        seen.append(int(record["x"]))
        return True

    dataset = arrays(20_000).filter(noted).batch(100)
    loader = DataLoader(dataset, engine=Inline())
    expected = [batch["x"].tolist() for batch in loader]
    seen.clear()
    assert loader.records(151).index.tolist() == expected[151]
    assert len(seen) <= 2048  # the unit of the mark, and perhaps the next one
    monkeypatch.setattr(stream_iterator, "MOST_MARKS", 10)
    assert [batch["x"].tolist() for batch in loader] == expected  # the second epoch
    assert loader.records(199).index.tolist() == expected[199]


def test_a_state_tells_the_loop():
    loader = DataLoader(arrays(40).shuffle(0).filter(odd).batch(4), engine=Threads(2))
    list(loader)
    iterator = iter(loader)
    state = iterator.get_state()
    batches = list(iterator)
    for step, batch in enumerate(batches):
        found = loader.records(step, near=state)
        assert read_ids(found) == ids(batch)
        assert found.epoch.tolist() == [1] * len(found)


def test_a_state_is_good_for_weights_that_change_after_it():
    def mixed_until(weights):
        parts = [arrays(300).filter(odd), arrays(300, 1000).filter(odd)]
        mix = Dataset.mix(parts, [(0, [1, 1]), (100, weights)])
        return DataLoader(mix.batch(4), engine=Inline())

    iterator, changed = iter(mixed_until([3, 1])), mixed_until([1, 4])
    for _ in range(10):
        next(iterator)
    near = iterator.get_state()
    assert repr(changed.records(50, near=near)) == repr(changed.records(50))
    for _ in range(20):
        next(iterator)
    with pytest.raises(StateError) as error:
        changed.records(50, near=iterator.get_state())
    assert str(error.value).startswith("lane 0: the state belongs to another chain: the weights ")
    assert str(error.value).endswith("from a position on that is still to come.")


def test_segments_of_packed_rows_are_numbered():
    lengths = np.random.default_rng(0).integers(1, 9, 90)
    docs = Dataset.from_source([{"t": np.full(n, i)} for i, n in enumerate(lengths)])
    long = Dataset.from_source([{"t": np.full(20, 1000 + i)} for i in range(30)])
    streams = [
        docs.shuffle(1).pack({"t": 16}, window=30),
        docs.filter(is_even).pack({"t": 8}, strategy="concat", window=30),
        Dataset.mix([docs, long], [3, 1]).pack({"t": 16}, window=20, overflow="split"),
        Dataset.mix([docs.filter(is_even), long], [3, 1]).pack({"t": 24}, window=20),
    ]
    for stream in streams:
        dataset = stream.batch(3)
        for step, batch in enumerate(dataset):
            records = dataset.records(step)
            found = [int(record["t"][0]) for record in records.read()]
            expected = [
                (row, segment - 1, int(values[np.argmax(marks == segment)]))
                for row, (values, marks) in enumerate(
                    zip(batch["t"], batch["t_segment_ids"], strict=True)
                )
                for segment in range(1, marks.max() + 1)
            ]
            have = zip(records.row.tolist(), records.segment.tolist(), found, strict=True)
            assert list(have) == expected


def is_even(record):
    return record["t"][0] % 2 == 0


def test_rows_of_buckets_are_in_their_order():
    docs = Dataset.from_source([{"t": np.full(1 + i % 7, i)} for i in range(50)])
    dataset = docs.shuffle(1).bucket([4, 8], 4, window=20)
    for host in range(2):
        loader = DataLoader(dataset, engine=Inline(), shard=(host, 2))
        for step, batch in enumerate(loader):
            real = batch["t"][batch["mask"], 0].tolist()
            records = loader.records(step)
            assert [int(record["t"][0]) for record in records.read()] == real
            assert records.row.tolist() == list(range(len(real)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda loader, _: loader.records(99), "there is no step 99: the stream ends before it."),
        (
            lambda loader, _: DataLoader(loader.dataset.take(3)).records(3),
            "there is no step 3: the stream ends before it.",
        ),
        (
            lambda loader, _: loader.dataset.records(99),
            "there is no step 99: the stream ends before it.",
        ),
        (
            lambda loader, _: loader.steps_of(40),
            "there is no record 40: it has 40 records, numbered from 0.",
        ),
        (
            lambda loader, _: DataLoader(loader.dataset.repeat()).steps_of(4),
            "the dataset is endless: say where to stop looking, steps_of(index, until=step).",
        ),
        (
            lambda _, state: DataLoader(arrays(40).batch(4)).records(1, near=state),
            "`near` is for streams: here the records follow from the step alone.",
        ),
        (
            lambda _, state: DataLoader(arrays(40).filter(odd).batch(5)).records(1, near=state),
            "the state belongs to another chain: stage 3 (batch): size was 4 and is 5 now.",
        ),
    ],
)
def test_what_is_not_there_is_refused(call, message):
    loader = DataLoader(arrays(40).filter(odd).batch(4), engine=Inline())
    with pytest.raises(LoaderxError) as error:
        call(loader, iter(loader).get_state())
    assert str(error.value) == message
