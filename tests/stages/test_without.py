"""Records that are removed: all others keep their places, and the removed ones are never read."""

from __future__ import annotations

import json
import re
from itertools import islice

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import stream_oracle
from chains import arrays, batched_chains, chains, ids, objects
from chunk_sources import Chunks
from inside import node_of
from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    DataLoader,
    Dataset,
    LoaderxWarning,
    PositionError,
    StateError,
    merge_states,
)
from loaderx.order.removed import Removed
from loaderx.stages import nodes
from oracle import assert_same, elements, same
from plain import grow, jitter
from removing import without_values
from stream_chains import batched_streams, odd, record_streams

# Generated chains take parts of what is shuffled, and join them.
pytestmark = pytest.mark.filterwarnings("ignore:.*draws a new order in every epoch")
FILLS = pytest.mark.parametrize("fill", ["replace", "mask", "empty"])
VALUES = st.sets(st.sampled_from([base + i for base in (0, 1000, 2000, 3000) for i in range(25)]))


def loaded(dataset, **how):
    return iter(DataLoader(dataset, **{"engine": "inline", **how}))


def removed_from(dataset, values, fill):
    try:
        return without_values(dataset, values, fill)
    except (ArgumentError, ChainError) as error:
        assume("removes all" not in str(error))
        assume("the records of a window would not be neighbours" not in str(error))
        raise


# The set ----------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 10**9 - 1), min_size=1), st.integers(0, 3))
def test_which_positions_are_removed(numbers, near):
    table = np.array(list(numbers))
    removed = Removed.of(np.concatenate([table, table[:2]]), 10**9, "replace")
    asked = np.minimum(np.concatenate([table, table + near, np.arange(50)]), 10**9 - 1)
    found = set(removed.among(asked).tolist())
    assert found == {place for place, n in enumerate(asked.tolist()) if n in numbers}


def test_removing_more_changes_only_what_must():
    keys, positions = np.arange(400, dtype=np.uint64), np.arange(400)
    few = Removed.of(np.arange(400), 1000, "replace")
    more = Removed.of(np.arange(500), 1000, "replace")
    before, after = few.others(keys, positions), more.others(keys, positions)
    assert (before >= 400).all()
    assert (after >= 500).all()
    assert (before == after)[before >= 500].all()
    assert len(set(after.tolist())) > 150


def test_nearly_all_may_be_removed():
    removed = Removed.of(np.delete(np.arange(10**6), [7, 900_000]), 10**6, "replace")
    chosen = removed.others(np.arange(100, dtype=np.uint64), np.arange(100, 200))
    assert set(chosen.tolist()) == {7, 900_000}


# What comes -------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(batched_chains(), VALUES)
def test_other_rows_are_as_before_in_every_epoch(dataset, values):
    """Through shuffles, repeats, mixes and draws; the sources raise on removed records."""
    # The second part of a zip does not show in "x"; the slow twin knows it.
    assume(not any(isinstance(node, nodes.Zipped) for node in node_of(dataset).below()))
    less = removed_from(dataset, values, "replace")
    for epoch in (0, 1):
        whole, rest = DataLoader(dataset).epoch(epoch), DataLoader(less).epoch(epoch)
        for before, after in zip(whole, rest, strict=True):
            kept = ~np.isin(before["x"], list(values))
            for leaf in before:
                np.testing.assert_array_equal(before[leaf][kept], after[leaf][kept])
                assert before[leaf].dtype == after[leaf].dtype
            real = after.get("mask", True)
            assert not np.isin(after["x"][~kept & real], list(values)).any()


@settings(max_examples=150)
@given(chains(), VALUES, st.sampled_from(["replace", "mask"]))
def test_chains_equal_the_slow_twin(dataset, values, fill):
    try:
        less = removed_from(dataset, values, fill)
        expected = elements(less)
    except (KeyError, ValueError):  # some records have a mask, and others that they join have none
        assume(False)
    assert_same(less, expected)


@settings(max_examples=100)
@given(batched_streams(), VALUES)
def test_streams_equal_the_slow_twin(dataset, values):
    less = removed_from(dataset, values, "replace")
    assert_same(islice(less, 40), islice(stream_oracle.elements(less), 40))


