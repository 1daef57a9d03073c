"""Buffers: aligned, recycled, and never overwritten while somebody looks."""

from __future__ import annotations

import gc
import random
import weakref

import numpy as np
import pytest

from chains import arrays
from loaderx import ArgumentError, DataLoader, Dataset, empty
from loaderx.memory import ALIGNMENT, Layout, Pool


def layout(*shapes, dtype=np.float32):
    return Layout([(shape, np.dtype(dtype)) for shape in shapes])


def address(array):
    return array.__array_interface__["data"][0]


def test_every_leaf_is_aligned():
    pool = Pool()
    for size in (1, 3, 17, 1000, 100_001):
        for array in pool.lend(layout((size,), (3,), (size, 2))):
            assert address(array) % ALIGNMENT == 0
            assert array.flags.writeable
            assert array.flags.c_contiguous


def test_a_dropped_slot_is_used_again_and_a_held_one_is_not():
    pool, shape = Pool(), layout((1000,))
    (first,) = pool.lend(shape)
    where = address(first)
    (second,) = pool.lend(shape)
    assert address(second) != where
    del first
    (third,) = pool.lend(shape)
    assert address(third) == where


@pytest.mark.parametrize(
    "hold",
    [
        lambda a: a[3:5],
        lambda a: a.reshape(2, -1)[1],
        lambda a: memoryview(a),
        lambda a: a.view(np.uint8)[::7],
        lambda a: np.asarray(memoryview(a)),
        lambda a: a.T,
    ],
)
def test_any_view_keeps_the_slot(hold):
    pool, shape = Pool(), layout((1000,))
    (array,) = pool.lend(shape)
    where = address(array)
    kept = hold(array)
    del array
    seen = [pool.lend(shape)[0] for _ in range(6)]
    assert where not in {address(a) for a in seen}
    del kept, seen
    gc.collect()


def test_the_pool_forgets_what_the_user_keeps():
    pool, shape = Pool(capacity=3), layout((1000,))
    held = [pool.lend(shape) for _ in range(50)]
    assert len({address(a) for (a,) in held}) == 50
    slots = [weakref.ref(array.base) for (array,) in held]
    del held
    assert sum(slot() is not None for slot in slots) == 3


def test_a_slot_serves_smaller_layouts():
    pool = Pool()
    (big,) = pool.lend(layout((1000,)))
    where = address(big)
    del big
    small, other = pool.lend(layout((10,), (5,)))
    assert address(small) == where
    assert address(other) == where + ALIGNMENT


def test_objects_live_outside():
    mixed = Layout([((4,), np.dtype(object)), ((4,), np.dtype(np.int32))])
    texts, numbers = Pool().lend(mixed)
    texts[:] = ["a", "b", "c", "d"]
    assert numbers.dtype == np.int32
    assert address(numbers) % ALIGNMENT == 0


@pytest.mark.parametrize("engine", ["inline", "threads", "auto"])
def test_a_stream_with_random_holding_stays_correct(engine):
    dataset = arrays(3000).shuffle(1).batch(4)
    expected = [batch["x"].copy() for batch in dataset]
    held, rng = {}, random.Random(0)
    for step, batch in enumerate(DataLoader(dataset, engine=engine, num_workers=2)):
        if rng.random() < 0.5:
            held[step] = batch["x"] if rng.random() < 0.5 else batch["x"][1:3]
        if len(held) > 12:
            held.pop(rng.choice(list(held)))
        for at, part in held.items():
            whole = expected[at]
            assert np.array_equal(part, whole if len(part) == 4 else whole[1:3])


def test_batches_are_the_users_own():
    x = np.arange(20.0)
    for batch in DataLoader(Dataset.from_arrays(x=x).batch(4)):
        batch["x"][:] = -1
    assert x.tolist() == list(range(20))
    for record in Dataset.from_arrays(x=x.reshape(10, 2)):
        record["x"][:] = -1
    record = Dataset.from_arrays(x=x.reshape(10, 2))[3]
    record["x"][:] = -1
    assert x.tolist() == list(range(20))


