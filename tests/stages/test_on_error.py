"""`on_error`: records that are replaced, left out or raised."""

from __future__ import annotations

import re

import numpy as np
import pytest

from chains import arrays, ids
from failing import ENGINES, fragile, listed, load
from loaderx import ChainError, DataLoader, Dataset, LoaderxError, RecordError
from stream_chains import odd
from streams import everything, numbers

# Half of the records fail here; where the warning itself is meant, it is caught.
pytestmark = pytest.mark.filterwarnings("ignore:.*records have failed")


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


def test_replace_says_how_often_it_tried():
    def never(record):
        raise ValueError(f"no {record['x']}")

    with pytest.raises(RecordError) as caught:
        list(arrays(9).map(never).on_error("replace").batch(3))
    assert re.fullmatch(
        r"step 0: map\(never\) failed on record 0: ValueError: no 0\. on_error tried 64 other "
        r"records in its place, and none could be read\. The first of them: map\(never\) failed on "
        r"record (\d): ValueError: no \1",
        str(caught.value),
    )
    assert caught.value.index == 0
    assert str(caught.value.__cause__) == "no 0"


def test_a_function_is_asked_once_for_each_record():
    asked = []

    def decide(error):
        asked.append((error.index, error.record, error.reason))
        return "replace"

    expected = [(i, f"record {i}", f"ValueError: bad {i}") for i in (3, 8, 13, 18)]
    base = arrays(20).map(fragile)
    for chain in (base.on_error(decide), base.filter(everything).on_error(decide)):
        asked.clear()
        list(load(chain.batch(5), "inline"))
        assert asked == expected
    asked.clear()
    with load(base.on_error(decide).batch(5), "processes") as loader:
        list(loader)
        assert asked == []  # it was asked in the workers
        assert [(f.index, f.record, f.error) for f in loader.stats().failures] == expected


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_a_function_of_on_error_that_fails_itself(engine):
    def confused(error):
        return {}["no such key"]

    def passes_on(error):
        raise error

    for chain in (arrays(20).map(fragile), arrays(20).map(fragile).filter(everything)):
        twice = chain.on_error(confused).on_error("replace").batch(5)  # never hidden
        with load(twice, engine) as loader, pytest.raises(RecordError) as caught:
            list(loader)
        assert str(caught.value) == (
            "step 0: the function given to on_error failed (KeyError: 'no such key') on: "
            "map(fragile) failed on record 3: ValueError: bad 3. It must return 'raise' or "
            "'replace'."
        )
        assert type(caught.value.__cause__) is KeyError
        said = r"^step 0: map\(fragile\) failed on record 3"
        given_back = load(chain.on_error(passes_on).batch(5), engine)
        with given_back, pytest.raises(RecordError, match=said):
            list(given_back)


def test_a_function_must_answer_with_one_of_two_words():
    said = (
        "the function given to on_error must return 'raise' or 'replace', got 'skip'. To leave "
        r'records out write on_error\("skip"\)\.$'
    )
    base = arrays(20).map(fragile)
    for chain in (base, base.filter(everything)):
        with pytest.raises(LoaderxError, match=said):
            list(chain.on_error(lambda error: "skip").batch(5))


@pytest.mark.parametrize("engine", ENGINES)
def test_skip_leaves_records_out_and_makes_a_stream(engine):
    base = arrays(40).shuffle(3).map(fragile)
    expected = [int(r["x"]) for r in arrays(40).shuffle(3) if r["x"] % 5 != 3]
    chain = base.on_error("skip").batch(4)
    with pytest.raises(TypeError, match="a stream has no length"):
        len(chain)
    with load(chain, engine) as loader:
        iterator = iter(loader)
        whole = [next(iterator)["x"].tolist()]
        state = iterator.get_state()
        whole += [batch["x"].tolist() for batch in iterator]
        assert [x for batch in whole for x in batch] == expected
        other = iter(loader.epoch(0))
        other.set_state(state)
        assert [batch["x"].tolist() for batch in other] == whole[1:]


def test_skip_covers_the_source_and_fits_between_other_stages():
    class Broken:
        def __len__(self):
            return 12

        def __getitem__(self, index):
            if index % 4 == 2:
                raise OSError("unreadable")
            return {"x": np.int64(index)}

    def numbers(dataset):
        return [int(record["x"]) for record in dataset]

    kept = [i for i in range(12) if i % 4 != 2]
    chain = Dataset.from_source(Broken()).on_error("skip")
    assert numbers(chain) == kept
    assert numbers(chain.take(3)) == kept[:3]
    assert numbers(chain.repeat(2)) == kept * 2
    assert numbers(chain.filter(lambda r: r["x"] % 2 == 0).on_error("skip")) == [0, 4, 8]
    assert chain.map(fragile).on_error("skip").element_spec["x"].shape == ()
    loader = load(chain.batch(3), "inline")
    list(loader)
    assert listed(loader)[0][:3] == (2, "reading the source", "OSError: unreadable")
    with pytest.raises(ChainError, match="global|window"):
        chain.shuffle(0)


def test_skip_on_two_hosts():
    chain = arrays(64).map(fragile).on_error("skip").repeat().batch(4, lanes=2)
    whole = load(chain, "inline")
    batches = [b["x"].tolist() for b, _ in zip(whole, range(20))]
    parts = [iter(load(chain, "inline", shard=(host, 2))) for host in (0, 1)]
    for batch in batches:
        assert [x for part in parts for x in next(part)["x"].tolist()] == batch


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
    with pytest.raises(LoaderxError, match="no other record to use instead"):
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
    assert len(arrays(3).on_error("raise")) == 3
    with pytest.raises(RecordError):
        list(arrays(9).map(fragile).on_error("raise"))


def test_batch_functions_always_raise():
    def broken(batch):
        raise ValueError("batch")

    with pytest.raises(RecordError, match="failed on a batch"):
        list(arrays(9).batch(3).map(broken).on_error("replace"))
    with pytest.raises(RecordError, match="failed on a run of 3 records"):
        list(arrays(9).map(broken, batched=True).on_error("replace").batch(3))


@pytest.mark.filterwarnings("ignore:.*records have failed")
def test_replace_in_odd_places():
    base = arrays(20).map(fragile).batch(4).unbatch()
    twice = base.repeat(2).on_error("replace")
    assert ids(twice)[:20] == ids(base.on_error("replace"))
    assert [int(r["x"]) for r in DataLoader(twice, engine="inline")] == ids(twice)
    inside = arrays(20).map(fragile).repeat(2).batch(4).unbatch().on_error("replace")
    assert not [i for i in ids(inside) if i % 5 == 3]
    with pytest.raises(ChainError, match="so there must be an end"):
        Dataset.zip([arrays(5).repeat(), arrays(5).repeat()]).on_error("replace")
