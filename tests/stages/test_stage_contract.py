"""The contract passes for the stages of loaderx, and each of its tests finds what is wrong."""

from __future__ import annotations

import itertools
import os
import threading

import numpy as np
import pytest

from loaderx.stages import WindowStage
from loaderx.testing import StageContract
from loaderx.testing.stage_work import is_shown
from stage_functions import are_not_three, counted, is_not_three, jitter, value
from window_stages import DropRepeated, Neighbours, Sample, SortBy


class Numbers(StageContract):
    def example_records(self):
        return [{"x": np.int64(x)} for x in (5, 3, 9, 3, 8, 1, 1, 4, 7, 2, 6, 0, 9)]


class Texts(StageContract):
    """Records of different lengths."""

    def example_records(self):
        return [{"t": np.arange(n, dtype=np.int32) + n} for n in (3, 1, 5, 2, 2, 4, 1, 6, 3)]


class TestReorders(Numbers):
    def apply(self, dataset):
        return dataset.apply(SortBy(leaf="x"))

    def expected_records(self, records):
        return sorted(records, key=value)

    def apply_with_other_options(self, dataset):
        return dataset.apply(SortBy(leaf="x", largest_first=True))


class TestReordersRagged(Texts):
    def apply(self, dataset):
        return dataset.apply(SortBy(leaf="t", window=5))

    def expected_records(self, records):
        return sorted(records, key=lambda record: record["t"].max())


class TestDrops(Numbers):
    def apply(self, dataset):
        return dataset.apply(DropRepeated(leaf="x"))

    def expected_records(self, records):
        values = [value(record) for record in records]
        return [record for n, record in enumerate(records) if values[n] not in values[:n]]

    def apply_with_other_options(self, dataset):
        return dataset.apply(DropRepeated(leaf="x", divisor=2))


class TestMergesAndAdds(Numbers):
    def apply(self, dataset):
        return dataset.apply(Neighbours(leaf="x"))

    def expected_records(self, records):
        pairs = itertools.pairwise(records)
        return [{"x": one["x"] + two["x"]} for one, two in pairs] + records

    def apply_with_other_options(self, dataset):
        return dataset.apply(Neighbours(leaf="x", window=5))


class TestDraws(Numbers):
    def apply(self, dataset):
        return dataset.apply(Sample(leaf="x"))

    def apply_with_other_options(self, dataset):
        return dataset.apply(Sample(leaf="x", seed=1))


class TestOneRecordWindows(Numbers):
    def apply(self, dataset):
        return dataset.apply(SortBy(leaf="x", window=1))

    def expected_records(self, records):
        return records


class TestTwoWindows(Numbers):
    """Stages of a window in a window, with one that drops between them."""

    def apply(self, dataset):
        sampled = dataset.apply(Sample(leaf="x", window=4)).filter(is_not_three)
        return sampled.apply(SortBy(leaf="x", window=12)).random_map(jitter)


class TestFilter(Numbers):
    def apply(self, dataset):
        return dataset.filter(is_not_three)

    def expected_records(self, records):
        return [record for record in records if value(record) != 3]


class TestFilterOfColumns(Numbers):
    can_skip_failures = False

    def apply(self, dataset):
        return dataset.filter(are_not_three, batched=True)

    def test_failures_can_be_skipped(self):
        pytest.skip("what cannot be stacked is no failure of the filter")

    def test_a_failure_names_the_record_and_the_stage(self):
        pytest.skip("what cannot be stacked is no failure of the filter")


class TestFlatMap(Numbers):
    def apply(self, dataset):
        return dataset.flat_map(counted)

    def expected_records(self, records):
        return [made for record in records for made in counted(record)]


class TestPack(Texts):
    can_skip_failures = False

    def apply(self, dataset):
        return dataset.pack({"t": 8}, window=6)

    def apply_with_other_options(self, dataset):
        return dataset.pack({"t": 8}, window=6, strategy="first_fit")


class TestBalancedPack(Texts):
    can_skip_failures = False

    def apply(self, dataset):
        return dataset.pack({"t": 8}, window=6, eos=0, balance="squares", balance_rows=2)

    def apply_with_other_options(self, dataset):
        return dataset.pack({"t": 8}, window=6, eos=0, balance="squares", balance_rows=3)


class TestBucket(Texts):
    can_skip_failures = False

    def apply(self, dataset):
        return dataset.bucket([2, 8], [3, 2], window=7)

    def apply_with_other_options(self, dataset):
        return dataset.bucket([3, 8], [3, 2], window=7)


class TestWindowShuffle(Numbers):
    def apply(self, dataset):
        return dataset.filter(is_shown).shuffle(window=8)

    def apply_with_other_options(self, dataset):
        return dataset.filter(is_shown).shuffle(seed=1, window=8)


