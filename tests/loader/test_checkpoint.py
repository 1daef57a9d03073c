"""Positions in checkpoints: plain JSON, flax, Orbax, and parts of several processes."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import flax.serialization
import jax
import numpy as np
import pytest

import loaderx as lx
from loaderx import ArgumentError, DataLoader, Dataset, StateError
from processes import environment, kill_group

pytestmark = pytest.mark.foreign


def endless():
    return Dataset.range(100).shuffle(seed=5).batch(8, drop_remainder=True).repeat()


def at(step, **options):
    iterator = iter(DataLoader(endless(), **options))
    iterator.seek(step)
    return iterator


async def both(awaitable):
    """What Orbax does: a part at once, and a part in the background."""
    await (await awaitable)


def test_json_and_flax_round_trips():
    iterator = at(33, sharding=jax.devices()[0])
    expected = [np.asarray(next(iterator)) for _ in range(3)]
    iterator.seek(33)
    state = iterator.get_state()
    for restored in (
        json.loads(json.dumps(state)),
        flax.serialization.msgpack_restore(flax.serialization.msgpack_serialize(state)),
        flax.serialization.from_bytes(state, flax.serialization.to_bytes(state)),
    ):
        other = at(0, engine="threads")
        other.set_state(restored)
        assert all(np.array_equal(next(other), batch) for batch in expected)
        other.close()
    iterator.close()


@pytest.mark.parametrize("taken", [0, 1, 9])
def test_flax_round_trips_of_streams(taken):
    """The way of docs/jax.md, which needs no state of the same form to begin with."""
    dataset = Dataset.from_iterable(range(500)).shuffle(seed=0, window=32).batch(8)
    iterator = iter(DataLoader(dataset))
    for _ in range(taken):
        next(iterator)
    packed = flax.serialization.msgpack_serialize(iterator.get_state())
    again = iter(DataLoader(dataset))
    again.set_state(flax.serialization.msgpack_restore(packed))
    assert next(again).tolist() == next(iterator).tolist()


def test_save_takes_the_state_at_once_and_writes_later(tmp_path):
    iterator = at(12)

    async def save():
        writing = await iterator.save(tmp_path)
        iterator.seek(50)
        assert not list(tmp_path.iterdir())
        await writing

    asyncio.run(save())
    assert [file.name for file in tmp_path.iterdir()] == ["part-0-of-1.json"]
    other = at(0)
    asyncio.run(both(other.load(tmp_path)))
    assert other.step == 12


def test_parts_of_several_hosts(tmp_path):
    for host in range(4):
        asyncio.run(both(at(21, shard=(host, 4)).save(tmp_path)))
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        f"part-{host}-of-4.json" for host in range(4)
    ]
    for options in ({}, {"shard": (1, 2)}, {"sharding": jax.devices()[0]}):
        other = at(0, **options)
        asyncio.run(both(other.load(tmp_path)))
        assert other.step == 21


def test_broken_checkpoints(tmp_path):
    iterator = at(0)
    with pytest.raises(StateError, match="has no state of a loader"):
        asyncio.run(both(iterator.load(tmp_path)))
    for host in range(2):
        asyncio.run(both(at(21 + host, shard=(host, 2)).save(tmp_path)))
    with pytest.raises(StateError, match="at different steps: number 0 at 21, number 1 at 22"):
        asyncio.run(both(iterator.load(tmp_path)))
    (tmp_path / "part-1-of-2.json").write_text("{")
    with pytest.raises(StateError, match="part-1-of-2.json is damaged"):
        asyncio.run(both(iterator.load(tmp_path)))
    (tmp_path / "part-0-of-1 copy.json").touch()
    with pytest.raises(StateError, match="missing or unexpected: part-0-of-1 copy.json"):
        asyncio.run(both(iterator.load(tmp_path)))
    (tmp_path / "part-0-of-1 copy.json").unlink()
    (tmp_path / "part-1-of-2.json").unlink()
    with pytest.raises(StateError, match="missing or unexpected: part-1-of-2.json"):
        asyncio.run(both(iterator.load(tmp_path)))
    asyncio.run(both(at(1).save(tmp_path)))
    with pytest.raises(StateError, match="missing or unexpected"):
        asyncio.run(both(iterator.load(tmp_path)))
    assert iterator.step == 0


def test_folders_that_promise_too_much(tmp_path):
    count = 10**14
    (tmp_path / f"part-0-of-{count}.json").touch()
    (tmp_path / "part-1-of-2.json").touch()
    with pytest.raises(StateError) as caught:
        asyncio.run(both(at(0).load(tmp_path)))
    assert f"should have parts 0 to {count - 1} of {count}" in str(caught.value)
    assert f"unexpected: part-1-of-{count}.json, part-1-of-2.json, " in str(caught.value)
    assert ", and more. Was only a part of the checkpoint copied?" in str(caught.value)


def test_parts_that_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "part-0-of-1.json")
    with pytest.raises(StateError, match=r"part-0-of-1\.json is not a regular file"):
        asyncio.run(both(at(0).load(tmp_path)))
    (tmp_path / "part-0-of-1.json").unlink()
    (tmp_path / "part-0-of-1.json").write_text("[" * 100_000)
    with pytest.raises(StateError, match=r"part-0-of-1\.json is damaged"):
        asyncio.run(both(at(0).load(tmp_path)))


def test_merging_states():
    states = [at(7, shard=(host, 2)).get_state() for host in range(2)]
    assert lx.merge_states(states) == at(7).get_state()
    other = iter(DataLoader(endless().map(abs))).get_state()
    with pytest.raises(ArgumentError, match="a list of the states of all hosts"):
        lx.merge_states([])
    with pytest.raises(StateError, match="different steps: number 0 at 7, number 1 at 0"):
        lx.merge_states([*states[:1], other])
    other["step"] = 7
    with pytest.raises(
        StateError, match="state 1 belongs to another chain than state 0: .*map.function='abs'"
    ):
        lx.merge_states([states[0], other])
    with pytest.raises(StateError, match="this is not the state of a loader"):
        lx.merge_states([{}])


def test_orbax_knows_the_iterator():
    from orbax.checkpoint import v1

    assert isinstance(at(0), v1.StatefulCheckpointable)


# A process that saves step 10, then begins to save step 20 and is killed before that is done.
HALF_WAY = """
import asyncio, sys, time
from pathlib import Path
import jax.numpy as jnp
from orbax.checkpoint import v1
from loaderx import DataLoader, Dataset

