"""Batches on devices: one process, eight devices made of one CPU."""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
import json
import subprocess
import sys
import threading
from collections import deque
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import chains
import loaderx as lx
from loaderx import DataLoader, Dataset
from loaderx.jax import spots
from loaderx.jax.placement import Placement, enable_x64
from loaderx.jax.prefetch import PlacedRun
from loaderx.memory import Pool, aligned
from processes import environment

pytestmark = pytest.mark.foreign  # jax keeps descriptors of its own


def rows(*spec: Any, shape: tuple[int, ...] = (8,), names: tuple[str, ...] = ("data",)) -> Any:
    mesh = Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), names)
    return NamedSharding(mesh, PartitionSpec(*spec))


def shardings() -> dict[str, Any]:
    grid = {"shape": (4, 2), "names": ("data", "model")}
    return {
        "a device": jax.devices()[3],
        "a sharding of one device": SingleDeviceSharding(jax.devices()[1]),
        "rows over eight": rows("data"),
        "rows over four": rows("data", **grid),
        "rows and columns": rows("data", "model", **grid),
        "rows over both axes": rows(("data", "model"), **grid),
        "everywhere": rows(),
    }


def table(count: int = 80) -> Dataset[Any]:
    x = np.arange(count * 4, dtype=np.float32).reshape(count, 4)
    return Dataset.from_arrays(x=x, label=np.arange(2 * count, dtype=np.int32).reshape(count, 2))


def same(placed: Any, plain: Any) -> None:
    assert list(placed) == list(plain)
    for name, leaf in plain.items():
        assert np.asarray(placed[name]).tobytes() == leaf.tobytes(), name


# What arrives ----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["inline", "threads", "auto"])
@pytest.mark.parametrize("name", shardings())
def test_batches_are_those_of_numpy(name, engine):
    dataset = table().shuffle(seed=1).batch(16).repeat(3)
    sharding = shardings()[name]
    with DataLoader(dataset, sharding=sharding, engine=engine) as loader:
        got = list(loader)
    expected = list(DataLoader(dataset))
    assert len(got) == len(expected) == 15
    for placed, plain in zip(got, expected):
        same(placed, plain)
        for leaf in placed.values():
            assert isinstance(leaf, jax.Array)
            wanted = SingleDeviceSharding(sharding) if name == "a device" else sharding
            assert leaf.sharding.is_equivalent_to(wanted, leaf.ndim)


@settings(max_examples=25)
@given(chains.batched_chains())
def test_generated_chains_arrive_as_they_are(dataset):
    narrow = {"x": np.int32, "y": np.float32}
    with DataLoader(dataset, sharding=jax.devices()[0]) as loader:
        for placed, plain in zip(loader, DataLoader(dataset), strict=True):
            same(
                placed, {name: leaf.astype(narrow.get(name, bool)) for name, leaf in plain.items()}
            )


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Example:
    kind: ClassVar[str] = "picture"
    image: Any
    label: Any
    derived: Any = dataclasses.field(default=None, init=False)


def test_trees_of_shardings():
    data, device = rows("data"), jax.devices()[2]
    pairs = Dataset.range(16).batch(8).map(lambda n: Pair({"a": n, "b": (n + 1, n + 2)}, n * 0.5))
    with DataLoader(pairs, sharding=Pair({"a": data, "b": None}, device)) as loader:
        batch = next(iter(loader))
    assert isinstance(batch, Pair)
    assert batch.left["a"].sharding == data
    assert [type(leaf) for leaf in batch.left["b"]] == [np.ndarray, np.ndarray]
    assert batch.left["b"][0].dtype == np.int64  # what stays NumPy stays as it is
    assert batch.right.devices() == {device}
    records = [Example(np.zeros(3, np.float32), 1), Example(np.ones(3, np.float32), 2)]
    with DataLoader(Dataset.from_source(records).batch(2), sharding=device) as loader:
        example = next(iter(loader))
    assert isinstance(example, Example)
    assert example.label.tolist() == [1, 2]
    where = Example(device, None)
    with DataLoader(Dataset.from_source(records).batch(2), sharding=where) as loader:
        example = next(iter(loader))
    assert isinstance(example.image, jax.Array)
    assert isinstance(example.label, np.ndarray)


