"""One of several real processes: run by `test_hosts.py`, never imported by it.

    python host_worker.py RANK COUNT PORT FOLDER JOB [JOB ...]

Each process checks its own part of every global array against batches that it loads alone, bit for
bit.  Whatever is wrong ends the process with a traceback.
"""

from __future__ import annotations

import re
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from loaderx import ArgumentError, ChainError, DataLoader, Dataset, LoaderxWarning
from loaderx.jax import fleet, shard_of

BATCH = 16


def jitter(record: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {**record, "x": record["x"] + rng.random(3).astype(np.float32)}


def halve(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "x": batch["x"] / 2}


def is_small(record: dict[str, Any]) -> bool:
    return bool(record["y"] < 50)


def texts() -> list[dict[str, Any]]:
    return [{"t": np.arange(1 + n % 9, dtype=np.int32) + n} for n in range(120)]


def numbers(count: int, base: int = 0) -> Dataset[Any]:
    y = np.arange(base, base + count, dtype=np.int64)
    return Dataset.from_arrays(x=np.outer(y, [1, 2, 3]).astype(np.float32), y=y)


def chains() -> dict[str, Dataset[Any]]:
    first, second = (
        numbers(90).shuffle(seed=1),
        numbers(70, 1000).shuffle(seed=2).random_map(jitter),
    )
    return {
        "shuffled": numbers(100).shuffle(seed=0).batch(BATCH, drop_remainder=True),
        "repeated": numbers(50)
        .shuffle(seed=3)
        .random_map(jitter)
        .repeat(3)
        .batch(BATCH, drop_remainder=True),
        "padded": numbers(70).random_keys().batch(BATCH, pad_remainder=True).map(halve).repeat(2),
        "mixed": Dataset.mix([first, second], weights=[2, 1], stop="repeat")
        .batch(BATCH)
        .map(halve)
        .take(12),
        # A stream that ends is counted; the lanes of the last hosts are empty.
        "filtered": numbers(90).filter(is_small).batch(BATCH, lanes=8, pad_remainder=True),
        "bucketed": Dataset.from_source(texts()).bucket([4, 9], [2 * BATCH, BATCH], window=50),
    }


def meshes() -> dict[str, Any]:
    """Ways to lay a batch over the devices; two axes, rows over "data"."""
    devices = np.array(jax.devices())
    count = len(devices)
    halves = devices.reshape(jax.process_count(), 2)  # a row per process
    return {
        "rows over all devices": devices.reshape(count, 1),
        "rows over processes, each row on two devices": halves,
        "all rows in every process": halves.T,
        "two groups of processes": halves.reshape(2, -1),
        "last process first": devices[::-1].reshape(count, 1),
        "rows of a process lie apart": halves.T.reshape(count, 1),
    }


def compare(placed: Any, expected: Any) -> None:
    assert placed.keys() == expected.keys()
    for name, whole in expected.items():
        array = placed[name]
        assert array.shape == whole.shape, (name, array.shape, whole.shape)
        for shard in array.addressable_shards:
            part, own = np.asarray(shard.data), whole[shard.index]
            if own.dtype in (np.int64, np.float64):
                own = own.astype(f"{own.dtype.kind}4")
            assert part.dtype == own.dtype
            assert part.tobytes() == np.ascontiguousarray(own).tobytes(), name


def alone(dataset: Dataset[Any]) -> DataLoader[Any]:
    return DataLoader(dataset, shard=(0, 1), engine="inline")


def streams(folder: Path) -> None:
    processes = jax.process_count()
    expected_hosts = {
        "rows over all devices": processes,
        "rows over processes, each row on two devices": processes,
        "all rows in every process": 1,
        "two groups of processes": 2,
        "last process first": processes,
        "rows of a process lie apart": 1,
    }
    for layout, devices in meshes().items():
        sharding = NamedSharding(Mesh(devices, ("data", "model")), PartitionSpec("data"))
        assert shard_of(sharding, BATCH)[1] == expected_hosts[layout], layout
        for name, dataset in chains().items():
            if name != "shuffled" and layout != "rows over all devices":
                continue
            with DataLoader(dataset, sharding=sharding) as loader, alone(dataset) as whole:
                pairs = zip(loader, whole, strict=True)
                for placed, expected in pairs:
                    compare(placed, expected)
                rows = loader.stats().records * expected_hosts[layout]
                if name == "filtered":  # each host has counted its own lanes
                    assert loader.counts().rows == 50
                    assert len(loader.counts().marks) == 8 // processes
                elif name != "bucketed":  # whose last batch has more rows on the first hosts
                    assert rows == whole.stats().records, (layout, name)


def trees(folder: Path) -> None:
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, everywhere = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("data",), ()))
    dataset = chains()["shuffled"]
    expected = next(iter(alone(dataset)))
    with DataLoader(dataset, sharding={"x": rows, "y": everywhere}) as loader:
        placed = next(iter(loader))
    compare(placed, expected)
    assert placed["y"].is_fully_replicated
    index, count = shard_of(rows, BATCH)
    size = BATCH // count
    with DataLoader(dataset, sharding={"x": rows, "y": None}) as loader:
        placed = next(iter(loader))
        assert loader.stats().bytes == size * (3 * 4 + 8)  # its own, of arrays global or not
    compare({"x": placed["x"]}, {"x": expected["x"]})
    assert np.array_equal(placed["y"], expected["y"][index * size : (index + 1) * size])
    assert placed["y"].dtype == np.int64  # NumPy leaves stay as they are

    def derived(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": jax.numpy.asarray(batch["x"]), "y": batch["y"].tolist()}

    with DataLoader(dataset.map(derived), sharding=rows, engine="inline") as loader:
        compare(next(iter(loader)), expected)  # own rows, whatever holds them

    @jax.jit
    def total(batch: Any) -> Any:
        return batch["y"].sum()

    with DataLoader(dataset, sharding=rows) as loader:
        assert int(total(next(iter(loader)))) == expected["y"].sum()


def mistakes(folder: Path) -> None:
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    refused(ArgumentError, "cannot be spread evenly", numbers(99).batch(15), rows)
    refused(ChainError, "the last batch of batch(16) is short", numbers(24).batch(BATCH), rows)
    refused(ChainError, "needs a .batch(...)", numbers(24), rows)
    buckets = Dataset.from_source([{"x": [1]}]).bucket([4, 9], [15, BATCH])
    refused(ArgumentError, "cannot be spread evenly", buckets, rows)
    columns = NamedSharding(mesh, PartitionSpec("data", None))
    mapped = numbers(32).batch(BATCH).map(halve)  # what it gives is seen at the first batch
    with pytest.raises(ArgumentError, match=r'leaf "y" .* names 2 axes, and it has 1'):
        next(iter(DataLoader(mapped, sharding=columns)))
    # The first process holds the first rows and the last, and loads all; the others load their own.
    uneven = np.array([*jax.devices()[::2], jax.devices()[1]])
    apart = NamedSharding(Mesh(uneven, ("data",)), PartitionSpec("data"))
    size = len(uneven)
    assert shard_of(apart, 2 * size)[1] == (size if jax.process_index() else 1)
    refused(ChainError, "is short", numbers(5 * size).batch(2 * size), apart)
    stream = numbers(99).filter(lambda r: r["y"] % 2 == 0).repeat().batch(2 * size)
    refused(ChainError, "must divide the lanes", stream, apart)
    own = NamedSharding(Mesh(np.array(jax.devices())[:2], ("data",)), PartitionSpec("data"))
    if jax.process_index():
        refused(ArgumentError, "has no device", numbers(32).batch(BATCH), own)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DataLoader(numbers(32).batch(BATCH))
        DataLoader(numbers(32).batch(BATCH), sharding=jax.local_devices()[0])
        DataLoader(numbers(32).batch(BATCH), shard=(0, 1))
        DataLoader(numbers(32).batch(BATCH), sharding=rows)
    said = [str(one.message) for one in caught if one.category is LoaderxWarning]
    assert len(said) == 2, said
    assert "neither `shard` nor `sharding` is given" in said[0]
    assert "devices of this process only" in said[1]
    assert {one.filename for one in caught} == {__file__}


def refused(kind: type[Exception], text: str, dataset: Dataset[Any], sharding: Any) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        DataLoader(dataset, sharding=sharding)


# Checkpoints: ten steps, then a save; the next job goes on where the last one stopped ------------


def endless() -> Dataset[Any]:
    return chains()["repeated"].repeat()


def sharding_of_rows() -> Any:
    return NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))


