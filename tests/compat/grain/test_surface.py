"""Names, classes to derive from, and `from_loaderx`."""

from __future__ import annotations

import pickle
from collections import OrderedDict

import numpy as np
import pytest

import loaderx as lx
import loaderx.compat.grain as grain
import loaderx.compat.grain.python as pygrain
from loaderx.compat.grain import constants, experimental, multiprocessing, sharding, transforms
from loaderx.compat.grain.late_names import LEFT_OUT


def test_every_name_is_there():
    for module in (grain, experimental, transforms, sharding, constants, multiprocessing):
        for name in dir(module):
            assert getattr(module, name) is not None
    assert pygrain.MapDataset is grain.MapDataset
    assert pygrain.experimental is experimental
    assert grain.MapTransform is transforms.Map
    for module in (grain, experimental):
        with pytest.raises(AttributeError, match=r"no attribute 'nothing': .* of Grain 0\.2\.18"):
            module.nothing  # noqa: B018
    for name in LEFT_OUT:
        with pytest.raises(AttributeError, match=f"no attribute '{name}': .*but for .*{name}"):
            getattr(experimental, name)


class AddOne(grain.MapTransform):
    def map(self, element):
        return element + 1


class Noise(grain.RandomMapTransform):
    def random_map(self, element, rng):
        return element + rng.integers(10)


class Odd(grain.FilterTransform):
    def filter(self, element):
        return element % 2 == 1


class WithIndex(grain.MapWithIndexTransform):
    def map_with_index(self, index, element):
        return index, element


class Twice(experimental.FlatMapTransform):
    max_fan_out = 2

    def flat_map(self, element):
        return [element, element]


def kind_of(transform):
    match transform:
        case grain.MapTransform():
            return "map"
        case grain.Batch(batch_size=n):
            return n
        case _:
            return "other"


def test_classes_are_real():
    assert kind_of(AddOne()) == "map"
    assert kind_of(grain.Batch(3)) == 3
    assert kind_of(Odd()) == "other"
    assert isinstance(AddOne(), grain.Transformation)
    assert isinstance(grain.Batch(2), grain.Transformation)
    with pytest.raises(TypeError, match="abstract"):
        grain.MapTransform()
    assert isinstance([1], grain.RandomAccessDataSource)


@pytest.mark.parametrize("is_stream", [False, True])
def test_apply(is_stream):
    ds = grain.MapDataset.range(4).seed(1)
    ds = ds.to_iter_dataset() if is_stream else ds
    assert [*ds.apply([AddOne(), Twice()])] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [*ds.apply(Odd())] == [1, 3]
    assert [*ds.apply(WithIndex())] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert [*ds.apply(Noise())] == [*ds.random_map(Noise())]
    assert [b.tolist() for b in experimental.apply_transformations(ds, grain.Batch(3))] == [
        [0, 1, 2],
        [3],
    ]


def test_a_transform_from_a_function():
    double = grain.MapTransform(lambda x: x * 2)
    assert isinstance(double, grain.MapTransform)
    assert [*grain.MapDataset.range(3).apply(double)] == [0, 2, 4]
    assert [*grain.MapDataset.range(3).apply(grain.FilterTransform(lambda x: x > 1))] == [2]
    drawn = grain.RandomMapTransform(lambda x, rng: x)
    assert [*grain.MapDataset.range(3).seed(1).apply(drawn)] == [0, 1, 2]


def test_records_and_options():
    metadata = grain.RecordMetadata(3, record_key=7)
    assert metadata.remove_record_key() == grain.RecordMetadata(3)
    assert grain.Record(metadata, "x").data == "x"
    assert sharding.even_split(10, grain.ShardOptions(2, 3)) == (7, 10)
    assert sharding.even_split(10, grain.ShardOptions(2, 3, drop_remainder=True)) == (6, 9)
    assert grain.NoSharding() == grain.ShardOptions(0, 1) or grain.NoSharding().shard_count == 1
    with pytest.raises(ValueError, match="must be from 0 to 1, since `shard_count` is 2; got 2"):
        grain.ShardOptions(2, 2)
    with pytest.raises(ValueError, match="num_threads must be non-negative, got -1"):
        grain.ReadOptions(num_threads=-1)


