"""`zip`: elements side by side, batches only where their sizes are equal."""

from __future__ import annotations

import pytest

from chains import arrays
from loaderx import ChainError, Dataset


def test_zip():
    pair = Dataset.zip({"a": arrays(5), "b": arrays(5, 100)})
    assert pair[2]["b"]["x"] == 102
    assert Dataset.zip((arrays(5).batch(2), arrays(5, 100).batch(2)))[1][1]["x"].tolist() == [
        102,
        103,
    ]


def test_zip_of_batches_with_other_last_batches_is_refused():
    with pytest.raises(ChainError, match="the last batches differ in size, or may"):
        Dataset.zip([Dataset.range(10).batch(4), Dataset.range(12).batch(4)])


@pytest.mark.parametrize(
    "parts",
    [
        lambda: [Dataset.range(11).batch(4), Dataset.range(9).batch(4).take(3)],
        lambda: [Dataset.range(9).batch(4).skip(1), Dataset.range(7).batch(4)],
        lambda: [Dataset.range(9).batch(4)[[0, 2, 1]], Dataset.range(9).batch(4)],
        lambda: [Dataset.range(9).batch(4)[::-1], Dataset.range(9).batch(4)],
        lambda: [Dataset.range(9).batch(4).shuffle(0), Dataset.range(9).batch(4)],
        # As many rows in as many batches, but in other places: 4, 3, 4, 3 and 4, 4, 4, 2.
        lambda: [Dataset.range(7).batch(4).repeat(2), Dataset.range(14).batch(4)],
        lambda: [Dataset.range(7).batch(4).repeat(), Dataset.range(11).batch(4).repeat()],
        lambda: [Dataset.range(11).batch(4), Dataset.range(11).batch(4, pad_remainder=True)],
        lambda: [Dataset.mix([Dataset.range(7).batch(4)]), Dataset.range(7).batch(4)],
    ],
)
def test_zip_of_batches_is_refused_where_their_sizes_may_differ(parts):
    with pytest.raises(ChainError, match="the last batches differ in size, or may differ"):
        Dataset.zip(parts())


@pytest.mark.parametrize(
    "parts",
    [
        lambda: [Dataset.range(11).batch(4).take(2), Dataset.range(9).batch(4).take(2)],
        lambda: [Dataset.range(11).batch(4).take(3), Dataset.range(11).batch(4).map(grow_x)],
        lambda: [Dataset.range(11).batch(4).skip(1), Dataset.range(7).batch(4)],
        lambda: [Dataset.range(7).batch(4).repeat(2), Dataset.range(7).batch(4).repeat(2)],
        lambda: [Dataset.range(7).batch(4).repeat(2).skip(1), Dataset.range(7).batch(4).repeat(5).skip(7)],
        lambda: [Dataset.range(7).batch(4).repeat().take(3), Dataset.range(7).batch(4).repeat(9)[4:7]],
        lambda: [Dataset.range(7).batch(4).repeat(3)[2:4], Dataset.range(7).batch(4)],
        lambda: [Dataset.range(8).batch(4).shuffle(0), Dataset.range(8).batch(4)[[1, 1]]],
        lambda: [Dataset.zip([Dataset.range(7).batch(4)]), Dataset.range(7).batch(4)],
        lambda: [arrays(11).batch(4, pad_remainder=True)] * 2,
    ],
)  # fmt: skip
def test_zip_of_batches_whose_sizes_are_known_to_be_equal(parts):
    sizes = [
        [len(leaf) for leaf in map(only_leaf, batches)] for batches in zip(*parts(), strict=True)
    ]
    assert all(len(set(each)) == 1 for each in sizes)
    assert len(Dataset.zip(parts())) == len(sizes)


def grow_x(batch):
    return batch + 1


def only_leaf(batch):
    return (
        batch[0] if isinstance(batch, tuple) else batch["x"] if isinstance(batch, dict) else batch
    )
