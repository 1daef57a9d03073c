"""`set_state(strict=False)` on streams: what can be kept is kept, and the warning says what not."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx import DataLoader, Dataset, LoaderxWarning, StateError
from loaderx.compat import torch as compat
from streams import even, head


def documents(n=400):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, n)
    return Dataset.from_source([{"t": np.full(k, i)} for i, k in enumerate(lengths)])


def packed(length):
    return documents().pack({"t": length}, window=40).batch(2)


def restored(old, new, steps, said):
    iterator = iter(DataLoader(old, engine="inline"))
    head(iterator, steps)
    other = iter(DataLoader(new, engine="inline"))
    with pytest.raises(StateError, match="Pass strict=False to continue anyway, as close to the"):
        other.set_state(iterator.get_state())
    with pytest.warns(LoaderxWarning, match=said):
        other.set_state(iterator.get_state(), strict=False)
    return iterator, other


@pytest.mark.parametrize("steps", range(1, 24, 3))
def test_another_pack_length_begins_with_the_unit(steps):
    """Rows are other documents: what was used of the unit is not known, so it comes again."""
    said = "the number of used rows cannot be kept: every unit that was begun is read again"
    iterator, other = restored(packed(16), packed(64), steps, said)
    unit = iterator.get_state()["lanes"]["0"][0]
    assert other.get_state()["lanes"]["0"] == [unit, 0]
    seen = {int(i) for batch in other for i in np.unique(batch["t"])} - {0}
    assert seen == set(range(max(1, unit * 40), 400))  # all documents from there on, none is lost


def mix(first, weights=(1, 1)):
    return Dataset.mix([first.repeat(), Dataset.range(1000, 1400).filter(even).repeat()], weights)


def test_another_dataset_in_a_mix_keeps_the_schedule():
    one = Dataset.range(400).filter(even)
    said = (
        "dataset 0 was a different one.*The mix keeps its schedule, and its other datasets "
        "continue at the same rows; dataset 0 begins with the start of the unit that was begun"
    )
    old, new = mix(one, (3, 1)).batch(5), mix(one.map(lambda x: -x), (3, 1)).batch(5)
    iterator, other = restored(old, new, 3, said)
    expected, found = head(iterator, 20), head(other, 20)
    for before, after in zip(expected, found, strict=True):
        assert ((before < 1000) == (after < 1000)).all()  # the same places of the schedule
        assert (before[before >= 1000] == after[after >= 1000]).all()
    assert found[0][found[0] < 1000].max() <= 0


def test_another_pack_within_a_mix_is_never_damaged_later():
    def mixed(length):
        rows = documents().pack({"t": length}, window=40).map(lambda r: {"t": r["t"][:4]})
        other = documents().pack({"t": 16}, window=40).map(lambda r: {"t": r["t"][:4]})
        return Dataset.mix([rows.repeat(), other.repeat()]).batch(4)

    _, other = restored(mixed(16), mixed(64), 6, "The mix keeps its schedule")
    assert len(head(other, 50)) == 50


def test_a_window_above_a_mix_of_which_a_dataset_has_changed():
    one = Dataset.range(400).filter(even)

    def windowed(first):
        return mix(first).shuffle(window=8).filter(lambda x: x % 4 == 0).batch(3)

    said = "keeps its schedule.* The window that was begun above the mix is filled again: some of"
    _, other = restored(windowed(one), windowed(one.filter(lambda x: x > 50)), 7, said)
    assert len(head(other, 50)) == 50


def lanes(n):
    return Dataset.range(640).filter(even).repeat().batch(8, lanes=n)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("before", "now"), [(2, 4), (4, 2), (1, 4)])
def test_other_lanes_are_refused_without_advice_that_cannot_help(before, now, strict):
    iterator = iter(DataLoader(lanes(before), engine="inline"))
    head(iterator, 3)
    other = iter(DataLoader(lanes(now), engine="inline"))
    said = (
        f"the state belongs to another chain: it has lanes={before}, and "
        f"this chain has lanes={now}: other lanes read other records, so "
        "neither strict=False nor merge_states can help. "
        f"Write lanes={before} again, or begin a new run."
    )
    with pytest.raises(StateError) as caught:
        other.set_state(iterator.get_state(), strict=strict)
    assert said in str(caught.value)


class Locked:
    """A dataset that holds what cannot be pickled."""

    def __init__(self):
        self.lock = __import__("threading").Lock()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


@pytest.mark.foreign
def test_the_torch_class_is_not_advised_to_use_an_engine():
    loader = compat.DataLoader(Locked(), batch_size=2, num_workers=1)
    with pytest.raises(TypeError, match="cannot be sent to worker processes") as caught:
        next(iter(loader))
    assert "engine=" not in str(caught.value)


@pytest.mark.parametrize(
    ("second", "weights", "says_weights"),
    [(Dataset.range(100, 190), (1, 1), False), (Dataset.range(100, 200), (1, 3), True)],
)
def test_other_weights_are_said_where_there_are_other_weights(second, weights, says_weights):
    """A mix that is read by index, of which a dataset has changed, or the schedule."""

    def mixed(second, weights):
        return Dataset.mix([Dataset.range(100), second], weights).batch(4)

    old = iter(DataLoader(mixed(Dataset.range(100, 200), (1, 1)), engine="inline"))
    head(old, 3)
    new = iter(DataLoader(mixed(second, weights), engine="inline"))
    with pytest.warns(LoaderxWarning, match="Continuing at step 3") as said:
        new.set_state(old.get_state(), strict=False)
    assert ["with other weights" in str(one.message) for one in said] == [says_weights]
