"""The description: what it refuses, what it says, and its stages one by one."""

from __future__ import annotations

import pickle
from collections import UserDict

import numpy as np
import pytest

from chains import arrays
from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    DataLoader,
    Dataset,
    LoaderxError,
    PositionError,
    RecordError,
    StackError,
)
from oracle import assert_same
from plain import grow, jitter


def ids(dataset):
    return [int(e["x"]) for e in dataset]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda d: d.batch(0), ArgumentError, "`batch_size` must be at least 1, got 0"),
        (lambda d: d.batch(-3), ArgumentError, "`batch_size` must be at least 1, got -3"),
        (lambda d: d.batch(2.0), ArgumentTypeError, r"`batch_size` must be an integer, got 2.0 \(float\)"),
        (lambda d: d.batch(True), ArgumentTypeError, "`batch_size` must be an integer, got True"),
        (
            lambda d: d.batch(11, drop_remainder=True),
            ArgumentError,
            r"batch\(11, drop_remainder=True\) over 10 records leaves an empty stream. Use a small",
        ),
        (lambda d: d.batch(2).batch(2), ChainError, r"batch after batch.*\.unbatch\(\) before"),
        (lambda d: d.unbatch(), ChainError, "unbatch needs batches"),
        (lambda d: d.repeat().shuffle(), ChainError, r"put it before .repeat\(\)"),
        (lambda d: d.repeat().repeat(2), ChainError, "this one is endless already"),
        (lambda d: d.repeat(0), ArgumentError, "`num_epochs` must be at least 1, got 0"),
        (lambda d: d.shuffle("a"), ArgumentTypeError, r"`seed` must be an integer, got 'a' \(str\)"),
        (lambda d: d.shuffle(1.5), ArgumentTypeError, "`seed` must be an integer, got 1.5"),
        (lambda d: d.shuffle(-1), ArgumentError, "`seed` must be at least 0, got -1"),
        (lambda d: d.seed(2**64), ArgumentError, r"`seed` must be below 2\*\*64"),
        (lambda d: d.random_map(jitter, seed="x"), ArgumentTypeError, "`seed` must be an integer"),
        (lambda d: d.take(0), ArgumentError, "`n` must be at least 1, got 0"),
        (lambda d: d.skip(10), ArgumentError, r"skip\(10\) leaves nothing of 10 elements"),
        (lambda d: d[5:5], ArgumentError, r"the slice \[5:5\] leaves nothing"),
        (lambda d: d[10], PositionError, "index 10 is out of range for 10 elements"),
        (lambda d: d[-11], PositionError, "index -11 is out of range for 10 elements"),
        (lambda d: d["x"], ArgumentTypeError, "a dataset is indexed by number, got 'x'"),
        (lambda d: d[[1, 10]], PositionError, "index 10 is out of range for 10 elements"),
        (lambda d: d[np.zeros(9, bool)], PositionError, "the mask has 9 entries for 10 elements"),
        (lambda d: d[np.zeros(10, bool)], ArgumentError, "the indices leave nothing"),
        (lambda d: d[[0.5]], ArgumentTypeError, "integers or bools, got float64"),
        (lambda d: d[np.zeros((2, 2), int)], ArgumentError, "in one row, got an array of shape"),
        (lambda d: d.repeat()[-1], PositionError, "has no last element to count from"),
        (lambda d: d.repeat()[[1]], ChainError, r"indices into an endless dataset: .take\(n\)"),
        (lambda d: len(d.repeat()), TypeError, r"an endless dataset has no length; .take\(n\)"),
        (lambda d: d.map(3), ArgumentTypeError, "`map` needs a function, or an object with a .map"),
        (lambda d: d.map(AddOne), ArgumentTypeError, r"pass an instance: AddOne\(...\)"),
        (lambda d: d.random_map(None), ArgumentTypeError, "`random_map` needs a function"),
        (lambda d: d.batch(2).map(grow, batched=True), ChainError, "Leave `batched` out"),
        (lambda d: d.apply([3]), ArgumentTypeError, "`apply` takes functions and objects with"),
        (lambda d: d.on_error("drop"), ArgumentError, "must be one of 'raise', 'replace', 'skip'"),
        (lambda d: d.on_error("skip", limit=0), ArgumentError, "`limit` must be at least 1, got 0"),
        (lambda d: d.on_error("raise", limit=1), ArgumentError, r"needs on_error\('replace'\) or"),
        (lambda d: d.batch(2).on_error("skip"), ChainError, "on_error after batch: it works on"),
        (lambda d: d.split(0.5), ArgumentError, r"must add up to 1, got 0.5; write .split\(0.5, 0.5"),
        (lambda d: d.split(0.8, 0.4), ArgumentError, "must add up to 1, got 1.2"),
        (lambda d: d.split(1.2, -0.2), ArgumentError, "between 0 and 1, got 1.2"),
        (lambda d: d.split([0.8, 0.2]), ArgumentTypeError, r"one .* after the other: .split\(0.8, 0.2\)"),
        (lambda d: d.split(0.99, 0.01), ArgumentError, "part 1 would be empty"),
        (lambda d: d.shuffle().split(0.5, 0.5), ChainError, r"split after .shuffle\(\): the parts"),
        (lambda d: d.repeat(2).split(0.5, 0.5), ChainError, r"split after .repeat\(2\)"),
        (lambda d: d.repeat().split(0.5, 0.5), ChainError, "split needs a dataset that ends"),
        (
            lambda d: d.batch(2, drop_remainder=True, pad_remainder=True),
            ArgumentError,
            "exclude each other",
        ),
        (lambda d: d.batch(2, drop_remainder="no"), ArgumentTypeError, "must be True or False"),
        (lambda d: d.batch(2, pad_remainder=None), ArgumentTypeError, "`pad_remainder` must be True"),
        (lambda d: d.batch(np.arange(3)), ArgumentTypeError, r"`batch_size` must be an integer, got array"),
        (lambda d: d.batch(2, pad_to=5), ArgumentTypeError, "`pad_to` must be a dict such as"),
        (lambda d: d.batch(2, pad_to={"x": 0}), ArgumentError, r"`pad_to\['x'\]` must be at least 1"),
        (lambda d: d.batch(2, pad_to={3: 4}), ArgumentTypeError, "`pad_to` must be a string, got 3"),
        (lambda d: d.batch(2, mask_key=3), ArgumentTypeError, "`mask_key` must be a string, got 3"),
        (lambda d: d.batch(2, collate_fn=3), ArgumentTypeError, "`collate_fn` must be a function"),
        (lambda d: d.batch(2, collate_fn=len, pad_to={"x": 3}), ArgumentError, "pad in the function"),
        (lambda d: d.random_keys(3), ArgumentTypeError, "`name` must be a string"),
        (lambda d: Dataset.from_source([d, d]), ArgumentTypeError, "a list of datasets is no source"),
        (lambda d: Dataset.mix([d, d], [1]), ArgumentError, "`weights` has 1 numbers for 2 datasets"),
        (lambda d: Dataset.mix([d], {"a": 1}), ArgumentTypeError, "a list of numbers, one for each"),
        (lambda d: Dataset.mix([d, d], ["a", 1]), ArgumentTypeError, r"weight 0 is 'a' \(str\)"),
        (lambda d: Dataset.mix([d, d], [1, None]), ArgumentTypeError, "`weights` .*weight 1 is None"),
        (lambda d: Dataset.mix([d, d], 3), ArgumentTypeError, "`weights` must be a list of numbers"),
        (lambda d: Dataset.mix([d, d], "12"), ArgumentTypeError, "`weights` must be a list of numb"),
        (lambda d: Dataset.mix([d, d], [1, 0]), ArgumentError, "weight 1 is 0.0. Leave a dataset out"),
        (lambda d: Dataset.mix([d, d], [1, -2]), ArgumentError, "weight 1 is -2.0"),
        (lambda d: Dataset.mix([d, d], [float("nan"), 1]), ArgumentError, "weight 0 is nan"),
        (lambda d: Dataset.mix([d, d], [float("inf"), 1]), ArgumentError, "weight 0 is inf"),
        (lambda d: Dataset.mix([]), ArgumentError, "mix needs at least one dataset"),
        (lambda d: Dataset.mix([d], stop="x"), ArgumentError, "`stop` must be one of"),
        (lambda d: Dataset.mix([d, [1]]), ArgumentTypeError, "item 1 is list, not a Dataset"),
        (lambda d: Dataset.concatenate(d), ArgumentTypeError, "concatenate needs several datasets"),
        (lambda d: Dataset.concatenate([d, d.batch(2)]), ChainError, "some datasets are batched"),
        (lambda d: Dataset.concatenate([d.repeat(), d]), ChainError, "dataset 0 is endless"),
        (
            lambda d: Dataset.concatenate([d, Dataset.from_arrays(x=np.zeros(3))]),
            ChainError,
            r"elements of dataset 1 look like {'x': \*}, those of dataset 0 like {'x': \*, 'y': \*}",
        ),
        (
            lambda d: Dataset.mix([Dataset.range(3), Dataset.from_arrays(np.zeros((3, 2)))]),
            ChainError,
            'leaf "" is float64',
        ),
        (lambda d: Dataset.zip([d, d.take(3)]), ChainError, r"of one length, got 10, 3. Cut with"),
        (lambda d: Dataset.zip([d.batch(2), d.batch(5)[[0, 1, 1, 0, 0]]]), ChainError, "sizes differ"),
        (lambda d: d.batch(3).shuffle().unbatch(), ChainError, "a short last batch was moved"),
        (
            lambda d: Dataset.concatenate([d.batch(2), d.batch(5)]).unbatch(),
            ChainError,
            "unbatch after joining batched datasets",
        ),
        (lambda d: d.batch(2).map_with_index(lambda i, b: b).unbatch(), ChainError, "no batch index"),
        (lambda d: Dataset.range(2**62).repeat(4), ArgumentError, r"at most 2\*\*62 elements"),
    ],
)  # fmt: skip
def test_what_is_refused_at_construction(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make(arrays(10))
    assert isinstance(caught.value, LoaderxError)


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


def test_slices_masks_and_arrays():
    d = arrays(10)
    assert ids(d[2:8:3]) == [2, 5]
    assert ids(d[::-1]) == list(range(9, -1, -1))
    assert ids(d[-3:]) == [7, 8, 9]
    assert ids(d[[-1, 0, 3]]) == [9, 0, 3]
    assert ids(d[np.arange(10) % 3 == 0]) == [0, 3, 6, 9]
    assert ids(d[d[3]["x"] : 5]) == [3, 4]
    assert ids(d.skip(2).take(3)) == [2, 3, 4]
    assert ids(d.take(99)) == list(range(10))
    assert ids(d.repeat()[8:14:2]) == [8, 0, 2]
    assert ids(d.repeat().skip(9).take(2)) == [9, 0]
    assert d.batch(4)[-1]["x"].tolist() == [8, 9]


def test_split_is_disjoint_complete_and_the_same_in_every_epoch():
    train, test = arrays(50).split(0.8, 0.2, seed=3)
    assert (len(train), len(test)) == (40, 10)
    assert sorted(ids(train) + ids(test)) == list(range(50))
    assert ids(train) != sorted(ids(train))
    again = {tuple(sorted(b["x"].tolist())) for b in train.shuffle().batch(40).repeat(3)}
    assert again == {tuple(sorted(ids(train)))}
    plain = arrays(10).split(0.3, 0.3, 0.4, shuffle=False)
    assert [ids(part) for part in plain] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    other, _ = arrays(50).split(0.8, 0.2, seed=4)
    assert ids(other) != ids(train)


def test_seeds():
    d = arrays(40)
    default = ids(d.shuffle())
    assert default == ids(d.shuffle(0))
    assert default == ids(d.shuffle().seed(0))
    seeded = ids(d.shuffle().seed(7))
    assert seeded == ids(d.seed(7).shuffle()) == ids(d.shuffle(7))
    assert ids(d.shuffle(3).seed(7)) == ids(d.shuffle(3))
    mixed = Dataset.mix([d.shuffle(), d.shuffle().seed(5)]).seed(7)
    assert ids(mixed)[::2] == seeded
    assert ids(mixed)[1::2] == ids(d.shuffle(5))


def test_mix_stops_where_it_says():
    a, b = arrays(4), arrays(100, 1000)
    first = ids(Dataset.mix([a, b], [1, 1]))
    assert [i for i in first if i < 1000] == [0, 1, 2, 3]
    assert abs(len(first) - 8) <= 1
    wrapped = ids(Dataset.mix([a, b], [1, 1], stop="repeat"))
    assert len([i for i in wrapped if i >= 1000]) == 100
    assert [i for i in wrapped if i < 1000][:9] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    endless = Dataset.mix([a.repeat(), b.repeat()])
    assert ids(endless.take(4)) == [0, 1000, 1, 1001]
    with pytest.raises(TypeError):
        len(endless)


def test_a_mix_that_goes_on_with_what_is_left():
    a, b, c = Dataset.range(3), Dataset.range(10, 15), Dataset.range(20, 28)
    mix = Dataset.mix([a, b, c], [2, 1, 1], stop="all_exhausted")
    # 2:1:1 until the first would be due a fourth time, then 1:1, then what is left.
    assert [int(x) for x in mix] == [0, 10, 1, 20, 2, 11, 12, 21, 13, 22, 14, 23, 24, 25, 26, 27]
    assert len(mix) == 16
    assert "mix(3 datasets, 2:1:1, stop='all_exhausted')" in repr(mix)
    assert sorted(int(x) for x in mix.shuffle(1).repeat(2)) == sorted([*map(int, mix)] * 2)
    batches = Dataset.mix([a.batch(2), c.batch(3)], stop="all_exhausted")
    assert [x.tolist() for x in batches] == [
        [0, 1], [20, 21, 22], [2], [23, 24, 25], [26, 27],
    ]  # fmt: skip
    huge, small = (
        Dataset.mix([Dataset.range(n), Dataset.range(5)], [1, 3], stop="all_exhausted")
        for n in (1 << 60, 50)
    )
    assert [int(x) for x in huge.take(50)] == [int(x) for x in small.take(50)]
    assert int(huge[-1]) == (1 << 60) - 1


def test_what_a_mix_of_all_needs():
    a = Dataset.range(3)
    with pytest.raises(ChainError, match="mix: dataset 1 is endless, so that not all can be"):
        Dataset.mix([a, a.repeat()], stop="all_exhausted")
    with pytest.raises(ChainError, match="dataset 0 is a stream. stop='all_exhausted' needs data"):
        Dataset.mix([a.filter(lambda x: True), a], stop="all_exhausted")
    with pytest.raises(ArgumentError, match="`stop` must be one of .*, 'all_exhausted', got 'all'"):
        Dataset.mix([a, a], stop="all")


def test_mix_repeat_shuffles_anew():
    a = arrays(30).shuffle(1)
    mixed = Dataset.mix([a, arrays(300, 1000)], [1, 1], stop="repeat")
    mine = [i for i in ids(mixed) if i < 1000]
    rounds = [mine[i : i + 30] for i in range(0, 90, 30)]
    assert all(sorted(r) == list(range(30)) for r in rounds)
    assert rounds[0] != rounds[1] != rounds[2]
    assert rounds[0] == ids(a)


def test_zip():
    pair = Dataset.zip({"a": arrays(5), "b": arrays(5, 100)})
    assert pair[2]["b"]["x"] == 102
    assert Dataset.zip((arrays(5).batch(2), arrays(5, 100).batch(2)))[1][1]["x"].tolist() == [
        102,
        103,
    ]


def test_map_returning_nothing():
    with pytest.raises(RecordError, match="forget its `return`") as caught:
        list(arrays(4).map(lambda r: None).batch(2))
    assert caught.value.index == 0
    with pytest.raises(RecordError, match="forget its `return`"):
        list(arrays(4).batch(2).map(lambda r: None))


def test_a_batched_function_must_keep_its_rows():
    said = r'a run of 2 records: leaf "y" has 1 row for 2 records: it must return one for each\.$'
    with pytest.raises(RecordError, match=said):
        list(arrays(4).map(lambda b: {"y": b["y"][:1]}, batched=True).batch(2))
    with pytest.raises(RecordError, match="got a float"):
        list(arrays(4).map(lambda b: {"y": 1.0}, batched=True).batch(2))


def tokenize(run):
    """As tokenizers do: lists of rows, in something like a dict."""
    return UserDict({"t": [[int(x)] * int(x) for x in run["x"]], "n": [int(x) for x in run["x"]]})


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_batched_function_may_return_ragged_rows(size):
    each = arrays(7).map(lambda r: {"t": [int(r["x"])] * int(r["x"]), "n": int(r["x"])})
    runs = arrays(7).map(tokenize, batched=True)
    assert_same(runs, each)
    assert_same(runs.batch(size, pad_to={"t": 6}), each.batch(size, pad_to={"t": 6}))
    packed = [one.pack({"t": 8}, max_segments=4).batch(2) for one in (runs, each)]
    assert_same(*packed)
    kept = each.filter(lambda r: r["n"] > 2)
    stream = runs.filter(lambda r: r["n"] > 2)
    assert_same(stream.batch(size, pad_to={"t": 6}), kept.batch(size, pad_to={"t": 6}))
    stream = arrays(7).filter(lambda r: True).map(tokenize, batched=True)
    assert_same(stream.bucket([3, 6], 2), each.bucket([3, 6], 2))


def test_rows_of_one_length_are_stacked_however_many_there_are():
    """Two rows of two tokens are two records, not a list of two leaves."""
    dataset = arrays(4).map(lambda b: {"t": [[int(x), 1] for x in b["x"]]}, batched=True)
    assert [b["t"].tolist() for b in dataset.batch(2)] == [[[0, 1], [1, 1]], [[2, 1], [3, 1]]]
    pairs = arrays(4).map(lambda b: (b["x"], [str(x) for x in b["x"]]), batched=True)
    assert pairs.batch(4)[0][1].tolist() == ["0", "1", "2", "3"]


def test_ragged_rows_without_padding_say_what_to_do():
    dataset = arrays(4).map(tokenize, batched=True)
    with pytest.raises(StackError, match=r'leaf "t".*pad_to'):
        list(dataset.batch(4))
    with pytest.raises(RecordError, match=r"got a str. Lists of 4 rows, which may"):
        list(arrays(4).map(lambda b: {"t": "abcd"}, batched=True).batch(4))
    for short in ([1, 2, 3], [[1] * 7] * 3):
        for tree, leaf in (({"y": {"t": short}}, "y.t"), ((short, short), "0")):
            with pytest.raises(RecordError, match=f'leaf "{leaf}" has 3 rows for 4 records: it'):
                list(arrays(4).map(lambda b, tree=tree: tree, batched=True).batch(4))
        with pytest.raises(RecordError, match="what it returned has 3 rows for 4 records"):
            list(arrays(4).map(lambda b, short=short: short, batched=True).batch(4))


def test_batched_functions_need_records_that_can_be_stacked():
    ragged = Dataset.from_source([{"ids": np.arange(i % 3 + 1)} for i in range(300)])
    said = (
        r'\(<lambda>, batched=True\) is given stacked runs of records: cannot stack leaf "ids": '
        r"record 1 has shape \(2,\), the others \(1,\)\. batched=True needs records that can be "
        r"stacked: drop or pad that leaf in a \.map\(\) before it, or leave batched=True out\.$"
    )
    for chain in (
        ragged.map(lambda run: run, batched=True),
        ragged.filter(lambda run: run["ids"], batched=True),
    ):
        with pytest.raises(StackError, match=said):
            list(chain.batch(3))


def test_random_keys_need_dicts_and_a_free_name():
    with pytest.raises(ChainError, match="so elements must be dicts"):
        list(Dataset.range(3).random_keys())
    with pytest.raises(ChainError, match="have a leaf 'x' already"):
        list(arrays(3).random_keys("x"))


def test_errors_in_batch_functions_name_the_stage_and_step():
    def broken(batch):
        raise ZeroDivisionError

    with pytest.raises(RecordError, match=r"step 0: map\(broken\) failed on a batch: ZeroDivision"):
        list(arrays(4).batch(2).map(broken))


# on_error ---------------------------------------------------------------------------------------


def fragile(record):
    if record["x"] % 5 == 3:
        raise ValueError(f"bad {record['x']}")
    return record


@pytest.mark.filterwarnings("ignore:.*records have failed")
def test_replace_takes_another_record_always_the_same():
    dataset = arrays(20).shuffle(1).map(fragile).on_error("replace").batch(4)
    once = ids(dataset.unbatch())
    assert len(once) == 20
    assert not [i for i in once if i % 5 == 3]
    expected = ids(arrays(20).shuffle(1))
    assert [a for a, b in zip(once, expected) if b % 5 != 3] == [b for b in expected if b % 5 != 3]
    for engine in ("inline", "threads"):
        loader = DataLoader(dataset, engine=engine)
        assert [i for b in loader for i in b["x"].tolist()] == once
        assert loader.stats().replaced == 4


def test_replace_does_not_depend_on_the_batch_or_host():
    chain = arrays(20).shuffle(1).map(fragile).on_error("replace")
    assert ids(chain) == ids(chain.batch(7).unbatch()) == ids(chain.batch(3).unbatch())
    after = arrays(20).shuffle(1).map(fragile).batch(4).on_error("replace")
    assert ids(after.unbatch()) == ids(chain)
    hosts = [list(DataLoader(chain.batch(4), shard=(h, 2), engine="inline")) for h in (0, 1)]
    joined = [i for a, b in zip(*hosts) for i in [*a["x"].tolist(), *b["x"].tolist()]]
    assert joined == ids(chain)


def test_replace_keeps_the_laws():
    chain = arrays(20).shuffle(1).map(fragile).on_error("replace")
    assert ids(chain.repeat(2))[:20] == ids(chain)
    train, _ = arrays(40).split(0.5, 0.5)
    mine = set(ids(train))
    assert set(ids(train.map(fragile).on_error("replace"))) <= mine
    mix = Dataset.mix([arrays(20), arrays(20, 1000)]).map(fragile).on_error("replace")
    stream = ids(mix)
    assert all(i < 1000 for i in stream[::2])
    assert all(i >= 1000 for i in stream[1::2])


def test_replace_gives_up_when_nothing_can_be_read():
    def never(record):
        raise ValueError("no")

    with pytest.raises(RecordError, match=r"map\(never\) failed on record 0: ValueError: no"):
        list(arrays(9).map(never).on_error("replace").batch(3))


def test_a_single_record_has_no_substitute():
    with pytest.raises(LoaderxError, match="no other record to take instead"):
        list(arrays(4)[3:4].map(fragile).on_error("replace").batch(1))


def test_a_function_decides():
    seen = []

    def decide(error):
        seen.append(error.index)
        return "replace" if error.index < 10 else "raise"

    chain = arrays(20).map(fragile).on_error(decide)
    with pytest.raises(RecordError, match="bad 13"):
        list(chain.batch(5))
    assert seen == [3, 8, 13]
    with pytest.raises(RecordError, match="must return 'raise' or 'replace', got None"):
        list(arrays(20).map(fragile).on_error(lambda e: None))


def test_a_passing_failure_is_tried_again():
    calls = {}

    def flaky(record):
        calls[int(record["x"])] = calls.get(int(record["x"]), 0) + 1
        if record["x"] == 2 and calls[2] == 1:
            raise OSError("network")
        return record

    chain = arrays(6).map(flaky).on_error("replace").batch(3)
    assert ids(chain.unbatch()) == list(range(6))


def test_raise_is_the_default():
    assert arrays(3).on_error("raise")._node is not None
    with pytest.raises(RecordError):
        list(arrays(9).map(fragile).on_error("raise"))


def test_batch_functions_always_raise():
    def broken(batch):
        raise ValueError("batch")

    with pytest.raises(RecordError, match="failed on a batch"):
        list(arrays(9).batch(3).map(broken).on_error("replace"))
    with pytest.raises(RecordError, match="failed on a run of 3 records"):
        list(arrays(9).map(broken, batched=True).on_error("replace").batch(3))


# What it shows ----------------------------------------------------------------------------------


def test_repr_of_one():
    assert repr(Dataset.range(1)).endswith("# 1 record")
    assert repr(Dataset.range(3).batch(4)).endswith("# 1 batch")


def test_repr():
    mix = Dataset.mix([arrays(4).shuffle(2), Dataset.range(9).map(grow)], [3, 1])
    text = repr(mix.batch(2, drop_remainder=True).map(grow).repeat())
    assert text == (
        "Dataset.mix(2 datasets, 3:1)\n"
        "  0: Dataset.from_arrays(x=int64[], y=float64[2])\n"
        "       .shuffle(seed=2)\n"
        "  1: Dataset.range(0, 9)\n"
        "       .map(grow)\n"
        "  .batch(2, drop_remainder=True)\n"
        "  .map(grow)\n"
        "  .repeat()\n"
        "  # endless batches"
    )
    chain = arrays(9).take(8).skip(1)[::2][[0, 1]].random_map(jitter, seed=1).seed(3)
    assert repr(chain.random_keys().on_error("replace").batch(2).unbatch()).splitlines()[1:] == [
        "  .take(8)", "  .skip(1)", "  [0:8:2]", "  [2 chosen]", "  .random_map(jitter, seed=1)",
        "  .seed(3)", "  .random_keys('key')", "  .on_error('replace')", "  .batch(2)",
        "  .unbatch()", "  # 2 records",
    ]  # fmt: skip


def test_a_dataset_is_frozen_and_building_it_runs_nothing():
    def explode(record):
        raise AssertionError("ran")

    dataset = arrays(4).map(explode).batch(2).repeat()
    with pytest.raises(AttributeError, match="a Dataset is frozen"):
        dataset.x = 1
    assert len(dataset.take(3)) == 3
    with pytest.raises(AttributeError):
        dataset._node.epochs = 3


def test_element_spec_of_a_mapped_chain_reads_one_element():
    calls = []
    dataset = arrays(9).map(lambda r: calls.append(1) or r).batch(4)
    assert repr(dataset.element_spec) == "{'x': int64[?], 'y': float64[?,2]}"
    assert len(calls) == 4
    assert repr(arrays(8).map(grow).batch(4).element_spec["x"]) == "int64[4]"


def test_pickling_a_description():
    dataset = arrays(20).shuffle(1).map(grow).batch(3)
    assert_same(pickle.loads(pickle.dumps(dataset)), dataset)


# What a careful reader found ---------------------------------------------------------------------


def test_a_seed_set_later_does_not_move_the_border_of_a_split():
    train, test = Dataset.range(100).split(0.8, 0.2)
    held_out = {int(x) for x in test}
    assert not held_out & {int(x) for x in train.shuffle().seed(1)}
    mixed = Dataset.mix([train.shuffle(), Dataset.range(1000, 1100)]).seed(5)
    assert not held_out & {int(x) for x in mixed}


def test_stop_iteration_in_a_function_is_a_failure():
    def broken(x):
        return next(iter(())) if x == 5 else x

    with pytest.raises(RecordError, match="failed on record 5: StopIteration") as caught:
        list(Dataset.range(12).map(broken).batch(4))
    assert caught.value.index == 5


@pytest.mark.parametrize(
    "make",
    [
        lambda d: d.batch(4).repeat().skip(3).unbatch(),
        lambda d: d.batch(4).repeat()[::2].unbatch(),
        lambda d: d.batch(4).shuffle(0).repeat().unbatch(),
    ],
)
def test_unbatch_of_moved_short_batches_is_refused_when_endless_too(make):
    with pytest.raises(ChainError, match="a short last batch was moved"):
        make(arrays(10))


def test_unbatch_of_an_endless_repeat_counts_real_rows():
    assert ids(arrays(5).batch(2).repeat().unbatch().take(12)) == [0, 1, 2, 3, 4] * 2 + [0, 1]


def test_unbatch_checks_rows():
    with pytest.raises(RecordError, match="functions that keep the rows of their batch"):
        list(arrays(12).batch(4).map(lambda b: {"x": b["x"][:2]}).unbatch().batch(3))


def test_a_list_of_arrays_is_not_changed_by_a_map_in_place():
    rows = [{"x": np.zeros(2), "t": [1, 2]} for _ in range(4)]

    def append(record):
        record["t"].append(0)
        return {"t": record["t"]}

    dataset = Dataset.from_source(rows).map(append).batch(2)
    assert [b["t"].shape for b in dataset] == [b["t"].shape for b in dataset] == [(2, 3)] * 2
    first = next(iter(DataLoader(Dataset.from_source(rows), engine="inline")))
    first["x"] += 5
    assert not rows[0]["x"].any()


@pytest.mark.filterwarnings("ignore:.*records have failed")
def test_replace_in_odd_places():
    base = arrays(20).map(fragile).batch(4).unbatch()
    twice = base.repeat(2).on_error("replace")
    assert ids(twice)[:20] == ids(base.on_error("replace"))
    assert [int(r["x"]) for r in DataLoader(twice, engine="inline")] == ids(twice)
    inside = arrays(20).map(fragile).repeat(2).batch(4).unbatch().on_error("replace")
    assert not [i for i in ids(inside) if i % 5 == 3]
    with pytest.raises(ChainError, match="no end to choose another record from"):
        Dataset.zip([arrays(5).repeat(), arrays(5).repeat()]).on_error("replace")


def test_a_passing_failure_of_a_source_is_tried_again():
    class Flaky:
        failed = False

        def __len__(self):
            return 10

        def __getitem__(self, i):
            if i == 5 and not self.failed:
                self.failed = True
                raise OSError("once")
            return i

    assert [b.tolist() for b in Dataset.from_source(Flaky()).batch(5)][1] == [5, 6, 7, 8, 9]


def test_a_failing_gather_names_its_record_at_every_step():
    class Bad:
        thread_safe = True

        def __len__(self):
            return 12

        def __getitem__(self, i):
            if i == 6:
                raise OSError("bad sector")
            return np.int64(i)

        def gather(self, indices):
            return np.array([self[int(i)] for i in indices])

    for loader in (
        DataLoader(Dataset.from_source(Bad()).batch(4), engine=e) for e in ("inline", "threads")
    ):
        with pytest.raises(RecordError, match="step 1: reading the source failed on record 6"):
            list(loader)


def test_mixed_python_numbers_are_refused():
    records = [{"x": 1}, {"x": 2.5}]
    with pytest.raises(LoaderxError, match="record 0 has the int 1, record 1 the float 2.5"):
        list(Dataset.from_source(records).batch(2))


def test_large_batches_of_unequal_size_are_resolved_in_small_blocks():
    big = Dataset.range(10**9).shuffle(0)
    joined = Dataset.concatenate([big.batch(1024), big.batch(2048)])
    loader = DataLoader(joined, engine="inline")
    assert next(iter(loader)).shape == (1024,)
    assert loader._work.plan._block_steps <= 16


def test_zip_of_batches_with_other_last_batches_is_refused():
    with pytest.raises(ChainError, match="the last batches differ in size, or may"):
        Dataset.zip([Dataset.range(10).batch(4), Dataset.range(12).batch(4)])


def test_split_after_a_mix_that_repeats_is_refused():
    with pytest.raises(ChainError, match="split after"):
        Dataset.mix([Dataset.range(4), Dataset.range(9)], stop="repeat").split(0.5, 0.5)


def test_added_leaves_are_aligned_too():
    batch = arrays(12).batch(3).random_keys()[1]
    padded = Dataset.from_source([{"t": [1, 2]}] * 3).batch(3, pad_to={"t": 4})[0]
    for leaf in (*batch.values(), *padded.values()):
        assert leaf.__array_interface__["data"][0] % 64 == 0


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
