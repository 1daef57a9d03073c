"""The permutation: values of Grain 0.2.18, and all ways to get it agree."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from loaderx.compat.grain.index_shuffle import Permutations, index_shuffle, permutation, shuffled

# Of seed 42, at 0, 1, half and the last.
OF_GRAIN = {
    2: [0, 1, 1, 1],
    3: [0, 1, 1, 2],
    32_767: [27391, 24683, 1279, 1362],
    32_768: [27391, 24683, 28405, 16983],
    65_536: [43043, 61882, 9235, 52842],
    65_537: [43043, 61882, 9235, 43043],
    262_145: [241746, 66945, 239484, 241746],
    10**6: [42268, 341132, 662568, 763453],
    10**12: [168672032994, 164609850751, 823416905820, 898442112411],
}


@pytest.mark.parametrize("length", OF_GRAIN)
def test_values_of_grain(length):
    indices = [0, 1, length // 2, length - 1]
    assert [index_shuffle(i, length - 1, 42, 4) for i in indices] == OF_GRAIN[length]
    assert shuffled(42, length, np.array(indices)).tolist() == OF_GRAIN[length]
    many = Permutations(length)
    assert many.many(42, np.array(indices)).tolist() == OF_GRAIN[length]
    assert [many.one(42, i) for i in indices] == OF_GRAIN[length]


def test_more_rounds():
    assert [index_shuffle(i, 99, 3, 8) for i in range(5)] == [72, 35, 28, 94, 33]


@pytest.mark.parametrize("length", [1, 2, 7, 100, 4_097, 32_768, 40_000, 65_536])
def test_it_is_a_permutation(length):
    found = permutation(5, length)
    assert sorted(found.tolist()) == list(range(length))
    assert found.tolist() == shuffled(5, length, np.arange(length)).tolist()


def test_two_to_the_sixteenth_and_one_has_one_record_twice():
    found = permutation(9, 65_537)
    assert found[-1] == found[0]
    assert len(set(found.tolist())) == 65_536


def test_blocks_of_long_permutations():
    length = 100_000
    whole = shuffled(3, length, np.arange(length))
    many = Permutations(length)
    for positions in (
        range(5), range(16_380, 16_390), range(99_000, 100_000), range(100, 10, -7), range(0),
        range(0, length, 997),
    ):  # fmt: skip
        assert many.many(3, positions).tolist() == [whole[i] for i in positions]
    assert [many.one(3, i) for i in (50_000, 50_001, 50_002, 7)] == whole[
        [50_000, 50_001, 50_002, 7]
    ].tolist()
    assert pickle.loads(pickle.dumps(many)).one(3, 4) == whole[4]


def test_arguments():
    with pytest.raises(ValueError, match="rounds must be an even integer between 4 and 1024, got"):
        index_shuffle(0, 8, 1, 5)
    with pytest.raises(ValueError, match="and max_index is 8; got 9"):
        index_shuffle(9, 8, 1, 4)
    assert index_shuffle(index=0, max_index=0, seed=0, rounds=4) == 0
