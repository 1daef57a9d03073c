"""Programs of the tutorials that people start from, but for the import as they are written."""

from __future__ import annotations

import json

import numpy as np
import pytest

import loaderx.compat.grain as grain
from loaderx.compat.grain import experimental, sharding, sources, transforms


class Digits(grain.RandomAccessDataSource):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 256, (100, 4, 4), np.uint8)
        self.labels = np.arange(100) % 10

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return {"image": self.images[index], "label": self.labels[index]}

    def __repr__(self):
        return "Digits()"


class Scale(grain.MapTransform):
    def map(self, element):
        return {**element, "image": element["image"] / np.float32(255)}


class Noise(grain.RandomMapTransform):
    def random_map(self, element, rng: np.random.Generator):
        noise = rng.normal(size=element["image"].shape).astype(np.float32)
        return {**element, "image": element["image"] + noise}


def make_loader(source=None, **options):
    source = source or Digits()
    sampler = grain.IndexSampler(
        num_records=len(source),
        num_epochs=2,
        shard_options=sharding.NoSharding(),
        shuffle=True,
        seed=0,
    )
    settings = {
        "operations": [Scale(), Noise(), grain.Batch(batch_size=32, drop_remainder=True)],
        "worker_count": 0,
        "shard_options": sharding.NoSharding(),
        "read_options": grain.ReadOptions(num_threads=0),
        **options,
    }
    return grain.DataLoader(data_source=source, sampler=sampler, **settings)


def test_a_loader():
    batches = list(make_loader())
    assert len(batches) == 6
    assert batches[0]["image"].shape == (32, 4, 4)
    assert batches[0]["image"].dtype == np.float32
    assert batches[0]["label"].dtype == np.int64


def test_a_sequential_sampler_and_a_part():
    sampler = grain.SequentialSampler(
        num_records=10, shard_options=grain.ShardByJaxProcess(drop_remainder=True)
    )
    loader = grain.DataLoader(data_source=range(10), sampler=sampler)
    assert list(loader) == list(range(10))


def test_a_function_in_place_of_a_class():
    loader = make_loader(range(6), operations=[grain.MapTransform(lambda x: x + 1)])
    assert sorted(loader) == sorted([*range(1, 7), *range(1, 7)])


def test_states():
    iterator = iter(make_loader())
    next(iterator)
    state = iterator.get_state()
    assert json.loads(state)["last_seen_indices"] == {"0": 31}
    after = next(iterator)
    restored = iter(make_loader())
    restored.set_state(state)
    np.testing.assert_array_equal(next(restored)["image"], after["image"])


def test_a_state_of_several_workers_is_refused():
    iterator = iter(make_loader())
    state = json.loads(iterator.get_state()) | {"worker_count": 2}
    with pytest.raises(ValueError, match="worker_count=2. The order there depends on"):
        iterator.set_state(json.dumps(state).encode())


def test_a_state_of_one_worker_is_taken():
    iterator = iter(make_loader())
    state = json.loads(iterator.get_state()) | {"worker_count": 1, "last_seen_indices": {"0": 31}}
    iterator.set_state(json.dumps(state).encode())
    expected = list(make_loader())[1]
    np.testing.assert_array_equal(next(iterator)["image"], expected["image"])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("sampler", "Other()", r"saved with the sampler Other\(\)"),
        ("data_source", "Other()", r"saved with the source Other\(\)"),
    ],
)
def test_a_state_of_another_loader_is_refused(field, value, message):
    iterator = iter(make_loader())
    state = json.loads(iterator.get_state()) | {field: value}
    with pytest.raises(ValueError, match=message):
        iterator.set_state(json.dumps(state).encode())


def test_a_state_of_another_batch_size():
    """Batches go on at the record where the state was taken."""
    first = iter(make_loader(range(20), operations=[grain.Batch(3)]))
    next(first)
    second = iter(make_loader(range(20), operations=[grain.Batch(5)]))
    second.set_state(first.get_state())
    rows = np.concatenate(list(make_loader(range(20), operations=[grain.Batch(1)])))
    np.testing.assert_array_equal(np.concatenate(list(second)), rows[3:])


def test_load():
    loader = grain.load(range(10), num_epochs=1, batch_size=4, shuffle=True, seed=3)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(np.concatenate(batches)) == list(range(10))


def test_names_of_submodules():
    assert transforms.Map is grain.MapTransform
    assert sources.RandomAccessDataSource is grain.RandomAccessDataSource
    assert experimental.FirstFitPackIterDataset.__name__ == "FirstFitPackIterDataset"
    assert grain.checkpoint.CheckpointHandler is grain.PyGrainCheckpointHandler
    assert grain.python.DataLoader is grain.DataLoader
    assert grain.PyGrainDatasetIterator is grain.DataLoaderIterator
    assert grain.InMemoryDataSource is sources.SharedMemoryDataSource
