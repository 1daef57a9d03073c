"""Batches on devices: one process, eight devices made of one CPU."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

import chains
import loaderx as lx
from devices import filtered, rows, table
from loaderx import DataLoader, Dataset
from loaderx.engines.threads import session as threads_session
from loaderx.jax import leaf_devices
from loaderx.jax.placement import Placement
from loaderx.loader import run as run_module
from loaderx.memory import Pool, aligned

pytestmark = pytest.mark.foreign  # jax keeps descriptors of its own


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


def same(placed: Any, plain: Any) -> None:
    assert list(placed) == list(plain)
    for name, leaf in plain.items():
        assert np.asarray(placed[name]).tobytes() == leaf.tobytes(), name


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
    monkeypatch.setattr(leaf_devices, "put", None if broken == "missing" else fails)
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


@pytest.mark.parametrize("engine", ["inline", "threads"])
@pytest.mark.parametrize("name", ["a device", "rows over eight", "rows and columns", "everywhere"])
def test_held_arrays_never_change(name, engine, monkeypatch):
    """A pool of the smallest size, 500 asynchronous steps, and arrays that are kept for a while."""
    for module in (run_module, threads_session):
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


def test_placing_is_no_implicit_transfer():
    shifted = np.empty(80 * 16 + 1, np.uint8)[1:].view(np.float32).reshape(80, 4)  # not aligned
    batches = Dataset.from_arrays(x=shifted).batch(16).map(lambda batch: {"x": shifted[:16]})
    for sharding in (jax.devices()[1], rows("data")):
        with DataLoader(batches, sharding=sharding) as loader, jax.transfer_guard("disallow"):
            assert len(list(loader)) == 5


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


def complaint(kind: type[Exception], dataset: Any, sharding: Any = None, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        DataLoader(dataset, sharding=sharding, **options)
    return str(caught.value)


def test_mistakes_are_told_when_the_loader_is_made():
    device = jax.devices()[0]
    say = complaint(lx.ArgumentError, table().batch(16), device, shard=(0, 2))
    assert say.startswith("`shard` and `sharding` cannot be used together")
    say = complaint(lx.ArgumentError, table().batch(12), rows("data"))
    assert say == (
        "batch(12) makes batches of 12 records, which cannot be spread evenly over the 8 parts "
        "of the sharding (PartitionSpec('data',) on a mesh of data=8). Make it a multiple of 8: "
        "8 or 16."
    ).replace("PartitionSpec('data',)", str(PartitionSpec("data")))
    say = complaint(lx.ArgumentError, table(20).batch(16), rows("data"))
    assert say.startswith("the last batch of batch(16) has 4 records, which cannot be spread")
    assert say.endswith("Write drop_remainder=True or pad_remainder=True.")
    DataLoader(table(24).batch(16), sharding=rows("data"))  # 8 are left: they fit
    DataLoader(table(20).batch(16).take(1), sharding=rows("data"))
    evens = Dataset.range(100).filter(lambda x: x % 2 == 0)
    say = complaint(lx.ArgumentError, evens.batch(16), rows("data"))
    assert say.startswith(
        "the last batch of batch(16) has the rest of a stream, a number of records"
    )
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
    assert "has no device" in say
    say = complaint(lx.ArgumentError, table().batch(16), {"x": device})
    assert "it has 'x', the batch has {'x': *, 'label': *}" in say
    say = complaint(lx.ArgumentError, table().batch(16), jax.devices())
    assert "it has 0, 1, 2, 3, 4, 5, 6, 7, the batch has" in say
    assert say.endswith("write NamedSharding(Mesh(devices, ('data',)), PartitionSpec('data')).")
    say = complaint(lx.ArgumentError, table().batch(16), device, device_prefetch=-1)
    assert say == "`device_prefetch` must be at least 0, got -1."
    text = Dataset.from_arrays(name=np.array(["a", "b"]), x=np.zeros(2)).batch(2)
    say = complaint(lx.StackError, text, device)
    assert say.startswith(
        'leaf "name" holds <U1, which a device cannot hold. Leave it on the host (None'
    )
    for other in (">f4", "V4", [("a", "i4")], np.longdouble):
        say = complaint(lx.StackError, Dataset.from_arrays(x=np.zeros(4, other)).batch(2), device)
        assert f'leaf "x" holds {np.dtype(other)}, which a device cannot hold.' in say


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
    with pytest.raises(lx.LoaderxError, match="a pickle has no `sharding`"):
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
