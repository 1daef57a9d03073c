"""`take`, `skip`, slices, indices and `split`."""

from __future__ import annotations

import numpy as np
import pytest

from chains import arrays, ids
from loaderx import ChainError, Dataset
from streams import STREAM, numbers


def test_take_and_skip_of_records_and_of_batches():
    assert numbers(STREAM.take(4)) == [0, 2, 4, 6]
    assert numbers(STREAM.skip(47)) == [94, 96, 98]
    assert numbers(STREAM[2:5]) == [4, 6, 8]
    assert numbers(STREAM.take(10).filter(lambda x: x > 15)) == [16, 18]
    assert [b.tolist() for b in STREAM.batch(2).skip(1).take(2)] == [[4, 6], [8, 10]]
    assert [b.tolist() for b in STREAM.batch(2).take(1).repeat(2)] == [[0, 2], [0, 2]]
    assert numbers(STREAM.take(1000)) == list(range(0, 100, 2))


def test_slices_masks_and_arrays():
    d = arrays(10)
    assert ids(d[2:8:3]) == [2, 5]
    assert ids(d[::-1]) == list(range(9, -1, -1))
    assert ids(d[-3:]) == [7, 8, 9]
    assert ids(d[[-1, 0, 3]]) == [9, 0, 3]
    assert ids(d[np.arange(10) % 3 == 0]) == [0, 3, 6, 9]
    assert ids(d[d[3]["x"] : 5]) == [3, 4]
    assert ids(d.skip(2).take(3)) == [2, 3, 4]
    assert ids(d.take(99)) == list(range(10))
    assert ids(d.repeat()[8:14:2]) == [8, 0, 2]
    assert ids(d.repeat().skip(9).take(2)) == [9, 0]
    assert d.batch(4)[-1]["x"].tolist() == [8, 9]


def test_split_is_disjoint_complete_and_the_same_in_every_epoch():
    train, test = arrays(50).split(0.8, 0.2, seed=3)
    assert (len(train), len(test)) == (40, 10)
    assert sorted(ids(train) + ids(test)) == list(range(50))
    assert ids(train) != sorted(ids(train))
    again = {tuple(sorted(b["x"].tolist())) for b in train.shuffle().batch(40).repeat(3)}
    assert again == {tuple(sorted(ids(train)))}
    plain = arrays(10).split(0.3, 0.3, 0.4, shuffle=False)
    assert [ids(part) for part in plain] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    other, _ = arrays(50).split(0.8, 0.2, seed=4)
    assert ids(other) != ids(train)


def test_a_seed_set_later_does_not_move_the_border_of_a_split():
    train, test = Dataset.range(100).split(0.8, 0.2)
    held_out = {int(x) for x in test}
    assert not held_out & {int(x) for x in train.shuffle().seed(1)}
    mixed = Dataset.mix([train.shuffle(), Dataset.range(1000, 1100)]).seed(5)
    assert not held_out & {int(x) for x in mixed}


def test_split_after_a_mix_that_repeats_is_refused():
    with pytest.raises(ChainError, match="split after"):
        Dataset.mix([Dataset.range(4), Dataset.range(9)], stop="repeat").split(0.5, 0.5)