@settings(max_examples=60)
@given(record_streams(), VALUES)
def test_streams_of_records_equal_the_slow_twin(dataset, values):
    less = removed_from(dataset, values, "replace")
    assert_same(islice(less, 40), islice(stream_oracle.elements(less), 40))


def documents(count=40):
    lengths = np.random.default_rng(3).integers(1, 9, count).tolist()
    return Dataset.from_source(
        [{"t": np.full(n, i + 1, np.int32), "n": np.int64(i)} for i, n in enumerate(lengths)]
    )


@FILLS
def test_what_takes_their_place(fill):
    ds = Dataset.from_arrays(x=np.arange(1, 6), y=np.ones((5, 2), np.float32))
    less = ds.without([1, 3], fill=fill, mask_key="real")
    found = [less[number] for number in range(5)]
    for number in (0, 2, 4):
        assert same({leaf: found[number][leaf] for leaf in ("x", "y")}, ds[number])
    if fill == "replace":
        assert {int(found[1]["x"]), int(found[3]["x"])} <= {1, 3, 5}
        assert less.element_spec == ds.element_spec
    elif fill == "mask":
        assert [bool(record["real"]) for record in found] == [True, False, True, False, True]
        assert [int(found[n]["x"]) for n in (1, 3)] == [0, 0]
        batch = less.batch(5)[0]
        assert batch["y"].sum(axis=1).tolist() == [2, 0, 2, 0, 2]
        assert batch["real"].tolist() == [True, False, True, False, True]
        assert repr(less.element_spec) == "{'x': int64[], 'y': float32[2], 'real': bool[]}"
        assert_same([batch], [less.map(dict).batch(5)[0]])  # columns, and single records
    else:
        assert found[1]["y"].shape == (0,)
        assert repr(less.element_spec) == "{'x': int64[], 'y': float32[?]}"


def test_texts_and_lists_become_empty_too():
    records = [
        {"text": "one", "raw": b"1", "ids": [1, 2]},
        {"text": "two", "raw": b"2", "ids": [3]},
    ]
    for fill, left in (("empty", 0), ("mask", 1)):
        gone = Dataset.from_source(records).without([1], fill=fill)[1]
        assert (gone["text"], gone["raw"], len(gone["ids"])) == ("", b"", 2 * left)
    batch = Dataset.from_source([{"t": "a"}, {"t": "b"}]).without([0], fill="mask").batch(2)[0]
    assert batch["t"].tolist() == ["", "b"]


def test_numbers_cannot_be_empty():
    with pytest.raises(ChainError) as caught:
        Dataset.range(5).without([1], fill="empty")[1]
    assert str(caught.value) == (
        "without(fill='empty') needs records with a leaf that can be empty, as texts and tokens "
        'can. Write fill="replace", or "mask".'
    )


def test_a_masked_batch_leaves_the_source_alone():
    class Gathers:
        thread_safe = True
        columns = np.arange(1.0, 7)

        def __len__(self):
            return 6

        def __getitem__(self, index):
            return {"x": self.columns[index]}

        def gather(self, indices):
            return {"x": self.columns if len(indices) == 6 else self.columns[indices]}

    less = Dataset.from_source(Gathers()).without([2], fill="mask").batch(6)
    assert less[0]["x"].tolist()[2] == 0
    assert Gathers.columns.tolist() == [1, 2, 3, 4, 5, 6]


def test_pack_leaves_empty_texts_out_and_only_their_windows_change():
    def packed(ds):
        return ds.pack({"t": 12}, window=10, max_segments=12).batch(1)

    removed = [11, 17]
    less = documents().without(removed, fill="empty")
    before, after = list(packed(documents())), list(packed(less))
    texts = np.concatenate([batch["t"].reshape(-1) for batch in after])
    assert not np.isin(texts, np.array(removed) + 1).any()
    assert np.isin(np.delete(np.arange(40), removed) + 1, texts).all()

    def rows(batches, window):
        return [b for b in batches if b["t"][0, 0] in range(10 * window + 1, 10 * window + 11)]

    for window in (0, 2, 3):
        assert_same(rows(after, window), rows(before, window))
    assert [same(*pair) for pair in zip(rows(after, 1), rows(before, 1))].count(False)


