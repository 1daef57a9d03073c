"""Records without a batch: made one by one, the same as those that are read alone."""

from __future__ import annotations

import sys
import weakref
from typing import NamedTuple

import numpy as np
import pytest

from inside import node_of
from loaderx import DataLoader, Dataset, RecordError
from loaderx.plans.index_plan import IndexPlan
from loaderx.reading.single_records import detached, in_groups, owned
from loaderx.sources import Source


def records(count):
    return [{"x": i, "y": np.full(3, i)} for i in range(count)]


class Object:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"x": index, "y": np.full(3, index)}


class Bulk(Object):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Gathered(Source):
    thread_safe = True

    def __len__(self):
        return 40

    def gather(self, indices):
        return {"x": indices.copy(), "y": np.stack([indices] * 3, 1)}


def double(record):
    return {**record, "x": record["x"] * 2}


def jitter(record, rng):
    return {**record, "x": record["x"] + rng.integers(1000)}


def number(index, record):
    return {**record, "n": index}


SOURCES = {
    "list": lambda: Dataset.from_source(records(40)),
    "object": lambda: Dataset.from_source(Object()),
    "bulk": lambda: Dataset.from_source(Bulk()),
    "gather": lambda: Dataset.from_source(Gathered()),
    "arrays": lambda: Dataset.from_arrays(x=np.arange(40), y=np.ones((40, 3))),
}
CHAINS = {
    "plain": lambda d: d,
    "shuffle": lambda d: d.shuffle(1),
    "map": lambda d: d.map(double),
    "random_map": lambda d: d.shuffle(2).random_map(jitter, seed=3),
    "map_with_index": lambda d: d.skip(3).map_with_index(number),
    "random_keys": lambda d: d.random_keys(seed=1),
    "repeat": lambda d: d.shuffle(1).map(double).repeat(3).take(100),
    "mix": lambda d: Dataset.mix([d.map(double), d.take(7), d.skip(5)], [3, 1, 2]),
    "concatenate": lambda d: Dataset.concatenate([d.take(3), d.map(double)]).shuffle(5),
    "zip": lambda d: Dataset.zip({"a": d, "b": d.shuffle(1).map(double)}),
    "seeded": lambda d: d.random_map(double, seed_globals=True),
    "batched": lambda d: d.map(lambda b: {"x": b["x"] * 2}, batched=True),
    "on_error": lambda d: d.map(double).on_error("replace"),
    "unbatch": lambda d: d.batch(4).unbatch().map(double),
}


def plain(tree):
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    return (type(tree), getattr(tree, "dtype", None), np.asarray(tree).tolist())


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_stream_of_records_is_that_of_single_reads(source, chain):
    dataset = CHAINS[chain](SOURCES[source]())
    expected = [plain(dataset[i]) for i in range(len(dataset))]
    assert [plain(record) for record in dataset] == expected
    with DataLoader(dataset, engine="inline") as loader:
        iterator = iter(loader)
        assert [plain(record) for record in iterator] == expected
        iterator.seek(5)
        assert plain(next(iterator)) == expected[5]
        state = iterator.get_state()
        next(iterator)
        iterator.set_state(state)
        assert [plain(record) for record in iterator] == expected[6:]


@pytest.mark.parametrize("chain", ["plain", "map", "random_map", "mix", "zip", "random_keys"])
def test_these_chains_are_read_one_by_one(chain):
    for source in SOURCES.values():
        assert IndexPlan(node_of(CHAINS[chain](source()))).reads_each


def test_a_record_is_made_when_it_is_asked_for():
    seen = []

    def note(record):
        seen.append(record["x"])
        return record

    iterator = iter(DataLoader(Dataset.from_source(records(500)).map(note), engine="inline"))
    for step in range(300):
        next(iterator)
        assert len(seen) == step + 1


def test_records_are_the_users_own():
    arrays = Dataset.from_arrays(x=np.zeros((300, 4)))
    for dataset in (arrays, arrays.map(lambda r: r), Dataset.from_source(Gathered())):
        found = list(DataLoader(dataset, engine="inline"))
        for record in found:
            for leaf in record.values():
                if isinstance(leaf, np.ndarray):
                    assert leaf.flags.writeable
                    assert leaf.base is None or leaf.base.nbytes == leaf.nbytes
    constant = {"a": np.zeros(2)}
    same = list(DataLoader(Dataset.range(300).map(lambda i: constant), engine="inline"))
    same[0]["b"] = 1
    assert "b" not in constant
    assert "b" not in same[200]


def test_a_dropped_record_is_gone():
    class Held(np.ndarray):
        pass

    dataset = Dataset.range(100).map(lambda i: np.zeros(3).view(Held))
    iterator = iter(DataLoader(dataset, engine="inline"))
    for _ in range(50):
        next(iterator)
    gone = weakref.ref(next(iterator))
    next(iterator)
    next(iterator)
    assert gone() is None


