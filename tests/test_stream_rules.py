"""Streams: what they refuse, what they say, and their stages one by one."""

from __future__ import annotations

import gc
import itertools
import json
import pickle
import subprocess
import sys
import warnings
import weakref

import cloudpickle
import numpy as np
import pytest

import stream_oracle
from chains import arrays
from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    DataLoader,
    Dataset,
    LoaderxError,
    LoaderxWarning,
    RecordError,
    StackError,
    StateError,
    merge_states,
)
from loaderx.engines import Threads
from oracle import assert_same
from plain import grow, jitter, tag
from stream_chains import odd


def head(stream, count):
    return list(itertools.islice(iter(stream), count))


def numbers(stream):
    return [int(x) for x in stream]


def even(x):
    return x % 2 == 0


def count_up():
    yield from range(10)


def shard_up(shard, count):
    yield from range(shard, 40, count)


# Refusals -------------------------------------------------------------------------------------

STREAM = Dataset.range(100).filter(even)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: STREAM.shuffle(0), ChainError, r"needs a window: write .shuffle\(window=1000\)"),
        (lambda: STREAM.batch(4).shuffle(window=3), ChainError, "before .batch"),
        (lambda: STREAM.shuffle(window=0), ArgumentError, "`window` must be at least 1, got 0"),
        (lambda: STREAM.shuffle(window=1 << 63), ArgumentError, r"`window` must be at most 2\*\*62"),
        (lambda: Dataset.range(9).shuffle(window=1.5), ArgumentTypeError, "`window` must be an int"),
        (lambda: STREAM[3], ChainError, "a stream has no elements by number: iterate over it"),
        (lambda: STREAM[[1, 2]], ChainError, "a stream has no elements by number"),
        (lambda: STREAM[::2], ChainError, r"the slice \[::2\] of a stream: its step must be 1"),
        (lambda: len(STREAM), TypeError, "a stream has no length"),
        (lambda: len(STREAM.batch(4)), TypeError, "a stream has no length"),
        (lambda: len(DataLoader(STREAM.batch(4))), TypeError, "a stream has no length"),
        (lambda: STREAM.split(0.5, 0.5), ChainError, "split of a stream.*Split first, then put"),
        (lambda: STREAM.map_with_index(tag), ChainError, "nobody knows their numbers. Put it before"),
        (lambda: STREAM.repeat().repeat(), ChainError, "this one is endless already"),
        (lambda: STREAM.batch(4).unbatch(), ChainError, r"unbatch of a stream: leave .batch\(...\) o"),
        (lambda: STREAM.batch(4).batch(4), ChainError, "batch after batch"),
        (lambda: STREAM.batch(4).filter(even), ChainError, "filter after batch: it works on records"),
        (lambda: STREAM.batch(4).flat_map(even), ChainError, "flat_map after batch"),
        (lambda: STREAM.batch(4, lanes=3), ArgumentError, "the lanes must divide the batch"),
        (lambda: STREAM.batch(4, lanes=0), ArgumentError, "`lanes` must be at least 1, got 0"),
        (lambda: Dataset.range(9).batch(4, lanes=2), ChainError, "is for streams.*leave `lanes` out"),
        (lambda: STREAM.take(9).batch(4, lanes=2), ChainError, r".take\(9\) of a stream counts its"),
        (lambda: STREAM.skip(9).batch(4, lanes=2), ChainError, "needs one lane, not 2"),
        (
            lambda: STREAM.shuffle(window=60).batch(4, lanes=4),
            ChainError,
            "100 records in units of 60 are 2 units, too few for 4 lanes. Use a smaller window",
        ),
        (lambda: Dataset.zip([STREAM, STREAM]), ChainError, "zip: dataset 0 is a stream"),
        (lambda: Dataset.concatenate([STREAM, STREAM]), ChainError, "or use Dataset.mix"),
        (lambda: Dataset.mix([STREAM.batch(2)] * 2), ChainError, "mix of batched streams: join the r"),
        (lambda: Dataset.mix([STREAM] * 2, [1, np.nan]), ArgumentError, "weight 1 is nan"),
        (lambda: STREAM.filter(3), ArgumentTypeError, "`filter` needs a function, or an object"),
        (lambda: STREAM.flat_map(None), ArgumentTypeError, "`flat_map` needs a function"),
        (lambda: DataLoader(STREAM, batch_size=4), ChainError, "pass shuffle=False"),
        (lambda: DataLoader(STREAM, shard=(0, 2)), ChainError, r"needs a .batch\(...\)"),
        (
            lambda: DataLoader(STREAM.repeat().batch(4), shard=(0, 2)),
            ChainError,
            r"2 hosts cannot share 1 lane of a stream.*Write batch\(4, lanes=2\)",
        ),
        (
            lambda: DataLoader(STREAM.repeat().batch(16, lanes=4), shard=(0, 3)),
            ChainError,
            r"3 hosts cannot share 4 lanes of a stream: the number of hosts must divide the lanes. "
            r"Write batch\(18, lanes=3\)",
        ),
        (
            lambda: DataLoader(STREAM.batch(4, lanes=2), shard=(0, 2)),
            ChainError,
            r"Put .repeat\(\) before .batch\(...\), or .take\(steps\) after it",
        ),
        (
            lambda: DataLoader(STREAM.batch(4, lanes=2).repeat(), shard=(0, 2)),
            ChainError,
            "none knows when the others' lanes end",
        ),
        (lambda: DataLoader(STREAM.repeat().batch(4)).epoch(1), ChainError, "whose epochs end"),
        # Iterables
        (lambda: Dataset.from_iterable(count_up()), ArgumentTypeError, "can be read only once. Give"),
        (lambda: Dataset.from_iterable(iter([1])), ArgumentTypeError, "can be read only once"),
        (lambda: Dataset.from_iterable("abc"), ArgumentTypeError, "needs an iterable of records"),
        (lambda: Dataset.from_iterable(3), ArgumentTypeError, r"got 3 \(int\)"),
        (lambda: Dataset.from_iterable(lambda a: [a]), ArgumentTypeError, r"<lambda> takes \(a\)"),
        (
            lambda: Dataset.from_iterable(count_up).batch(4, lanes=2),
            ChainError,
            r"give from_iterable a function of \(shard, count\)",
        ),
        (
            lambda: list(Dataset.from_iterable(lambda: 3)),
            ArgumentTypeError,
            r"must return an iterable of records; it returned 3 \(int\)",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (
            Dataset.range(9).filter(lambda x: int(x)),
            r"filter\(<lambda>\) failed on record 0: it must return True or False, got 0 \(int\)",
        ),
        (Dataset.range(9).filter(lambda x: None), r"got None \(NoneType\)"),
        (Dataset.range(9).filter(lambda x: np.array([True])), r"\(ndarray\)"),
        (
            Dataset.range(9).filter(lambda x: x, batched=True),
            r"it must return a bool for each of the \d+ records it was given; got int64 of shape",
        ),
        (Dataset.range(9).filter(lambda x: True, batched=True), r"got bool of shape \(\)"),
        (Dataset.range(9).filter(lambda x: 1 / (x - 5 + 0 * x) > 0).batch(2), None),
        (Dataset.range(9).flat_map(lambda x: x), "failed on record 0: .*not iterable"),
        (Dataset.range(9).flat_map(lambda x: None), "a list .* of records; got a NoneType"),
        (Dataset.range(9).flat_map(lambda x: {"a": 1}), "got a dict"),
        (Dataset.range(9).flat_map(lambda x: [None]), "one of the records that it returned is None"),
        (Dataset.range(9).filter(even).map(lambda x: None), "did it forget its `return`"),
    ],
)  # fmt: skip
def test_functions_that_return_what_they_should_not(dataset, message):
    if message is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            list(dataset)
        return
    with pytest.raises(RecordError, match=message):
        list(dataset)


