"""`Dataset.save` where workers write whole parts: the bytes are those of a save without workers."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fetched import Fetched
from inside import node_of
from loaderx import DataLoader, Dataset, LoaderxWarning, RecordError, StackError
from loaderx.engines import Processes, Shared, Threads
from loaderx.loader.save.work import SaveWork, Steps
from loaderx.sources.native import writer
from part_engines import InCaller
from saved_records import check_same, content
from stopping import stopped_at

PART = 8000


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def odd(index):
    """Records whose types grow wider late, each leaf at another place; one of them fails."""
    number = int(index)
    row = np.arange(128, dtype=np.int32) // 50 + number
    return {
        "id": 1 // (number - 77) + number,
        "text": "é" * (number % 4),
        "tokens": np.arange(3 if number < 150 else number % 5, dtype=np.uint16),
        "words": ["w"] * (number // 180),
        "image": b"png" * (number % 3),
        "age": None if number == 111 else number,
        "box": None if number < 120 else {"x": number},
        "row": row,
        "late": row if number < 100 else row * np.arange(128, dtype=np.int32) ** 2,
    }


ODD = Dataset.range(200).map(odd).on_error("replace")


def save_odd(folder, engine, **more):
    with pytest.warns(LoaderxWarning, match="1 of 200 records have failed") as found:
        ODD.save(folder, part_bytes=PART, images=["image"], engine=engine, **more)
    assert len(found) == 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd") / "out"
    save_odd(folder, "inline")
    found = content(folder)
    assert len({Path(name).parent for name in found}) > 20
    return found


@pytest.mark.parametrize(
    "engine",
    [
        InCaller(),
        InCaller(times=2),
        *(Threads(count) for count in (1, 2, 4)),
        *(Processes(count) for count in (1, 2, 4)),
        Shared(Threads(2)),
    ],
    ids=["caller", "twice", "1", "2", "4", "1 process", "2 processes", "4 processes", "shared"],
)
def test_every_engine_writes_the_same_bytes(engine, whole, tmp_path):
    save_odd(tmp_path, engine)
    assert content(tmp_path) == whole


@pytest.mark.parametrize("part_bytes", [1500, 1 << 28])
def test_workers_write_parts_if_there_are_enough(part_bytes, tmp_path, monkeypatch):
    begun = []
    begin = writer.PartWriter.__init__

    def noted(self, *arguments):
        begun.append(threading.current_thread() is threading.main_thread())
        begin(self, *arguments)

    monkeypatch.setattr(writer.PartWriter, "__init__", noted)
    Dataset.range(1000).map(lambda i: {"x": np.int64(i)}).save(
        tmp_path, part_bytes=part_bytes, engine=Threads(2)
    )
    assert set(begun) == {part_bytes > 1500}


KINDS = {
    "flat": lambda rng, n: np.full(200, n, np.int32),
    "busy": lambda rng, n: np.repeat(rng.integers(0, 99, 50, np.int32), 4),
    "wild": lambda rng, n: rng.integers(0, 99, 200, np.int32),
    "none": lambda rng, n: None,
    "short": lambda rng, n: np.full(150, n, np.int32),
}


@given(
    st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 20)), min_size=1, max_size=5),
    st.sampled_from([900, 5000, 9000]),
    st.permutations(range(3)),
)
@settings(max_examples=12)
def test_rows_are_lines_in_the_same_datasets(runs, part_bytes, order):
    """Who begins with a later part cannot know whether the rows before it are stored as lines."""
    rng = np.random.default_rng(0)
    rows = [KINDS[kind](rng, n) for kind, count in runs for n in range(count)]
    ds = Dataset.from_source([{"a": {"x": row}, "n": n} for n, row in enumerate(rows)])
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "shard=.* has nothing to save")
        ds.save(f"{folder}/inline", part_bytes=part_bytes, engine="inline")
        ds.save(f"{folder}/parts", part_bytes=part_bytes, engine=InCaller())
        for index in order:
            ds.save(f"{folder}/shards", part_bytes=part_bytes, engine="inline", shard=(index, 3))
        assert content(f"{folder}/parts") == content(f"{folder}/inline")
        assert content(f"{folder}/shards") == content(f"{folder}/inline")


def test_what_lies_in_the_place_of_none_is_the_same(tmp_path):
    """Rows of one length that are missing become empty where rows of any length do."""

    def made(i):
        row = np.arange(3 if i < 97 else 5)
        whole = {"x": row, "y": None if i % 5 else row, "words": [None, row]}
        return {"box": None if i % 3 else whole, "row": None if i % 4 else row}

    ds = Dataset.range(100).map(made)
    ds.save(tmp_path / "inline", part_bytes=400, engine="inline")
    ds[::-1][::-1].save(tmp_path / "one", engine="inline")
    engine = InCaller()
    ds.save(tmp_path / "parts", part_bytes=400, engine=engine)
    assert len(engine.tasks) > 4
    assert content(tmp_path / "parts") == content(tmp_path / "inline")
    for name in ("inline", "one"):
        check_same(list(Dataset.open(tmp_path / name)), list(ds))


def test_records_are_fetched_ahead_by_who_writes_the_part(tmp_path):
    source = Fetched(400, waits=True)  # fails if nobody fetches what is read
    source.fetch(np.arange(32) * 400 // 32)  # the sample is not fetched ahead
    Dataset.from_source(source).save(tmp_path, part_bytes=160, engine=Threads(2))
    assert len(Dataset.open(tmp_path)) == 400
    assert set(source.fetched) == set(range(400))


def test_a_part_may_take_as_long_as_its_steps():
    work = SaveWork(node_of(Dataset.range(1000)), Steps(1000, 300, 100))
    assert [work.steps((0,)), work.steps((0, 4)), work.steps((3, 4))] == [1, 3, 1]
    assert work.describe((3, 4)) == "records 900 to 999"
    assert work.describe((3,)) == "records 300 to 399"


# Failures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [InCaller(), Threads(2), Processes(2)])
def test_a_record_that_fails_is_named_and_nothing_is_left(engine, tmp_path):
    def fail(i):
        return 1 // (int(i) - 52)

    with pytest.raises(RecordError, match=r"map\(fail\) failed on record 52: ZeroDivisionError"):
        Dataset.range(100).map(fail).save(tmp_path, part_bytes=40, engine=engine)
    parts = [f"part-{number:05d}" for number in range(5)]
    assert sorted(os.listdir(tmp_path)) == [*parts, "saving.jsonl"]


def test_too_many_failures(tmp_path):
    ds = Dataset.range(100).map(lambda i: 1 // int(i % 10)).on_error("replace", limit=3)
    with pytest.raises(RecordError, match="more than 3 different records have failed"):
        ds.save(tmp_path, part_bytes=40, engine=InCaller())


def test_parts_whose_types_do_not_fit(tmp_path):
    def later(i):
        return {"x": {} if False else (np.int64(i) if i < 52 else np.int32(i))}

    ds = Dataset.range(64).map(later)
    with pytest.raises(StackError, match=r'leaf "x" of record'):
        ds.save(tmp_path / "out", part_bytes=40, engine=InCaller())

    def rare(i):  # not in the sample, which has every second record
        return {"x": np.float64(i) if i == 51 else np.int64(i)}

    with pytest.raises(
        StackError,
        match=r'leaf "x" of records? 5\d(.*) has the type float64, and in others it is int64\. '
        r"Make them alike in a \.map\(\)|leaf \"x\" of record 51",
    ):
        Dataset.range(64).map(rare).save(tmp_path / "rare", part_bytes=8, engine=InCaller())


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def full(self, records):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer.PartWriter, "append", full)
    with pytest.raises(Exception, match=r"No space left on device\. Finished parts are kept"):
        Dataset.range(100).save(tmp_path, part_bytes=40, engine=Threads(2))


def test_what_a_lost_worker_left_is_removed(tmp_path):
    """Also if it was written while others finished the folder."""
    ds = Dataset.range(100)
    ds.save(tmp_path / "whole", part_bytes=40, engine="inline")
    left = tmp_path / "out" / "part-00003.0123abcd.tmp"

    def make(index):
        left.mkdir(parents=True, exist_ok=True)
        (left / "value.npy").write_bytes(b"half of it")
        return index

    ds.map(make).save(tmp_path / "out", part_bytes=40, engine=InCaller())
    names = set(content(tmp_path / "out"))
    assert names == set(content(tmp_path / "whole"))


def test_stopped_at_any_moment(tmp_path):
    ds = Dataset.range(40).map(lambda i: {"x": np.arange(2 if i < 28 else i % 4)})

    def save(folder):
        ds.save(folder, part_bytes=200, engine=InCaller())

    save(tmp_path / "whole")
    expected, event = content(tmp_path / "whole"), 0
    while stopped_at(event, save, tmp_path / "out"):
        stopped_at(event // 2, save, tmp_path / "out")  # while it goes on, too
        save(tmp_path / "out")
        assert content(tmp_path / "out") == expected, event
        shutil.rmtree(tmp_path / "out")
        event += 4
    assert event > 20


def test_finished_parts_are_not_made_again(tmp_path):
    def fail(i):
        return 1 // (int(i) - 52)

    with pytest.raises(RecordError):
        Dataset.range(100).map(fail).save(tmp_path, part_bytes=40, engine=InCaller())
    made = []

    def fine(i):
        made.append(int(i))
        return 0 if i == 52 else fail(i)

    # The same dataset by its sample, in which record 52 is not.
    engine = InCaller()
    Dataset.range(100).map(fine).save(tmp_path, part_bytes=40, engine=engine)
    assert [task[0] for task in engine.tasks] == list(range(5, 10))
    assert [int(one) for one in DataLoader(Dataset.open(tmp_path))][52] == 0