folder = Path(sys.argv[1])

class Slow:  # stands for weights that take long to write
    async def save(self, directory):
        return self.write(directory)
    async def write(self, directory):
        place = await directory.await_creation()
        (place / "half").write_text("half of it")
        (folder / "begun").touch()
        await asyncio.sleep(600)
    async def load(self, directory): ...

dataset = Dataset.range(100).shuffle(seed=5).batch(8, drop_remainder=True).repeat()
iterator = iter(DataLoader(dataset))
checkpointer = v1.training.Checkpointer(folder / "run")
iterator.seek(10)
checkpointer.save_checkpointables(10, {"data": iterator, "state": {"w": jnp.ones(3)}})
iterator.seek(20)
checkpointer.save_checkpointables_async(20, {"data": iterator, "state": Slow()})
time.sleep(600)
"""


def test_a_save_that_is_cut_off_leaves_the_last_good_one(tmp_path):
    from orbax.checkpoint import v1

    process = subprocess.Popen(
        [sys.executable, "-c", HALF_WAY, str(tmp_path)],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 120
        while not (tmp_path / "begun").exists():
            assert process.poll() is None, "the saving process ended by itself"
            assert time.monotonic() < until, "nothing was saved within two minutes"
            time.sleep(0.05)
    finally:
        kill_group(process)
    assert process.returncode == -signal.SIGKILL
    iterator = at(0)
    with v1.training.Checkpointer(tmp_path / "run") as checkpointer:
        assert checkpointer.latest.step == 10
        checkpointer.load_checkpointables(None, {"data": iterator})
    assert iterator.step == 10
    assert np.array_equal(next(iterator), next(at(10)))


def test_hosts_of_a_stream_write_their_lanes_and_any_number_of_hosts_reads_all(tmp_path):
    chain = Dataset.range(1000).filter(lambda x: x % 3 != 0).repeat().batch(8, lanes=4)
    expected = [batch.tolist() for batch in itertools.islice(chain, 12)]
    hosts = [iter(DataLoader(chain, shard=(host, 4))) for host in range(4)]
    for host in hosts:
        for _ in range(5):
            next(host)

    async def save_all():
        for host in hosts:
            await (await host.save(tmp_path))

    async def load(iterator):
        await (await iterator.load(tmp_path))

    asyncio.run(save_all())
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        f"part-{part}-of-4.json" for part in range(4)
    ]
    for count in (1, 2):
        fewer = [iter(DataLoader(chain, shard=(host, count))) for host in range(count)]
        for host in fewer:
            asyncio.run(load(host))
        for step in range(5, 12):
            rows = np.concatenate([next(host) for host in fewer])
            assert rows.tolist() == expected[step]
