"""The contract of stages that are read by index passes for those of loaderx, and finds faults."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

from loaderx.testing import IndexStageContract
from stage_functions import ByProcess, double, jitter, keep, numbered


class Numbers(IndexStageContract):
    def example_records(self):
        return [{"x": np.int64(x)} for x in (5, 3, 9, 3, 8, 1, 1, 4, 7, 2, 6, 0, 9)]


class TestMap(Numbers):
    def apply(self, dataset):
        return dataset.map(double)

    def expected_records(self, records):
        return [double(record) for record in records]

    def apply_with_other_options(self, dataset):
        return dataset.map(double, batched=True)


class TestMapOfColumns(Numbers):
    def apply(self, dataset):
        return dataset.map(double, batched=True)

    def expected_records(self, records):
        return [double(record) for record in records]

    def test_a_failure_names_the_record_and_the_stage(self):
        pytest.skip("a function of columns fails on a run of records")


class TestRandomMap(Numbers):
    def apply(self, dataset):
        return dataset.random_map(jitter)

    def apply_with_other_options(self, dataset):
        return dataset.random_map(jitter, seed=1)


class TestMapWithIndex(Numbers):
    def apply(self, dataset):
        return dataset.map_with_index(numbered)

    def expected_records(self, records):
        return [numbered(index, record) for index, record in enumerate(records)]

    def test_in_a_stream(self):
        pytest.skip("records of a stream have no position")


class TestRandomKeys(Numbers):
    def apply(self, dataset):
        return dataset.random_keys()

    def apply_with_other_options(self, dataset):
        return dataset.random_keys("other")

    def test_a_failure_names_the_record_and_the_stage(self):
        pytest.skip("that elements are no dicts is an error of the chain")


class TestTwoStages(Numbers):
    def apply(self, dataset):
        return dataset.random_map(jitter).map(double).random_keys()


class TestCache(Numbers):
    def apply(self, dataset):
        return dataset.map(double).cache()

    def expected_records(self, records):
        return [double(record) for record in records]


class Moves(Numbers):
    is_one_to_one = False


class TestShuffle(Moves):
    def apply(self, dataset):
        return dataset.shuffle()

    def apply_with_other_options(self, dataset):
        return dataset.shuffle(seed=1)


class TestBlockShuffle(Moves):
    def apply(self, dataset):
        return dataset.shuffle(block=3, window=6)


class TestSample(Moves):
    def apply(self, dataset):
        return dataset.sample(np.arange(1, len(dataset) + 1))


class TestSlice(Moves):
    def apply(self, dataset):
        return dataset[::-2]

    def expected_records(self, records):
        return records[::-2]

    def apply_with_other_options(self, dataset):
        return dataset[::-1]


class TestWindow(Moves):
    def apply(self, dataset):
        return dataset.window(3, stride=2)

    def expected_records(self, records):
        x = np.array([record["x"] for record in records])
        return [{"x": window} for window in np.lib.stride_tricks.sliding_window_view(x, 3)[::2]]

    def apply_with_other_options(self, dataset):
        return dataset.window(3, stride=2, gap=1)

    def test_a_failure_names_the_record_and_the_stage(self):
        pytest.skip("records that differ fail when they are stacked")


# What is wrong ----------------------------------------------------------------------------------


def contract_of(function, other=None):
    class Contract(Numbers):
        def apply(self, dataset):
            return dataset.map(function)

        def expected_records(self, records):
            return records

    return Contract()


class Counts:
    def __init__(self):
        self.made = itertools.count()

    def __call__(self, record):
        return {**record, "n": next(self.made)}


class Unpicklable:
    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, record):
        return record


def drop_leaf(record):
    return {}


WRONG = [
    (drop_leaf, "test_records_are_as_expected", "record 0"),
    (Counts(), "test_read_again_it_is_the_same", "read again, output 0 has other values"),
    (Counts(), "test_by_index", "by its index, record 0 has other values"),
    (Counts(), "test_records_move_with_their_results", "in another order, record 0"),
    (Counts(), "test_in_batches", "other records come out"),
    (Counts(), "test_in_a_stream", "in a stream, record 0 has other values"),
    (Counts(), "test_hosts", "hosts, batch 0 has other values"),
    (Counts(), "test_states", "after the state of step 0, output 0 has other values"),
    (Counts(), "test_epochs", "in epoch 0, output 0 has other values"),
    (ByProcess(), "test_engines", "with processes, output 0 has other values"),
    (Unpicklable(), "test_pickled", "cannot pickle '_thread.lock' object"),
]


@pytest.mark.parametrize(("function", "test", "message"), WRONG)
def test_what_is_wrong_is_found(function, test, message):
    getattr(contract_of(keep), test)()
    with pytest.raises(Exception, match=message):
        getattr(contract_of(function), test)()


def test_what_is_missing_is_said():
    for name, values in (("apply", [None]), ("example_records", [])):
        with pytest.raises(NotImplementedError, match=f"IndexStageContract needs {name}"):
            getattr(IndexStageContract(), name)(*values)

    class Stream(Numbers):
        def apply(self, dataset):
            return dataset.filter(bool)

    with pytest.raises(AssertionError, match="apply gave a stream, for which there is StageCont"):
        Stream().test_repr()


def test_names():
    for name in dir(IndexStageContract):
        if not name.startswith("_") and callable(getattr(IndexStageContract, name)):
            assert getattr(IndexStageContract, name).__doc__, name