@FILLS
@pytest.mark.parametrize("engine", ["threads", "processes", "auto"])
def test_engines_equal_inline(fill, engine):
    ds = documents(60).without([3, 4, 31, 59], fill=fill).shuffle(1)
    if fill != "mask":
        ds = ds.pack({"t": 16}, window=20, max_segments=20).repeat().batch(2, lanes=2)
    else:
        ds = arrays(60).without([3, 4, 31, 59], fill="mask").shuffle(1).random_map(jitter)
        ds = ds.batch(4).repeat()
    with DataLoader(ds, engine=engine, num_workers=2) as loader:
        assert_same(islice(loader, 12), islice(loaded(ds), 12))


@pytest.mark.parametrize("hosts", [2, 4])
def test_hosts_share_the_same_batches(hosts):
    less = arrays(64).without([1, 5, 60]).shuffle(2).random_map(jitter)
    for ds in (less.batch(8).repeat(), less.filter(odd).repeat().batch(8, lanes=4)):
        parts = [loaded(ds, shard=(host, hosts)) for host in range(hosts)]
        for batch in islice(loaded(ds), 12):
            shares = [next(part) for part in parts]
            assert same(batch, {k: np.concatenate([s[k] for s in shares]) for k in batch})


def test_it_stands_above_stages_that_keep_the_numbers():
    ds = Dataset.concatenate(arrays(10), arrays(10, 1000)).map(grow)[2:].on_error("replace")
    less = ds.without([0, 8, 17])
    assert not set(ids(less)) & {2, 1000, 1009}
    kept = np.delete(np.arange(18), [0, 8, 17]).tolist()
    assert_same([less[number] for number in kept], [ds[number] for number in kept])
    part, _ = arrays(20).split(0.5, 0.5)
    assert ids(part.without([3]))[4:] == ids(part)[4:]


@pytest.mark.filterwarnings("ignore:.*records have failed")
def test_on_error_takes_no_removed_record():
    def fails(record):
        if record["x"] % 2:
            raise ValueError("odd")
        return record

    removed = [*range(0, 30, 4)]
    less = without_values(objects(30), removed, "replace").map(fails).on_error("replace").shuffle()
    for epoch in range(3):
        for batch in DataLoader(less.batch(10)).epoch(epoch):
            assert not np.isin(batch["x"], removed).any()


def test_a_cache_keeps_the_replacements_of_the_first_epoch():
    """Whatever is read first."""
    less = arrays(30).without([*range(10)]).cache().batch(30).repeat()
    first, later = (iter(DataLoader(less, engine="inline")) for _ in range(2))
    later.seek(3)
    fresh = arrays(30).without([*range(10)]).cache().batch(30).repeat()
    other = iter(DataLoader(fresh, engine="inline"))
    other.seek(3)
    assert same(next(other), next(first))
    assert same(next(later), fresh[0])


def test_caches_and_saved_folders_know_what_is_removed(tmp_path):
    ds = arrays(300)
    assert ids(ds.without([7]).cache().repeat(2)) == 2 * ids(ds.without([7]))
    less = ds.without([7])
    less.save(tmp_path / "saved")
    assert ids(Dataset.open(tmp_path / "saved")) == ids(less)
    less.save(tmp_path / "saved")
    with pytest.raises(Exception, match="another dataset"):
        ds.without([8]).save(tmp_path / "saved")


# States -----------------------------------------------------------------------------------------


def chain_of(source):
    return source.shuffle(1).random_map(jitter).batch(4).repeat()


def stream_of(source):
    return source.shuffle(1).filter(odd).repeat().batch(4, lanes=2)


def mix_of(source):
    return Dataset.mix([arrays(30, 1000), source.shuffle(3)], [2, 1], stop="repeat").batch(4)


