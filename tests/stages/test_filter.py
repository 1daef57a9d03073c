"""`filter`: what it lets through, and what happens when that is little or nothing."""

from __future__ import annotations

import pytest

from chains import arrays
from loaderx import DataLoader, Dataset, LoaderxError, LoaderxWarning
from plain import jitter
from stream_chains import odd
from streams import STREAM, even, everything, head, numbers


def test_filtering_keeps_the_natural_order():
    assert numbers(STREAM) == list(range(0, 100, 2))
    assert numbers(Dataset.range(100).filter(even, batched=True)) == list(range(0, 100, 2))


def test_draws_belong_to_the_records():
    """Dropping some records changes nobody else's draws, and neither does a window shuffle."""
    drawn = {int(r["x"]): r["y"].tolist() for r in arrays(40).random_map(jitter, seed=2)}
    for dataset in (arrays(40).filter(odd), arrays(40).filter(odd, batched=True)):
        for record in dataset.random_map(jitter, seed=2):
            assert record["y"].tolist() == drawn[int(record["x"])]


def test_a_filter_that_lets_almost_nothing_through_warns_once():
    dataset = Dataset.range(40_000).filter(lambda x: x % 1000 == 0, batched=True).batch(4)
    with pytest.warns(
        LoaderxWarning, match=r"filter\(<lambda>, batched=True\) let .* records thr"
    ) as c:
        assert len(list(DataLoader(dataset))) == 10
    assert len(c) == 1
    assert "%)" in str(c[0].message)


def test_a_filter_cannot_change_the_records_by_changing_its_run():
    def odd_and_more(run):
        mask = run["x"] % 2 == 1
        run["n"] = 3
        del run["y"]
        return mask

    batch = next(iter(DataLoader(arrays(10).filter(odd_and_more, batched=True).batch(3))))
    assert batch.keys() == {"x", "y"}
    assert batch["x"].tolist() == [1, 3, 5]


def test_a_filter_that_lets_nothing_through():
    never = Dataset.range(50).filter(lambda x: False)
    assert list(never) == []
    assert list(never.batch(4)) == []
    assert list(never.repeat(3).batch(4)) == []
    assert list(never.batch(4).repeat(3)) == []
    for endless in (never.repeat().batch(4), never.repeat().batch(4, lanes=4)):
        with pytest.raises(LoaderxError, match=r"not one record came .* in (a|16) whole epoch"):
            list(DataLoader(endless))
    with pytest.raises(LoaderxError, match="not one batch came through in a whole epoch"):
        list(DataLoader(never.batch(4).repeat()))
    with (
        pytest.warns(LoaderxWarning, match=r"let 0 of 10,\d+ records through \(0.00%\)"),
        pytest.raises(LoaderxError, match=r"filter\(<lambda>\): not one record came through"),
    ):
        list(DataLoader(Dataset.range(50).repeat().filter(lambda x: False).batch(4)))
    mixed = Dataset.mix([never, Dataset.range(9)], stop="repeat")
    with pytest.raises(LoaderxError, match="dataset 0 of .*mix.*not one record"):
        list(mixed)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.filterwarnings("ignore:filter.* let 0 of")
def test_a_filter_above_a_mix_or_skip_that_lets_nothing_through(lanes):
    stream, plain = Dataset.range(40).filter(everything), Dataset.range(40)
    endless = [
        Dataset.mix([stream.repeat(), plain.repeat()], [1, 3]),
        Dataset.mix([stream.repeat(), plain], stop="repeat").shuffle(window=4),
    ]
    if lanes == 1:
        endless += [stream.repeat().skip(3), plain.repeat().filter(everything).skip(3)]
    for dataset in endless:
        nothing = dataset.filter(lambda x: False).batch(4, lanes=lanes)
        with pytest.raises(LoaderxError, match=r"filter\(<lambda>\): not one record came"):
            list(DataLoader(nothing))
    ends = [
        Dataset.mix([stream.repeat(30), plain.repeat(30)]),
        Dataset.mix([stream, plain.take(9)], [1, 9], stop="repeat"),
    ]
    if lanes == 1:
        ends += [stream.repeat().take(900), stream.repeat(30).skip(3)]
    for dataset in ends:
        assert list(dataset.filter(lambda x: False).batch(4, lanes=lanes)) == []


@pytest.mark.filterwarnings("ignore:filter.* of .* records through")
def test_a_filter_that_lets_a_rare_record_of_an_endless_mix_through():
    rare = Dataset.mix([Dataset.range(3000).repeat(), Dataset.range(5).repeat()], [1, 20])
    assert numbers(head(rare.filter(lambda x: x == 2999), 1)) == [2999]