def check_steps(iterator: Any, start: int, count: int) -> None:
    whole = iter(alone(endless()))
    whole.seek(start)
    for _ in range(count):
        compare(next(iterator), next(whole))


def weights(value: float) -> Any:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec())
    return {"w": jax.device_put(np.full(4, value, np.float32), sharding)}


def save(folder: Path, start: int) -> None:
    """From a step, ten more, then two saves at once; the steps after the saves do not count."""
    import orbax.checkpoint as classic
    from orbax.checkpoint import v1

    with DataLoader(endless(), sharding=sharding_of_rows()) as loader:
        iterator = iter(loader)
        if start:
            restore(folder, start, iterator)
        check_steps(iterator, start, 10)
        step = start + 10
        with v1.training.Checkpointer(folder / "v1") as checkpointer:
            saving = checkpointer.save_checkpointables_async(
                step, {"state": weights(step), "data": iterator}
            )
            check_steps(iterator, step, 3)
            saving.result()
        iterator.seek(step)
        with classic.CheckpointManager(folder / "classic") as manager:
            arguments = {"state": classic.args.StandardSave(weights(step))}
            arguments["data"] = classic.args.JsonSave(iterator.get_state())
            manager.save(step, args=classic.args.Composite(**arguments))
            check_steps(iterator, step, 3)
            manager.wait_until_finished()