KINDS = pytest.mark.parametrize("make", [chain_of, stream_of, mix_of])


def states_of(dataset, count):
    iterator = loaded(dataset)
    for _ in range(count):
        yield json.loads(json.dumps(iterator.get_state()))
        next(iterator)


@KINDS
def test_states_from_before_are_good_at_every_step(make):
    less = make(arrays(40).without([3, 8, 21]))
    for number, ds in enumerate([arrays(40), arrays(40).without([3]), arrays(40).without([3, 8])]):
        expected = list(islice(less, 18))
        for step, state in enumerate(states_of(make(ds), 14)):
            iterator = loaded(less)
            if step:
                had = "they may have" if make is stream_of else r"\d of them had"
                text = (
                    f"{3 - number} of the records of this chain were removed since the state was "
                    f"saved, and do not come again: {had} come before its step {step}"
                )
                with pytest.warns(LoaderxWarning, match=text):
                    iterator.set_state(state)
            else:
                iterator.set_state(state)
            assert iterator.step == step
            if make is not stream_of:
                assert_same(islice(iterator, 4), expected[step : step + 4])
            else:
                assert len(list(islice(iterator, 14))) == 14


@KINDS
def test_own_states_are_good_at_every_step(make, recwarn):
    less = make(arrays(40).without([3, 8, 21], fill="mask" if make is chain_of else "replace"))
    expected = list(islice(less, 18))
    for step, state in enumerate(states_of(less, 14)):
        iterator = loaded(less)
        iterator.set_state(state)
        assert_same(islice(iterator, 4), expected[step : step + 4])
    assert not recwarn.list


@KINDS
def test_states_with_other_records_removed_are_refused(make):
    *_, state = states_of(make(arrays(40).without([3, 8])), 4)
    (before,) = state["removed"].values()
    for others, now in [
        (arrays(40).without([3, 9]), r"'replace 2 #\w+'"),
        (arrays(40).without([3]), r"'replace 1 #\w+'"),
        (arrays(40).without([3, 8], fill="mask"), r"'mask 2 #\w+'"),
        (arrays(40), "'none'"),
    ]:
        if make is mix_of and "mask" in now:
            continue
        iterator = loaded(make(others))
        with pytest.raises(StateError) as caught:
            iterator.set_state(state)
        assert re.match(
            "the state belongs to another chain: its removed records \\(fill, number, digest\\) "
            f"were '{before}', and are {now} now. More can be removed, at the end of the list; the "
            "others must stay. Pass strict=False",
            str(caught.value),
        ), str(caught.value)
        with pytest.warns(LoaderxWarning, match="its removed records"):
            iterator.set_state(state, strict=False)
        assert iterator.step == 3
        next(iterator)


def test_a_unit_that_has_fewer_rows_now_is_left():
    """All that was used of it, and what is left, may have been removed."""
    ds = documents(80).pack({"t": 8}, window=20, max_segments=20).repeat().batch(2)
    for state in states_of(ds, 25):
        removed = list(range(2, 20))
        less = documents(80).without(removed, fill="empty")
        iterator = loaded(less.pack({"t": 8}, window=20, max_segments=20).repeat().batch(2))
        if state["step"]:
            with pytest.warns(LoaderxWarning, match="18 of the records of this chain"):
                iterator.set_state(state)
        else:
            iterator.set_state(state)
        assert len(list(islice(iterator, 30))) == 30


def test_a_counted_stream_cannot_go_on_with_fewer_records():
    iterator = loaded(arrays(40).filter(odd).batch(4))
    next(iterator)
    loader = DataLoader(arrays(40).without([3]).filter(odd).batch(4), engine="inline")
    loader.counts()
    with (
        pytest.warns(LoaderxWarning, match="1 of the records of this chain were removed"),
        pytest.raises(StateError, match=r"were counted without them: .* loader\.epoch\(e\)\.$"),
    ):
        iter(loader).set_state(iterator.get_state())


