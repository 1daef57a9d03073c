"""What only users' code shows: small things without which programs give other data, or none."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from typing import NamedTuple

import numpy as np
import pytest

import loaderx.compat.grain as grain
from loaderx.compat.grain.stacking import make_batch

M = grain.MapDataset


def only(ds):
    (batch,) = ds
    return batch


def test_lists_are_structure():
    batch = only(M.source([[1, 2, 3], [4, 5, 6]]).batch(2))
    assert isinstance(batch, list)
    assert [leaf.tolist() for leaf in batch] == [[1, 4], [2, 5], [3, 6]]


class Pair(NamedTuple):
    a: int
    b: np.ndarray


def test_stacking_is_that_of_numpy():
    record = {
        "int": 1, "float": 0.5, "bool": True, "text": "ab", "bytes": b"xyz", "big": 2**63,
        "int8": np.int8(3), "pair": Pair(2, np.ones(2, np.float32)), "none": None, "empty": (),
    }  # fmt: skip
    batch = make_batch([record, {**record, "text": "abcd"}])
    kinds = {key: batch[key].dtype.str for key in record if hasattr(batch[key], "dtype")}
    assert kinds == {
        "int": "<i8", "float": "<f8", "bool": "|b1", "text": "<U4", "bytes": "|S3", "big": "<u8",
        "int8": "|i1",
    }  # fmt: skip
    assert isinstance(batch["pair"], Pair)
    assert batch["pair"].b.dtype == np.float32
    assert batch["none"] is None
    assert batch["empty"] == ()


def test_text_is_as_wide_as_the_longest_of_its_batch():
    words = ["a", "bcd", "ef", "ghijk"]
    for source in (words, np.array(words)):
        assert [b.dtype.str for b in M.source(source).batch(2)] == ["<U3", "<U5"]


def test_elements_of_other_structures_are_an_error():
    for others in ({"b": 1}, {"a": 1, "b": 1}, [1], {"a": np.zeros(2)}):
        with pytest.raises(ValueError, match="the elements of a batch have different structures"):
            make_batch([{"a": 1}, others])


@dataclasses.dataclass(frozen=True)
class Plain:
    x: np.ndarray


def test_dataclasses_are_leaves_unless_registered():
    jax = pytest.importorskip("jax")
    batch = only(M.source([Plain(np.ones(2))] * 2).batch(2))
    assert batch.dtype == object

    @jax.tree_util.register_pytree_node_class
    class Registered:
        def __init__(self, x):
            self.x = x

        def tree_flatten(self):
            return (self.x,), "name"

        @classmethod
        def tree_unflatten(cls, name, children):
            return cls(*children)

    batch = only(M.source([{"r": Registered([1, 2.0])}, {"r": Registered([3, 4.0])}]).batch(2))
    assert [leaf.tolist() for leaf in batch["r"].x] == [[1, 3], [2.0, 4.0]]


class ByThread:
    """An iterator in disguise, as MaxText's: its length and the index mean nothing."""

    def __init__(self, records):
        self.records = iter(range(records))
        self.names = set()

    def __len__(self):
        return 10**10

    def __getitem__(self, index):
        name = threading.current_thread().name
        self.names.add(int(name.split("_")[1]))
        return next(self.records)


def test_one_reader_reads_in_order_until_the_source_ends():
    source = ByThread(20)
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    batches = [*M.source(source).to_iter_dataset(options).batch(4)]
    assert np.concatenate(batches).tolist() == [*range(20)]
    assert source.names == {0}


def test_threads_have_grains_names_for_sources_that_ask():
    source = ByThread(20)
    found = [*M.source(source).to_iter_dataset(grain.ReadOptions(num_threads=3))]
    assert set(found) <= {*range(20)}
    assert source.names <= {0, 1, 2}


class Ending:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 7:
            raise StopIteration
        return index


@pytest.mark.parametrize("threads", [0, 1, 16])
def test_stop_iteration_of_a_source_ends_the_loader(threads):
    options = grain.ReadOptions(num_threads=threads)
    assert [*M.source(Ending()).to_iter_dataset(options)] == [*range(7)]
    with pytest.raises(StopIteration):
        M.source(Ending()).batch(10)[0]


def test_records_are_the_users_own_objects():
    records = [{"x": np.zeros(2), "n": [i]} for i in range(3)]

    def change(record):
        record["x"] += 1
        record["n"].append(5)
        return record

    found = [*M.source(records).map(change)]
    assert all(a is b for a, b in zip(found, records, strict=True))
    assert records[1]["n"] == [1, 5]
    assert records[1]["x"].tolist() == [1, 1]


class OwnError(Exception):
    def __init__(self, one, two):
        super().__init__(one)


@pytest.mark.parametrize("threads", [0, 1, 16])
def test_exceptions_keep_their_type(threads):
    def fail(x):
        if x == 3:
            raise OwnError("three", 3)
        return x

    options = grain.ReadOptions(num_threads=threads)
    it = iter(M.range(6).map(fail).to_iter_dataset(options))
    assert [next(it), next(it), next(it)] == [0, 1, 2]
    with pytest.raises(OwnError, match="three"):
        next(it)
    assert it.get_state() == {"next_index": 4}
    assert [*it] == [4, 5]
    it.close()


def test_no_thread_where_none_is_asked_for():
    names = []
    options = grain.ReadOptions(num_threads=0)
    ds = M.range(6).map(lambda x: names.append(threading.current_thread().name))
    [*ds.to_iter_dataset(options, allow_nones=True)]
    assert set(names) == {threading.current_thread().name}


def test_start_prefetch_begins_before_the_first_next():
    read = threading.Semaphore(0)

    def note(x):
        read.release()
        return x

    for threads in (1, 16):
        it = iter(M.range(20).map(note).to_iter_dataset(grain.ReadOptions(num_threads=threads)))
        it.start_prefetch()
        assert read.acquire(timeout=60)
        assert [*it] == [*range(20)]
        it.close()


def test_importing_it_is_light():
    script = (
        "import sys, loaderx.compat.grain as grain\n"
        "grain.MapTransform, grain.experimental.FlatMapTransform, grain.python\n"
        "heavy = 'jax orbax pyarrow array_record cloudpickle multiprocessing absl'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
