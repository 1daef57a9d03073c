"""`LoaderIterator.start`, and the names that trainers of other libraries call."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from chains import arrays
from loaderx import DataLoader, Dataset, LoaderxError
from loaderx.engines import Processes, Threads
from loaderx.tree import ArraySpec


def test_what_cannot_be_started_is_said_at_once():
    lock = threading.Lock()
    loader = DataLoader(arrays(8).map(lambda r: lock and r).batch(2), engine=Processes(1))
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises(LoaderxError, match="cannot be sent to worker processes"):
            iterator.start()
    assert iterator.step == 0


def test_start_inside_a_function_of_the_same_iterator():
    def start(record):
        iterator.start()
        return record

    iterator = iter(DataLoader(arrays(8).map(start).batch(2), engine="inline"))
    with pytest.raises(LoaderxError, match="`start` was called inside a `next` of the same"):
        next(iterator)


def test_a_failure_that_workers_met_ahead_comes_at_its_step():
    def fail(record):
        if record["x"] == 2:
            raise ValueError("two")
        return record

    with DataLoader(arrays(6).map(fail).batch(2), engine=Threads(2)) as loader:
        iterator = iter(loader)
        iterator.start()
        assert next(iterator)["x"].tolist() == [0, 1]
        with pytest.raises(LoaderxError, match="step 1: "):
            next(iterator)


def test_start_at_the_end_and_after_the_start():
    with DataLoader(arrays(4).batch(2), engine=Threads(1)) as loader:
        iterator = iter(loader)
        next(iterator)
        iterator.start()  # it runs already
        assert len(list(iterator)) == 1
        iterator.start()
        assert list(iterator) == []


def test_names_of_other_libraries():
    with DataLoader(arrays(8).shuffle(0).batch(2), engine=Threads(1)) as loader:
        iterator = iter(loader)
        iterator.start_prefetch()
        next(iterator)
        state = iterator.state_dict()
        assert state == iterator.get_state()
        expected = next(iterator)
        iterator.load_state_dict(state)
        assert (next(iterator)["x"] == expected["x"]).all()


def test_the_element_spec_of_an_iterator():
    dataset = Dataset.from_arrays(x=np.zeros((8, 3), np.float32)).batch(4)
    assert iter(DataLoader(dataset)).element_spec == {"x": ArraySpec((4, 3), np.dtype("f4"))}
    one = iter(DataLoader(dataset, shard=(1, 2)))
    assert one.element_spec == {"x": ArraySpec((2, 3), np.dtype("f4"))}
    stream = iter(DataLoader(dataset.unbatch().filter(lambda r: True).batch(3)))
    assert stream.element_spec == {"x": ArraySpec((None, 3), np.dtype("f4"))}
