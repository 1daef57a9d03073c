"""`mix` of datasets that are read by index."""

from __future__ import annotations

import pytest

from chains import arrays, ids
from loaderx import ArgumentError, ChainError, Dataset


def test_mix_stops_where_it_says():
    a, b = arrays(4), arrays(100, 1000)
    first = ids(Dataset.mix([a, b], [1, 1]))
    assert [i for i in first if i < 1000] == [0, 1, 2, 3]
    assert abs(len(first) - 8) <= 1
    wrapped = ids(Dataset.mix([a, b], [1, 1], stop="repeat"))
    assert len([i for i in wrapped if i >= 1000]) == 100
    assert [i for i in wrapped if i < 1000][:9] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    endless = Dataset.mix([a.repeat(), b.repeat()])
    assert ids(endless.take(4)) == [0, 1000, 1, 1001]
    with pytest.raises(TypeError):
        len(endless)


def test_a_mix_that_goes_on_with_what_is_left():
    a, b, c = Dataset.range(3), Dataset.range(10, 15), Dataset.range(20, 28)
    mix = Dataset.mix([a, b, c], [2, 1, 1], stop="all_exhausted")
    # 2:1:1 until the first would be due a fourth time, then 1:1, then what is left.
    assert [int(x) for x in mix] == [0, 10, 1, 20, 2, 11, 12, 21, 13, 22, 14, 23, 24, 25, 26, 27]
    assert len(mix) == 16
    assert "mix(3 datasets, 2:1:1, stop='all_exhausted')" in repr(mix)
    assert sorted(int(x) for x in mix.shuffle(1).repeat(2)) == sorted([*map(int, mix)] * 2)
    batches = Dataset.mix([a.batch(2), c.batch(3)], stop="all_exhausted")
    assert [x.tolist() for x in batches] == [
        [0, 1], [20, 21, 22], [2], [23, 24, 25], [26, 27],
    ]  # fmt: skip
    huge, small = (
        Dataset.mix([Dataset.range(n), Dataset.range(5)], [1, 3], stop="all_exhausted")
        for n in (1 << 60, 50)
    )
    assert [int(x) for x in huge.take(50)] == [int(x) for x in small.take(50)]
    assert int(huge[-1]) == (1 << 60) - 1


def test_what_a_mix_of_all_needs():
    a = Dataset.range(3)
    with pytest.raises(ChainError, match="mix: dataset 1 is endless, so they cannot all be"):
        Dataset.mix([a, a.repeat()], stop="all_exhausted")
    with pytest.raises(ChainError, match="dataset 0 is a stream. stop='all_exhausted' needs data"):
        Dataset.mix([a.filter(lambda x: True), a], stop="all_exhausted")
    with pytest.raises(ArgumentError, match="`stop` must be one of .*, 'all_exhausted', got 'all'"):
        Dataset.mix([a, a], stop="all")


def test_mix_repeat_shuffles_anew():
    a = arrays(30).shuffle(1)
    mixed = Dataset.mix([a, arrays(300, 1000)], [1, 1], stop="repeat")
    mine = [i for i in ids(mixed) if i < 1000]
    rounds = [mine[i : i + 30] for i in range(0, 90, 30)]
    assert all(sorted(r) == list(range(30)) for r in rounds)
    assert rounds[0] != rounds[1] != rounds[2]
    assert rounds[0] == ids(a)
