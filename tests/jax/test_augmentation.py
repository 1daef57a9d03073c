"""Functions of one record, written in JAX, as stages for batches."""

from __future__ import annotations

import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from inside import work_of
from loaderx import ArgumentTypeError, ChainError, DataLoader, Dataset, RecordError
from loaderx.engines import Auto, Processes
from loaderx.jax import augment
from loaderx.jax.image import normalize, random_resized_crop
from processes import environment

pytestmark = pytest.mark.foreign  # jax keeps descriptors of its own

RECORDS = 26


def crop_and_flip(key, record):
    """Integers only, so that all ways to run it give the same bits."""
    where, side = jax.random.split(key)
    corner = jax.random.randint(where, (2,), 0, 3)
    x = jax.lax.dynamic_slice(jnp.pad(record["x"], 1), corner, record["x"].shape)
    return {**record, "x": jnp.where(jax.random.bernoulli(side), x[:, ::-1], x)}


def floats(key, record):
    """A crop, noise and a mean."""
    for_box, for_noise = jax.random.split(key)
    x = normalize(random_resized_crop(for_box, record["x"] / 255, 7), 0.5, 0.25)
    x += 0.1 * jax.random.normal(for_noise, x.shape)
    return {**record, "x": 1.2 * (x - x.mean()) + x.mean()}


CHANGED = augment(crop_and_flip)  # one object, so that each shape is compiled once in this file
STEP = jax.jit(CHANGED)


def images(count=RECORDS):
    x = np.random.default_rng(0).integers(0, 256, (count, 6, 5), dtype=np.uint8)
    return Dataset.from_arrays(x=x, y=np.arange(count, dtype=np.int32)).shuffle(seed=3)


def rows(batches):
    return {int(y): x for batch in batches for x, y in zip(batch["x"], batch["y"], strict=True)}


@pytest.fixture(scope="module")
def expected():
    """What the function makes of each record, in one batch, in a step."""
    batch = images().batch(RECORDS).random_keys(seed=1)[0]
    return rows([jax.tree.map(np.asarray, STEP(batch))])


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for number, x in expected.items():
        assert np.array_equal(found[number], x), number


@pytest.mark.parametrize("engine", ["inline", "threads"])
@pytest.mark.parametrize("size", [1, 4, 13, RECORDS])
def test_the_host_makes_what_a_step_makes(expected, size, engine):
    chain = images().batch(size).random_map(CHANGED, seed=1)
    with DataLoader(chain, engine=engine, num_workers=None if engine == "inline" else 2) as loader:
        assert_equal(rows(loader), expected)


@pytest.fixture(scope="module")
def expected_floats():
    batch = images().batch(RECORDS).random_keys(seed=1)[0]
    return rows([jax.tree.map(np.asarray, jax.jit(augment(floats))(batch))])


@pytest.mark.parametrize(("engine", "size"), [("inline", 1), ("threads", 4)])
def test_floats_differ_in_their_last_bits_at_most(expected_floats, engine, size):
    chain = images().batch(size).random_map(augment(floats), seed=1)
    with DataLoader(chain, engine=engine, num_workers=None if engine == "inline" else 2) as loader:
        found = rows(loader)
    assert found.keys() == expected_floats.keys()
    for number, x in expected_floats.items():
        assert np.allclose(found[number], x, rtol=1e-5, atol=1e-5), number


def test_the_second_epoch_is_the_same_on_both_sides():
    base = images().batch(4, drop_remainder=True).repeat(2)
    on_host = list(base.random_map(CHANGED, seed=1))
    in_step = [STEP(batch) for batch in base.random_keys(seed=1)]
    for one, other in zip(on_host, in_step, strict=True):
        assert np.array_equal(one["x"], other["x"])
    first, second = rows(on_host[: len(on_host) // 2]), rows(on_host[len(on_host) // 2 :])
    assert any(not np.array_equal(first[y], second[y]) for y in first.keys() & second.keys())


def test_steps_of_several_hosts(expected):
    hosts = 2
    chain = images().batch(4, drop_remainder=True).random_keys(seed=1)
    found = {}
    for host in range(hosts):
        loader = DataLoader(chain, engine="inline", shard=(host, hosts))
        found |= rows(jax.tree.map(np.asarray, STEP(batch)) for batch in loader)
    assert_equal(found, {number: expected[number] for number in found})
    assert len(found) == RECORDS // 4 * 4


def test_a_step_on_several_devices(expected):
    spread = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("data",)), PartitionSpec("data"))
    chain = images().batch(4, drop_remainder=True).random_keys(seed=1)
    with DataLoader(chain, sharding=spread) as loader:
        made = [STEP(batch) for batch in loader]
    assert all(len(batch["x"].devices()) == 4 for batch in made)
    found = rows(jax.tree.map(np.asarray, batch) for batch in made)
    assert_equal(found, {number: expected[number] for number in found})


@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_make_the_same_together(expected, hosts):
    chain = images().batch(4, drop_remainder=True).random_map(CHANGED, seed=1)
    found = {}
    for host in range(hosts):
        found |= rows(DataLoader(chain, engine="inline", shard=(host, hosts)))
    assert_equal(found, {number: expected[number] for number in found})
    assert len(found) == RECORDS // 4 * 4


def test_runs_of_records_before_batch(expected):
    chain = images().random_map(CHANGED, seed=1, batched=True)
    chain = chain.filter(lambda record: record["y"] % 2 == 0).batch(4)
    found = rows(DataLoader(chain, engine="inline"))
    assert_equal(found, {number: x for number, x in expected.items() if number % 2 == 0})