def test_datasets_can_be_pickled():
    ds = grain.MapDataset.range(20).seed(1).shuffle().random_map(Noise()).map(AddOne()).batch(4)
    np.testing.assert_equal([*pickle.loads(pickle.dumps(ds))], [*ds])


def test_from_loaderx_by_index():
    ours = lx.Dataset.range(10).shuffle(seed=1).batch(4)
    ds = grain.MapDataset.from_loaderx(ours)
    assert len(ds) == 3
    np.testing.assert_equal([*ds], [*ours])
    np.testing.assert_equal(ds[4], ours.repeat()[4])
    assert experimental.get_element_spec(ds).dtype == np.int64
    np.testing.assert_equal([*ds.map(lambda b: b + 1)], [b + 1 for b in ours])
    with pytest.raises(TypeError, match=r"write MapDataset\.source\(obj\)"):
        grain.MapDataset.from_loaderx([1, 2])
    with pytest.raises(TypeError, match=r"write IterDataset\.from_loaderx\(ds\)"):
        grain.MapDataset.from_loaderx(lx.Dataset.range(10).filter(bool))


def test_from_loaderx_in_order():
    ours = lx.Dataset.range(20).shuffle(seed=1).filter(lambda x: x % 3 > 0).batch(4)
    ds = grain.IterDataset.from_loaderx(ours)
    expected = [*ours]
    np.testing.assert_equal([*ds], expected)
    it = iter(ds.map(lambda batch: batch + 1))
    next(it)
    state = it.get_state()
    again = iter(ds.map(lambda batch: batch + 1))
    again.set_state(state)
    np.testing.assert_equal([*again], [batch + 1 for batch in expected[1:]])
    again.close()
    with pytest.raises(ValueError, match="is closed"):
        next(again)


def test_options_and_version():
    assert grain.GRAIN_VERSION == grain.__version__ == "0.2.18"
    assert grain.__version_info__ == (0, 2, 18)
    assert grain.config.py_debug_mode is False
    grain.config.update("py_debug_mode", True)
    assert grain.config.py_debug_mode is True
    grain.config.update("py_debug_mode", False)
    for use in (
        lambda: grain.config.update("py_debug_mod", True),
        lambda: grain.config.py_debug_mod,
        lambda: grain.config.get_or_default("py_debug_mod"),
    ):
        with pytest.raises(ValueError, match="no option 'py_debug_mod'; it has .*py_debug_mode"):
            use()
    with pytest.raises(ValueError, match=r"write config.update\('py_debug_mode', True\)"):
        grain.config.py_debug_mode = True


def test_classes_of_errors():
    for kind in (grain.MapDataset, grain.IterDataset):
        with pytest.raises(ValueError, match="mix needs at least one dataset"):
            kind.mix([])
    with pytest.raises(AssertionError, match="1 datasets to mix, and 2 weights"):
        grain.MapDataset.mix([grain.MapDataset.range(3)], [1, 2])
    sampler = grain.IndexSampler(3, grain.NoSharding(), num_epochs=1)
    iterator = iter(grain.DataLoader(data_source=range(3), sampler=sampler))
    with pytest.raises(KeyError, match="^this is not a state of a DataLoader"):
        iterator.set_state(b"{}")


def test_keys_of_batches_are_sorted_as_jax_sorts_them():
    records = [{"y": n, "x": {"b": n, "a": n}} for n in range(4)]
    ds = grain.MapDataset.source(records)
    batch = ds.batch(2)[0]
    assert list(batch) == ["x", "y"]
    assert list(batch["x"]) == ["a", "b"]
    assert list(next(iter(ds.to_iter_dataset().batch(2)))) == ["x", "y"]
    assert list(ds[0]) == ["y", "x"]  # a record is as it was
    ordered = [OrderedDict(y=n, x=n) for n in range(2)]
    assert list(grain.MapDataset.source(ordered).batch(2)[0]) == ["y", "x"]
    mixed = [{1: n, "a": n} for n in range(2)]  # cannot be sorted
    assert list(grain.MapDataset.source(mixed).batch(2)[0]) == [1, "a"]
