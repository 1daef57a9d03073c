"""Checkpoints: the handler's files, Orbax' managers, and the asynchronous interface of Orbax v1."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

import loaderx.compat.grain as grain


def make_dataset():
    return grain.MapDataset.range(40).shuffle(seed=1).batch(4).to_iter_dataset()


def make_loader():
    sampler = grain.IndexSampler(40, grain.NoSharding(), shuffle=True, num_epochs=1, seed=1)
    return grain.DataLoader(data_source=range(40), sampler=sampler, operations=[grain.Batch(4)])


@pytest.mark.parametrize("make", [make_dataset, make_loader])
def test_handler(make, tmp_path):
    iterator = iter(make())
    next(iterator)
    handler = grain.checkpoint.CheckpointHandler()
    handler.save(tmp_path, iterator)
    after = next(iterator)
    assert [file.name for file in tmp_path.iterdir()] == ["process_0-of-1.json"]
    restored = handler.restore(tmp_path, iter(make()))
    np.testing.assert_array_equal(next(restored), after)


def test_the_file_is_the_state(tmp_path):
    iterator = iter(make_dataset())
    next(iterator)
    grain.checkpoint.CheckpointHandler().save(tmp_path, iterator)
    text = (tmp_path / "process_0-of-1.json").read_text()
    assert json.loads(text) == iterator.get_state() == {"next_index": 1}


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"process_0-of-1.json does not exist. Was the checkpoint"):
        grain.checkpoint.CheckpointHandler().restore(tmp_path, iter(make_dataset()))


@pytest.mark.parametrize("make", [make_dataset, make_loader])
def test_orbax_v1(make, tmp_path):
    """What Orbax does: it awaits `save` and `load`, then the tasks that these return."""

    async def run(start, directory):
        await (await start(directory))

    iterator = iter(make())
    next(iterator)
    asyncio.run(run(iterator.save, tmp_path))
    after = next(iterator)
    restored = iter(make())
    asyncio.run(run(restored.load, tmp_path))
    np.testing.assert_array_equal(next(restored), after)


@pytest.mark.foreign
@pytest.mark.parametrize("make", [make_dataset, make_loader])
def test_a_manager_with_model_state(make, tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    iterator = iter(make())
    next(iterator)
    weights = {"w": np.arange(3.0)}
    with ocp.CheckpointManager(tmp_path) as manager:
        saved = ocp.args.Composite(
            params=ocp.args.StandardSave(weights),
            iterator=grain.PyGrainCheckpointSave(iterator),
        )
        manager.save(1, args=saved)
        manager.wait_until_finished()
        after = next(iterator)
        wanted = ocp.args.Composite(
            params=ocp.args.StandardRestore(weights),
            iterator=grain.checkpoint.CheckpointRestore(iter(make())),
        )
        restored = manager.restore(1, args=wanted)
    np.testing.assert_array_equal(next(restored["iterator"]), after)
    np.testing.assert_array_equal(restored["params"]["w"], weights["w"])
