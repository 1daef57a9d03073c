"""Packing: every token once, in its place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stream_oracle
from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    Dataset,
    LoaderxWarning,
    RecordError,
    StackError,
)
from loaderx.memory import Pool
from loaderx.stages.pack import Packing, check_packing
from loaderx.stages.pack_rows import pack
from oracle import assert_same


def documents(lengths, dtype=np.int32):
    """Records whose tokens are all different, so that each can be told from the others."""
    ends = np.cumsum(lengths)
    return [
        {"t": np.arange(end - n, end, dtype=dtype) + 1, "id": np.int64(i)}
        for i, (n, end) in enumerate(zip(lengths, ends.tolist()))
    ]


def masked(record):
    """The record with a loss mask that can be told from its tokens."""
    return {**record, "mask": (record["t"] % 5 + 10).astype(np.uint8)}


def options(**more):
    given = {
        "lengths": {"t": 10}, "strategy": "best_fit", "window": 50, "overflow": "error",
        "pad_value": 0, "max_segments": None, "segment_ids": "{}_segment_ids",
        "positions": "{}_positions", "bos": None, "whole_documents": False,
    }  # fmt: skip
    return check_packing(**{**given, **more})


packings = st.builds(
    lambda n, kind, most, bos, eos, more: {
        "lengths": {"t": n, **({"mask": "t"} if more else {})},
        "max_segments": most,
        "bos": bos and {"t": bos},
        "eos": eos and {"t": eos, **({"mask": 1} if more else {})},
        **kind,
        **more,
    },
    st.integers(2, 12),
    st.sampled_from(
        [
            {"strategy": strategy, "overflow": overflow}
            for strategy in ("best_fit", "first_fit")
            for overflow in ("truncate", "split", "drop")
        ]
        + [{"strategy": "concat"}]
        + [
            {"strategy": "concat", "whole_documents": True, "overflow": overflow}
            for overflow in ("truncate", "split", "drop")
        ]
    ),
    st.sampled_from([12, 12, 2, 1]),
    st.sampled_from([None, None, 777]),
    st.sampled_from([None, None, 888]),
    st.sampled_from(
        [
            {},
            {"continue_positions": True},
            {"balance": "squares", "balance_rows": 2},
            {"balance": "squares", "balance_rows": 1},
            {"balance": lambda n: 7 * n + n**3, "balance_rows": 3},
        ]
    ),
)


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 15) | st.integers(0, 2), min_size=1, max_size=40),
    packings,
    st.integers(1, 20),
)
def test_packing_equals_the_slow_twin(lengths, packing, window):
    records = documents(lengths)
    if "mask" in packing["lengths"]:
        records = list(map(masked, records))
    dataset = Dataset.from_source(records).pack(window=window, **packing)
    expected = list(stream_oracle.elements(dataset))
    assert_same(list(dataset), expected)
    if expected:
        assert_same(list(dataset.batch(3)), list(stream_oracle.elements(dataset.batch(3))))


def segments(rows, path="t"):
    """The segments of packed rows: tokens, and the record's id where there is one."""
    for row in rows:
        ids = row[f"{path}_segment_ids"]
        for number in range(1, int(ids.max(initial=0)) + 1):
            where = np.flatnonzero(ids == number)
            assert (np.diff(where) == 1).all()  # segments never mix
            positions = row[f"{path}_positions"][where]
            assert positions.tolist() == list(range(len(where)))  # and positions restart
            yield row[path][where].tolist()
        padding = ids == 0
        assert not row[path][padding].any()
        assert not row[f"{path}_positions"][padding].any()


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=60),
    st.sampled_from(["best_fit", "first_fit"]),
    st.integers(1, 60),
)
def test_every_token_of_every_record_once_in_order(lengths, strategy, window):
    records = [{"t": record["t"]} for record in documents(lengths)]
    rows = list(Dataset.from_source(records).pack({"t": 30}, strategy=strategy, window=window))
    found = sorted(segments(rows))
    assert found == sorted(record["t"].tolist() for record in records if len(record["t"]))