def test_a_failure_names_the_record_the_stage_and_the_step():
    def fail(record):
        if record["x"] == 17:
            raise ValueError("bad record")
        return record

    for engine in ("inline", "threads"):
        dataset = arrays(40).filter(lambda r: r["x"] > 3).map(fail).batch(4)
        iterator = iter(DataLoader(dataset, engine=engine))
        seen = []
        with pytest.raises(RecordError) as caught:
            for batch in iterator:
                seen += batch["x"].tolist()
        assert caught.value.index == 17
        assert caught.value.stage == "map(fail)"
        assert str(caught.value).endswith("map(fail) failed on record 17: ValueError: bad record")
        step = caught.value.step
        assert seen == list(range(4, 4 + 4 * step))
        with pytest.raises(RecordError):  # and it fails there again
            next(iterator)
        assert iterator.step == step


def test_records_that_cannot_be_stacked_are_named():
    dataset = Dataset.from_source([{"t": [1] * n} for n in (2, 2, 3, 3)]).filter(lambda r: True)
    assert [b["t"].shape for b in dataset.batch(2)] == [(2, 2), (2, 3)]  # the batch decides
    with pytest.raises(LoaderxError, match=r'leaf "t": row 2 of the batch has shape \(3,\)'):
        list(dataset.batch(3))


@pytest.mark.parametrize("makes_stream", [False, True])
def test_a_stage_of_stacked_runs_that_cannot_be_stacked_is_named(makes_stream):
    dataset = Dataset.from_source([np.zeros(n) for n in [2, 3] * 100])
    if makes_stream:
        with pytest.raises(StackError, match=r"filter\(len, batched=True\) .*: record 1 has shape"):
            list(dataset.filter(len, batched=True).batch(4))
        dataset = dataset.filter(everything)
    with pytest.raises(StackError, match=r"map\(len, batched=True\) is given .*: record 1 has sh"):
        list(dataset.map(len, batched=True).batch(4))


# Stages ---------------------------------------------------------------------------------------


def test_filtering_keeps_the_natural_order():
    assert numbers(STREAM) == list(range(0, 100, 2))
    assert numbers(Dataset.range(100).filter(even, batched=True)) == list(range(0, 100, 2))


def test_batches_below_a_stream_are_its_own_business():
    cut = Dataset.range(20).batch(4).map(lambda b: b * 2).unbatch().filter(lambda x: x % 3 == 0)
    assert numbers(cut) == [0, 6, 12, 18, 24, 30, 36]
    assert [b.tolist() for b in DataLoader(cut.batch(3))] == [[0, 6, 12], [18, 24, 30], [36]]
    with pytest.raises(ChainError, match=r"needs a .batch\(...\)"):
        DataLoader(cut.repeat(), shard=(0, 2))
    lanes = cut.repeat().batch(4, lanes=2).take(3)
    assert_same(list(DataLoader(lanes)), list(stream_oracle.elements(lanes)))


def test_grain_style_objects():
    class Big:
        def filter(self, x):
            return x > 5

    class Twice:
        def flat_map(self, x):
            return [x, x]

    assert numbers(Dataset.range(8).apply([Big(), Twice()])) == [6, 6, 7, 7]
    assert numbers(Dataset.range(8).filter(Big())) == [6, 7]


def test_a_window_shuffle_is_the_same_by_index_and_in_a_stream():
    by_index = Dataset.range(50).shuffle(3, window=8)
    in_stream = Dataset.range(50).filter(lambda x: True).shuffle(3, window=8)
    assert numbers(by_index) == numbers(in_stream)
    assert numbers(by_index) != list(range(50))
    for start in range(0, 50, 8):
        assert sorted(numbers(by_index)[start : start + 8]) == list(
            range(start, min(start + 8, 50))
        )
    assert by_index[3] == numbers(by_index)[3]
    endless = numbers(Dataset.range(10).repeat().shuffle(0, window=4).take(40))
    assert sorted(endless) == sorted(list(range(10)) * 4)