def test_states_of_hosts_are_merged():
    ds = stream_of(arrays(40).without([3]))
    hosts = [loaded(ds, shard=(host, 2)) for host in range(2)]
    for host in hosts:
        next(host)
    states = [host.get_state() for host in hosts]
    whole = loaded(ds)
    whole.set_state(merge_states(states))
    assert_same(islice(whole, 3), list(islice(ds, 4))[1:])
    states[1] = {**states[1], "removed": {}}
    with pytest.raises(StateError, match="the states differ in 'removed'"):
        merge_states(states)


@pytest.mark.parametrize("damage", [3, [], {"/": 3}, {"/": "replace"}, {"/": "replace 9 #"}])
def test_damaged_states(damage):
    iterator = loaded(chain_of(arrays(40).without([3])))
    with pytest.raises(StateError, match="removed"):
        iterator.set_state({**iterator.get_state(), "removed": damage})


def test_a_state_of_a_chain_without_removals_is_as_it_was():
    assert "removed" not in loaded(chain_of(arrays(40))).get_state()
    before, after = (loaded(chain_of(ds)).get_state() for ds in (arrays(9), arrays(9).without([1])))
    assert after["chain"] == before["chain"]
    assert after["removed"] == {"/": "replace 1 #a988dff7"}


# What is given ----------------------------------------------------------------------------------


def test_nothing_to_remove_changes_nothing():
    ds = arrays(5)
    assert ds.without([]) is ds
    assert ds.without(np.array([], np.int64)) is ds


def test_numbers_from_arrays_masks_and_files(tmp_path):
    file = tmp_path / "removed.txt"
    file.write_text("4\n\n 1\n4\n")
    expected = ids(arrays(6).without([4, 1]))
    mask = np.arange(6) % 3 == 1
    for given_ids in (file, str(file), np.array([4, 1]), np.array([4, -5]), mask, range(1, 6, 3)):
        assert ids(arrays(6).without(given_ids)) == expected
    file.write_text("4\ntwo\n")
    with pytest.raises(ArgumentError) as caught:
        arrays(6).without(file)
    assert str(caught.value) == (
        f"{file} must have the number of a record on each line: invalid literal for int() with "
        "base 10: 'two'."
    )


def test_what_is_refused():
    ds = arrays(6)
    for refused, error, message in [
        (lambda: ds.without([6]), PositionError, "index 6 is out of range for 6 elements"),
        (lambda: ds.without(range(6)), ArgumentError, "without removes all 6 records"),
        (lambda: ds.without({1}), ArgumentTypeError, "a list, an array or a text file; got set"),
        (lambda: ds.without(["a"]), ArgumentTypeError, r"np\.isin\(doc_ids, removed\)"),
        (lambda: ds.without([1], fill="zero"), ArgumentError, "`fill` must be one of"),
        (
            lambda: ds.batch(2).without([1]),
            ChainError,
            r"without after \.batch\(2\): it removes records by their numbers, which must always "
            r"mean the same ones\. Put it next to the source, once, with all numbers\.",
        ),
        (lambda: ds.filter(odd).without([1]), ChainError, r"without after \.filter\(odd\)"),
        (lambda: ds.shuffle(1).without([1]), ChainError, r"without after \.shuffle\(seed=1\)"),
        (lambda: ds.repeat(2).without([1]), ChainError, r"without after \.repeat\(2\)"),
        (lambda: Dataset.mix([ds, ds]).without([1]), ChainError, r"without after \.mix\("),
        (lambda: ds.without([1]).map(grow).without([2]), ChainError, r"without after \.without\("),
    ]:
        with pytest.raises(error, match=message):
            refused()


@pytest.mark.parametrize("fill", ["replace", "mask"])
def test_over_a_source_of_chunks(fill):
    """Windows of chunks are the tasks of the workers there."""
    whole = Dataset.from_source(Chunks([7, 12, 5, 16, 20]))
    removed = [3, 8, 24, 59]
    less = whole.without(removed, fill=fill)
    for ds in (less.shuffle(1, block="source", window=20), less):
        batches = ds.batch(4).repeat()
        with DataLoader(batches, engine="threads", num_workers=2) as loader:
            found = list(islice(loader, 30))
        assert_same(found, elements(batches.take(30)))
