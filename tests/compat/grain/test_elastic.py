from __future__ import annotations

import numpy as np
import pytest

import loaderx.compat.grain as grain
from loaderx.compat.grain.experimental import ElasticIterator


def parts(count, size, start=None):
    records = grain.MapDataset.range(24).shuffle(seed=3)
    made = [ElasticIterator(records, size, grain.ShardOptions(i, count)) for i in range(count)]
    for each in made:
        if start is not None:
            each.set_state(start)
    return made


def joined(made):
    """Each global batch, its records in no particular order."""
    return [sorted(np.concatenate(rows).tolist()) for rows in zip(*made)]


def test_parts_make_the_global_batch():
    assert joined(parts(2, 6)) == joined(parts(1, 6)) == joined(parts(3, 6))


def test_a_state_is_for_every_number_of_processes():
    made = parts(2, 6)
    for each in made:
        next(each)
    assert [each.get_state() for each in made] == [{"global_next_index": 6}] * 2
    assert joined(parts(3, 6, start=made[0].get_state())) == joined(parts(1, 6))[1:]


def test_filters_are_refused():
    records = grain.MapDataset.range(9).filter(lambda x: x > 1).map(lambda x: x)
    with pytest.raises(ValueError, match="cannot follow a filter"):
        ElasticIterator(records, 3, grain.NoSharding())


def test_batches_must_divide():
    (first, _) = parts(2, 7)
    with pytest.raises(ValueError, match="7 cannot be divided evenly among 2 shards"):
        next(first)


def test_iterators_of_no_index_are_refused():
    records = grain.MapDataset.range(9).to_iter_dataset()
    with pytest.raises(ValueError, match="takes a MapDataset"):
        ElasticIterator(records, 3, grain.NoSharding())