def test_draws_belong_to_the_records():
    """Dropping some records changes nobody else's draws, and neither does a window shuffle."""
    drawn = {int(r["x"]): r["y"].tolist() for r in arrays(40).random_map(jitter, seed=2)}
    for dataset in (arrays(40).filter(odd), arrays(40).filter(odd, batched=True)):
        for record in dataset.random_map(jitter, seed=2):
            assert record["y"].tolist() == drawn[int(record["x"])]


def test_children_draw_their_own():
    twins = Dataset.range(20).flat_map(lambda x: [x, x]).random_map(lambda x, rng: rng.random())
    draws = [float(x) for x in twins]
    assert len(set(draws)) == 40


def test_a_stage_after_a_repeat_belongs_to_every_pass():
    one = Dataset.range(20).filter(even).repeat(2).shuffle(1, window=8)
    other = Dataset.range(20).filter(even).shuffle(1, window=8).repeat(2)
    assert numbers(one) == numbers(other)
    assert numbers(one)[:10] != numbers(one)[10:]


def test_take_and_skip_of_records_and_of_batches():
    assert numbers(STREAM.take(4)) == [0, 2, 4, 6]
    assert numbers(STREAM.skip(47)) == [94, 96, 98]
    assert numbers(STREAM[2:5]) == [4, 6, 8]
    assert numbers(STREAM.take(10).filter(lambda x: x > 15)) == [16, 18]
    assert [b.tolist() for b in STREAM.batch(2).skip(1).take(2)] == [[4, 6], [8, 10]]
    assert [b.tolist() for b in STREAM.batch(2).take(1).repeat(2)] == [[0, 2], [0, 2]]
    assert numbers(STREAM.take(1000)) == list(range(0, 100, 2))


def test_lanes_that_end_at_different_times():
    dataset = Dataset.range(16).filter(lambda x: x >= 3).batch(4, lanes=2)
    batches = [b.tolist() for b in dataset]
    assert sorted(x for b in batches for x in b) == list(range(3, 16))
    full = [
        b.tolist()
        for b in Dataset.range(16).filter(lambda x: x >= 3).batch(4, lanes=2, drop_remainder=True)
    ]
    assert full == [b for b in batches if len(b) == 4]


def test_padding_and_collating():
    ragged = Dataset.from_source([{"t": [i] * (i % 3)} for i in range(12)]).filter(lambda r: True)
    batch = next(iter(ragged.batch(4, pad_to={"t": 2}, pad_value=-1)))
    assert batch["t"].tolist() == [[-1, -1], [1, -1], [2, 2], [-1, -1]]
    assert batch["t_length"].tolist() == [0, 1, 2, 0]
    collated = list(STREAM.batch(20, collate_fn=sum))
    assert [int(x) for x in collated] == [380, 1180, 890]


def everything(record):
    return True


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_padding_where_units_meet(engine):
    """A batch of several units is padded as a batch of one; a misfit is the fault of its batch."""
    records = [{"a": {"t": [i] * (i % 3)}, "n": i} for i in range(40)]
    records[33] = {"a": {"t": list(range(9))}, "n": 33}
    records[:4] = [{"a": {"t": []}, "n": i} for i in range(4)]  # nobody knows what it is empty of
    for dataset in (
        Dataset.from_source(records).filter(everything),
        Dataset.from_source(records[:5]).filter(everything).repeat(8),
        Dataset.mix([Dataset.from_source(records).filter(everything)] * 2, [1, 2]),
    ):
        batched = dataset.batch(6, pad_to={"a.t": 4}, pad_value=7)
        iterator = iter(DataLoader(batched, engine=engine, num_workers=1))
        plain = iter(dataset)
        while rows := head(plain, 6):
            if any(len(row["a"]["t"]) > 4 for row in rows):
                with pytest.raises(
                    StackError, match=r'cannot pad leaf "a.t" to 4: record 33 .*has len'
                ):
                    next(iterator)
                break
            batch = next(iterator)
            texts = [row["a"]["t"] for row in rows]
            assert batch["n"].tolist() == [row["n"] for row in rows]
            assert batch["a"]["t"].tolist() == [(text + [7] * 4)[:4] for text in texts]
            assert batch["a"]["t_length"].tolist() == list(map(len, texts))


def test_records_without_leaves():
    for dataset in (
        Dataset.range(5).filter(everything).map(lambda x: {}),
        Dataset.range(5).filter(everything).map(lambda run: {}, batched=True),
        Dataset.from_iterable(lambda: [{}] * 5),
    ):
        assert list(dataset.batch(2)) == list(Dataset.range(5).map(lambda x: {}).batch(2))
        assert list(dataset.shuffle(window=2)) == [{}] * 5


def test_pad_remainder():
    masked = Dataset.from_arrays(x=np.arange(5)).filter(lambda r: True).batch(4, pad_remainder=True)
    assert [b["mask"].tolist() for b in masked] == [[True] * 4, [True, False, False, False]]


@pytest.mark.filterwarnings("ignore:.*records have failed")
def test_on_error_leaves_records_out():
    def fail(record):
        if record["x"] % 5 == 0:
            raise ValueError("bad")
        return record

    for engine in ("inline", "threads"):
        loader = DataLoader(
            arrays(20).filter(odd).map(fail).on_error("replace").batch(4), engine=engine
        )
        seen = [int(x) for batch in loader for x in batch["x"]]
        assert seen == [x for x in range(20) if x % 3 != 1 and x % 5]
        assert loader.stats().replaced == 3
    strict = arrays(20).filter(fail).on_error(lambda error: "raise").batch(4)
    with pytest.raises(RecordError):
        list(strict)

    class Broken:
        def __len__(self):
            return 6

        def __getitem__(self, i):
            if i == 2:
                raise OSError("unreadable")
            return np.int64(i)

    read = Dataset.from_source(Broken()).filter(lambda x: True).on_error("replace")
    assert numbers(read) == [0, 1, 3, 4, 5]


