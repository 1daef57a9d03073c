"""What may be given as a function, and what is said when it takes other arguments."""

from __future__ import annotations

import numpy as np
import pytest

from chains import arrays
from loaderx import Dataset, RecordError
from oracle import assert_same
from plain import grow
from streams import everything, numbers

# Half of the records fail here; where the warning itself is meant, it is caught.
pytestmark = pytest.mark.filterwarnings("ignore:.*records have failed")


def test_grain_style_objects():
    class Big:
        def filter(self, x):
            return x > 5

    class Twice:
        def flat_map(self, x):
            return [x, x]

    assert numbers(Dataset.range(8).apply([Big(), Twice()])) == [6, 6, 7, 7]
    assert numbers(Dataset.range(8).filter(Big())) == [6, 7]


PAIRS = Dataset.from_arrays(np.arange(8.0), np.arange(8))


def calls_wrongly(record):
    return everything(record, 1)


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (
            PAIRS.map(lambda x, y: x),
            r"argument: 'y' \(map calls f\(element\), where a tuple is one element\)$",
        ),
        (
            PAIRS.filter(lambda x, y: x),
            r"\(filter calls f\(record\), where a tuple is one rec",
        ),
        (PAIRS.random_map(lambda r: r), r"2 were given \(random_map calls f\(element, rng\)\)$"),
        (
            PAIRS.random_map(lambda r, rng: r, seed_globals=True),
            r"argument: 'rng' \(random_map calls f\(element\)\)$",
        ),
        (
            PAIRS.map_with_index(lambda r: r),
            r"2 were given \(map_with_index calls f\(index, element\)\)$",
        ),
        (PAIRS.map(calls_wrongly), r"takes 1 positional argument but 2 were given$"),
        (
            PAIRS.random_map(lambda b, rng: b if rng.random() < 0.5 else b[::-1], batched=True),
            r"ambiguous.* \(f gets the rows of many records at once, and rng gives one draw for "
            r"each: use np\.where\(...\) for `if`\)$",
        ),
    ],
)
def test_a_function_that_is_called_in_another_way(chain, message):
    with pytest.raises(RecordError, match=message):
        list(chain.batch(4))


def test_a_condition_on_a_batch():
    batches = PAIRS.batch(4)
    for chain, rng in (
        (
            batches.random_map(lambda b, rng: b if rng.random() < 0.5 else b[::-1]),
            ", and rng gives one",
        ),
        (batches.map(lambda b: b if b[0] < 3 else -b), ": use np.where"),
        (PAIRS.filter(everything).batch(4).map(lambda b: b if b[0] < 3 else -b), ": use np.where"),
    ):
        with pytest.raises(RecordError, match=rf"ambiguous.*many records at once{rng}"):
            list(chain)


class AddOne:
    def map(self, element):
        return {**element, "y": element["y"] + 1}


class Noise:
    def random_map(self, element, rng):
        return {**element, "y": element["y"] + rng.random()}


class Tag:
    def map_with_index(self, index, element):
        return {**element, "y": element["y"] * 0 + index}


class Batch:
    def __init__(self, batch_size, drop_remainder=False):
        self.batch_size, self.drop_remainder = batch_size, drop_remainder


def test_grain_style_objects_work_wherever_a_function_does():
    d = arrays(10)
    assert_same(d.map(AddOne()), d.map(AddOne().map))
    assert_same(d.random_map(Noise()), d.random_map(Noise().random_map))
    assert_same(d.map_with_index(Tag()), d.map_with_index(Tag().map_with_index))
    applied = d.apply([AddOne(), Noise(), Tag(), Batch(3, drop_remainder=True), grow])
    by_hand = (
        d.map(AddOne()).random_map(Noise()).map_with_index(Tag())
        .batch(3, drop_remainder=True).map(grow)
    )  # fmt: skip
    assert_same(applied, by_hand)
    assert_same(d.apply(AddOne()), d.map(AddOne()))


def test_grain_itself():
    grain = pytest.importorskip("grain.python", reason="grain is not installed here")

    class Twice(grain.MapTransform):
        def map(self, element):
            return {**element, "y": element["y"] * 2}

    d = arrays(10)
    assert_same(d.apply([Twice(), grain.Batch(5)]), d.map(Twice().map).batch(5))
