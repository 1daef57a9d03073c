"""cache: records are made once, and the stream is the same as without it."""

from __future__ import annotations

import math
import os
import pickle
import re
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from inside import plan_of
from loaderx import ChainError, DataLoader, Dataset, LoaderxError, LoaderxWarning, StackError
from loaderx.memory import Pool
from loaderx.reading import row_memory
from loaderx.testing.comparing import check_all_equal
from loaderx.testing.costing import cost_of
from workers import own_pss, pids

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else workers would import pytest

COUNT = 60


class Made:
    """A function that counts its calls in this process."""

    def __init__(self, f):
        self.f, self.calls = f, 0

    def __call__(self, index):
        self.calls += 1
        return self.f(int(index))


def fixed(number):
    return {"x": np.full(3, number), "y": np.float32(number), "t": (np.arange(2),)}


def various(number):
    return {"x": np.arange(number % 4), "text": "t" * number, "number": number}


def sometimes_long(number):
    """Records of one shape, but for a few."""
    return {"x": np.arange(9 if number % 7 == 3 else 4)}


def above(ds):
    """Stages that draw, over what is kept."""
    return ds.shuffle(seed=2).random_map(lambda r, rng: {**r, "r": np.float64(rng.random())})


FUNCTIONS = pytest.mark.parametrize("f", [fixed, various, sometimes_long])


@FUNCTIONS
def test_made_once_and_the_same(f):
    function = Made(f)
    kept = above(Dataset.range(COUNT).map(function).cache())
    plain = above(Dataset.range(COUNT).map(lambda i: f(int(i))))
    for _ in range(3):
        check_all_equal(list(kept), list(plain), "record")
    assert function.calls <= COUNT + 1  # one that was looked at is made again


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
@FUNCTIONS
def test_every_engine_and_epoch(engine, f):
    def chain(ds):
        return above(ds).batch(7, collate_fn=list).repeat(3)

    expected = list(chain(Dataset.range(COUNT).map(lambda i: f(int(i)))))
    kept = chain(Dataset.range(COUNT).map(lambda i: f(int(i))).cache())
    with DataLoader(kept, engine=engine, num_workers=2) as loader:
        check_all_equal(list(loader), expected, "batch")


def test_processes_find_what_others_have_made(tmp_path):
    def make(index):
        with open(tmp_path / "made", "ab", buffering=0) as file:
            file.write(b".")
        return {"x": np.full(3, index)}

    ds = Dataset.range(200).map(make).cache().shuffle(seed=0).batch(20)
    with DataLoader(ds, engine="processes", num_workers=2) as loader:
        first = list(loader.epoch(0))
        made = (tmp_path / "made").stat().st_size
        for epoch in (1, 2):
            list(loader.epoch(epoch))
        assert (tmp_path / "made").stat().st_size == made
    assert 200 <= made <= 200 + 16
    check_all_equal(list(ds), first, "batch")
    assert (tmp_path / "made").stat().st_size == made


def test_seek_and_restore_in_the_middle():
    function = Made(fixed)
    kept = above(Dataset.range(COUNT).map(function).cache()).batch(7).repeat(2)
    plain = above(Dataset.range(COUNT).map(Made(fixed))).batch(7).repeat(2)
    expected = list(plain)
    iterator = iter(DataLoader(kept, engine="inline"))
    iterator.seek(5)
    check_all_equal([next(iterator) for _ in range(3)], expected[5:8], "batch")
    state = iterator.get_state()
    for other in (kept, plain):  # with and without
        again = iter(DataLoader(other, engine="inline"))
        again.set_state(state)
        check_all_equal(list(again), expected[8:], "batch")
    assert iter(DataLoader(plain)).get_state() == iter(DataLoader(kept)).get_state()


def test_a_record_that_fails_is_replaced_as_ever():
    def fragile(index):
        if index % 10 == 4:
            raise ValueError("bad")
        return {"x": np.full(2, index)}

    kept = Dataset.range(COUNT).map(fragile).cache().on_error("replace").batch(6)
    plain = Dataset.range(COUNT).map(fragile).on_error("replace").batch(6)
    for _ in range(2):
        check_all_equal(list(kept), list(plain), "batch")