def test_on_error_after_a_take_or_skip_counts_what_fails():
    def picky(x):
        if x == 3:
            raise ValueError("three")
        return x

    stream = Dataset.range(12).filter(everything)
    assert numbers(stream.take(6).map(picky).on_error("replace")) == [0, 1, 2, 4, 5]
    assert numbers(stream.skip(6).map(picky).on_error("replace")) == [6, 7, 8, 9, 10, 11]
    batches = stream.take(6).map(picky).batch(4).on_error("replace")
    assert [b.tolist() for b in DataLoader(batches)] == [[0, 1, 2, 4], [5]]


def test_on_error_guards_what_stands_below_a_take_or_a_mix():
    def picky(x):
        if x == 3:
            raise ValueError("three")
        return x

    for failing in (
        Dataset.range(12).filter(lambda x: picky(x) >= 0),
        Dataset.range(12).map(picky).filter(everything),
    ):
        assert numbers(failing.take(5).on_error("replace")) == [0, 1, 2, 4, 5]
        assert numbers(failing.skip(1).filter(everything).on_error("replace"))[:3] == [1, 2, 4]
        mix = Dataset.mix([failing, Dataset.range(100, 112)])
        for guarded in (mix.on_error("replace"), mix.filter(everything).on_error("replace")):
            assert numbers(guarded)[:10] == [0, 100, 1, 101, 2, 102, 4, 103, 5, 104]
    stream = Dataset.range(12).filter(everything)
    taken = stream.take(6).map(picky).filter(everything).on_error("replace")
    assert numbers(taken) == [0, 1, 2, 4, 5]
    mapped = Dataset.mix([stream, Dataset.range(100, 112)]).map(picky).filter(everything)
    assert 3 not in numbers(mapped.on_error("replace"))


def test_reprs():
    assert ".skip(0)\n" in repr(STREAM.skip(0))
    dataset = STREAM.shuffle(1, window=8).repeat().batch(4, lanes=2)
    assert repr(dataset).splitlines() == [
        "Dataset.range(0, 100)",
        "  .filter(even)",
        "  .shuffle(seed=1, window=8)",
        "  .repeat()",
        "  .batch(4, lanes=2)",
        "  # an endless stream of batches",
    ]
    assert repr(STREAM).endswith("# a stream of records")


def test_element_spec_reads_the_first_element():
    assert repr(arrays(9).filter(odd).batch(2).element_spec) == "{'x': int64[?], 'y': float64[?,2]}"
    assert repr(arrays(9).flat_map(lambda r: [r]).element_spec) == "{'x': int64[], 'y': float64[2]}"


# Little or nothing comes through ----------------------------------------------------------------


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
        with pytest.raises(LoaderxError, match=r"not one record came .* in (a|16) whole pass"):
            list(DataLoader(endless))
    with pytest.raises(LoaderxError, match="not one batch came through in a whole pass"):
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


def test_an_empty_stream_has_no_spec():
    with pytest.raises(LoaderxError, match="the stream is empty: there is no element to look at"):
        Dataset.range(9).filter(lambda x: False).map(lambda x: x).element_spec  # noqa: B018


# Iterables --------------------------------------------------------------------------------------


class Stateful:
    """As torch's and Hugging Face's are: the iterable itself saves and loads."""

    def __init__(self, n=30):
        self.n, self.at, self.read = n, 0, 0

    def __iter__(self):
        while self.at < self.n:
            self.at += 1
            self.read += 1
            yield np.int64(self.at - 1)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Cursor:
    """As Grain's are: the iterator gets and sets."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= 30:
            raise StopIteration
        self.at += 1
        return np.int64(self.at - 1)

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at = state["at"]


@pytest.mark.filterwarnings("ignore:.*what stands above from_iterable runs in the caller")
@pytest.mark.parametrize("make", [lambda: iter(range(30)), Stateful, Cursor, lambda: range(30)])
@pytest.mark.parametrize(
    "stages",
    [
        lambda d: d,
        lambda d: d.filter(even),
        lambda d: d.shuffle(1, window=7),
        lambda d: d.flat_map(lambda x: [x, x + 100]).shuffle(window=4).filter(even),
        lambda d: d.map(lambda x: x * 2).repeat(2),
        lambda d: d.random_map(lambda x, rng: x + rng.random()),
    ],
)
def test_iterables_resume_at_every_step(make, stages):
    dataset = stages(Dataset.from_iterable(make)).batch(4)
    expected = list(dataset)
    assert_same(expected, list(stream_oracle.elements(dataset)))
    iterator = iter(DataLoader(dataset))
    for step in range(len(expected) + 1):
        state = json.loads(json.dumps(iterator.get_state()))
        fresh = iter(DataLoader(dataset, engine="threads"))
        fresh.set_state(state)
        assert_same(list(fresh), expected[step:])
        again = iter(DataLoader(dataset))
        again.set_state(state)
        again.set_state(json.loads(json.dumps(again.get_state())))
        assert_same(list(again), expected[step:])
        next(iterator, None)


def test_an_iterable_with_a_state_is_not_read_again():
    made = []

    def make():
        made.append(Stateful())
        return made[-1]

    dataset = Dataset.from_iterable(make).batch(5)
    iterator = iter(DataLoader(dataset))
    head(iterator, 4)
    fresh = iter(DataLoader(dataset))
    fresh.set_state(iterator.get_state())
    assert [b.tolist() for b in fresh] == [[20, 21, 22, 23, 24], [25, 26, 27, 28, 29]]
    assert made[-1].read == 10


class Kept(Stateful):
    """As Hugging Face's are: what was loaded is where every pass begins from then on."""

    begin = 0

    def __iter__(self):
        self.at = self.begin
        return super().__iter__()

    def load_state_dict(self, state):
        self.begin = state["at"]