def test_records_can_be_placed_too():
    with DataLoader(table(3), sharding=jax.devices()[0]) as loader:
        assert [int(record["label"][0]) for record in loader] == [0, 2, 4]


def test_nothing_is_copied_where_the_memory_is_aligned():
    batch = {"x": aligned(np.zeros((1024, 64), np.float32))}
    placed = Placement(jax.devices()[0]).place(batch)
    assert placed["x"].unsafe_buffer_pointer() == batch["x"].ctypes.data
    spread_out = Placement(rows("data")).place(batch)
    first = spread_out["x"].addressable_shards[1].data
    assert first.unsafe_buffer_pointer() == batch["x"].ctypes.data + 128 * 64 * 4


@pytest.mark.parametrize("broken", ["missing", "raising"])
@pytest.mark.parametrize("name", shardings())
def test_without_the_private_function_the_arrays_are_the_same(name, broken, monkeypatch):
    called = []

    def fails(*arguments: Any) -> Any:
        called.append(1)
        raise TypeError("other arguments in this version of jax")

    dataset, sharding = table().shuffle(seed=1).batch(16), shardings()[name]
    expected = list(DataLoader(dataset, sharding=sharding))
    monkeypatch.setattr(spots, "put", None if broken == "missing" else fails)
    got = list(DataLoader(dataset, sharding=sharding))
    for one, other in zip(got, expected, strict=True):
        same(one, {leaf: np.asarray(array) for leaf, array in other.items()})
        for leaf, array in other.items():
            assert (one[leaf].aval, one[leaf].sharding) == (array.aval, array.sharding)
            assert one[leaf].committed == array.committed
    assert len(called) == (2 if broken == "raising" else 0)  # once for each leaf: not tried again


def test_leaves_that_are_no_arrays():
    leaves = {"row": [1, 2, 3, 4], "mean": np.float16(0.5), "number": 3, "there": jnp.ones(4)}
    batches = Dataset.range(8).batch(4).map(lambda batch: leaves)
    for batch in DataLoader(batches, sharding=rows()):
        for name, leaf in leaves.items():
            assert isinstance(batch[name], jax.Array)
            assert batch[name].sharding == rows()
            assert np.array_equal(np.asarray(batch[name]), leaf)
    assert batch["row"].dtype == jnp.int32
    assert batch["mean"].dtype == jnp.float16


# Held arrays never change ------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["inline", "threads"])
@pytest.mark.parametrize("name", ["a device", "rows over eight", "rows and columns", "everywhere"])
def test_held_arrays_never_change(name, engine, monkeypatch):
    """A pool of the smallest size, 500 asynchronous steps, and arrays that are kept for a while."""
    for module in (lx.engines.inline, lx.engines.threads):
        monkeypatch.setattr(module, "Pool", lambda *capacity: Pool(1))
    source = np.repeat(np.arange(64, dtype=np.float32)[:, None], 512, axis=1)
    dataset = Dataset.from_arrays(x=source).shuffle(seed=0).batch(16).repeat()
    expected = iter(DataLoader(dataset, engine="inline"))

    @jax.jit
    def step(total, x):  # devices that had to meet could starve each other: these are threads
        return total + x * jnp.arange(1.0, 17.0)[:, None], x + 1

    total, held, wrong, outputs = jnp.float32(0), [], 0, []
    with DataLoader(dataset, sharding=shardings()[name], engine=engine) as loader:
        for number, batch in zip(range(500), loader):
            plain = next(expected)["x"]
            total, seen = step(total, batch["x"])
            outputs.append((seen, plain + 1))
            held.append((batch["x"], plain.copy()))
            if len(held) > 3 + number % 5:
                array, own = held.pop(number % 3)
                wrong += np.asarray(array).tobytes() != own.tobytes()
    wrong += sum(np.asarray(a).tobytes() != b.tobytes() for a, b in held)
    wrong += sum(np.asarray(a).tobytes() != b.tobytes() for a, b in outputs)
    assert wrong == 0
    assert np.isfinite(np.asarray(total)).all()