def test_a_map_in_place_cannot_change_the_source():
    def shift(record):
        record["x"] += 1
        return record

    x = np.zeros((6, 2))
    with pytest.raises(Exception, match="copy before changing in place"):
        list(Dataset.from_arrays(x=x).map(shift).batch(2))
    assert not x.any()


def test_a_map_that_writes_into_its_record_does_not_change_a_list():
    def add(record):
        record["y"] = record["x"] + 1
        return record

    rows = [{"x": i} for i in range(4)]
    dataset = Dataset.from_source(rows).map(add).batch(2)
    assert [b["y"].tolist() for b in dataset] == [[1, 2], [3, 4]]
    assert rows == [{"x": i} for i in range(4)]


def test_a_batch_function_may_work_in_place():
    def halve(batch):
        batch["x"] /= 2
        return batch

    x = np.arange(8.0)
    dataset = Dataset.from_arrays(x=x).batch(4).map(halve).repeat(2)
    assert [b["x"].tolist() for b in dataset][2] == [0, 0.5, 1, 1.5]
    assert x[7] == 7


@pytest.mark.foreign
def test_jax_arrays_are_never_changed():
    """The hazard: on CPU, device_put of an aligned batch is a view of it."""
    jax = pytest.importorskip("jax")
    dataset = Dataset.from_arrays(x=np.arange(64 * 400, dtype=np.float32)).batch(64)
    step = jax.jit(lambda a: (a * 2).sum())
    held, sums = [], []
    for batch in DataLoader(dataset, engine="inline"):
        on_device = jax.device_put(batch["x"])
        assert on_device.unsafe_buffer_pointer() == address(batch["x"])  # no copy was made
        held.append(on_device)
        sums.append(step(on_device))
        if len(held) > 20:
            held.pop(0)
        del batch
    for number, array in enumerate(held, start=400 - len(held)):
        assert np.array_equal(np.asarray(array), np.arange(number * 64, number * 64 + 64))
    expected = [2.0 * np.arange(i * 64, i * 64 + 64).sum() for i in range(400)]
    assert np.allclose(np.array(sums), expected)


def test_memory_does_not_grow_with_the_stream():
    import tracemalloc

    dataset = Dataset.from_arrays(x=np.zeros((1000, 1000), np.uint8)).shuffle(0).batch(100)
    loader = DataLoader(dataset.repeat(40), engine="inline")
    tracemalloc.start()
    for _ in loader:
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * 100_000 + 400_000


def doubled(batch):
    out = empty(batch["x"].shape, np.float32)
    return {"x": np.multiply(batch["x"], 2, out=out)}


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_memory_for_results_is_never_shared(engine):
    dataset = Dataset.from_arrays(x=np.arange(400, dtype=np.float32)).batch(4).map(doubled)
    workers = None if engine == "inline" else 2
    with DataLoader(dataset, engine=engine, num_workers=workers) as loader:
        kept = list(loader)
    for number, batch in enumerate(kept):
        assert batch["x"].tolist() == [8.0 * number + 2 * i for i in range(4)]


def test_memory_for_results_is_used_again():
    dataset = Dataset.from_arrays(x=np.zeros((400, 100), np.float32)).batch(4).map(doubled)
    addresses = [address(batch["x"]) for batch in DataLoader(dataset, engine="inline")]
    assert len(addresses) == 100
    assert len(set(addresses)) <= 3
    assert all(one % ALIGNMENT == 0 for one in addresses)


def test_shapes_of_memory_for_results():
    assert empty(3).shape == (3,)
    assert empty(3).dtype == np.float64
    assert empty((), np.int8).shape == ()
    assert empty([2, 0], "U3").shape == (2, 0)
    assert empty((2, np.int64(3)), object).tolist() == [[None] * 3] * 2
    with pytest.raises(ArgumentError, match=r"negative lengths, got \(2, -1\)"):
        empty((2, -1))
    with pytest.raises(TypeError):
        empty((2.5,))