@pytest.mark.parametrize("make", [Stateful, Kept])
def test_an_object_with_a_state_begins_where_it_was_given(make):
    """Whoever reads it for the second time loads the state that it had before the first."""
    dataset = Dataset.from_iterable(make()).repeat(2).batch(4)
    expected = list(DataLoader(Dataset.from_iterable(make).repeat(2).batch(4)))
    iterator = iter(DataLoader(dataset))
    for step in range(len(expected) + 1):
        iterator.seek(0)
        assert_same([next(iterator) for _ in range(step)], expected[:step])
        iterator.set_state(iterator.get_state())
        iterator.set_state(json.loads(json.dumps(iterator.get_state())))
        assert_same(list(iterator), expected[step:])
    head(DataLoader(dataset), 1)
    assert_same(list(DataLoader(dataset)), expected)


def test_an_iterable_that_is_shorter_now():
    length = 20
    dataset = Dataset.from_iterable(lambda: range(length)).batch(5)
    iterator = iter(DataLoader(dataset))
    head(iterator, 3)
    state, length = iterator.get_state(), 10
    with pytest.raises(
        StateError, match="taken after 15 records, but now the iterable ends after 10"
    ):
        fresh = iter(DataLoader(dataset))
        fresh.set_state(state)
        next(fresh)


def test_endless_iterables():
    dataset = Dataset.from_iterable(itertools.count).filter(even).batch(3)
    assert [b.tolist() for b in head(dataset, 2)] == [[0, 2, 4], [6, 8, 10]]


def test_an_iterable_is_read_no_further_than_needed():
    read = []

    def source():
        for i in range(100):
            read.append(i)
            yield i

    iterator = iter(DataLoader(Dataset.from_iterable(source).batch(4)))
    next(iterator)
    assert len(read) == 4


def test_a_stage_above_an_iterable_names_the_record():
    def picky(x):
        if x == 30:
            raise ValueError("thirty")
        return x

    for stream in (
        Dataset.from_iterable(lambda: range(50)).map(picky),
        Dataset.from_iterable(lambda: range(50)).shuffle(window=8).map(picky),
    ):
        with pytest.raises(RecordError, match=r"map\(picky\) failed on record 30: ") as caught:
            list(DataLoader(stream.batch(4)))
        assert caught.value.index == 30


def test_parts_of_an_iterable_on_hosts():
    dataset = Dataset.from_iterable(shard_up).repeat().batch(8, lanes=4)
    whole = [b.tolist() for b in head(dataset, 4)]
    assert whole[0] == [0, 4, 1, 5, 2, 6, 3, 7]
    hosts = [iter(DataLoader(dataset, shard=(h, 2))) for h in range(2)]
    assert [[x for h in hosts for x in next(h).tolist()] for _ in range(4)] == whole


@pytest.mark.filterwarnings("ignore:.*what stands above from_iterable runs in the caller")
def test_a_failing_iterable():
    def broken():
        yield from (1, 2)
        raise OSError("the network is gone")

    message = r"step 1: Dataset.from_iterable\(broken\) failed on record 2: OSError: the network is"
    for engine in ("inline", "threads"):
        iterator = iter(DataLoader(Dataset.from_iterable(broken).batch(2), engine=engine))
        assert next(iterator).tolist() == [1, 2]
        for _ in range(2):  # it goes on where it was, and fails again
            with pytest.raises(RecordError, match=message) as caught:
                next(iterator)
            assert (caught.value.index, caught.value.step) == (2, 1)
            assert isinstance(caught.value.__cause__, OSError)

    def closed():
        raise OSError("no such host")

    with pytest.raises(
        RecordError, match=r"\(closed\) failed when it was opened: OSError: no such"
    ):
        list(Dataset.from_iterable(closed))


def test_an_iterable_that_failed_and_is_healthy_again():
    healthy = False

    def broken():
        yield from range(5)
        if not healthy:
            raise OSError("the network is gone")
        yield from range(5, 8)

    iterator = iter(DataLoader(Dataset.from_iterable(broken).batch(2)))
    assert [b.tolist() for b in head(iterator, 2)] == [[0, 1], [2, 3]]
    message = r"step 2: Dataset.from_iterable\(broken\) failed on record 5: OSError: the network is"
    with pytest.raises(RecordError, match=message) as caught:
        next(iterator)
    assert caught.value.index == 5
    assert isinstance(caught.value.__cause__, OSError)
    healthy = True
    assert [b.tolist() for b in iterator] == [[4, 5], [6, 7]]


# Mixes ------------------------------------------------------------------------------------------


def test_a_mix_of_streams_and_other_datasets():
    dataset = Dataset.mix([STREAM, Dataset.range(1000, 1009)], [2, 1])
    assert numbers(dataset)[:6] == [0, 2, 1000, 4, 6, 1001]
    assert_same(list(dataset), list(stream_oracle.elements(dataset)))
    again = Dataset.mix([STREAM, Dataset.range(1000, 1009).shuffle(1)], [2, 1], stop="repeat")
    assert_same(list(again), list(stream_oracle.elements(again)))
    by_index = Dataset.mix(
        [Dataset.range(50), Dataset.range(1000, 1009).shuffle(1)], [2, 1], stop="repeat"
    )
    ours = Dataset.mix(
        [Dataset.range(50).filter(lambda x: True), Dataset.range(1000, 1009).shuffle(1)],
        [2, 1],
        stop="repeat",
    )
    assert numbers(ours) == numbers(by_index)


def test_mixes_that_start_again_inside_each_other_have_many_epochs():
    small = Dataset.range(9).filter(everything).shuffle(window=3)
    inner = Dataset.mix([small, Dataset.range(100, 130)], stop="repeat")
    outer = Dataset.mix([inner, Dataset.range(1000, 1100)], stop="repeat")
    most = Dataset.mix([outer, Dataset.range(2000, 2010)], stop="repeat").batch(50)
    expected = list(most.repeat(4))
    loader = DataLoader(most)
    assert_same([batch for e in range(4) for batch in loader.epoch(e)], expected)
    again = most.repeat(2).take(9).repeat(3)
    assert_same(list(DataLoader(again)), list(again))
    assert len(list(loader.epoch(1000))) == len(expected) // 4