# Ahead of use ------------------------------------------------------------------------------------


class Counting:
    """A source that knows how often it was read."""

    thread_safe = True

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        if index == 25:
            raise ValueError("no such record")
        return np.full(2, index, np.float32)


def stream(source: Any, **options: Any) -> Any:
    dataset = Dataset.from_source(source).batch(1)
    return iter(DataLoader(dataset, sharding=jax.devices()[0], engine="inline", **options))


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_batches_are_placed_ahead_and_do_not_count(depth):
    source = Counting()
    iterator = stream(source, device_prefetch=depth)
    for step in range(12):
        assert int(next(iterator)[0, 0]) == step
        assert len(set(source.read)) == step + 1 + min(step, depth)
        assert iterator.step == iterator.get_state()["step"] == step + 1
    iterator.close()


def test_a_failure_waits_for_its_step():
    source = Counting()
    iterator = stream(source, device_prefetch=3)
    iterator.seek(20)
    assert [int(next(iterator)[0, 0]) for _ in range(5)] == [20, 21, 22, 23, 24]
    for _ in range(2):  # and it stays there
        with pytest.raises(lx.RecordError, match="step 25: .* failed on record 25"):
            next(iterator)
        assert iterator.step == 25
    iterator.seek(26)
    assert int(next(iterator)[0, 0]) == 26
    state = iterator.get_state()
    other = stream(Counting())
    other.set_state(state)
    assert [int(batch[0, 0]) for batch in other] == list(range(27, 40))
    with pytest.raises(StopIteration):
        next(other)
    other.close()
    iterator.close()
    iterator.close()
    assert int(next(iterator)[0, 0]) == 27


def test_what_is_ahead_does_not_wait_for_what_is_not_made_yet():
    class Run:
        """Gives numbers; waiting for one would be a failure."""

        is_ready, given = True, 0

        def ready(self) -> bool:
            return self.is_ready

        def next(self) -> Any:
            assert self.is_ready
            self.given += 1
            return np.arange(self.given, self.given + 4, dtype=np.int32)

        def close(self) -> None:
            pass

    run = Run()
    placed = PlacedRun(run, Placement(jax.devices()[0]), 2)
    assert [int(placed.next()[0]) for _ in range(3)] == [1, 2, 3]
    assert run.given == 5  # two ahead
    run.is_ready = False
    assert [int(placed.next()[0]) for _ in range(2)] == [4, 5]
    run.is_ready = True
    assert [int(placed.next()[0]) for _ in range(3)] == [6, 7, 8]
    assert run.given == 10


def test_ctrl_c_while_loading_ahead_loses_nothing():
    source = Counting()
    iterator = stream(source)
    for _ in range(3):
        next(iterator)
    plain, source.__class__ = source.__class__, _Interrupted
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    source.__class__ = plain
    assert int(next(iterator)[0, 0]) == 3


class _Interrupted(Counting):
    def __getitem__(self, index: int) -> Any:
        raise KeyboardInterrupt


@pytest.mark.parametrize("engine", ["inline", "threads"])
@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("kind", ["by index", "a stream"])
def test_threads_share_an_iterator(kind, placed, engine):
    """They begin and end at once, with the interpreter going from one to the other all the time."""
    dataset = table(40)
    if kind == "a stream":
        dataset = dataset.filter(lambda record: True)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(25):
            sharding = jax.devices()[0] if placed else None
            with DataLoader(dataset.batch(4), sharding=sharding, engine=engine) as loader:
                assert shared(iter(loader), 3) == list(range(0, 80, 8))
    finally:
        sys.setswitchinterval(usual)


