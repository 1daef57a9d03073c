"""What the tutorials do not show: workers, records, other operations, samplers of one's own."""

from __future__ import annotations

import itertools
import json
import os
import threading

import numpy as np
import pytest

import loaderx.compat.grain as grain
from loaderx.compat.grain.loader_records import block_size, options_for_blocks
from loaderx.compat.grain.transforms import FlatMap


class PlusOne(grain.MapTransform):
    def map(self, element):
        return element + 1


class Even(grain.FilterTransform):
    def filter(self, element):
        return element % 2 == 0


class Noise(grain.RandomMapTransform):
    def random_map(self, element, rng):
        return element + rng.integers(1000)


class Twice(FlatMap):
    max_fan_out = 2

    def flat_map(self, element):
        yield element
        yield -element


def make_loader(operations, *, count=16, **options):
    sampler = grain.IndexSampler(count, grain.NoSharding(), shuffle=True, num_epochs=1, seed=3)
    return grain.DataLoader(
        data_source=range(count), sampler=sampler, operations=operations, **options
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_the_stream_is_that_of_no_workers(workers):
    operations = [PlusOne(), Noise(), Even(), grain.Batch(2)]
    expected = list(make_loader(operations))
    with_workers = make_loader(operations, worker_count=workers)
    iterator = iter(with_workers)
    np.testing.assert_equal(next(iterator), expected[0])
    state = iterator.get_state()
    np.testing.assert_equal(list(iterator), expected[1:])
    iterator.close()
    # States go from any number of workers to any other.
    restored = iter(make_loader(operations))
    restored.set_state(state)
    np.testing.assert_equal(list(restored), expected[1:])
    assert json.loads(state)["worker_count"] == (1 if workers == 1 else 0)


def with_process(records):
    return {"sum": sum(records), "batched in": os.getpid()}


class WithProcess(grain.MapTransform):
    def map(self, element):
        return {**element, "mapped in": os.getpid()}


def test_several_workers_make_whole_batches():
    """The function of a batch, and what follows it, run in the workers, from any record on."""
    operations = [PlusOne(), grain.Batch(3, batch_fn=with_process), WithProcess()]
    expected = [element["sum"] for element in make_loader(operations)]
    iterator = iter(make_loader(operations, worker_count=2))
    elements = list(iterator)
    iterator.close()
    assert [element["sum"] for element in elements] == expected
    for name in ("batched in", "mapped in"):
        assert os.getpid() not in {element[name] for element in elements}
    singles = iter(make_loader([PlusOne()]))
    next(singles)
    iterator.set_state(singles.get_state())  # after one record: batches begin elsewhere
    rest = list(singles)
    assert next(iterator)["sum"] == sum(rest[:3])
    iterator.close()


def test_what_cannot_be_pickled_keeps_its_type():
    class NotPicklable(PlusOne):
        def __getstate__(self):
            raise ValueError("I stay here")

    with pytest.raises(ValueError, match="I stay here"):
        list(make_loader([NotPicklable()], worker_count=1))


def test_several_elements_for_each():
    loader = make_loader([Even(), Twice(), grain.Batch(4)])
    batches = list(loader)
    assert sorted(np.abs(np.concatenate(batches)).tolist()) == sorted([*range(0, 16, 2)] * 2)
    grain.experimental.assert_equal_output_after_checkpoint(loader)


def test_operations_of_ones_own():
    class Running:
        """Adds up the data of all records so far."""

        def __call__(self, input_iterator):
            total = 0
            for record in input_iterator:
                total += record.data
                yield grain.Record(metadata=record.metadata, data=total)

    loader = make_loader([PlusOne(), Running()])
    order = [element + 1 for element in make_loader([])]
    assert list(loader) == np.cumsum(order).tolist()


def test_a_sampler_of_ones_own():
    class Backwards:
        def __getitem__(self, index):
            if index >= 5:
                raise IndexError
            return grain.RecordMetadata(index=index, record_key=4 - index)

    loader = grain.DataLoader(
        data_source=list("abcde"), sampler=Backwards(), shard_options=grain.NoSharding()
    )
    assert list(loader) == list("edcba")
    with pytest.raises(ValueError, match="pass `shard_options=NoSharding..`"):
        grain.DataLoader(data_source=list("abcde"), sampler=Backwards())


def test_attributes_that_programs_read():
    loader = make_loader([PlusOne()], worker_count=0, worker_buffer_size=3)
    assert loader.multiprocessing_options.per_worker_buffer_size == 3
    names = ("data_source", "sampler", "operations", "read_options", "shard_options")
    assert all(f"_{name}" in vars(loader) for name in names)


def test_errors_keep_their_type():
    class Fails(PlusOne):
        def map(self, element):
            raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        list(make_loader([Fails(), grain.Batch(2)]))


def test_records_are_the_users_own():
    """Records may be changed in place."""

    class Mark(PlusOne):
        def map(self, element):
            element["seen"] = True
            return element

    records = [{"x": k} for k in range(4)]
    sampler = grain.SequentialSampler(4)
    assert list(grain.DataLoader(data_source=records, sampler=sampler, operations=[Mark()]))
    assert all(record["seen"] for record in records)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="`worker_count` must be 0 or more, got -1"):
        make_loader([], worker_count=-1)
    with pytest.raises(ValueError, match="`worker_buffer_size` must be 0 or more, got -1"):
        make_loader([], worker_buffer_size=-1)
    with pytest.raises(TypeError, match="3 is not an operation of a DataLoader"):
        iter(make_loader([3]))