def test_components_that_do_not_fit_are_named():
    one, other = STREAM.map(lambda x: x), Dataset.from_source([{"a": 1}] * 9)
    message = r"a row of dataset 1 has the structure \{'a': \*\}, a row of dataset 0 has \*"
    with pytest.raises(LoaderxError, match=message):
        list(Dataset.mix([one, other]).batch(4))


@pytest.mark.parametrize("keep", [Dataset.filter, lambda dataset, _: dataset])
def test_a_failure_in_a_mix_names_the_dataset(keep):
    def parse(x):
        if x == 3:
            raise ValueError("not a number")
        return x

    fine, broken = (keep(Dataset.range(9).map(f), lambda x: True) for f in (abs, parse))
    message = r"step 1: dataset 1: map\(parse\) failed on record 3: ValueError: not a number"
    iterator = iter(DataLoader(Dataset.mix([fine, broken]).batch(4)))
    with pytest.raises(RecordError, match=message) as caught:
        list(iterator)
    assert caught.value.index == 3
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(RecordError, match=message):
        next(iterator)


def test_a_mix_names_its_rows_also_where_some_of_them_are_loose():
    ragged = Dataset.from_source([{"x": i, "t": [0] * (i % 3)} for i in range(8)])
    loose = Dataset.mix([ragged.filter(everything), ragged], [1, 3], stop="repeat")
    for wrong in range(8):

        def picky(record, wrong=wrong):
            if record["x"] == wrong:
                raise ValueError("this one")
            return True

        with pytest.raises(
            RecordError, match=r"filter\(picky\) failed on .*: ValueError: this one"
        ):
            list(loose.shuffle(window=16).filter(picky).batch(4))


def mixed(weights, size=6, lanes=3):
    one = arrays(60).shuffle(1).filter(odd).repeat()
    other = arrays(60, 1000).filter(odd).repeat()
    return Dataset.mix([one, other], weights).batch(size, lanes=lanes)


def test_weights_may_change_at_a_restore():
    """Every component goes on where it was; the new weights hold from that step on."""
    old = iter(DataLoader(mixed([1, 1])))
    head(old, 5)
    state = old.get_state()
    iterator = iter(DataLoader(mixed([2, 1])))
    with pytest.raises(StateError, match=r"\(mix\): tickets was \[1, 1\] and is \[2, 1\] now"):
        iterator.set_state(state)
    with pytest.warns(LoaderxWarning, match="Going on at the same rows"):
        iterator.set_state(state, strict=False)
    assert iterator.step == 5
    rest = np.concatenate([b["x"] for b in head(iterator, 40)])
    assert abs((rest < 1000).mean() - 2 / 3) < 0.02
    # One lane shows it exactly: each component's records are its own stream, without a gap.
    before = head(DataLoader(mixed([1, 1], 4, 1)), 5)
    old = iter(DataLoader(mixed([1, 1], 4, 1)))
    head(old, 5)
    new = iter(DataLoader(mixed([3, 1], 4, 1)))
    with pytest.warns(LoaderxWarning):
        new.set_state(old.get_state(), strict=False)
    seen = np.concatenate([b["x"] for b in [*before, *head(new, 20)]])
    alone = [r["x"] for r in head(arrays(60).shuffle(1).filter(odd).repeat(), 200)]
    first = seen[seen < 1000]
    assert first.tolist() == [int(x) for x in alone[: len(first)]]


def test_new_weights_below_a_window_warn_of_its_records():
    def dataset(weights):
        mix = Dataset.mix([STREAM.repeat(), Dataset.range(1000, 1060).repeat()], weights)
        return mix.shuffle(window=8).batch(3)

    old = iter(DataLoader(dataset([1, 1])))
    next(old)
    with pytest.warns(LoaderxWarning, match="window that was begun above the mix is filled anew"):
        iter(DataLoader(dataset([2, 1]))).set_state(old.get_state(), strict=False)


def test_another_batch_size_goes_on_at_the_same_rows():
    dataset = arrays(60).filter(odd).repeat()
    iterator = iter(DataLoader(dataset.batch(4)))
    head(iterator, 3)
    larger = iter(DataLoader(dataset.batch(6)))
    with pytest.warns(LoaderxWarning, match=r"\(batch\): size was 4 and is 6 now"):
        larger.set_state(iterator.get_state(), strict=False)
    ids = [int(r["x"]) for r in head(dataset, 30)]
    assert next(larger)["x"].tolist() == ids[12:18]


def test_another_batch_size_goes_on_with_the_schedule_of_a_mix():
    one, other = Dataset.range(60).filter(even).repeat(), Dataset.range(1000, 1060).repeat()
    dataset = Dataset.mix([one, other], [2, 1])
    iterator = iter(DataLoader(dataset.batch(4)))
    head(iterator, 2)
    larger = iter(DataLoader(dataset.batch(5)))
    with pytest.warns(LoaderxWarning):
        larger.set_state(iterator.get_state(), strict=False)
    assert next(larger).tolist() == numbers(head(dataset, 13))[8:]


# States -----------------------------------------------------------------------------------------


def endless(lanes=4):
    return arrays(64).filter(odd).repeat().batch(8, lanes=lanes)


def state_of(dataset, steps=3, **more):
    iterator = iter(DataLoader(dataset, engine="inline", **more))
    head(iterator, steps)
    return iterator.get_state()


def test_a_state_in_full():
    state = state_of(endless(2))
    assert state == {
        "version": 2,
        "step": 3,
        "epoch": 0,
        "above": [],
        "lanes": {"0": [0, [2, 2]], "1": [0, [2, 1]]},
        "chain": [
            "order 1",
            state["chain"][1],
            "filter(function='odd')",
            "repeat()",
            "batch(size=8, lanes=2)",
            "units 8",
        ],
    }


