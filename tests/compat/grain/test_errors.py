"""After an error a stream goes on with the next element, as Grain's does."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import loaderx.compat.grain as grain
from inside import many_of


class Broken:
    """Records 1 and 5 cannot be read."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index in (1, 5):
            raise KeyError(index)
        return index


def fail_for_some(element):
    if element in (1, 5):
        raise KeyError(element)
    return element


class FailForSome(grain.MapTransform):
    def map(self, element):
        return fail_for_some(element)


def loader(source, operations, **options):
    sampler = grain.IndexSampler(len(source), grain.NoSharding(), num_epochs=1)
    return grain.DataLoader(data_source=source, sampler=sampler, operations=operations, **options)


def elements_around_errors(iterator):
    """What a loop has that catches KeyErrors and goes on; it must end."""
    found = []
    for _ in range(20):
        try:
            found.append(np.asarray(next(iterator)).tolist())
        except KeyError:
            found.append("error")
        except StopIteration:
            return found
    raise AssertionError("the stream stands still")


SINGLES = [0, "error", 2, 3, 4, "error", 6, 7, 8, 9]
BATCHES = ["error", [2, 3, 4], "error", [6, 7, 8], [9]]  # elements before an error are lost
INLINE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
READS = [grain.ReadOptions(), grain.ReadOptions(1), INLINE]


@pytest.mark.parametrize("read", READS)
def test_by_index(read):
    ds = grain.MapDataset.source(Broken())
    assert elements_around_errors(iter(ds.to_iter_dataset(read))) == SINGLES
    assert elements_around_errors(iter(ds.to_iter_dataset(read).batch(3))) == BATCHES
    batches = iter(ds.batch(3).to_iter_dataset(read))
    assert elements_around_errors(batches) == ["error", "error", [6, 7, 8], [9]]
    mapped = grain.MapDataset.range(10).map(fail_for_some).to_iter_dataset(read)
    assert elements_around_errors(iter(mapped)) == SINGLES


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("source", [Broken(), list(range(10))])
def test_loader(source, read):
    operations = [FailForSome()] if isinstance(source, list) else []
    assert elements_around_errors(iter(loader(source, operations, read_options=read))) == SINGLES
    operations.append(grain.Batch(3))
    iterator = iter(loader(source, operations, read_options=read))
    assert elements_around_errors(iterator) == BATCHES


@pytest.mark.parametrize("workers", [1, 2])
def test_workers(workers):
    ds = grain.MapDataset.range(10).map(fail_for_some).to_iter_dataset()
    ds = ds.mp_prefetch(grain.MultiprocessingOptions(workers))
    iterator = iter(ds)
    assert elements_around_errors(iterator) == SINGLES
    iterator.close()


def test_thread():
    ds = grain.MapDataset.range(10).to_iter_dataset().map(fail_for_some)
    ds = grain.experimental.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2)
    assert elements_around_errors(iter(ds)) == SINGLES


def test_window():
    ds = grain.MapDataset.source(Broken()).to_iter_dataset()
    ds = grain.experimental.WindowShuffleIterDataset(ds, window_size=4, seed=1)
    # As Grain's: what was read of a window before an error comes after it.
    assert elements_around_errors(iter(ds)) == ["error", 0, "error", 4, 3, 2, 7, 6, 9, 8]


def test_operations_run_in_order_in_the_callers_thread():
    """An operation may keep something from one record to the next."""
    seen = []

    class Slow(grain.MapTransform):
        def map(self, element):
            seen.append((threading.get_ident(), int(element)))
            time.sleep(0.002)  # threads would shorten that
            return element

    class Stack:
        def __call__(self, elements):
            seen.append((threading.get_ident(), -1))
            return np.stack(elements)

    operations = [
        Slow(),
        grain.Batch(4, batch_fn=Stack()),
    ]
    batches = list(loader(range(160), operations))
    assert len(batches) == 40
    order = [n for first in range(0, 160, 4) for n in (*range(first, first + 4), -1)]
    assert seen == [(threading.get_ident(), n) for n in order]


def test_one_worker_runs_operations_in_order():
    class Count(grain.MapTransform):
        def __init__(self):
            self.count = 0

        def map(self, element):
            count = self.count
            time.sleep(0.001)
            self.count = count + 1
            return self.count

    operations = [Count(), grain.Batch(8)]
    batches = list(loader(range(160), operations, worker_count=1))
    assert np.concatenate(batches).tolist() == list(range(1, 161))


class EndsWithNone:
    """A stream in disguise that says by None that it has ended."""

    def __init__(self):
        self.records = iter(range(3))

    def __len__(self):
        return 10**10

    def __getitem__(self, index):
        return next(self.records, None)


def test_none_is_a_record_of_a_loader():
    read = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)

    class Pair(grain.MapTransform):
        def map(self, element):
            return "mapped", element

    def first(operations, count=5):
        iterator = iter(loader(EndsWithNone(), operations, read_options=read))
        found = [next(iterator) for _ in range(count)]
        iterator.close()
        return found

    assert first([]) == [0, 1, 2, None, None]
    assert first([Pair()]) == [("mapped", n) for n in (0, 1, 2, None, None)]
    assert first([grain.Batch(3)], 3)[1:] == [None, None]


@pytest.mark.parametrize("operations", [[], [grain.Batch(1)], [FailForSome()]])
def test_a_shard_without_records_has_none(operations):
    shard = grain.ShardOptions(3, 4)
    sampler = grain.IndexSampler(2, shard, shuffle=True, seed=0, num_epochs=3)
    for source in ([7, 8], np.array([7, 8])):
        iterator = iter(
            grain.DataLoader(data_source=source, sampler=sampler, operations=operations)
        )
        with pytest.raises(ZeroDivisionError, match="no records.*fewer shards than"):
            next(iterator)
    ds = grain.MapDataset.source([7, 8])[3::4]
    for empty in (ds, ds.shuffle(seed=0), grain.MapDataset.concatenate([ds])):
        with pytest.raises(ZeroDivisionError, match="no records"):
            many_of(empty, [0])