@pytest.mark.parametrize(("drop_remainder", "sizes"), [(True, [4, 4]), (False, [4, 4, 2])])
def test_a_source_that_ends_by_itself(drop_remainder, sizes):
    """Streams in disguise: the index is ignored, one reader asks in order until StopIteration."""
    names = set()

    class Stream:
        def __init__(self):
            self.records = iter(range(10))

        def __len__(self):
            return 10**10

        def __getitem__(self, index):
            names.add(threading.current_thread().name)
            return next(self.records)

    loader = grain.DataLoader(
        data_source=Stream(),
        sampler=grain.IndexSampler(10**10, grain.NoSharding(), num_epochs=1),
        operations=[grain.Batch(4, drop_remainder=drop_remainder)],
        read_options=grain.ReadOptions(num_threads=1, prefetch_buffer_size=16),
    )
    iterator = iter(loader)
    batches = list(iterator)
    iterator.close()
    assert [len(batch) for batch in batches] == sizes
    assert np.concatenate(batches).tolist() == list(range(sum(sizes)))
    assert names == {"grain-prefetch_0"}


class TenOfTwenty:
    """Says 20 records, and ends after 10 by raising StopIteration."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index >= 10:
            raise StopIteration
        return index

    def __repr__(self):
        return "TenOfTwenty()"


def ten_of_twenty(operations, workers):
    sampler = grain.SequentialSampler(20, grain.NoSharding())
    return grain.DataLoader(
        data_source=TenOfTwenty(), sampler=sampler, operations=operations, worker_count=workers
    )


@pytest.mark.parametrize(
    ("workers", "first", "drop_remainder"),
    [
        *itertools.product([0], [(), (PlusOne(),), (PlusOne(), Even())], [False, True]),
        (1, (PlusOne(),), False),
        (2, (), False),
        (2, (PlusOne(),), False),
        (2, (PlusOne(),), True),
        (2, (PlusOne(), Even()), False),
    ],
    ids=lambda value: (
        "+".join(type(one).__name__ for one in value) if isinstance(value, tuple) else str(value)
    ),
)
def test_the_last_batch_of_a_source_that_ends_by_itself(workers, first, drop_remainder):
    """As Grain has it without workers; with several, too, where batches are made by index."""
    records = [n + len(first[:1]) for n in range(10) if len(first) < 2 or n % 2]
    if drop_remainder:
        del records[len(records) // 4 * 4 :]
    operations = [*first, grain.Batch(4, drop_remainder=drop_remainder)]
    iterator = iter(ten_of_twenty(operations, workers))
    expected = [records[start : start + 4] for start in range(0, len(records), 4)]
    assert [batch.tolist() for batch in iterator] == expected
    state = iterator.get_state()
    assert [*iterator] == []  # the end stays the end
    assert iterator.get_state() == state
    iterator.close()
    restored = iter(ten_of_twenty(operations, 0))
    restored.set_state(state)
    assert [*restored] == []


@pytest.mark.parametrize("batch_size", [1, 32, 128, 512, 5000])
def test_large_batches_leave_all_threads_something_to_read(batch_size):
    options = grain.ReadOptions()
    size = block_size(options, batch_size)
    assert size <= batch_size
    assert options_for_blocks(options, size).num_threads == options.num_threads
    assert block_size(grain.ReadOptions(0, 0), batch_size) == batch_size