def shared(iterator: Any, count: int) -> list[int]:
    """What several threads get of one iterator."""
    together, seen = threading.Barrier(count), []

    def take() -> None:
        together.wait()
        for batch in iterator:
            seen.append(int(batch["label"][0, 0]))

    takers = [threading.Thread(target=take) for _ in range(count)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    return sorted(seen)


def test_closing_while_another_thread_waits_ends_its_wait():
    """Whatever is under way: the waiting thread gets an answer, and nothing hangs."""
    entered, go_on = threading.Event(), threading.Event()

    class Blocking(Counting):
        def __getitem__(self, index: int) -> Any:
            if index == 3:
                entered.set()
                go_on.wait(20)
            return super().__getitem__(index)

    iterator, outcome = stream(Blocking(), device_prefetch=0), []

    def take() -> None:
        try:
            for _ in range(4):
                next(iterator)
        except (lx.LoaderxError, StopIteration) as error:
            outcome.append(error)
        else:
            outcome.append(None)

    taker = threading.Thread(target=take)
    taker.start()
    assert entered.wait(20)
    iterator.close()
    go_on.set()
    taker.join(20)
    assert not taker.is_alive()
    assert len(outcome) == 1
    iterator.close()


def test_closing_just_before_a_batch_is_handed_out_is_no_quiet_end():
    class Emptied(deque):  # a close comes between the last look and the taking
        def popleft(self) -> Any:
            run.close()
            return super().popleft()

    workshop = lx.engines.Inline().workshop(_Ones())
    run = PlacedRun(workshop.open(range(4)), Placement(jax.devices()[0]), 2)
    run._ahead = Emptied()
    with pytest.raises(lx.LoaderxError, match="was closed while this batch was waited for"):
        run.next()


class _Ones:
    def stream(self, steps: range, lend: Any) -> Any:
        return iter([np.ones(2, np.float32) for _ in steps])


def test_narrowing_travels_to_worker_processes_without_jax():
    import cloudpickle

    class Recording:
        def workshop(self, work: Any) -> Any:
            self.work = work
            return lx.engines.Inline().workshop(work)

    engine = Recording()
    iter(DataLoader(Dataset.range(8).batch(4), sharding=jax.devices()[0], engine=engine))
    code = (
        "import sys, cloudpickle; from loaderx.memory import Pool\n"
        "work = cloudpickle.loads(sys.stdin.buffer.read())\n"
        "batch = work(1, Pool().lend).value\n"
        "print(batch.dtype, batch.tolist(), 'jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=cloudpickle.dumps(engine.work),
        capture_output=True, timeout=60, check=True, env=environment(),
    )  # fmt: skip
    assert done.stdout.decode().split() == ["int32", "[4,", "5,", "6,", "7]", "False"]


def test_a_dropped_iterator_leaves_nothing():
    iterator = iter(DataLoader(table().batch(8).repeat(), sharding=rows("data"), engine="threads"))
    for _ in range(5):
        next(iterator)
    del iterator
    gc.collect()  # the fixture looks for threads


def test_stats_count_what_was_handed_out():
    with DataLoader(table().batch(16), sharding=rows("data")) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        stats = loader.stats()
    assert (stats.batches, stats.records) == (2, 32)
    assert stats.bytes == 2 * 16 * (16 + 8)


# Numbers -----------------------------------------------------------------------------------------


def test_wide_numbers_become_what_jax_holds():
    wide = {"i": np.int64, "u": np.uint64, "f": np.float64, "c": np.complex128, "b": np.int8}
    dataset = Dataset.from_arrays({k: np.arange(8).astype(t) for k, t in wide.items()}).batch(4)
    with DataLoader(dataset, sharding=jax.devices()[0]) as loader:
        batch = next(iter(loader))
    assert {name: str(leaf.dtype) for name, leaf in batch.items()} == {
        "i": "int32", "u": "uint32", "f": "float32", "c": "complex64", "b": "int8",
    }  # fmt: skip
    with enable_x64(True), DataLoader(dataset, sharding=jax.devices()[0]) as loader:
        batch = next(iter(loader))
        assert {name: leaf.dtype for name, leaf in batch.items()} == wide


def test_what_counts_is_the_setting_when_the_loader_was_made():
    dataset = Dataset.from_arrays(x=np.arange(32) + 2**40).batch(4)
    with enable_x64(True):
        wide = iter(DataLoader(dataset, sharding=rows("data", shape=(4,))))
        next(wide)
    for step in range(1, 4):  # not so in the caller's thread any more
        batch = next(wide)["x"]
        assert batch.dtype == batch.addressable_data(0).dtype == np.asarray(batch).dtype == np.int64
        assert np.asarray(batch).tolist() == [2**40 + 4 * step + n for n in range(4)]
    narrow = iter(DataLoader(dataset.map(lambda b: b["x"] - 2**40), sharding=jax.devices()[0]))
    with enable_x64(True):
        assert [next(narrow).dtype for _ in range(3)] == [np.int32] * 3


def test_placing_is_no_implicit_transfer():
    shifted = np.empty(80 * 16 + 1, np.uint8)[1:].view(np.float32).reshape(80, 4)  # not aligned
    batches = Dataset.from_arrays(x=shifted).batch(16).map(lambda batch: {"x": shifted[:16]})
    for sharding in (jax.devices()[1], rows("data")):
        with DataLoader(batches, sharding=sharding) as loader, jax.transfer_guard("disallow"):
            assert len(list(loader)) == 5


class Tensor:
    """An array of another library."""

    dtype = "its own"

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


def keys(batch: Any) -> Any:
    return jax.random.split(jax.random.key(0), 2)


@pytest.mark.parametrize("engine", ["inline", "threads"])
def test_an_integer_that_does_not_fit_is_an_error(engine):
    dataset = Dataset.from_arrays(id=np.array([1, 2, 2**40, 3])).batch(2)
    with DataLoader(dataset, sharding=jax.devices()[0], engine=engine) as loader:
        iterator = iter(loader)
        assert next(iterator)["id"].tolist() == [1, 2]
        with pytest.raises(lx.StackError) as caught:
            next(iterator)
    assert str(caught.value) == (
        "leaf 'id' holds 1099511627776, which does not fit into int32, and JAX makes int64 to "
        "int32 unless jax_enable_x64 is set. Set it, or change the numbers in .map(), or leave "
        "them on the host (None in place of a sharding)."
    )
    largest = dataset.map(lambda batch: {"id": batch["id"].max()})  # a number, no array
    with DataLoader(largest, sharding=jax.devices()[0], engine=engine) as loader:
        iterator = iter(loader)
        assert next(iterator)["id"].item() == 2
        with pytest.raises(lx.StackError, match="leaf 'id' holds 1099511627776, which does not"):
            next(iterator)
    for hold in (list, Tensor):  # leaves that become arrays when they are placed
        held = dataset.map(lambda batch, hold=hold: {"id": hold(batch["id"]), "key": keys(batch)})
        with DataLoader(held, sharding=jax.devices()[0], engine=engine) as loader:
            iterator = iter(loader)
            assert next(iterator)["id"].tolist() == [1, 2]
            with pytest.raises(lx.StackError, match="leaf 'id' holds 1099511627776, which does"):
                next(iterator)
    both = Dataset.zip({"a": dataset, "b": dataset.map(lambda batch: batch["id"] % 7)})
    where = {"a": None, "b": jax.devices()[0]}
    with DataLoader(both, sharding=where, engine=engine) as loader:
        assert [batch["a"]["id"].tolist() for batch in loader] == [[1, 2], [2**40, 3]]


def test_no_warning_about_numbers(recwarn):
    with DataLoader(Dataset.range(64).batch(8), sharding=rows("data")) as loader:
        list(loader)
    assert not recwarn.list


# One compilation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sharding", [None, "rows"])
def test_padded_batches_compile_once(sharding):
    dataset = table(100).shuffle(seed=0).batch(16, pad_remainder=True).repeat(3)
    traced = []

    @jax.jit
    def step(total, batch):
        traced.append(jax.tree.map(lambda leaf: leaf.shape, batch))
        return total + (batch["x"].sum(-1) * batch["mask"]).sum()

    total = jnp.float32(0)
    if sharding:
        total = jax.device_put(total, rows())  # where the step leaves it, too
    with DataLoader(dataset, sharding=rows("data") if sharding else None) as loader:
        for batch in loader:
            total = step(total, batch).block_until_ready()  # as above: the sum is a meeting
    assert len(traced) == 1
    assert step._cache_size() == 1
    assert float(total) == 3 * np.arange(400.0).sum()


# Randomness on the device ------------------------------------------------------------------------


def test_keys_draw_the_same_wherever_they_are():
    dataset = table(64).shuffle(seed=4).random_keys().batch(16).repeat(2)

    @jax.jit
    def draw(batch):
        keys = jax.random.wrap_key_data(batch["key"])
        return jax.vmap(jax.random.uniform)(keys)

    streams = []
    for sharding in (jax.devices()[0], rows("data"), rows()):
        with DataLoader(dataset, sharding=sharding) as loader:
            streams.append(np.concatenate([np.asarray(draw(batch)) for batch in loader]))
    assert np.array_equal(streams[0], streams[1])
    assert np.array_equal(streams[0], streams[2])
    assert len(np.unique(streams[0])) == 128  # no two records, and no two epochs, draw the same


# Mistakes ----------------------------------------------------------------------------------------


def complaint(kind: type[Exception], dataset: Any, sharding: Any = None, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        DataLoader(dataset, sharding=sharding, **options)
    return str(caught.value)


def test_mistakes_are_told_when_the_loader_is_made():
    device = jax.devices()[0]
    say = complaint(lx.ArgumentError, table().batch(16), device, shard=(0, 2))
    assert say.startswith("`shard` and `sharding` exclude each other")
    say = complaint(lx.ArgumentError, table().batch(12), rows("data"))
    assert say == (
        "batch(12) makes batches of 12 records, which cannot be spread evenly over 8 parts, as "
        "the sharding asks (PartitionSpec('data',) on a mesh of data=8). Make it a multiple of 8: "
        "8 or 16."
    ).replace("PartitionSpec('data',)", str(PartitionSpec("data")))
    say = complaint(lx.ArgumentError, table(20).batch(16), rows("data"))
    assert say.startswith("the last batch of batch(16) has 4 records, which cannot be spread")
    assert say.endswith("Write drop_remainder=True or pad_remainder=True.")
    DataLoader(table(24).batch(16), sharding=rows("data"))  # 8 are left: they fit
    DataLoader(table(20).batch(16).take(1), sharding=rows("data"))
    evens = Dataset.range(100).filter(lambda x: x % 2 == 0)
    say = complaint(lx.ArgumentError, evens.batch(16), rows("data"))
    assert say.startswith("the last batch of batch(16) has what is left of a stream, which may be")
    assert say.endswith("Write drop_remainder=True or pad_remainder=True.")
    for fits in (evens.batch(16, drop_remainder=True), evens.batch(16).take(2)):
        DataLoader(fits, sharding=rows("data"))
    DataLoader(evens.batch(16), sharding=rows())
    buckets = Dataset.from_source([{"x": [1]}]).bucket([4, 9], [16, 12])
    say = complaint(lx.ArgumentError, buckets, rows("data"))
    assert say.startswith("bucket(16x4, 12x9) makes batches of 12 records, which cannot be spread")
    grid = rows("data", "model", shape=(4, 2), names=("data", "model"))
    say = complaint(lx.ArgumentError, table().batch(16, pad_remainder=True), grid)
    assert say == (
        f'leaf "mask" (bool[16]) cannot be placed: {grid.spec} on a mesh of data=4, model=2 names '
        "2 axes, and it has 1. Give this leaf a sharding that fits, or None to leave it on the "
        "host."
    )
    say = complaint(lx.ArgumentError, Dataset.from_arrays(x=np.zeros((36, 3))).batch(16), grid)
    assert say.startswith('leaf "x" (float64[?,3]) cannot be placed')
    assert "cuts axis 1, of 3, into 2 equal parts." in say
    abstract = NamedSharding(rows().mesh.abstract_mesh, PartitionSpec("data"))
    say = complaint(lx.ArgumentTypeError, table().batch(16), abstract)
    assert say.endswith("An AbstractMesh has no devices: give the NamedSharding a Mesh.")
    say = complaint(lx.ArgumentTypeError, table().batch(16), PartitionSpec("data"))
    assert "write NamedSharding(mesh, spec)" in say

    class Spec(tuple):  # what a PartitionSpec is in older versions of jax
        __slots__ = ()

    say = complaint(lx.ArgumentTypeError, table().batch(16), Spec(["data"]))
    assert say.startswith("`sharding` must be a jax Device or Sharding")
    say = complaint(lx.ArgumentTypeError, table().batch(16), {"x": "cpu", "label": device})
    assert '`sharding` at "x" must be a jax Device or Sharding' in say
    assert "jax.devices('cpu')[0]" in say
    say = complaint(lx.ArgumentTypeError, table().batch(16), {"x": None})
    assert "names no device" in say
    say = complaint(lx.ArgumentError, table().batch(16), {"x": device})
    assert "it has 'x', the batch has {'x': *, 'label': *}" in say
    say = complaint(lx.ArgumentError, table().batch(16), jax.devices())
    assert "it has 0, 1, 2, 3, 4, 5, 6, 7, the batch has" in say
    assert say.endswith("write NamedSharding(Mesh(devices, ('data',)), PartitionSpec('data')).")
    say = complaint(lx.ArgumentError, table().batch(16), device, device_prefetch=-1)
    assert say == "`device_prefetch` must be at least 0, got -1."
    text = Dataset.from_arrays(name=np.array(["a", "b"]), x=np.zeros(2)).batch(2)
    say = complaint(lx.StackError, text, device)
    assert say.startswith('leaf "name" holds <U1, which no device can. Leave it on the host (None')
    for other in (">f4", "V4", [("a", "i4")], np.longdouble):
        say = complaint(lx.StackError, Dataset.from_arrays(x=np.zeros(4, other)).batch(2), device)
        assert f'leaf "x" holds {np.dtype(other)}, which no device can.' in say


def test_what_only_the_first_batch_can_tell():
    device = jax.devices()[0]
    texts = Dataset.from_source([{"t": "a", "n": 1}, {"t": "b", "n": 2}]).batch(2)
    with pytest.raises(lx.StackError, match='leaf "t" holds text or other Python objects'):
        next(iter(DataLoader(texts, sharding=device)))
    batch = next(iter(DataLoader(texts, sharding={"t": None, "n": device})))
    assert batch["t"].tolist() == ["a", "b"]
    assert isinstance(batch["n"], jax.Array)
    wrong = table().batch(16).map(lambda b: {"x": b["x"][:5]})
    with pytest.raises(lx.ArgumentError, match='leaf "x" .ndarray of shape .5, 4.. cannot be'):
        next(iter(DataLoader(wrong, sharding=rows("data"))))
    numbers = Dataset.range(16)
    with pytest.raises(lx.ArgumentError, match=r"the batch .* names 2 axes, and it has 1"):
        next(iter(DataLoader(numbers.batch(8), sharding=rows(None, "data"))))
    with pytest.raises(lx.ArgumentError, match=r"1 axis, and it has none.* did you forget .batch"):
        next(iter(DataLoader(numbers, sharding=rows("data"))))
    line = rows("data", "model", shape=(8, 1), names=("data", "model"))
    for hold in (np.asarray, list):  # jax.make_array_from_callback would make an unusable array
        flat = table().batch(16).map(lambda b, hold=hold: {"x": hold(b["x"][:, 0])})
        with pytest.raises(lx.ArgumentError, match='leaf "x" .* names 2 axes, and it has 1'):
            next(iter(DataLoader(flat, sharding=line)))
    with pytest.raises(lx.ArgumentError, match='at "x" it has 0, the batch has an array'):
        next(iter(DataLoader(wrong, sharding={"x": [device]})))


def test_shard_of():
    assert lx.jax.shard_of(rows("data"), 16) == (0, 1)
    with pytest.raises(lx.ArgumentTypeError, match="must be a jax Device or Sharding, got None"):
        lx.jax.shard_of(None, 16)
    with pytest.raises(lx.ArgumentTypeError, match="must be a jax Device or Sharding"):
        lx.jax.shard_of([jax.devices()[0]], 16)


# Without jax -------------------------------------------------------------------------------------

WITHOUT_JAX = """
import sys
sys.modules["jax"] = None
import numpy as np, loaderx as lx
dataset = lx.Dataset.from_arrays(x=np.arange(10)).shuffle(seed=0).random_keys().batch(5)
with lx.DataLoader(dataset, engine="threads") as loader:
    iterator = iter(loader)
    next(iterator)
    iterator.set_state(lx.merge_states([iterator.get_state()]))
    next(iterator)
for attempt in (lambda: lx.DataLoader(dataset, sharding="gpu"), lambda: lx.jax):
    try:
        attempt()
    except lx.MissingPackageError as error:
        assert isinstance(error, ImportError)
        print(error)
"""


def test_without_jax_the_rest_works_and_the_extra_is_named():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX],
        capture_output=True, text=True, timeout=60, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("placing batches on devices needs jax, which cannot be imported")
        assert line.endswith("Write: pip install jax")


def test_jax_is_imported_late():
    code = (
        "import sys, loaderx as lx\n"
        "lx.DataLoader(lx.Dataset.range(4).batch(2))\n"
        "assert 'jax' not in sys.modules and 'loaderx.jax' not in sys.modules\n"
        "assert lx.jax.shard_of is not None and 'jax' in sys.modules\n"
        "assert not hasattr(lx, 'jaxx')"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True, env=environment())


def filtered():
    dataset = Dataset.range(4000).map(lambda x: {"x": x, "wide": x * 1.5})
    return dataset.filter(lambda r: r["x"] % 3 != 0).repeat().batch(8, lanes=2)


def test_a_stream_far_ahead_knows_its_position():
    with DataLoader(filtered(), sharding=jax.devices()[0], device_prefetch=300) as loader:
        iterator = iter(loader)
        for _ in range(600):
            next(iterator)
        state, expected = iterator.get_state(), next(iterator)["x"].tolist()
    plain = iter(DataLoader(filtered()))
    plain.set_state(state)
    assert next(plain)["x"].tolist() == expected


def test_batches_of_a_stream_are_placed_and_its_state_is_what_was_handed_out():
    expected = [batch["x"].tolist() for batch in itertools.islice(filtered(), 40)]
    sharding = NamedSharding(Mesh(jax.devices(), "data"), PartitionSpec("data"))
    with DataLoader(filtered(), sharding=sharding) as loader:
        iterator = iter(loader)
        for step in range(20):
            batch = next(iterator)
            assert isinstance(batch["x"], jax.Array)
            assert batch["x"].sharding == sharding
            assert (batch["x"].dtype, batch["wide"].dtype) == (jnp.int32, jnp.float32)
            assert batch["x"].tolist() == expected[step]
        state = json.loads(json.dumps(iterator.get_state()))
        next(iterator)
        iterator.set_state(state)
        assert [next(iterator)["x"].tolist() for _ in range(20)] == expected[20:]
    plain = iter(DataLoader(filtered()))
    plain.set_state(state)
    assert next(plain)["x"].tolist() == expected[20]


# Copies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: table().batch(16), filtered], ids=["chain", "stream"])
def test_a_copy_of_a_loader_places_batches_and_a_pickled_one_says_why_it_cannot(make):
    import cloudpickle

    loader = DataLoader(make(), sharding=rows("data"))
    first = next(iter(loader))
    for again in (copy.copy(loader), copy.deepcopy(loader)):
        batch = next(iter(again))
        assert batch["x"].sharding == first["x"].sharding
        assert np.array_equal(batch["x"], first["x"])
        again.close()
    shipped = cloudpickle.loads(cloudpickle.dumps(loader))
    with pytest.raises(lx.LoaderxError, match="its `sharding` stayed behind"):
        next(iter(shipped))
    loader.close()


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("make", [lambda: table().batch(16), filtered], ids=["chain", "stream"])
def test_a_copy_of_an_iterator_has_its_state_and_nothing_more(make, placed):
    """A function may know the iterator that it works for, and go to a worker process."""
    import cloudpickle

    with DataLoader(make(), sharding=jax.devices()[0] if placed else None) as loader:
        for taken in (0, 3):
            iterator = iter(loader)
            for _ in range(taken):
                next(iterator)
            for again in (cloudpickle.loads(cloudpickle.dumps(iterator)), copy.deepcopy(iterator)):
                assert again.get_state() == iterator.get_state()
                assert again.step == taken
                with pytest.raises(lx.LoaderxError, match="this is a copy of an iterator"):
                    next(again)
