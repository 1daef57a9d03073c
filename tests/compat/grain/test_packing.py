from __future__ import annotations

import numpy as np
import pytest

import loaderx.compat.grain as grain
from loaderx.compat.grain.experimental import (
    BestFitPackIterDataset,
    FirstFitPackIterDataset,
    PackAndBatchOperation,
)


def packed(records, kind=FirstFitPackIterDataset, **options):
    ds = grain.MapDataset.source(records).to_iter_dataset()
    settings = {"num_packing_bins": 2, "shuffle_bins": False, "length_struct": {"x": 4}, **options}
    return kind(ds, **settings)


def tokens(*lengths):
    return [{"x": np.full(n, i + 1), "dropped": i} for i, n in enumerate(lengths)]


def values(rows):
    return [row["x"].tolist() for row in rows]


def test_first_fit():
    rows = list(packed(tokens(3, 2, 1, 2, 4)))
    assert values(rows) == [[1, 1, 1, 3], [2, 2, 4, 4], [5, 5, 5, 5]]
    assert rows[0].keys() == {"x", "x_segment_ids", "x_positions"}


def test_best_fit():
    rows = packed(tokens(2, 3, 1), BestFitPackIterDataset)
    assert values(rows) == [[1, 1, 0, 0], [2, 2, 2, 3]]


def test_batches_of_rows_are_the_rows_stacked():
    records = tokens(*(1 + 7 * i % 4 for i in range(50)))
    rows = list(packed(records, num_packing_bins=5, shuffle_bins=True))
    batches = list(packed(records, num_packing_bins=5, shuffle_bins=True).batch(3))
    for name in rows[0]:
        joined = np.concatenate([batch[name] for batch in batches])
        np.testing.assert_array_equal(joined, np.stack([row[name] for row in rows]))
    assert len(batches[-1]["x"]) == len(rows) % 3 or 3
    whole = list(packed(records, num_packing_bins=5).batch(4, drop_remainder=True))
    assert {len(batch["x"]) for batch in whole} == {4}


def test_features_that_are_collected():
    records = [{"x": np.arange(2), "name": f"r{i}"} for i in range(3)]
    rows = list(packed(records, meta_features=["name"]))
    assert [row["name"] for row in rows] == [["r0", "r1"], ["r2"]]


@pytest.mark.parametrize(
    ("records", "options", "message"),
    [
        (tokens(5), {}, "longer than a bin: x has 5 of 4. Cut records"),
        (tokens(2), {"length_struct": {"y": 4}}, "a record has x, dropped, and `length_struct`"),
        ([3], {}, r"a record has no names \(it is a int\)"),
        (
            [{"x": {"y": np.arange(2)}}],
            {"length_struct": {"x": {"y": 4}}},
            "cannot make segment ids for 'x', which is a dict of features",
        ),
    ],
)
def test_records_that_cannot_be_packed(records, options, message):
    with pytest.raises(ValueError, match=message):
        list(packed(records, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_sequences_per_bin": 0}, "must be at least 1, or None; got 0"),
        ({"length_struct": 4}, "`length_struct` must be a dict of lengths"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        packed(tokens(1), **options)


def test_a_state_that_is_none():
    iterator = iter(packed(tokens(1)))
    with pytest.raises(ValueError, match="`next_row` and `counter` must be integers"):
        iterator.set_state({"parent": {"next_index": 0}, "next_row": "a", "counter": 0})


def test_the_operation():
    records = [
        grain.Record(grain.RecordMetadata(index=i), {"x": np.full(n, i + 1)})
        for i, n in enumerate((3, 2, 4))
    ]
    made = list(PackAndBatchOperation(length_struct={"x": 4}, batch_size=2)(iter(records)))
    assert [record.metadata.index for record in made] == [1, 2]
    batch, segment_ids, positions = made[0].data
    assert batch["x"].tolist() == [[1, 1, 1, 0], [2, 2, 0, 0]]
    assert segment_ids["x"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    assert positions["x"].tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]
    with pytest.raises(ValueError, match="cut records before they are packed"):
        list(PackAndBatchOperation(length_struct={"x": 2}, batch_size=2)(iter(records)))