@pytest.mark.parametrize("bad", [0, 1, 70, 150])
def test_an_error_has_its_record_and_its_step(bad):
    def fail(record):
        if record["x"] == bad:
            raise ValueError("bad")
        return record

    dataset = Dataset.from_source(records(200)).map(fail).map(double)
    iterator = iter(DataLoader(dataset, engine="inline"))
    for step in range(bad):
        assert next(iterator)["x"] == 2 * step
    for _ in range(2):
        with pytest.raises(RecordError) as caught:
            next(iterator)
        found = caught.value
        assert (found.index, found.step, found.stage) == (bad, bad, "map(fail)")
        assert str(found) == f"step {bad}: map(fail) failed on record {bad}: ValueError: bad"
        assert isinstance(found.__cause__, ValueError)
        assert found.__cause__.__context__ is None
    if bad < 199:
        iterator.seek(bad + 1)
        assert next(iterator)["x"] == 2 * (bad + 1)


@pytest.mark.parametrize("at", [0, 150])
def test_functions_that_return_nothing_stop_or_exit(at):
    def function(kind):
        def f(record, *_):
            if record["x"] < at:
                return record
            if kind == "stop":
                raise StopIteration
            if kind == "exit":
                sys.exit(3)
            return None

        return f

    said = {
        "stop": "StopIteration: raised by the function",
        "exit": "SystemExit: 3",
        "none": "it returned None; did it forget its `return`?",
    }
    for kind, text in said.items():
        for dataset in (
            Dataset.from_source(records(200)).map(function(kind)),
            Dataset.from_source(records(200)).random_map(function(kind)),
        ):
            iterator = iter(DataLoader(dataset, engine="inline"))
            for _ in range(at):
                next(iterator)
            with pytest.raises(RecordError) as caught:
                next(iterator)
            assert str(caught.value).endswith(f"failed on record {at}: {text}")


class Flaky:
    """Fails the first time that each record is read, and for good at one."""

    def __init__(self, bad):
        self.bad, self.seen, self.reads = bad, set(), 0

    def __len__(self):
        return 100

    def __getitem__(self, index):
        self.reads += 1
        if index == self.bad or index not in self.seen:
            self.seen.add(index)
            raise OSError(f"cannot read {index}")
        return index


def test_a_source_that_fails_is_asked_twice():
    source = Flaky(70)
    iterator = iter(DataLoader(Dataset.from_source(source), engine="inline"))
    assert [int(next(iterator)) for _ in range(70)] == list(range(70))
    assert source.reads == 140
    with pytest.raises(RecordError, match="reading the source failed on record 70: OSError: cann"):
        next(iterator)
    assert source.reads == 142


class FlakyBulk(Flaky):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.mark.filterwarnings("ignore:.*__getitems__")
def test_a_bulk_read_that_fails_names_its_record():
    iterator = iter(DataLoader(Dataset.from_source(FlakyBulk(70)), engine="inline"))
    assert [int(next(iterator)) for _ in range(70)] == list(range(70))
    with pytest.raises(RecordError, match="reading the source failed on record 70: OSError: cann"):
        next(iterator)


def test_an_error_in_a_component_names_it():
    def fail(record):
        if record["x"] == 9:
            raise ValueError("bad")
        return record

    one, two = Dataset.from_source(records(20)), Dataset.from_source(records(20)).map(fail)
    with pytest.raises(RecordError) as caught:
        list(DataLoader(Dataset.mix([one, two]), engine="inline"))
    assert (caught.value.step, caught.value.record) == (19, "record 9 of dataset 1")
    with pytest.raises(RecordError) as alone:
        Dataset.mix([one, two])[19]
    assert alone.value.detail == caught.value.detail


def test_chunks_grow_while_reading_is_cheap():
    sizes = []

    def read(index):
        sizes.append(len(index))
        return index.tolist()

    found = list(in_groups(read, np.arange(100), Lock(), None))
    assert found == list(range(100))
    assert sizes[0] == 1
    assert sum(sizes) == 100


class Lock:
    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


def test_copies():
    whole = np.zeros((4, 3))
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    tree = {"part": whole[0], "own": whole, "frozen": frozen, "n": 3, "inside": {"part": whole[1]}}
    made = detached(tree)
    assert made["part"].base is None
    assert made["own"] is whole
    assert made["frozen"] is frozen
    assert made["inside"]["part"].base is None
    made = owned(tree)
    assert made["frozen"].flags.writeable
    assert made["part"] is tree["part"]
    assert owned(3) == 3
    assert owned((frozen,))[0].flags.writeable


class Pair(NamedTuple):
    a: object
    b: object


def test_copies_in_all_kinds_of_containers():
    part = np.zeros((4, 3))[0]
    numbers = [1, 2.5, "three"]
    tree = [({"x": part}, None), Pair(part, [part, 1]), numbers, (1, "two"), part]
    made = detached(tree)
    assert [type(one) for one in made] == [tuple, Pair, list, tuple, np.ndarray]
    for copied in (made[0][0]["x"], made[1].a, made[1].b[0], made[4]):
        assert copied.base is None
        assert copied.tolist() == [0, 0, 0]
    assert made[0][1] is None
    assert made[1].b[1] == 1
    assert made[2:4] == [numbers, (1, "two")]