# What is wrong ----------------------------------------------------------------------------------


class Keep(WindowStage):
    """Leaves all as it is; the broken stages below differ from it in one thing each."""

    window: int = 4

    def map_window(self, records):
        return enumerate(records)


class DropsLast(Keep):
    def map_window(self, records):
        return list(enumerate(records))[:-1] or enumerate(records)


class Counts(Keep):
    made = itertools.count()

    def map_window(self, records):
        return [(n, {**record, "n": next(self.made)}) for n, record in enumerate(records)]


class DropsSeen(Keep):
    """Remembers records of other windows, until all have been seen."""

    seen: list[int] = []  # noqa: RUF012

    def map_window(self, records):
        for number, record in enumerate(records):
            if value(record) not in self.seen[-8:]:
                self.seen.append(value(record))
                yield number, record


class DrawsGlobally(Keep):
    def map_window(self, records):
        number = np.frombuffer(os.urandom(8), np.uint64)[0]
        return [(n, {**record, "n": number}) for n, record in enumerate(records)]


class ByProcess(Keep):
    home = os.getpid()
    window: int = 4
    process: int = 0

    def map_window(self, records):
        if os.getpid() != self.process:
            return []
        return enumerate(records)


class Unpicklable(Keep):
    lock: object = None

    def map_window(self, records):
        assert self.lock is not None
        return enumerate(records)


class Hides(Keep):
    """An option of which the state knows the type only."""

    by: object = None


class Fussy(Keep):
    """Fails, but not on one record alone."""

    def map_window(self, records):
        if len(records) > 1:
            sorted(records, key=value)
        return enumerate(records)


def contract_of(stage, other=None):
    class Contract(Numbers):
        def apply(self, dataset):
            return dataset.apply(stage)

        def expected_records(self, records):
            return records

        def apply_with_other_options(self, dataset):
            return None if other is None else dataset.apply(other)

    return Contract()


class Value:
    def __init__(self, value):
        self.value = value


WRONG = [
    (DropsLast(), "test_windows_are_as_expected", "there are 3 of with 4 records, output"),
    (Counts(), "test_read_again_it_is_the_same", 'leaf "n" of read again, output 0 has other val'),
    (Counts(), "test_states", "after the state of step 0, output 0 has other values"),
    (Counts(), "test_epochs", "in epoch 0, output 0 has other values"),
    (DropsSeen(), "test_windows_carry_nothing_across", "there are|has other values"),
    (DrawsGlobally(), "test_hosts", "with 4 hosts, batch 0 has other values than expected"),
    (DrawsGlobally(), "test_order_of_windows", "with 2 lanes, other records come out"),
    (DrawsGlobally(), "test_records_of_an_iterable", "has other values"),
    (ByProcess(process=os.getpid()), "test_engines", "there are 0 of with processes, output"),
    (Unpicklable(lock=threading.Lock()), "test_pickled", "cannot pickle '_thread.lock' object"),
    (
        Fussy(),
        "test_a_failure_names_the_record_and_the_stage",
        "record 6 fails, and the error says",
    ),
    (Fussy(), "test_failures_can_be_skipped", "4 records together"),
]


@pytest.mark.parametrize(("stage", "test", "message"), WRONG)
def test_what_is_wrong_is_found(stage, test, message):
    getattr(contract_of(Keep()), test)()
    with pytest.raises(Exception, match=message):
        getattr(contract_of(stage), test)()


def test_an_option_that_a_state_does_not_know_is_found():
    test = "test_states_know_the_options"
    getattr(contract_of(Keep(), Keep(window=8)), test)()
    with pytest.raises(AssertionError, match="a state of other options must raise StateError"):
        getattr(contract_of(Hides(by=Value(1)), Hides(by=Value(2))), test)()


def test_what_is_missing_is_said():
    for name, values in (("apply", [None]), ("example_records", [])):
        with pytest.raises(NotImplementedError, match=f"StageContract needs {name}"):
            getattr(StageContract(), name)(*values)
    with pytest.raises(AssertionError, match="apply uses a window of 100; .* at most 64 is enough"):
        contract_of(Keep(window=100)).test_epochs()

    class NoStream(Numbers):
        def apply(self, dataset):
            return dataset.map(is_shown)

    with pytest.raises(AssertionError, match="apply must give a stream; it gave\nDataset.from_sou"):
        NoStream().test_epochs()

    class NoRecords(TestReorders):
        def example_records(self):
            return []

    with pytest.raises(AssertionError, match="example_records has no records"):
        NoRecords().test_engines()


def test_names():
    for name in dir(StageContract):
        if not name.startswith("_") and callable(getattr(StageContract, name)):
            assert getattr(StageContract, name).__doc__, name