def test_joined_datasets_are_replaced_as_ever():
    def fragile(index):
        if index % 10 == 4:
            raise ValueError("bad")
        return {"x": np.full(2, index)}

    def chain(*kept):
        parts = [Dataset.range(30).map(fragile), Dataset.range(30, 60).map(fragile)]
        ds = Dataset.concatenate(parts)
        return (ds.cache() if kept else ds).on_error("replace").batch(6)

    for _ in range(2):
        check_all_equal(list(chain(True)), list(chain()), "batch")


def test_a_stream_above_it():
    function = Made(fixed)
    kept = Dataset.range(COUNT).map(function).cache().filter(lambda r: r["y"] % 3 > 0)
    plain = Dataset.range(COUNT).map(lambda i: fixed(int(i))).filter(lambda r: r["y"] % 3 > 0)
    for _ in range(2):
        check_all_equal(list(kept), list(plain), "record")
    assert function.calls == COUNT


def test_what_is_handed_out_may_be_changed():
    ds = Dataset.range(20).map(lambda i: fixed(int(i))).cache().batch(20)
    for _ in range(3):
        (batch,) = list(ds)
        assert batch["x"][3].tolist() == [3, 3, 3]
        batch["x"][:] = -1


def test_refusals():
    records = Dataset.range(10)
    for ds, message in [
        (records.batch(2), r"cache after batch: it keeps records\. Put \.cache\(\) before \.batch"),
        (records.filter(bool), r"cache of a stream: .* before the stage that makes the stream"),
        (records.repeat(), r"cache after repeat\(\): records come again there, .* Put \.cache\(\)"),
        (records.repeat(2), r"cache after repeat\(2\): records come again"),
        (records.window(3), r"cache after window\(3\): records come again there"),
        (
            records.random_map(lambda r, rng: r),
            r"cache above random_map\(<lambda>\): caching would freeze the augmentation",
        ),
        (records.shuffle(seed=1), r"caching would freeze .* the order, of the first epoch"),
    ]:
        with pytest.raises(ChainError, match=message):
            ds.cache()


def test_more_than_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(row_memory, "free_memory", lambda: 1 << 20)
    ds = Dataset.range(1000).map(lambda i: {"x": np.zeros(1000)}).cache().batch(50)
    with pytest.raises(
        LoaderxError,
        match=r"cache\(\) needs 0\.0 GB for 1,000 records of 8,000 bytes, and 0\.0 GB of memory "
        r"may be used\. Give a folder instead, \.cache\(path\)",
    ):
        list(ds)


def test_a_full_heap_is_said_and_the_rest_is_made_again(monkeypatch):
    monkeypatch.setattr(row_memory, "free_memory", lambda: 10 * 4096)
    function = Made(lambda n: "text" * 1000)
    ds = Dataset.range(20).map(function).cache().batch(5)
    with pytest.warns(LoaderxWarning, match=r"cache\(\) has used the .* are made again in every"):
        first = list(ds)
    calls = function.calls
    check_all_equal(list(ds), first, "batch")
    assert 0 < function.calls - calls < 20


@FUNCTIONS
def test_workers_find_what_this_process_has_made(f, tmp_path):
    def make(index):
        with open(tmp_path / "made", "ab", buffering=0) as file:
            file.write(b".")
        return f(int(index))

    ds = Dataset.range(COUNT).map(make).cache().batch(6, collate_fn=list)
    expected = list(ds)
    assert (tmp_path / "made").stat().st_size == COUNT
    with DataLoader(ds, engine="processes", num_workers=1) as loader:
        check_all_equal(list(loader), expected, "batch")
    assert (tmp_path / "made").stat().st_size == COUNT


