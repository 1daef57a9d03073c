"""`shuffle` with a window, by index and in a stream."""

from __future__ import annotations

from loaderx import Dataset
from streams import even, numbers


def test_a_window_shuffle_is_the_same_by_index_and_in_a_stream():
    by_index = Dataset.range(50).shuffle(3, window=8)
    in_stream = Dataset.range(50).filter(lambda x: True).shuffle(3, window=8)
    assert numbers(by_index) == numbers(in_stream)
    assert numbers(by_index) != list(range(50))
    for start in range(0, 50, 8):
        assert sorted(numbers(by_index)[start : start + 8]) == list(
            range(start, min(start + 8, 50))
        )
    assert by_index[3] == numbers(by_index)[3]
    endless = numbers(Dataset.range(10).repeat().shuffle(0, window=4).take(40))
    assert sorted(endless) == sorted(list(range(10)) * 4)


def test_a_stage_after_a_repeat_belongs_to_every_pass():
    one = Dataset.range(20).filter(even).repeat(2).shuffle(1, window=8)
    other = Dataset.range(20).filter(even).shuffle(1, window=8).repeat(2)
    assert numbers(one) == numbers(other)
    assert numbers(one)[:10] != numbers(one)[10:]
