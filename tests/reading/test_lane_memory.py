"""The warning of lanes that hold much memory, and its figures."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from loaderx import DataLoader, Dataset, LoaderxWarning
from loaderx.memory import Pool
from loaderx.reading.monitor import Monitor
from loaderx.reading.unit_plan import Opaque

MEGABYTE = 10**6


def unit(columns=None, records=None, chosen=None):
    """The output of a unit; large arrays may be views of a single byte."""
    return {
        "columns": columns,
        "records": None if records is None else Opaque((records, None, None)),
        "chosen": chosen,
        "keys": None,
        "meters": np.zeros((0, 3), np.int64),
        "failures": None,
    }


def paper(*shape):
    """An array that is large on paper."""
    return np.broadcast_to(np.uint8(0), shape)


def packed(records, nbytes):
    return unit({"tokens": paper(records, nbytes)})


def monitor(lanes, warned=None):
    return Monitor([], set() if warned is None else warned, Pool(), lanes=lanes)


def large(number):
    """A record of a megabyte."""
    return {"image": np.zeros(MEGABYTE, np.uint8), "id": number}


def photos(records=4000):
    return Dataset.range(records).map(large).shuffle(window=1).filter(lambda record: True).repeat()


def quiet(*weighed, lanes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = monitor(lanes)
        for one in weighed:
            found.weigh(*one)


def test_the_figures():
    watched = monitor(64)
    watched.weigh("chat", 2000, packed(2000, 4000))
    with pytest.warns(LoaderxWarning) as caught:
        watched.weigh("code", 1000, packed(1000, 16_000))
    assert str(caught[0].message) == (
        "the lanes of this stream hold 1.5 GB or more: 64 lanes x 3,000 records (a unit of 2 "
        "inputs) x 8,000 bytes. With workers, which make the next units meanwhile, it is twice as "
        "much. Fewer lanes hold less, and so does a smaller `window`, if a stage has one; a run "
        "that was begun keeps both. Or save the records of the stream once, with .save(folder): "
        "what is read by index needs no lanes."
    )


def test_each_input_counts_once():
    same = ("chat", 2000, packed(2000, 4000))
    quiet(*[same] * 1000, lanes=64)


def test_one_lane_and_little_memory_are_no_reason_to_warn():
    quiet(("a", 1000, packed(1000, 10**8)), lanes=1)
    quiet(("a", 1000, packed(1000, 10**6 - 1)), lanes=1)
    quiet(("a", 1000, packed(1000, 99_999)), lanes=10)
    with pytest.warns(
        LoaderxWarning, match="10 lanes x 1,000 records .a unit of 1 input. x 100,00"
    ):
        monitor(10).weigh("a", 1000, packed(1000, 100_000))


def test_views_of_the_source_take_no_memory():
    chosen = np.arange(5)
    quiet(("a", 1000, unit({"x": paper(1000, 10**9)}, chosen=chosen)), lanes=64)


def test_records_that_cannot_be_stacked_are_weighed_too():
    records = [{"x": paper(number % 2 + 1, MEGABYTE), "text": "some"} for number in range(1000)]
    with pytest.warns(LoaderxWarning, match="hold 3.0 GB or more: 2 lanes x 1,000 records"):
        monitor(2).weigh("a", 1000, unit(records=records))


def test_an_empty_unit_says_nothing_of_the_next():
    watched = monitor(2)
    watched.weigh("a", 100, unit(records=[]))
    with pytest.warns(LoaderxWarning, match="2 lanes x 100 records"):
        watched.weigh("a", 100, packed(100, 10**7))


def test_all_readings_of_a_loader_warn_once():
    warned = set()
    with pytest.warns(LoaderxWarning, match="lanes of this stream"):
        monitor(2, warned).weigh("a", 100, packed(100, 10**7))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor(2, warned).weigh("a", 100, packed(100, 10**7))


def first_unit(dataset, **options):
    """The warning that stops a loader at its first unit, before memory is used; else None."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderxWarning)
        with DataLoader(dataset, engine="inline", **options) as loader:
            try:
                next(iter(loader))
            except LoaderxWarning as warning:
                return str(warning)
    return None


@pytest.mark.parametrize(
    ("dataset", "records"),
    [
        (photos().batch(1000, lanes=1000), 1),
        (Dataset.mix([photos(), photos()], [1, 999]).batch(1000, lanes=1000), 1),
        (photos().shuffle(window=4).batch(250, lanes=250), 4),
    ],
)
def test_a_loader_warns_at_the_first_unit(dataset, records):
    lanes = 1000 // records
    found = first_unit(dataset)
    assert found is not None
    assert re.search(
        rf"hold 1.0 GB or more: {lanes} lanes x {records} records .* x 1,000,\d+ ", found
    )


def test_each_host_counts_its_own_lanes():
    stream = photos().batch(2000, lanes=2000)
    assert "hold 2.0 GB or more: 2000 lanes" in (first_unit(stream) or "")
    assert "hold 1.0 GB or more: 1000 lanes" in (first_unit(stream, shard=(1, 2)) or "")


def test_windows_above_a_mix_count_too():
    part = Dataset.range(640).map(large).filter(lambda record: True).repeat()
    stream = Dataset.mix([part, part], [1, 1]).shuffle(window=32).batch(40, lanes=40)
    found = first_unit(stream) or ""
    assert "hold 1.6 GB or more: 40 lanes x 40 records (a unit of 3 inputs) x 1,000,0" in found