@settings(max_examples=50)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(1, 9))
def test_concat_is_the_text_itself(lengths, row):
    records = [{"t": record["t"]} for record in documents(lengths)]
    rows = list(Dataset.from_source(records).pack({"t": row}, strategy="concat", window=1000))
    text = np.concatenate([r["t"][r["t_segment_ids"] > 0] for r in rows] or [np.empty(0)])
    assert text.tolist() == list(range(1, sum(lengths) + 1))
    assert all((r["t_segment_ids"] > 0).all() for r in rows[:-1])


def test_several_leaves_keep_their_own_lengths():
    records = [
        {"inputs": np.full(n, n, np.int32), "targets": np.full(m, -m, np.int16), "name": np.int8(i)}
        for i, (n, m) in enumerate([(3, 1), (2, 4), (5, 2), (1, 1), (6, 0), (0, 3)])
    ]
    for strategy in ("best_fit", "first_fit"):
        dataset = Dataset.from_source(records).pack(
            {"inputs": 8, "targets": 6}, strategy=strategy, max_segments=4, pad_value={"name": -1}
        )
        rows = list(dataset)
        assert_same(rows, list(stream_oracle.elements(dataset)))
        names = [name for row in rows for name in row["name"].tolist() if name >= 0]
        assert sorted(names) == [0, 1, 2, 3, 4, 5]
        for row in rows:
            assert row["inputs"].dtype == np.int32
            assert row["targets"].shape == (6,)
            for segment, name in enumerate(row["name"].tolist(), 1):
                if name >= 0:
                    for leaf in ("inputs", "targets"):
                        mine = row[leaf][row[f"{leaf}_segment_ids"] == segment]
                        assert mine.tolist() == records[name][leaf].tolist()


def test_leaves_with_more_axes():
    records = [{"t": np.full((n, 2), n, np.float32)} for n in (3, 1, 2)]
    (row,) = Dataset.from_source(records).pack({"t": 7}, pad_value=-1)
    assert row["t"].shape == (7, 2)
    assert row["t"][:, 0].tolist() == [3, 3, 3, 1, 2, 2, -1]


def test_keys_and_names_with_dots_and_braces():
    records = Dataset.from_source([{"a.t": np.arange(2)}] * 2)
    (row,) = records.pack({"a.t": 4}, segment_ids="{}{x}", positions=None)
    assert row["a.t{x}"].tolist() == [1, 1, 2, 2]
    for dataset in (records, records.filter(lambda r: True)):
        (batch,) = dataset.batch(2, pad_to={"a.t": 3})
        assert batch["a.t_length"].tolist() == [2, 2]


def test_names_of_the_marks():
    records = documents([2, 3])
    (row,) = Dataset.from_source(records).map(lambda r: {"t": r["t"]}).pack(
        {"t": 6}, segment_ids="{}_seg", positions=None
    )  # fmt: skip
    assert sorted(row) == ["t", "t_seg"]


def test_the_order_of_rows_follows_the_records():
    lengths = [3, 9, 4, 2, 8, 1]
    rows = list(
        Dataset.from_source(documents(lengths)).map(lambda r: {"t": r["t"]}).pack({"t": 10})
    )
    firsts = [int(row["t"][0]) for row in rows]
    assert firsts == sorted(firsts)


def lognormal(count, seed=0, row=2048):
    lengths = np.random.default_rng(seed).lognormal(np.log(300), 0.9, count)
    return np.clip(lengths, 1, row).astype(np.int64)