def test_states_that_do_not_fit():
    state = state_of(endless())
    iterator = iter(DataLoader(endless()))
    with pytest.raises(
        StateError, match="this loader runs 0 to 3. Join the states of all hosts wi"
    ):
        iterator.set_state({**state, "lanes": {"0": state["lanes"]["0"]}})
    with pytest.raises(StateError, match="belongs to another chain"):
        iter(DataLoader(endless(2))).set_state(state)
    with pytest.raises(StateError, match="it belongs to a dataset that is no stream"):
        iterator.set_state(iter(DataLoader(arrays(9).batch(3))).get_state())
    with pytest.raises(StateError, match="belongs to a stream, and this dataset is none"):
        iter(DataLoader(arrays(9).batch(3))).set_state(state)
    expected, steps = iter(endless()), 0
    for wrong in ([1], [0, [1, -1]], [0, [1, True]], "x", None):
        with pytest.raises(StateError, match="does not fit this chain|a whole number is expected"):
            iterator.set_state({**state, "lanes": dict.fromkeys("0123", wrong)})
        # What was refused leaves the iterator where it was.
        assert_same([next(iterator)], [next(expected)])
        assert iterator.step == (steps := steps + 1)


def test_other_units_are_refused_even_if_not_strict():
    """Their numbers mean other rows: going on would leave records out, or read them twice."""
    dataset = Dataset.range(1000).filter(even)
    state = state_of(dataset.shuffle(window=8).batch(4), 20)
    for other in (
        dataset.shuffle(window=16).batch(4),
        Dataset.range(3000).filter(even).shuffle(window=4).batch(4),
    ):
        iterator = iter(DataLoader(other))
        with pytest.raises(StateError, match=r"in units of 8 records, and this chain .* of (16|4)"):
            iterator.set_state(state, strict=False)
        assert iterator.step == 0
    lines = Dataset.from_iterable(lambda: range(40))
    iterator = iter(DataLoader(lines.shuffle(window=16).batch(3)))
    with pytest.raises(StateError, match="in units of 8 records, and this chain in units of 16:"):
        iterator.set_state(state_of(lines.shuffle(window=8).batch(3), 4), strict=False)
    longer = iter(DataLoader(Dataset.range(3000).filter(even).shuffle(window=8).batch(4)))
    with pytest.warns(LoaderxWarning, match="Going on at the same rows"):
        longer.set_state(state, strict=False)
    assert sorted(next(longer).tolist()) == [160, 162, 164, 166]


def test_a_renamed_function_only_warns():
    def renamed(record):
        return odd(record)

    iterator = iter(DataLoader(arrays(64).filter(renamed).repeat().batch(8, lanes=4)))
    with pytest.warns(
        LoaderxWarning,
        match="saved with filter.function='odd'., the chain has filter.function='renamed",
    ):
        iterator.set_state(state_of(endless()))


def test_how_long_to_run_is_not_part_of_the_state():
    state = state_of(endless().take(7))
    for dataset in (endless(), endless().take(9)):
        iterator = iter(DataLoader(dataset))
        iterator.set_state(state)
        assert_same(head(iterator, 2), head(endless(), 5)[3:])


def test_a_state_of_more_passes():
    stream = Dataset.range(10).filter(everything)
    state = state_of(stream.repeat().batch(5), 9)
    fewer = iter(DataLoader(stream.repeat(2).batch(5)))
    with pytest.raises(StateError, match=r"in pass 4 \(counted from 0\), and .repeat\(2\) has 2"):
        fewer.set_state(state)
    enough = iter(DataLoader(stream.repeat(5).batch(5)))
    enough.set_state(state)
    assert [batch.tolist() for batch in enough] == [[5, 6, 7, 8, 9]]


def test_merging_states():
    parts = [state_of(endless(), shard=(h, 4)) for h in range(4)]
    assert merge_states(parts) == merge_states(parts[::-1]) == state_of(endless())
    plain = state_of(arrays(24).batch(8, drop_remainder=True), 2)
    assert merge_states([plain, dict(plain)]) == plain
    with pytest.raises(StateError, match="different steps: number 0 at 3, number 1 at 4"):
        merge_states([parts[0], state_of(endless(), 4, shard=(1, 4))])
    with pytest.raises(StateError, match="state 1 belongs to another chain than state 0"):
        merge_states([parts[0], state_of(endless(2), 3)])
    moved = {**parts[0], "lanes": {"0": [0, [9, 9]]}}
    with pytest.raises(StateError, match="lane 0 is in two states, at different positions"):
        merge_states([parts[0], moved])
    for wrong in ([], None, parts[0]):
        with pytest.raises(ArgumentError, match="needs a list of the states of all hosts"):
            merge_states(wrong)
    for wrong in ([1, 2], {"a": [0, 1]}):
        with pytest.raises(StateError, match="this is no state of a loader"):
            merge_states([parts[0], {**parts[1], "lanes": wrong}])
    bare = {key: value for key, value in parts[1].items() if key != "lanes"}
    for both in ([parts[0], bare], [bare, parts[0]]):
        with pytest.raises(StateError, match="only one of them has lanes"):
            merge_states(both)
    with pytest.raises(StateError, match="this is no state of a loader"):
        merge_states([{}])


def test_seeking_a_stream():
    iterator = iter(DataLoader(endless()))
    first = head(iterator, 3)
    iterator.seek(3)
    with pytest.raises(ArgumentError, match="a stream cannot seek to step 7.*use set_state"):
        iterator.seek(7)
    iterator.seek(0)
    assert_same(head(iterator, 3), first)


