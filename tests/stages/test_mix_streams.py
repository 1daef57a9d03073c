"""`mix` of streams."""

from __future__ import annotations

import pytest

import stream_oracle
from loaderx import DataLoader, Dataset, LoaderxError, RecordError
from oracle import assert_same
from streams import STREAM, everything, numbers


def test_a_mix_of_streams_and_other_datasets():
    dataset = Dataset.mix([STREAM, Dataset.range(1000, 1009)], [2, 1])
    assert numbers(dataset)[:6] == [0, 2, 1000, 4, 6, 1001]
    assert_same(list(dataset), list(stream_oracle.elements(dataset)))
    again = Dataset.mix([STREAM, Dataset.range(1000, 1009).shuffle(1)], [2, 1], stop="repeat")
    assert_same(list(again), list(stream_oracle.elements(again)))
    by_index = Dataset.mix(
        [Dataset.range(50), Dataset.range(1000, 1009).shuffle(1)], [2, 1], stop="repeat"
    )
    ours = Dataset.mix(
        [Dataset.range(50).filter(lambda x: True), Dataset.range(1000, 1009).shuffle(1)],
        [2, 1],
        stop="repeat",
    )
    assert numbers(ours) == numbers(by_index)


def test_mixes_that_start_again_inside_each_other_have_many_epochs():
    small = Dataset.range(9).filter(everything).shuffle(window=3)
    inner = Dataset.mix([small, Dataset.range(100, 130)], stop="repeat")
    outer = Dataset.mix([inner, Dataset.range(1000, 1100)], stop="repeat")
    most = Dataset.mix([outer, Dataset.range(2000, 2010)], stop="repeat").batch(50)
    expected = list(most.repeat(4))
    loader = DataLoader(most)
    assert_same([batch for e in range(4) for batch in loader.epoch(e)], expected)
    again = most.repeat(2).take(9).repeat(3)
    assert_same(list(DataLoader(again)), list(again))
    assert len(list(loader.epoch(1000))) == len(expected) // 4


def test_components_that_do_not_fit_are_named():
    one, other = STREAM.map(lambda x: x), Dataset.from_source([{"a": 1}] * 9)
    message = r"a row of dataset 1 has the structure \{'a': \*\}, a row of dataset 0 has \*"
    with pytest.raises(LoaderxError, match=message):
        list(Dataset.mix([one, other]).batch(4))


@pytest.mark.parametrize("keep", [Dataset.filter, lambda dataset, _: dataset])
def test_a_failure_in_a_mix_names_the_dataset(keep):
    def parse(x):
        if x == 3:
            raise ValueError("not a number")
        return x

    fine, broken = (keep(Dataset.range(9).map(f), lambda x: True) for f in (abs, parse))
    message = r"step 1: dataset 1: map\(parse\) failed on record 3: ValueError: not a number"
    iterator = iter(DataLoader(Dataset.mix([fine, broken]).batch(4)))
    with pytest.raises(RecordError, match=message) as caught:
        list(iterator)
    assert caught.value.index == 3
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(RecordError, match=message):
        next(iterator)


def test_a_mix_names_its_rows_also_where_some_of_them_are_loose():
    ragged = Dataset.from_source([{"x": i, "t": [0] * (i % 3)} for i in range(8)])
    loose = Dataset.mix([ragged.filter(everything), ragged], [1, 3], stop="repeat")
    for wrong in range(8):

        def picky(record, wrong=wrong):
            if record["x"] == wrong:
                raise ValueError("this one")
            return True

        with pytest.raises(
            RecordError, match=r"filter\(picky\) failed on .*: ValueError: this one"
        ):
            list(loose.shuffle(window=16).filter(picky).batch(4))


def test_a_part_with_epochs_of_its_own_ends_the_mix_after_them():
    once = Dataset.range(9).filter(everything)
    mixed = Dataset.mix([once.repeat(2), Dataset.range(1000, 1100)])
    assert [x for x in numbers(mixed) if x < 1000] == [*range(9)] * 2
    assert_same(list(mixed), list(stream_oracle.elements(mixed)))
    again = Dataset.mix([once.repeat(2), Dataset.range(1000, 1030)], stop="repeat")
    assert_same(list(again), list(stream_oracle.elements(again)))