def test_rows_of_concat_that_are_full_of_segments():
    records = [{"t": record["t"]} for record in documents([1] * 7 + [5])]
    rows = list(Dataset.from_source(records).pack({"t": 4}, strategy="concat", max_segments=2))
    assert [r["t"].tolist() for r in rows] == [
        [1, 2, 0, 0], [3, 4, 0, 0], [5, 6, 0, 0], [7, 8, 9, 10], [11, 12, 0, 0],
    ]  # fmt: skip


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=60),
    st.sampled_from(["best_fit", "first_fit", "concat"]),
    st.integers(1, 60),
    st.sampled_from([None, "squares", np.sqrt]),
)
def test_masks_and_ends_stay_with_their_tokens(lengths, strategy, window, balance):
    records = [masked({"t": record["t"]}) for record in documents(lengths)]
    row = {"t": 31, "mask": "t"}
    dataset = Dataset.from_source(records).pack(
        row, strategy=strategy, window=window, balance=balance, balance_rows=3,
        eos={"t": -1, "mask": 1}, continue_positions=True,
    )  # fmt: skip
    found = []
    for one in dataset:
        assert sorted(one) == ["mask", "t", "t_positions", "t_segment_ids"]
        is_end, ids = one["t"] == -1, one["t_segment_ids"]
        steps = np.flatnonzero(np.diff(ids))
        assert (np.diff(ids)[steps] == 1).sum() >= len(steps) - 1  # 1, 2, ..., then padding
        real = ids > 0
        assert np.array_equal(one["mask"], np.where(is_end, 1, one["t"] % 5 + 10) * real)
        found += zip(one["t"][real].tolist(), one["t_positions"][real].tolist())
    texts = [record["t"].tolist() for record in records if len(record["t"])]
    expected = [pair for text in texts for pair in zip([*text, -1], range(len(text) + 1))]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("overflow", "rows"),
    [
        ("split", [[1, 2, 3, 4], [5, 6, 7, 8], [99, 9, 10, 99]]),
        ("truncate", [[1, 2, 3, 4], [9, 10, 99, 0]]),  # the end was cut off
        ("drop", [[9, 10, 99, 0]]),
    ],
)
def test_the_end_of_a_document_that_is_too_long(overflow, rows):
    records = [{"t": record["t"]} for record in documents([8, 2])]
    packed = Dataset.from_source(records).pack({"t": 4}, overflow=overflow, eos=99)
    assert [row["t"].tolist() for row in packed] == rows


def test_a_record_of_just_the_length_has_no_room_for_its_end():
    dataset = Dataset.from_source(documents([4])).pack({"t": 4}, eos=9, max_segments=2)
    with pytest.raises(
        RecordError, match=r'has 5 entries in leaf "t" \(`eos` is one of them\), a row'
    ):
        list(dataset)


def test_ends_in_one_of_two_leaves():
    records = [{"t": np.arange(1, 3), "u": np.arange(1, 4)}, {"t": np.arange(0), "u": np.ones(1)}]
    records[1]["u"] = records[1]["u"].astype(np.int64)
    (row,) = Dataset.from_source(records).pack({"t": 5, "u": 5}, eos={"t": 9})
    assert row["t"].tolist() == [1, 2, 9, 9, 0]
    assert row["u"].tolist() == [1, 2, 3, 1, 0]


def test_positions_go_on_through_the_pieces_of_a_record():
    records = [{"t": record["t"]} for record in documents([6, 3])]
    for more, positions in (
        ({"overflow": "split"}, [[0, 1, 2, 3], [4, 5, 0, 0], [0, 1, 2, 0]]),
        ({"strategy": "concat"}, [[0, 1, 2, 3], [4, 5, 0, 1], [2, 0, 0, 0]]),
        # `bos` takes a place of the segment at the head of each row
        ({"strategy": "concat", "bos": 7}, [[0, 1, 2, 3], [3, 4, 5, 6], [0, 1, 2, 3]]),
    ):
        packed = Dataset.from_source(records).pack({"t": 4}, continue_positions=True, **more)
        assert [row["t_positions"].tolist() for row in packed] == positions


# Balance --------------------------------------------------------------------------------------


def dearest(dataset, rows, lanes):
    """The dearest of 4 devices in each step over the mean of all, for all steps together."""
    shares = []
    for batch in dataset.batch(4 * rows, drop_remainder=True, lanes=lanes):
        cost = [(np.bincount(ids)[1:] ** 2).sum() for ids in batch["t_segment_ids"]]
        shares.append(np.reshape(cost, (4, rows)).sum(axis=1))
    return np.max(shares, axis=1).sum() / np.mean(shares, axis=1).sum()


