"""Endless streams with empty epochs: the next epoch is read if it can differ."""

from __future__ import annotations

import itertools

import pytest

from loaderx import DataLoader, Dataset, LoaderxError
from loaderx.reading import empty_epochs

pytestmark = pytest.mark.filterwarnings("ignore:filter.* of .* records through")


def draw(x, rng):
    return {"x": x, "draw": rng.random()}


def rare(record):
    return record["draw"] > 0.98  # an epoch of 3 records lets one through in 1 of 17 cases


def never(record):
    return False


DRAWN = Dataset.range(3).random_map(draw)
KEPT = Dataset.range(3).filter(lambda x: True).random_map(draw)
RANDOM = {
    "repeat": lambda f: DRAWN.filter(f).repeat().batch(2),
    "repeat of batches": lambda f: DRAWN.filter(f).batch(2).repeat(),
    "repeat below": lambda f: DRAWN.repeat().filter(f).batch(2),
    "above a mix": lambda f: Dataset.mix([KEPT.repeat(), KEPT.repeat()]).filter(f).batch(2),
    "above a skip": lambda f: KEPT.repeat().skip(2).filter(f).batch(2),
    "in a mix": lambda f: Dataset.mix([DRAWN.filter(f).repeat(), KEPT.repeat()]).batch(2),
}


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_a_filter_of_random_numbers_is_asked_again(make):
    """It was given up after one empty pass, although the next pass draws anew."""
    batches = list(itertools.islice(DataLoader(make(rare), engine="inline"), 3))
    assert len(batches) == 3
    if make is RANDOM["repeat"]:
        finite = DRAWN.filter(rare).repeat(1000).batch(2)
        expected = list(itertools.islice(finite, 3))
        assert [b["draw"].tolist() for b in batches] == [b["draw"].tolist() for b in expected]


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_but_not_for_ever(make, monkeypatch):
    monkeypatch.setattr(empty_epochs, "RANDOM_EPOCHS", 40)
    with pytest.raises(LoaderxError, match=r"not one (record|batch) came .* in [\d,]+ whole e"):
        list(DataLoader(make(never), engine="inline"))


def test_how_long_a_random_filter_is_waited_for():
    assert empty_epochs.RANDOM_EPOCHS == 1000  # as docs/streams.md says
    with pytest.raises(LoaderxError, match="not one record came through in 1,000 whole epochs"):
        next(iter(DataLoader(DRAWN.filter(never).repeat().batch(2), engine="inline")))


@pytest.mark.parametrize(
    "dataset",
    [
        Dataset.range(9).filter(never).repeat().batch(2),
        Dataset.range(9).shuffle(0).filter(never).repeat().batch(2),  # another order, no other data
        Dataset.range(9).filter(never).random_map(draw).repeat().batch(2),  # it draws for nobody
        Dataset.range(9).filter(never).batch(2).random_map(draw).repeat(),
    ],
)
def test_what_cannot_change_is_given_up_after_a_pass(dataset):
    with pytest.raises(LoaderxError, match="came through in a whole epoch of an endless dataset"):
        list(DataLoader(dataset, engine="inline"))


def test_failures_that_are_drawn():
    def fails(x, rng):
        if rng.random() < 0.98:
            raise ValueError
        return x

    dataset = Dataset.range(3).filter(lambda x: True).random_map(fails).on_error("replace")
    assert len(list(itertools.islice(dataset.repeat().batch(2), 3))) == 3
