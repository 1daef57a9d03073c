"""take and skip after shuffle do not split: each epoch takes different records, with a warning."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from loaderx import ChainError, DataLoader, Dataset, LoaderxWarning

DATA = Dataset.range(100)
SHUFFLED = DATA.shuffle(seed=0)


def even(x):
    return x % 2 == 0


def test_the_leak():
    """What the warning is about: all of the validation records were trained on."""
    train, valid = SHUFFLED.skip(20).batch(8), SHUFFLED.take(20)
    with pytest.warns(LoaderxWarning, match=r"skip\(20\) stands after shuffle\(seed=0\)"):
        seen = {int(x) for batch in train.repeat(20) for x in batch}
    assert {int(x) for x in valid} <= seen
    train, valid = DATA.split(0.8, 0.2, seed=0)  # what the warning says to write
    seen = {int(x) for batch in train.shuffle(seed=0).batch(8).repeat(20) for x in batch}
    assert not {int(x) for x in valid} & seen


@pytest.mark.parametrize(
    "make",
    [
        lambda: SHUFFLED.take(80).repeat(),
        lambda: SHUFFLED.skip(80).batch(4).repeat(2),
        lambda: SHUFFLED[10:20].map(np.negative).batch(4).repeat(),
        lambda: SHUFFLED[[1, 5, 9]].repeat(),
        lambda: SHUFFLED[np.arange(100) < 50].repeat(),
        lambda: SHUFFLED[::2].repeat(),
        lambda: SHUFFLED.batch(4).skip(5).repeat(),  # the other half of a take of batches
        lambda: SHUFFLED.map(np.negative).take(80).repeat(1).repeat(2),
        lambda: SHUFFLED.repeat(2).take(150).repeat(2),
        lambda: SHUFFLED.filter(even).take(20).repeat(),
        lambda: DATA.shuffle(window=30).take(80).repeat(),
        lambda: DATA.shuffle(window=20).filter(even).take(20).repeat(),
        lambda: Dataset.concatenate([SHUFFLED.take(80), DATA]).repeat(),
        lambda: Dataset.mix([SHUFFLED.take(80), DATA], stop="repeat"),
        lambda: Dataset.zip([SHUFFLED, SHUFFLED]).take(80).repeat(),
    ],
)
def test_a_part_of_an_order_that_changes(make):
    with pytest.warns(LoaderxWarning, match="draws a new order in every epoch") as caught:
        make()
    assert [str(each.filename) for each in caught] == [__file__]  # the user's line, and once
    assert "train, valid = ds.split(0.9, 0.1)" in str(caught[0].message)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SHUFFLED.take(80),  # a quick look
        lambda: SHUFFLED.take(80).batch(8),
        lambda: SHUFFLED.take(80).repeat(1),
        lambda: SHUFFLED.batch(8).take(5),  # how long to run
        lambda: SHUFFLED.batch(8).repeat().take(50),
        lambda: SHUFFLED.repeat().take(500),
        lambda: SHUFFLED.batch(8).take(1).repeat(),  # one batch again and again, or short epochs
        lambda: SHUFFLED.batch(8).take(5).repeat(),
        lambda: SHUFFLED.take(100).repeat(),  # all of it
        lambda: SHUFFLED[::-1].repeat(),
        lambda: SHUFFLED[np.arange(100)].repeat(),
        lambda: DATA.take(80).shuffle(seed=0).repeat(),
        lambda: DATA.split(0.8, 0.2)[0].shuffle().batch(4).repeat(),
        lambda: DATA.shuffle(window=20).take(80).repeat(),  # whole windows
        lambda: DATA.shuffle(window=20).map(np.negative)[20:60].repeat(),
        lambda: DATA.shuffle(window=30).skip(60).repeat(),
        lambda: Dataset.mix([SHUFFLED.repeat(), DATA.repeat()]).take(80),
        lambda: Dataset.mix([SHUFFLED, DATA.take(50)], stop="repeat"),
    ],
)
def test_what_is_no_trap(make):
    make()  # warnings are errors


def test_repeats_are_warned_about_once():
    with pytest.warns(LoaderxWarning, match="draws a new order"):
        repeated = SHUFFLED.take(80).batch(4).repeat(2)
    repeated.repeat(2)
    list(DataLoader(repeated, engine="inline").epoch(1))


def test_epochs_of_a_loader():
    loader = DataLoader(SHUFFLED.take(80).batch(8), engine="inline")
    list(loader)
    list(loader.epoch(0))
    with pytest.warns(LoaderxWarning, match=r"take\(80\) stands after shuffle") as caught:
        first = loader.epoch(1)
    assert [each.filename for each in caught] == [__file__]
    loader.epoch(2)  # said once
    assert first.step == 10


def test_the_short_form():
    DataLoader(SHUFFLED.take(80), batch_size=8, shuffle=False)
    with pytest.warns(LoaderxWarning, match=r"take\(80\) stands after shuffle") as caught:
        DataLoader(SHUFFLED.take(80), batch_size=8, num_epochs=2)
    assert [each.filename for each in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataLoader(DATA.take(80), batch_size=8, num_epochs=None)


def test_the_words_of_split_do_not_lead_there():
    with pytest.raises(ChainError, match="Split first, then shuffle and repeat each part"):
        SHUFFLED.split(0.8, 0.2)
    with pytest.raises(ValueError, match=r"add up to 100, .* got 10; write .split\(8, 2, 90\)"):
        DATA.split(8, 2)
