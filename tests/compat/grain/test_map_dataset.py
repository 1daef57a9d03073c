"""`MapDataset`: values of Grain 0.2.18; reading many elements is reading each."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import loaderx.compat.grain as grain
from inside import gathered_of, many_of
from loaderx.compat.grain import experimental
from loaderx.compat.grain.stacking import make_batch
from loaderx.compat.grain.trees import flatten

M = grain.MapDataset


def noise(x, rng):
    return x + int(rng.integers(1000))


def test_the_index_has_no_end():
    ds = M.range(5).seed(1).shuffle().repeat()
    assert len(ds) == sys.maxsize
    assert [ds[i] for i in range(10)] == [1, 4, 2, 3, 0, 2, 1, 4, 3, 0]
    assert M.source([1, 2, 3])[7] == 2
    assert M.source([1, 2, 3])[-1] == 3


def test_random_numbers_by_index():
    ds = M.source([10, 20, 30]).seed(7).random_map(noise).repeat()
    assert [ds[i] for i in range(7)] == [898, 283, 636, 251, 132, 107, 677]


def test_default_seeds_by_depth():
    many = M.range(40)
    assert list(many.seed(5).shuffle()) == list(many.shuffle(seed=3796490668))
    assert list(many.seed(5).map(str).shuffle()) == list(many.map(str).shuffle(seed=3226123765))
    mixed = M.mix([many.seed(5), many.seed(6)])
    assert list(mixed.shuffle()) == list(mixed.shuffle(seed=3101311108))
    mixed = M.mix([many.seed(5).shuffle(), many.map(lambda x: x + 1).seed(6)])
    assert list(mixed.random_map(noise)) == list(mixed.random_map(noise, seed=3529455015))


def test_mix():
    ds = M.mix([M.range(100), M.range(1000, 1100), M.range(2000, 2100)], [0.5, 0.3, 0.2])
    assert len(ds) == 200
    first = [0, 1000, 1, 1001, 2, 2000, 3, 1002, 4, 2001, 5, 1003, 6, 1004, 7, 2002, 8, 1005]
    assert [ds[i] for i in range(18)] == first
    assert list(many_of(ds, range(18))) == first
    assert list(many_of(ds, [2**62, 3])) == [ds[2**62], ds[3]]


def test_concatenate_and_slices():
    joined = M.concatenate([M.range(2), M.range(10, 13)]).repeat(2).shuffle(seed=1)
    assert list(joined) == [0, 10, 1, 0, 12, 11, 12, 10, 1, 11]
    assert list(M.range(10)[7:1:-2].repeat(2).shuffle(seed=0)) == [7, 5, 5, 3, 3, 7]


def test_windows():
    ds = experimental.WindowShuffleMapDataset(M.range(10), window_size=4, seed=3)
    assert list(ds) == [2, 3, 0, 1, 5, 4, 6, 7, 9, 8]


class TwoMaps(grain.DatasetSelectionMap):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index % 2, index // 2


def chains():
    rows = M.source(np.arange(60, dtype=np.float32).reshape(20, 3))
    numbers = M.range(3, 43, 2)
    plain = M.source([{"a": np.full(2, i), "b": i} for i in range(20)])
    yield rows.shuffle(seed=1).repeat(3)[5:55:3]
    yield rows[15:2:-2].repeat(reseed_each_epoch=False)
    yield experimental.ZipMapDataset([rows.shuffle(seed=3), numbers]).repeat(2).shuffle(seed=4)
    yield experimental.WindowShuffleMapDataset(rows, window_size=7, seed=5).repeat()
    yield M.mix([rows, rows.shuffle(seed=2)], [1, 3]).shuffle(seed=6)
    yield M.concatenate([rows, rows[:3]]).repeat(2)
    yield M.select_from_datasets([numbers, M.range(9)], TwoMaps())
    yield plain.seed(2).shuffle().random_map(lambda d, rng: {**d, "r": rng.random()})
    yield plain.map_with_index(lambda i, d: (i, d["b"])).repeat()
    yield numbers.filter(lambda x: x % 3 == 0).map(lambda x: x + 1)
    yield M.source(rows.shuffle(seed=8)).shuffle(seed=9)
    yield numbers.batch(3).batch(2)


@pytest.mark.parametrize("ds", [*chains()], ids=lambda ds: type(ds).__name__)
@pytest.mark.parametrize("indices", [range(7), range(18, 23), range(40, 3, -5), [5, 1, 44, 5]])
def test_many_elements_are_each_of_them(ds, indices):
    singly = [ds[i] for i in indices]
    np.testing.assert_equal(list(many_of(ds, indices)), singly)
    gathered = gathered_of(ds, indices if isinstance(indices, range) else np.array(indices))
    if gathered is not None:
        stacked = make_batch(singly)
        np.testing.assert_equal(gathered, stacked)
        assert [x.dtype for x in flatten(gathered)] == [x.dtype for x in flatten(stacked)]


def test_a_filter_leaves_none():
    ds = M.range(6).filter(lambda x: x % 2 == 0)
    assert len(ds) == 6
    assert [ds[i] for i in range(6)] == [0, None, 2, None, 4, None]
    assert list(ds) == [0, 2, 4]
    assert list(ds.to_iter_dataset(allow_nones=True)) == [0, None, 2, None, 4, None]
    assert list(ds.map(lambda x: x + 1).random_map(lambda x, rng: x, seed=1)) == [1, 3, 5]


class Halves(experimental.FlatMapTransform):
    max_fan_out = 2

    def flat_map(self, element):
        return [element] * (element % 4)


def test_flat_map():
    ds = experimental.FlatMapMapDataset(M.range(3), Halves())
    assert [ds[i] for i in range(len(ds))] == [None, None, 1, None, 2, 2]
    assert many_of(ds, range(6)) == [None, None, 1, None, 2, 2]
    with pytest.raises(ValueError, match="Halves made 3 elements of one; that exceeds its max"):
        experimental.FlatMapMapDataset(M.range(4), Halves())[6]


def test_refusals():
    with pytest.raises(ValueError, match="`shuffle` requires a seed"):
        M.range(3).shuffle()
    with pytest.raises(ValueError, match="`random_map` requires a seed"):
        M.range(3).random_map(noise)
    with pytest.raises(ValueError, match=r"`seed` must be from 0 to 2\*\*32 - 1, got -1"):
        M.range(3).shuffle(seed=-1)
    with pytest.raises(ValueError, match="batch` can not follow `MapDataset.filter`, which may"):
        M.range(3).filter(bool).map(str).batch(2)
    with pytest.raises(ValueError, match="batch_size must be positive, got 0"):
        M.range(3).batch(0)
    with pytest.raises(ValueError, match="is endless already and cannot be repeated"):
        M.range(3).repeat().repeat()
    with pytest.raises(ValueError, match="`num_epochs` must be at least 1, got 0"):
        M.range(3).repeat(0)
    with pytest.raises(ValueError, match="a weight of 0 is not possible"):
        M.mix([M.range(3), M.range(3)], [1, 0])
    with pytest.raises(ValueError, match=r"there are none in index 1 \(RangeMapDataset"):
        M.mix([M.range(3), M.range(0)])
    with pytest.raises(ValueError, match="concatenate infinite datasets: .* never ends"):
        M.concatenate([M.range(3).repeat()])
    with pytest.raises(ValueError, match=r"zip needs datasets of one length, got \[3, 4\]"):
        experimental.ZipMapDataset([M.range(3), M.range(4)])
    with pytest.raises(NotImplementedError, match="Derive it from Map, RandomMap"):
        M.range(3).apply(object())


def test_an_empty_dataset_is_legal():
    assert list(M.range(0)) == []
    assert list(M.source([]).map(str).to_iter_dataset().batch(2)) == []
    assert len(M.range(0).repeat()) == 0


def test_element_spec():
    spec = experimental.get_element_spec(M.range(9).shuffle(seed=1).batch(4))
    assert spec == experimental.ShapeDtypeStruct((None,), np.int64)
    spec = experimental.get_element_spec(M.range(9).batch(4, drop_remainder=True))
    assert spec.shape == (4,)
    with pytest.raises(ValueError, match="does not implement `output_spec`"):
        experimental.get_element_spec(M.range(9).map(str))
    with pytest.raises(NotImplementedError, match="`batch_fn` has no method output_spec"):
        experimental.get_element_spec(M.range(9).batch(2, batch_fn=list))


class Doubled(grain.MapDataset):
    """As users write them."""

    def __init__(self, parent):
        super().__init__(parent)
        self.factor = 2

    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index):
        with self._stats.record_self_time():
            return self._stats.record_output_spec(self._parent[index] * self.factor)


def test_a_subclass_of_the_users():
    ds = M.range(5).seed(3).pipe(Doubled).shuffle()
    assert sorted(ds) == [0, 2, 4, 6, 8]
    assert ds.batch(5)[0].tolist() == list(ds)