def test_epochs_of_a_stream():
    dataset = arrays(30).shuffle(1).filter(odd).random_map(jitter).batch(4)
    loader = DataLoader(dataset)
    twice = list(dataset.repeat(2))
    assert_same([*loader.epoch(0), *loader.epoch(1)], twice)
    assert_same(list(DataLoader(dataset.repeat(2).map(grow))), list(dataset.map(grow).repeat(2)))
    epoch = loader.epoch(1)
    next(epoch)
    state = epoch.get_state()
    assert (state["epoch"], state["step"], epoch.epoch) == (1, 1, 1)
    again = loader.epoch(1)
    again.set_state(state)
    assert_same(list(again), list(epoch))
    with pytest.raises(StateError, match="the state is in epoch 1; this iterator reads epoch 0"):
        loader.epoch(0).set_state(state)


def test_the_epoch_of_an_endless_stream():
    iterator = iter(DataLoader(arrays(30).filter(odd).repeat().map(grow).batch(4)))
    epochs = []
    for _ in range(11):
        epochs.append(iterator.epoch)
        next(iterator)
    assert epochs == [0] * 6 + [1] * 5
    assert iter(DataLoader(arrays(30).repeat().filter(odd).batch(4))).epoch == 0
    skipped = iter(DataLoader(arrays(30).filter(odd).repeat().batch(5).skip(2).map(grow)))
    head(skipped, 3)
    assert skipped.epoch == 1


def test_a_bounded_stream_on_hosts_says_when_it_ends_too_early():
    dataset = arrays(64).filter(odd).batch(8, lanes=4).take(50)
    with pytest.raises(ChainError, match="the stream ended on this host before the .take"):
        list(DataLoader(dataset, shard=(0, 2)))
    assert len(list(DataLoader(dataset.take(3), shard=(0, 2)))) == 3


# Engines ----------------------------------------------------------------------------------------


def test_work_can_be_shipped():
    loader = DataLoader(mixed([2, 1]), engine="inline")
    work = loader._stream.work
    shipped = cloudpickle.loads(cloudpickle.dumps(work))
    from loaderx.memory import Pool

    for step in (0, 1, work.span + 3, work.block, work.block + 5):
        one, other = work(step, Pool().lend), shipped(step, Pool().lend)
        assert_same([one.value], [other.value])
    assert work.describe(1) == "records 4 to 7 of the input"
    assert "filter(odd)" in dict(work.parts())


def test_loaders_can_be_pickled():
    loader = DataLoader(arrays(20).filter(odd).batch(4), engine="inline")
    batches = list(loader)
    assert_same(list(pickle.loads(pickle.dumps(loader))), batches)
    iterator = iter(loader)
    next(iterator)
    copy = pickle.loads(pickle.dumps(iterator))  # as with a function that knows it
    assert copy.step == 1
    assert copy.get_state() == iterator.get_state()
    with pytest.raises(LoaderxError, match="only the iterator itself can be iterated"):
        next(copy)
    assert_same(list(iterator), batches[1:])


def test_a_lane_that_falls_far_behind_costs_no_memory():
    """Lane 1 gets many rows per unit, lane 0 few: after a while each has a run of its own."""
    dataset = Dataset.range(4096).filter(lambda x: x // 16 % 2 == 1 or x % 16 == 0)
    dataset = dataset.shuffle(window=16).batch(8, lanes=2)
    loader = DataLoader(dataset, engine=Threads(2))
    iterator = iter(loader)
    seen = []
    for batch in iterator:
        seen.append(batch)
        kept = [len(k) for k in iterator._run._reading.feeds[0]._kept] if iterator._run else [0]
        assert max(kept) <= 8
    assert iterator._run is None
    assert_same(seen, list(stream_oracle.elements(dataset)))


def test_who_has_no_stream_does_not_import_how_they_run():
    script = (
        "import sys, loaderx\n"
        "loaderx.DataLoader(loaderx.Dataset.range(9).shuffle(window=3).batch(2))\n"
        "print([m for m in sys.modules if m in ('loaderx.plan.streams', 'loaderx.stages.packing')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_statistics():
    loader = DataLoader(arrays(600).filter(odd).batch(8).map(grow))
    rows = sum(len(batch["x"]) for batch in loader)
    stats = loader.stats()
    assert (stats.records, stats.batches) == (rows, 50)
    assert "filter(odd)" in stats.stage_s
    assert DataLoader(Dataset.from_iterable(count_up).batch(4)).stats().batches == 0
    loader = DataLoader(Dataset.from_iterable(count_up).batch(4))
    list(loader)
    assert loader.stats().reason == "records are read in order, in the caller's thread"


def test_batches_are_the_users_own():
    held = list(DataLoader(arrays(400).filter(odd, batched=True).batch(8), engine=Threads(2)))
    for batch in held:
        for leaf in batch.values():
            assert leaf.flags.writeable
            assert leaf.ctypes.data % 64 == 0
    expected = list(arrays(400).filter(odd, batched=True).batch(8))
    assert_same(held, expected)
    for batch in expected:
        batch["y"][...] = 0
    assert_same(held, list(arrays(400).filter(odd, batched=True).batch(8)))


def test_records_of_a_stream_are_the_users_own():
    data = np.arange(12.0).reshape(6, 2)
    for record in Dataset.from_arrays(x=data).filter(lambda r: True):
        record["x"][...] = 0
    assert data.sum() == 66


@pytest.mark.parametrize("stages", [lambda d: d, lambda d: Dataset.mix([d, d]).shuffle(window=4)])
def test_a_dropped_iterator_is_gone_at_once(stages):
    """What it runs ends with it; nothing waits for the garbage collector."""
    iterator = iter(DataLoader(stages(arrays(60).filter(odd).repeat()).batch(4), engine="inline"))
    next(iterator)
    reading = weakref.ref(iterator._batches._reading)
    gc.collect()
    gc.disable()
    try:
        del iterator
        assert reading() is None
    finally:
        gc.enable()


def test_ctrl_c_ends_a_stream():
    script = (
        "import loaderx as lx, signal, os, threading\n"
        "ds = lx.Dataset.range(100).repeat().filter(lambda x: x % 2 == 0).batch(2)\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n"
        "    for batch in lx.DataLoader(ds, engine='threads'): pass\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")