@pytest.mark.parametrize(
    ("rows", "lanes", "bar"),
    [(8, 1, 1.03), (4, 1, 1.03), (2, 1, 1.03), (1, 1, 1.03), (8, 4, 1.05), (4, 4, 1.05)],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_devices_of_a_step_cost_nearly_the_same(rows, lanes, bar, seed):
    """The issue's own figures: at most 1.05 where best fit alone has far more, and 0.99 full."""
    source = np.zeros(2048, np.uint16)
    lengths = lognormal(16_000, seed)
    dataset = Dataset.from_source([{"t": source[:n]} for n in lengths])
    plain = dataset.pack({"t": 2048})
    balanced = dataset.pack({"t": 2048}, balance="squares", balance_rows=rows)
    count = sum(1 for _ in balanced)
    assert lengths.sum() / (count * 2048) >= 0.99
    assert dearest(plain, rows, lanes) > 1.2
    assert dearest(balanced, rows, lanes) <= bar


@settings(max_examples=30)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=80), st.integers(1, 9))
def test_balance_changes_the_order_of_rows_and_nothing_else(lengths, size):
    dataset = Dataset.from_source([{"t": record["t"]} for record in documents(lengths)])
    plain = dataset.pack({"t": 30}, window=40).random_keys()
    balanced = dataset.pack({"t": 30}, window=40, balance="squares", balance_rows=size)
    by_tokens = {tuple(row["t"].tolist()): row for row in balanced.random_keys()}
    rows = list(plain)
    assert len(by_tokens) == len(rows)
    for row in rows:
        assert_same(by_tokens[tuple(row["t"].tolist())], row)


def test_the_function_of_balance_gets_the_lengths_of_each_leaf():
    seen = []

    def cost(text, patches):
        seen.append((text.tolist(), patches.tolist()))
        return text + 4 * patches

    records = [{"t": np.zeros(n), "u": np.zeros(m), "v": np.zeros(n)} for n, m in [(3, 1), (2, 2)]]
    rows = Dataset.from_source(records).pack({"t": 4, "u": 4, "v": "t"}, balance=cost)
    assert len(list(rows)) == 2
    assert seen == [([3, 2], [1, 2])]