def test_workers_get_no_copy_that_does_not_fit(monkeypatch):
    ds = Dataset.range(COUNT).map(lambda i: fixed(int(i))).cache().batch(6)
    expected = list(ds)
    monkeypatch.setattr(row_memory, "free_memory", lambda: 1000)
    with (
        DataLoader(ds, engine="processes", num_workers=1) as loader,
        pytest.warns(LoaderxWarning, match="there is no memory to share it with worker processes"),
    ):
        check_all_equal(list(loader), expected, "batch")


def test_records_that_cannot_be_pickled_are_made_again():
    function = Made(lambda n: {"x": np.arange(3), "f": lambda: n})
    ds = Dataset.range(20).map(function).cache().map(lambda r: r["f"]()).batch(5)
    with pytest.warns(LoaderxWarning, match=r"cache\(\) cannot keep some of the records"):
        first = list(ds)
    check_all_equal(list(ds), first, "batch")
    assert function.calls == 2 * 20 + 16


def test_a_dataset_with_a_cache_can_be_pickled():
    ds = Dataset.range(20).cache().batch(10)
    expected = list(ds)
    check_all_equal(list(pickle.loads(pickle.dumps(ds))), expected, "batch")
    assert "cache()" in repr(ds)


def kept_bytes(process):
    """The memory of the cache in a process, each page divided by the number who share it."""
    maps = re.split(
        r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{process}/smaps").read_text(), flags=re.M
    )
    kept = [one for one in maps if "memfd:loaderx-cache" in one.partition("\n")[0]]
    return 1024 * sum(int(kb) for one in kept for kb in re.findall(r"^Pss:\s+(\d+)", one, re.M))


@pytest.mark.large
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PSS is in /proc")
def test_four_workers_hold_one_copy():
    count, width = 2000, 50_000  # 100 MB

    def make(index):
        return {"x": np.full(width, int(index) % 251, np.uint8)}

    ds = Dataset.range(count).map(make).cache().batch(50)
    with DataLoader(ds, engine="processes", num_workers=4) as loader:
        for epoch in range(3):
            for _ in loader.epoch(epoch):
                pass
        workers = pids()
        assert len(workers) == 4
        total = sum(map(kept_bytes, [os.getpid(), *workers]))
        own = [own_pss(worker) * 1024 for worker in workers]
    assert 0.9 < total / (count * width) < 1.1
    assert max(own) < count * width / 2


# Python numbers -----------------------------------------------------------------------------------

NUMBERS = {
    "ints": lambda i: {"x": np.full(3, i), "y": i - 5},
    "floats": lambda i: (np.full(3, i), [math.inf, math.nan, -math.inf][i] if i < 3 else i / 3),
    "bools": lambda i: {"x": np.full(3, i), "y": i % 2 == 0},
    "numbers alone": lambda i: i,
    "one that is large": lambda i: {"x": np.full(3, i), "y": 2**40 if i == 11 else i},
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_python_numbers_come_back_as_they_were(kind):
    records = [NUMBERS[kind](i) for i in range(20)]
    cached = Dataset.from_source(records).cache()
    for _ in range(3):
        assert repr(list(cached)) == repr(records)  # which shows values and types


@pytest.mark.parametrize("kind", [kind for kind in NUMBERS if "large" not in kind])
def test_batches_with_python_numbers_are_gathered(kind):
    """They were pickled, record by record."""
    records = [NUMBERS[kind](i) for i in range(200)]
    cached = Dataset.from_source(records).cache().shuffle(seed=0).batch(100)
    expected = list(Dataset.from_source(records).shuffle(seed=0).batch(100))
    for _ in range(3):
        check_all_equal(list(cached), expected, "element")
    plan = plan_of(cached)
    check_all_equal([plan.read_fast(0, Pool().lend)], expected[:1], "element")
    assert cost_of(lambda: plan.read_fast(1, Pool().lend)).calls < 100


def test_a_number_that_is_too_large_is_still_refused_by_name():
    cached = Dataset.from_source([{"y": 2**40 if i == 11 else i} for i in range(20)]).cache()
    list(cached)
    with pytest.raises(StackError, match="does not fit into int32"):
        list(cached.batch(20))
