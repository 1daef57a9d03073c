"""Options of `engines.Threads`."""

from __future__ import annotations

import threading

import pytest

from chains import arrays
from loaderx import DataLoader, Dataset, LoaderxError, RecordError
from loaderx.engines import Threads


def thread_names(engine):
    def name(record):
        return threading.current_thread().name

    with DataLoader(arrays(40).map(name).batch(2), engine=engine) as loader:
        return {str(one) for batch in loader for one in batch}


def test_threads_have_names():
    assert thread_names(Threads(1)) == {"loaderx-0"}
    assert thread_names(Threads(1, name="grain-prefetch_{}")) == {"grain-prefetch_0"}
    assert thread_names(Threads(2, name="reader {}")) <= {"reader 0", "reader 1"}


@pytest.mark.parametrize("name", ["reader", "{reader}", "{", "{}{}", ""])
def test_a_name_needs_a_place_for_the_number(name):
    with pytest.raises(LoaderxError, match="`name` must have one {} for the number of the thread"):
        Threads(2, name=name)


def test_a_name_is_a_string():
    with pytest.raises(LoaderxError, match="`name` must be a string, got 3"):
        Threads(2, name=3)


class InDisguise:
    """An iterator behind an index, as long as anybody may want."""

    def __init__(self, count):
        self._records = iter(range(count))
        self.threads = set()
        self.asked = []

    def __len__(self):
        return 10**10

    def __getitem__(self, index):
        self.threads.add(threading.current_thread().name)
        self.asked.append(index)
        return next(self._records)


def test_one_thread_reads_each_record_once_and_in_order():
    source = InDisguise(60)
    dataset = Dataset.from_source(source).batch(5)
    engine = Threads(in_order=True, name="reader_{}", prefetch=3)
    with DataLoader(dataset, engine=engine) as loader:
        found = [batch.tolist() for batch, _ in zip(loader, range(8), strict=False)]
    assert found == [list(range(first, first + 5)) for first in range(0, 40, 5)]
    assert source.threads == {"reader_0"}
    assert source.asked == sorted(source.asked)
    assert source.asked[:40] == list(range(40))


def test_a_source_that_stops_ends_the_stream():
    with DataLoader(Dataset.from_source(InDisguise(13)), engine=Threads(in_order=True)) as loader:
        iterator = iter(loader)
        assert [int(record) for record in iterator] == list(range(13))
        assert iterator.step == 13
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(iterator)


def test_a_source_that_stops_ends_a_stream_of_batches_after_the_last_whole_one():
    dataset = Dataset.from_source(InDisguise(13)).batch(5)
    with DataLoader(dataset, engine=Threads(in_order=True)) as loader:
        assert [batch.tolist() for batch in iter(loader)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_a_stop_is_an_error_where_order_was_not_asked_for():
    with (
        DataLoader(Dataset.from_source(InDisguise(4)), engine=Threads(1)) as loader,
        pytest.raises(RecordError, match="reading the source failed on record 4: StopIteration"),
    ):
        for _ in loader:
            pass


def test_a_stop_in_a_function_is_an_error():
    def stop(record):
        raise StopIteration

    with (
        DataLoader(arrays(4).map(stop), engine=Threads(in_order=True)) as loader,
        pytest.raises(RecordError, match=r"map\(stop\) failed on record 0: StopIteration"),
    ):
        next(iter(loader))


def test_order_needs_one_thread():
    assert Threads(1, in_order=True).num_workers == 1
    with pytest.raises(LoaderxError, match="in_order=True reads with one thread, and num_workers"):
        Threads(2, in_order=True)
    with pytest.raises(LoaderxError, match="`in_order` must be True or False"):
        Threads(in_order="yes")