def restore(folder: Path, step: int, iterator: Any) -> None:
    import orbax.checkpoint as classic
    from orbax.checkpoint import v1

    with v1.training.Checkpointer(folder / "v1") as checkpointer:
        target = {"state": weights(0), "data": iterator}
        loaded = checkpointer.load_checkpointables(step, target)
    assert loaded["data"] is iterator
    assert iterator.step == step
    assert float(loaded["state"]["w"].addressable_data(0)[0]) == step
    iterator.seek(0)
    with classic.CheckpointManager(folder / "classic") as manager:
        arguments = {"state": classic.args.StandardRestore(weights(0))}
        arguments["data"] = classic.args.JsonRestore()
        found = manager.restore(step, args=classic.args.Composite(**arguments))
    iterator.set_state(found.data)
    assert iterator.step == step


def fleet_of(folder: Path) -> None:
    """The last host waits for its data; then the first one does."""
    slow = jax.process_count() - 1

    def sleepy(batch: Any) -> Any:
        if jax.process_index() == slow:
            time.sleep(0.25)
        return batch

    loader = DataLoader(numbers(1000).batch(BATCH).map(sleepy).repeat(), engine="inline")
    batches = iter(loader)
    for changes, first in ((False, slow), (True, 0)):
        slow = first
        for _ in range(4):
            next(batches)
            multihost_utils.sync_global_devices("step")
        found = fleet(loader)
        assert found.slow == (slow,), found
        assert found.changes is changes, found
        assert [host.steps for host in found.hosts] == [4] * jax.process_count()


JOBS = {"streams": streams, "trees": trees, "mistakes": mistakes, "fleet": fleet_of}


def main(arguments: list[str]) -> None:
    rank, count, port, folder, *jobs = arguments
    if int(count) > 1:
        jax.distributed.initialize(
            f"localhost:{port}", int(count), int(rank), initialization_timeout=60
        )
    assert jax.process_count() == int(count)
    for job in jobs:
        if job.startswith("save:"):
            save(Path(folder), int(job.removeprefix("save:")))
        else:
            JOBS[job](Path(folder))
    sys.stdout.write(f"done: {' '.join(jobs)}\n")
    if int(count) > 1:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