def test_density():
    """The issue's own figure: best fit over windows of 2,000 fills at least 0.995 of the rows."""
    lengths = lognormal(20_000)
    source = np.arange(2048, dtype=np.uint16)
    used = total = 0
    for start in range(0, len(lengths), 2000):
        records = [{"t": source[:n]} for n in lengths[start : start + 2000]]
        packed = pack(records, Packing({"t": 2048}), str, Pool().lend)
        used, total = used + packed.tokens, total + packed.capacity
    assert used == lengths.sum()
    assert used / total >= 0.995


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"lengths": {}}, ArgumentTypeError, "`lengths` must be a dict such as"),
        ({"lengths": 5}, ArgumentTypeError, "`lengths` must be a dict such as"),
        ({"lengths": {"t": 0}}, ArgumentError, r"`lengths\['t'\]` must be at least 1, got 0"),
        ({"lengths": {"t": 1}, "bos": 1}, ArgumentError, "must be at least 2, got 1"),
        ({"strategy": "worst"}, ArgumentError, "`strategy` must be one of 'best_fit'"),
        ({"overflow": "ignore"}, ArgumentError, "`overflow` must be one of 'error'"),
        ({"lengths": {3: 4}}, ArgumentTypeError, "`lengths` must be a string, got 3"),
        ({"window": 0}, ArgumentError, "`window` must be at least 1, got 0"),
        ({"max_segments": 0}, ArgumentError, "`max_segments` must be at least 1"),
        ({"segment_ids": "seg"}, ArgumentError, r"`segment_ids` must be a name with a \{\}"),
        ({"positions": "{}_segment_ids"}, ArgumentError, "have the same name"),
        ({"whole_documents": True}, ArgumentError, "goes with strategy='concat'"),
        (
            {"strategy": "concat", "lengths": {"t": 4, "u": 5}},
            ArgumentError,
            "their `lengths` must be equal, got",
        ),
        ({"strategy": "concat", "overflow": "drop"}, ArgumentError, "`overflow` has no meaning"),
        ({"lengths": {"t": "u"}}, ArgumentError, r"`lengths\['t'\]` is 'u': it must be a length"),
        ({"lengths": {"t": 4, "u": "t", "v": "u"}}, ArgumentError, "or a leaf that has one in"),
        (
            {"lengths": {"t": 4, "m": "t"}, "eos": 2},
            ArgumentError,
            r"`eos` is one value, and 'm' is packed alike .*: eos=\{'t': 2, 'm': \.\.\.\}",
        ),
        ({"lengths": {"t": 4, "m": "t"}, "bos": 2}, ArgumentError, "`bos` is one value, and 'm'"),
        (
            {"lengths": {"t": 4, "m": "t"}, "eos": {"t": 2}},
            ArgumentError,
            "`eos` needs a value for both, or for neither",
        ),
        ({"eos": {"u": 2}}, ArgumentError, "`eos` names a leaf 'u', and `lengths` does not"),
        ({"continue_positions": "yes"}, ArgumentTypeError, "`continue_positions` must be"),
        ({"balance": "cubes"}, ArgumentError, "`balance` must be 'squares'|one of 'squares'"),
        ({"balance": "squares", "balance_rows": 0}, ArgumentError, "`balance_rows` must be at l"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        options(**arguments)


@pytest.mark.parametrize(
    ("records", "arguments", "message"),
    [
        (
            documents([3, 12]),
            {"max_segments": 9},
            r'record 1 has 12 entries in leaf "t", a row has room for 10. Say what to do with over',
        ),
        (documents([3]), {}, r'leaf "id" is not in `lengths`.*`max_segments` must say'),
        ([{"u": np.arange(3)}], {}, "`lengths` names a leaf 't'; records have 'u'"),
        ([np.arange(3)], {}, "records have no names: make them dicts"),
        ([{"t": np.int32(3)}, {"t": np.arange(2)}], {}, "in record 0 it is a single value"),
        ([{"t": "to be"}], {}, r"record 0 it is text\. Make arrays of numbers .*map\(tokenize\)"),
        (
            [{"t": np.arange(3)}, {"t": np.arange(2.0)}],
            {},
            r'leaf "t": record 1 has float64\[2\], others int64\[3\]',
        ),
        (
            [{"t": np.arange(3), "u": np.arange(4)}],
            {"strategy": "concat", "lengths": {"t": 5, "u": 5}},
            'in record 0 leaf "t" has length 3 and leaf "u" has 4',
        ),
        (
            [{"t": np.arange(3), "t_positions": np.int32(1)}],
            {"max_segments": 2},
            "`pack` adds a leaf 't_positions', but records have one already. Rename that one in",
        ),
        (
            [{"t": np.arange(3, dtype=np.uint16)}],
            {"pad_value": -1},
            '`pad_value` is -1, and leaf "t" is uint16, which has no such value. Give another one',
        ),
        (documents([3]), {"max_segments": 2, "pad_value": 0.5}, "`pad_value` is 0.5, and leaf"),
        (
            [{"t": np.arange(3, dtype=np.uint8)}],
            {"bos": 256},
            '`bos` is 256, and leaf "t" is uint8',
        ),
        (
            [{"t": np.arange(3), "u": np.arange(4)}],
            {"lengths": {"t": 5, "u": "t"}},
            'leaf "u" is packed alike with "t", and in record 0 it has length 4, the other 3',
        ),
        (
            [{"t": np.arange(3, dtype=np.uint8)}],
            {"eos": 256},
            '`eos` is 256, and leaf "t" is uint8',
        ),
        (
            [{"t": np.arange(3)}],
            {"balance": lambda n: 1 / 0},
            r"the function of `balance` failed: ZeroDivisionError",
        ),
        (
            [{"t": np.arange(3)}],
            {"balance": lambda n: n.sum()},
            r"must return a finite number for each of 1 lengths",
        ),
        ([{"t": np.arange(3)}], {"bos": "<s>"}, "`bos` is '<s>', and leaf \"t\" is int64"),
    ],
)
def test_bad_records(records, arguments, message):
    dataset = Dataset.from_source(records).pack(**{"lengths": {"t": 10}, **arguments})
    with pytest.raises(RecordError, match=message):
        list(dataset)


@pytest.mark.parametrize("strategy", ["best_fit", "first_fit", "concat"])
def test_split_loses_nothing_of_any_leaf(strategy):
    """A record has as many pieces as its longest leaf needs, whichever that is."""
    sizes = [(5, 2), (2, 9), (0, 11), (9, 0), (4, 3), (13, 13), (0, 0)]
    records = [{"t": 100 * i + np.arange(n), "u": -100 * i - np.arange(m)}
               for i, (n, m) in enumerate(sizes, 1)]  # fmt: skip
    whole = strategy == "concat"
    dataset = Dataset.from_source(records).pack(
        {"t": 4, "u": 5}, strategy=strategy, overflow="split", whole_documents=whole
    )
    rows = list(dataset)
    assert_same(rows, list(stream_oracle.elements(dataset)))
    for leaf in ("t", "u"):
        found = [x for row in rows for x in row[leaf][row[f"{leaf}_segment_ids"] > 0].tolist()]
        assert sorted(found) == sorted(x for record in records for x in record[leaf].tolist())


def test_strings_once_per_segment():
    records = [{"t": [1] * n, "name": "n" * n, "tags": ["x", str(n)]} for n in (3, 2, 4)]
    batch = next(iter(Dataset.from_source(records).pack({"t": 5}, max_segments=2).batch(2)))
    assert batch["name"].tolist() == [["nnn", "nn"], ["nnnn", ""]]
    assert batch["tags"].tolist() == [[["x", "3"], ["x", "2"]], [["x", "4"], ["", ""]]]


def test_records_of_length_zero_take_no_segment():
    assert list(Dataset.from_source(documents([0, 0])).pack({"t": 4}, max_segments=2)) == []
    (row,) = Dataset.from_source(documents([0, 2, 0, 1])).pack({"t": 4}, max_segments=3)
    assert row["id"].tolist() == [1, 3, 0]
    assert row["t_segment_ids"].tolist() == [1, 1, 2, 0]


def test_windows_that_lost_all_their_records():
    dataset = Dataset.from_source(documents([3] * 40)).filter(lambda r: r["id"] >= 30)
    rows = list(dataset.pack({"t": 9}, window=10, max_segments=3))
    assert [row["id"].tolist() for row in rows] == [
        [30, 31, 32],
        [33, 34, 35],
        [36, 37, 38],
        [39, 0, 0],
    ]


def test_windows_must_divide_each_other():
    dataset = Dataset.from_source(documents([3] * 40)).filter(lambda r: True)
    with pytest.raises(ChainError, match="7 does not divide 10. Choose windows that do"):
        dataset.shuffle(window=7).pack({"t": 9}, window=10)
    with pytest.raises(ChainError, match="4 does not divide 10"):
        dataset.pack({"t": 9}, window=10).shuffle(window=4)
    dataset.shuffle(window=5).pack({"t": 9}, window=10).shuffle(window=20)


def test_what_is_packed_sparsely_warns_once():
    dataset = Dataset.from_source(documents([6] * 2000)).pack({"t": 10}, window=50, max_segments=2)
    with pytest.warns(LoaderxWarning, match="the rows are only 60% full") as caught:
        list(dataset.batch(8))
    assert len(caught) == 1


def test_draws_of_packed_rows_are_their_own():
    dataset = Dataset.from_source(documents([4, 5, 25, 3] * 20)).map(lambda r: {"t": r["t"]})
    packed = dataset.pack({"t": 10}, overflow="split", window=40).random_keys()
    keys = [tuple(row["key"].tolist()) for row in packed]
    assert len(set(keys)) == len(keys)
    assert_same(list(packed), list(stream_oracle.elements(packed)))


def test_pieces_of_records_with_several_leaves_draw_their_own():
    records = [{"t": np.arange(2), "u": np.arange(35)}]
    packed = Dataset.from_source(records).pack({"t": 10, "u": 10}, overflow="split").random_keys()
    keys = [tuple(row["key"].tolist()) for row in packed]
    assert len(keys) == len(set(keys)) == 4


def test_windows_whose_records_have_their_keys_in_another_order():
    one, two = np.full(2, 1), np.full(2, 2)
    records = [{"t": one, "u": two}] * 2 + [{"u": two, "t": one}] * 2
    packed = Dataset.from_source(records).pack({"t": 4, "u": 4}, window=2).shuffle(window=4)
    (batch,) = packed.batch(2)
    assert batch["t"].tolist() == [[1] * 4] * 2
    assert batch["u"].tolist() == [[2] * 4] * 2


def test_windows_of_different_dtypes_are_not_cast():
    records = [{"t": np.arange(2, dtype=kind)} for kind in ("i4", "i4", "i8", "i8")]
    packed = Dataset.from_source(records).pack({"t": 4}, window=2).shuffle(window=4)
    with pytest.raises(StackError, match=r'leaf "t".* has dtype int(32|64), the others int'):
        list(packed.batch(2))


def test_packing_a_batch_is_refused():
    with pytest.raises(ChainError, match="pack after batch: it works on records"):
        Dataset.from_source(documents([1, 2])).batch(2).pack({"t": 3})
