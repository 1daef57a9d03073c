"""Grain and our package in one process: the same bytes, and each continues the other's states."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path

import pytest

import loaderx.compat.grain as ours
from grain_pipelines import PIPELINES, STATEFUL, digest_of, loader_states

pytestmark = pytest.mark.owners
if importlib.util.find_spec("grain") is None:
    pytest.skip("Grain is not installed: make test-grain", allow_module_level=True)

theirs = pytest.importorskip("grain.python")
importlib.import_module("absl.flags").FLAGS.mark_as_parsed()  # its workers ask for flags


@pytest.mark.parametrize("name", PIPELINES)
def test_same_bytes(name):
    assert digest_of(PIPELINES[name](ours)) == digest_of(PIPELINES[name](theirs))


def as_json(state):
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize(("saved_by", "continued_by"), [(ours, theirs), (theirs, ours)])
def test_states_go_both_ways(name, saved_by, continued_by):
    one, other = iter(STATEFUL[name](saved_by)), STATEFUL[name](continued_by)
    elements = list(STATEFUL[name](theirs))
    for step in range(len(elements) + 1):
        # Grain's own ConcatThenSplit compares slices with tuples, which JSON does not keep.
        state = one.get_state() if continued_by is theirs else as_json(one.get_state())
        restored = iter(other)
        restored.set_state(state)
        assert digest_of(restored) == digest_of(elements[step:])
        next(one, None)


@pytest.mark.parametrize("name", [name for name, _ in loader_states(ours)])
@pytest.mark.parametrize(("saved_by", "continued_by"), [(ours, theirs), (theirs, ours)])
def test_states_of_loaders_go_both_ways(name, saved_by, continued_by):
    one, other = (dict(loader_states(each))[name] for each in (saved_by, continued_by))
    elements = list(one)
    iterator = iter(one)
    for step in range(len(elements) + 1):
        restored = iter(other)
        restored.set_state(iterator.get_state())
        assert digest_of(restored) == digest_of(elements[step:])
        next(iterator, None)


def _plus_one(x):
    return x + 1


def _in_workers(grain, kind, count):
    ds = grain.MapDataset.range(23).shuffle(seed=1).map(_plus_one).to_iter_dataset()
    if kind == "threads":
        return grain.experimental.multithread_prefetch(ds, count, 2)
    return ds.mp_prefetch(grain.MultiprocessingOptions(count))


@pytest.mark.foreign  # Grain's workers keep a piece of shared memory
@pytest.mark.parametrize(("saved_by", "continued_by"), [(ours, theirs), (theirs, ours)])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_states_of_workers_go_both_ways(kind, count, saved_by, continued_by):
    """Where each element comes of one record, Grain's order is the same for any number of them."""
    expected = list(_in_workers(ours, kind, count))
    iterator = iter(_in_workers(saved_by, kind, count))
    assert [next(iterator) for _ in range(7)] == expected[:7]
    restored = iter(_in_workers(continued_by, kind, count))
    restored.set_state(as_json(iterator.get_state()))
    iterator.close()
    found = list(restored)
    restored.close()
    assert found == expected[7:]


@pytest.mark.foreign
@pytest.mark.parametrize(("saved_by", "continued_by"), [(ours, theirs), (theirs, ours)])
def test_states_of_a_loader_with_one_worker_go_both_ways(saved_by, continued_by):
    def make(grain):
        sampler = grain.IndexSampler(23, grain.NoSharding(), shuffle=True, num_epochs=1, seed=2)
        return grain.DataLoader(
            data_source=range(23), sampler=sampler, operations=[grain.Batch(4)], worker_count=1
        )

    iterator = iter(make(saved_by))
    next(iterator)
    restored = iter(make(continued_by))
    restored.set_state(iterator.get_state())
    assert digest_of(restored) == digest_of(iterator)


@pytest.mark.parametrize(("saved_by", "continued_by"), [(ours, theirs), (theirs, ours)])
def test_files_of_checkpoint_handlers_go_both_ways(tmp_path: Path, saved_by, continued_by):
    for name in ("first_fit", "mix_in_order"):
        folder = tmp_path / name
        folder.mkdir()
        saved = iter(STATEFUL[name](saved_by))
        for _ in range(3):
            next(saved)
        saved_by.PyGrainCheckpointHandler().save(folder, saved)
        assert [file.name for file in folder.iterdir()] == ["process_0-of-1.json"]
        restored = iter(STATEFUL[name](continued_by))
        continued_by.PyGrainCheckpointHandler().restore(folder, restored)
        assert digest_of(restored) == digest_of(saved)
