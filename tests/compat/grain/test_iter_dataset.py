"""`IterDataset`: values and states of Grain 0.2.18."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest

import loaderx.compat.grain as grain
from loaderx.compat.grain import experimental, iterator
from loaderx.compat.grain.iterator import get_next_index, set_next_index

M, X = grain.MapDataset, experimental


def is_even(x):
    return x % 2 == 0


class Split(X.FlatMapTransform):
    max_fan_out = 4

    def flat_map(self, element):
        return [element] * (element % 4)


def small(n=12):
    return M.range(n).shuffle(seed=1).to_iter_dataset()


PIPELINES = {
    "read": small,
    "map": lambda: small().map(lambda x: x + 1),
    "filter": lambda: small().filter(is_even).batch(2),
    "random_map": lambda: small().seed(3).random_map(lambda x, rng: x + rng.random()),
    "map_with_index": lambda: small().filter(is_even).map_with_index(lambda i, x: (i, x)),
    "rows": lambda: M.source(np.arange(24).reshape(12, 2)).to_iter_dataset().batch(5),
    "dropped": lambda: M.source(np.arange(12)).to_iter_dataset().batch(5, drop_remainder=True),
    "mix": lambda: grain.IterDataset.mix([small(), small(7).filter(is_even)], [1, 2]).batch(2),
    "names": lambda: grain.IterDataset.mix({"b": small(), "a": small(7)}, {"a": 0.3, "b": 0.7}),
    "zip": lambda: X.ZipIterDataset([small(), small(14)], strict=False),
    "flat_map": lambda: X.FlatMapIterDataset(small(), Split()).batch(3),
    "limit": lambda: X.LimitIterDataset(small().batch(2), 4),
    "repeat": lambda: X.RepeatIterDataset(small(5).filter(is_even), 3),
    "window": lambda: X.WindowShuffleIterDataset(small(), window_size=5, seed=2).batch(3),
    "interleave": lambda: X.InterleaveIterDataset(
        [M.range(i, i + 3) for i in range(0, 40, 10)] + [small(4)], cycle_length=2
    ),
    "thread": lambda: X.ThreadPrefetchIterDataset(small().batch(3), prefetch_buffer_size=2),
    "several threads": lambda: X.multithread_prefetch(small().filter(is_even), 3, 1),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_restored_state_goes_on_at_every_element(name):
    X.assert_equal_output_after_checkpoint(PIPELINES[name]())
    iterator = iter(PIPELINES[name]())
    next(iterator)
    json.dumps(iterator.get_state())
    iterator.close()


def test_random_numbers_by_the_count_of_elements():
    ds = M.range(20).to_iter_dataset().filter(is_even).seed(3)
    it = iter(ds.random_map(lambda x, rng: x * 100 + int(rng.integers(100))))
    assert [*it] == [38, 254, 462, 651, 852, 1027, 1222, 1404, 1671, 1847]
    assert it.get_state() == {"parent": {"next_index": 20}, "index_for_rng": 10}


def test_window_shuffle():
    ds = X.WindowShuffleIterDataset(M.range(10).to_iter_dataset(), window_size=4, seed=3)
    assert [*ds] == [1, 0, 3, 2, 7, 6, 4, 5, 8, 9]


def test_interleave():
    ds = X.InterleaveIterDataset(
        [M.range(0, 3), M.range(10, 15), M.range(20, 22), M.range(30, 31)], cycle_length=2
    )
    assert [*ds] == [0, 10, 1, 11, 2, 12, 13, 20, 14, 21, 30]
    it = iter(ds)
    for _ in range(7):
        next(it)
    assert it.get_state() == {
        "next_index_in_cycle": 0,
        "next_index_in_datasets": 2,
        "iterators_in_use_indices": [0, 1],
        "iterators_in_use_states": [{"next_index": 3}, {"next_index": 4}],
        "exhausted": [1, 0],
        "future_states": {},
    }
    with pytest.raises(ValueError, match="of an interleave of 1 datasets at once, this one has 2"):
        it.set_state({**it.get_state(), "iterators_in_use_indices": [0]})


def test_a_mix_ends_with_its_first_parent():
    ds = grain.IterDataset.mix([M.range(5).to_iter_dataset(), M.range(7, 10).to_iter_dataset()])
    assert [*ds] == [0, 7, 1, 8, 2, 9, 3]


def test_a_mix_by_name_takes_what_the_state_has():
    it = iter(grain.IterDataset.mix({"a": small(), "b": small()}))
    next(it), next(it), next(it)
    state = it.get_state()
    more = iter(grain.IterDataset.mix({"a": small(), "c": small()}))
    more.set_state(state)
    assert more.get_state()["parents"] == {"a": {"next_index": 2}, "c": {"next_index": 0}}
    with pytest.raises(ValueError, match="datasets and weights must both be mappings"):
        grain.IterDataset.mix({"a": small()}, [1])


def test_zip_is_strict():
    with pytest.raises(ValueError, match="argument 2 is shorter than argument 1"):
        [*X.ZipIterDataset([small(4), small(3)])]
    with pytest.raises(ValueError, match="argument 3 is longer than arguments 1-2"):
        [*X.ZipIterDataset([small(3), small(3), small(4)])]


def test_a_closed_iterator_is_an_error():
    for name in ("read", "map", "filter", "thread", "interleave"):
        it = iter(PIPELINES[name]())
        next(it)
        it.close()
        it.close()
        with pytest.raises(ValueError, match="is closed"):
            next(it)


def test_go_to_an_element_by_its_number():
    it = iter(small().batch(3).map(lambda x: x))
    everything = [*iter(small().batch(3))]
    set_next_index(it, 2)
    assert get_next_index(it) == 2
    np.testing.assert_equal(next(it), everything[2])
    assert get_next_index(it) == 3
    with pytest.raises(NotImplementedError, match="_FilterIterator"):
        set_next_index(iter(small().filter(is_even)), 1)
    with pytest.raises(IndexError, match="is at element 13, and the dataset has a length of 12"):
        set_next_index(iter(small()), 13)


def test_a_filter_that_leaves_out_all(monkeypatch, caplog):
    monkeypatch.setattr(iterator, "last_warning", float("-inf"))
    ds = M.range(1000).to_iter_dataset().filter(lambda x: False)
    with caplog.at_level(logging.WARNING):
        assert [*ds] == []
    assert "has left out 100.00 % of the last 1000 elements" in caplog.text
    strict = X.WithOptionsIterDataset(ds, X.DatasetOptions(filter_raise_threshold_ratio=0.5))
    with pytest.raises(ValueError, match=r"DatasetOptions\(filter_raise_threshold_ratio=None\)"):
        list(strict)
    sparse = M.range(1000).filter(lambda x: False).to_iter_dataset()
    with pytest.raises(ValueError, match="PrefetchDatasetIterator.* has left out 100.00 %"):
        [*X.WithOptionsIterDataset(sparse, X.DatasetOptions(filter_raise_threshold_ratio=0.5))]


def test_options_merge():
    first = X.DatasetOptions(filter_warn_threshold_ratio=0.5, min_shm_size=3)
    both = X.DatasetOptions(min_shm_size=4).merge(first)
    assert (both.filter_warn_threshold_ratio, both.min_shm_size) == (0.5, 4)
    assert both.filter_raise_threshold_ratio is None
    assert X.DatasetOptions().filter_limits() == (0.9, float("inf"))


def test_batch_and_pad():
    batch = X.batch_and_pad([{"a": np.ones(2)}, {"a": np.zeros(2)}], batch_size=3, pad_value=7)
    assert batch["a"].tolist() == [[1, 1], [0, 0], [7, 7]]
    with pytest.raises(ValueError, match="3 elements are too many for a batch of 2"):
        X.batch_and_pad([1, 2, 3], batch_size=2)


def test_pick_performance_config():
    ds = M.range(100).map(lambda x: np.zeros(1 << 17)).to_iter_dataset()  # 1 MB each
    config = X.pick_performance_config(
        ds, ram_budget_mb=3, max_workers=10, max_buffer_size=None, samples_to_check=5
    )
    assert config.multiprocessing_options.num_workers == 3
    assert config.read_options.prefetch_buffer_size == 3
    few = M.range(2).to_iter_dataset()
    config = X.pick_performance_config(few, ram_budget_mb=3, max_workers=10, max_buffer_size=50)
    assert config.multiprocessing_options.num_workers == 10
    assert config.read_options.prefetch_buffer_size == 50


class Pairs(grain.IterDataset):
    """As users write them: its iterator is one of theirs."""

    def __iter__(self):
        return PairsIterator(self._parent.__iter__())


class PairsIterator(grain.DatasetIterator):
    def __init__(self, parent):
        super().__init__(parent)
        self.seen = 0

    def __next__(self):
        pair = next(self._parent), next(self._parent)
        self.seen += 1
        return self._stats.record_output_spec(pair)

    def get_state(self):
        return {"parent": self._parent.get_state(), "seen": self.seen}

    def set_state(self, state):
        self._parent.set_state(state["parent"])
        self.seen = state["seen"]


class Generated(grain.IterDataset):
    """Its iterator is a generator."""

    def __iter__(self):
        yield from [1, 2, 3]


def test_subclasses_of_the_users():
    ds = Pairs(small()).map(sum)
    X.assert_equal_output_after_checkpoint(ds)
    assert [*Generated().map(lambda x: x + 1).batch(2)][1].tolist() == [4]
    with pytest.raises(TypeError, match="abstract"):
        grain.IterDataset()