def test_worker_processes(expected):
    chain = images().batch(4).random_map(CHANGED, seed=1)
    with DataLoader(chain, engine=Processes(1, timeout_s=None)) as loader:
        assert_equal(rows(loader), expected)


def test_on_devices(expected):
    chain = images().batch(4).random_map(CHANGED, seed=1)
    with DataLoader(chain, sharding=jax.devices()[0]) as loader:
        assert_equal(rows(jax.tree.map(np.asarray, batch) for batch in loader), expected)


def test_it_is_compiled_once():
    traced = []

    def traced_function(key, record):
        traced.append(record["x"].shape)
        return crop_and_flip(key, record)

    chain = images().batch(4).random_map(augment(traced_function)).repeat(3)
    with DataLoader(chain, engine="threads", num_workers=2) as loader:
        assert sum(len(batch["y"]) for batch in loader) == 3 * RECORDS  # the last ones are short
    assert len(traced) == 2  # for the shapes of the results, and for the code


def test_results_can_be_kept_and_written_to():
    chain = images().batch(4).random_map(CHANGED).repeat(4)
    kept = list(DataLoader(chain, engine="inline"))
    again = DataLoader(chain, engine="inline")
    for batch, other in zip(kept, again, strict=True):
        assert np.array_equal(batch["x"], other["x"])
        assert other["x"].flags.writeable
        other["x"][:] = 0


def test_the_memory_of_dropped_results_is_used_again():
    chain = images().batch(2).random_map(CHANGED)
    addresses = [batch["x"].ctypes.data for batch in DataLoader(chain, engine="inline")]
    assert len(addresses) == RECORDS // 2
    assert len(set(addresses)) <= 3


def test_other_dtypes_and_structures():
    def change(key, record):
        x = record["x"].astype(jnp.bfloat16)
        return {"pair": (x / 2, record["y"]), "none": jnp.zeros((0, 3)), "mean": x.mean()}

    batch = images().batch(4).random_map(augment(change))[0]
    assert batch["pair"][0].dtype == jnp.bfloat16
    assert batch["pair"][0].shape == (4, 6, 5)
    assert batch["none"].shape == (4, 0, 3)
    assert batch["mean"].shape == (4,)


def test_it_has_the_name_of_its_function():
    transform = augment(crop_and_flip)
    assert repr(transform) == "augment(crop_and_flip)"
    assert "crop_and_flip" in repr(images().batch(4).random_map(transform))
    assert repr(pickle.loads(pickle.dumps(transform))) == repr(transform)


def test_single_records_are_refused():
    with pytest.raises(RecordError, match=r"augment\(crop_and_flip\) works on batches: put it"):
        images().random_map(augment(crop_and_flip))[0]


def test_text_is_refused():
    chain = Dataset.from_source([{"text": "a", "x": 1}, {"text": "b", "x": 2}]).batch(2)
    with pytest.raises(RecordError, match='takes arrays of numbers, and leaf "text" is of object'):
        chain.random_map(augment(lambda key, record: record))[0]


def test_keys_cannot_be_returned():
    chain = images().batch(2).random_map(augment(lambda key, record: {**record, "key": key}))
    with pytest.raises(RecordError, match=r"returned a leaf of key<fry>; only arrays of numbers"):
        chain[0]


def test_a_step_needs_keys():
    with pytest.raises(ChainError, match=r"a leaf 'key', which \.random_keys\('key'\) adds"):
        augment(crop_and_flip)(images().batch(2)[0])


def test_it_needs_a_function():
    with pytest.raises(ArgumentTypeError, match=r"needs a function f\(key, record\), got 3"):
        augment(3)


ON_FOUR_DEVICES = """
import jax, numpy as np
from loaderx import DataLoader, Dataset
from loaderx.jax import augment

compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: compiled.append(name) if "backend_compile" in name else None
)
devices = jax.devices()
jax.config.update("jax_default_device", devices[3])
data = Dataset.from_arrays(x=np.zeros((10, 3), np.float32)).batch(4).repeat(3)
chain = data.random_map(augment(lambda key, r: {**r, "x": r["x"] + jax.random.normal(key, (3,))}))
batches = []

def used():
    placed = {id(leaf) for batch in batches for leaf in batch.values()}
    return {devices.index(one.device) for one in jax.live_arrays() if id(one) not in placed}

for options in ({"engine": "inline"}, {"engine": "inline", "sharding": devices[2]},
                {"engine": "threads", "num_workers": 2}):
    before, found = len(compiled), set()
    with DataLoader(chain, **options) as loader:
        for batch in loader:
            batches.append(batch)
            if options["engine"] == "inline":  # else arrays come and go meanwhile
                found |= used()
    print(len(compiled) - before, sorted(found | used()))
"""


def test_other_devices_are_not_touched_and_nothing_is_compiled_twice():
    """Of the loader's own arrays, all are on the CPU that it computes on, and batches on theirs."""
    run = subprocess.run(
        [sys.executable, "-c", ON_FOUR_DEVICES],
        env=environment(devices=4),
        text=True,
        capture_output=True,
        check=True,
    )
    first, *others = run.stdout.splitlines()
    assert first.endswith("[0]"), run.stdout
    assert others == ["0 [0, 2]", "0 [0]"], run.stdout  # on 2: batches placed ahead


def test_auto_has_threads_for_it_and_says_why():
    chain = images().batch(4).random_map(augment(crop_and_flip))
    session = Auto().session(work_of(chain))
    assert session.not_for_processes == (
        "augment(crop_and_flip) is not run in worker processes: threads do it without the GIL, "
        "and each process would import jax and compile it"
    )
    assert Auto().session(work_of(images().batch(4))).not_for_processes == ""
