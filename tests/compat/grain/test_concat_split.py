from __future__ import annotations

import numpy as np
import pytest

import loaderx.compat.grain as grain
from loaderx.compat.grain.experimental import BOSHandling, ConcatThenSplitIterDataset


def packed(records, lengths, **options):
    ds = grain.MapDataset.source(records).to_iter_dataset()
    return ConcatThenSplitIterDataset(ds, length_struct=lengths, **options)


def tokens(*lengths):
    return [{"x": np.full(n, i + 1)} for i, n in enumerate(lengths)]


def test_records_end_to_end():
    rows = list(packed(tokens(3, 6, 2), {"x": 4}))
    assert [row["x"].tolist() for row in rows] == [[1, 1, 1, 2], [2, 2, 2, 2], [2, 3, 3, 0]]
    assert rows[0]["x_segment_ids"].tolist() == [1, 1, 1, 2]
    assert rows[2]["x_positions"].tolist() == [0, 0, 1, 0]


def test_full_records_are_rows_of_their_own():
    rows = list(packed(tokens(2, 4, 3), {"x": 4}, split_full_length_features=False))
    assert [row["x"].tolist() for row in rows] == [[1, 1, 3, 3], [2, 2, 2, 2], [3, 0, 0, 0]]


def test_first_tokens():
    rows = list(
        packed(
            tokens(3, 3),
            {"x": 4},
            bos_handling=BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS,
            bos_features=["x"],
            bos_token_id=9,
        )
    )
    assert [row["x"].tolist() for row in rows] == [[9, 1, 1, 9], [9, 2, 0, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bos_token_id": 1}, "have no effect with BOSHandling.DO_NOTHING"),
        (
            {"bos_handling": BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS},
            "`bos_token_id` must be set with",
        ),
        (
            {
                "bos_handling": BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS,
                "bos_token_id": 1,
                "bos_features": ["x"],
                "meta_features": ["x"],
            },
            "meta features have no first token",
        ),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        packed(tokens(1), {"x": 4}, **options)


@pytest.mark.parametrize(
    ("records", "lengths", "message"),
    [
        ([np.arange(3)], {"x": 4}, "must be a flat dict"),
        (tokens(1), {"x": 4, "y": 4}, r"structure \['x'\], and `length_struct` has"),
    ],
)
def test_records_of_another_kind(records, lengths, message):
    with pytest.raises(ValueError, match=message):
        list(packed(records, lengths))


def test_a_meta_feature_that_never_fits():
    records = [{"x": np.arange(2), "m": np.arange(9)}]
    with pytest.raises(ValueError, match="longer than a row and cannot be cut: m has 9 of 4"):
        list(packed(records, {"x": 4, "m": 4}, meta_features=["m"]))


def test_a_state_with_more_than_the_dataset_has():
    iterator = iter(packed(tokens(3), {"x": 4}))
    state = {
        "parent_state": {"next_index": 1},
        "remainder_slices": {"x": (1, 3)},
        "elements_from_buffer_after_checkpoint": 0,
    }
    with pytest.raises(ValueError, match="a part of a record that the dataset does not have"):
        iterator.set_state(state)
