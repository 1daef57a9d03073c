"""`Dataset.save(shard=...)`: several processes save one dataset into one folder."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import warnings

import numpy as np
import pytest

from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    Dataset,
    FileError,
    LoaderxWarning,
    RecordError,
)
from loaderx.engines import Processes, Threads
from loaderx.loader.save import saving
from loaderx.sources.native import save_journal
from part_engines import InCaller
from saved_records import content
from stopping import stopped_at


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def odd(index):
    """Types that grow wider only in the last shard, and in the first one."""
    number = int(index)
    return {
        "text": "é" * (number % 4),
        "tokens": np.arange(3 if number < 55 else number % 5),
        "early": [1] if number == 1 else None,
        "image": b"png" * (number % 3),
        "failing": 1 // (number - 27),
    }


ODD = Dataset.range(60).map(odd).on_error("replace")
PART = 400


def save(folder, shard=None, ds=ODD, part_bytes=PART, engine="inline"):
    images = ["image"] if ds is ODD else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ds.save(folder, part_bytes=part_bytes, images=images, engine=engine, shard=shard)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd") / "out"
    save(folder)
    found = content(folder)
    assert sum(name.endswith("text.npy") for name in found) > 5
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("engine", ["inline", InCaller(), Threads(2)], ids=["inline", "parts", "2"])
def test_shards_write_the_bytes_of_one_save(count, engine, whole, tmp_path):
    order = np.random.default_rng(count).permutation(count).tolist()
    for place, index in enumerate(order):
        if place:
            with pytest.raises(FileError, match="is not complete: save again to resume"):
                Dataset.open(tmp_path)
        save(tmp_path, (index, count), engine=engine)
    assert content(tmp_path) == whole


def test_worker_processes_of_a_shard(whole, tmp_path):
    for index in range(2):
        save(tmp_path, (index, 2), engine=Processes(1, prefetch=0))
    assert content(tmp_path) == whole


def test_failures_are_those_of_the_shard(tmp_path):
    with pytest.warns(LoaderxWarning, match="1 of 3. records have failed"):
        ODD.save(tmp_path, part_bytes=PART, images=["image"], engine="inline", shard=(0, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ODD.save(tmp_path, part_bytes=PART, images=["image"], engine="inline", shard=(1, 2))


def test_more_shards_than_parts(tmp_path):
    ds = Dataset.range(10)
    for index in range(3):
        with pytest.warns(LoaderxWarning) if index < 2 else warnings.catch_warnings():
            ds.save(tmp_path, engine="inline", shard=(index, 3))
    assert len(Dataset.open(tmp_path)) == 10
    with pytest.warns(LoaderxWarning, match=r"shard=\(0, 3\) has nothing to save: .* gets 1 part"):
        ds.save(tmp_path / "other", shard=(0, 3))


def test_a_complete_folder_is_left_alone(tmp_path, whole):
    for index in (0, 1, 2):
        save(tmp_path, (index, 3))
    inodes = {one: os.stat(one).st_ino for one in tmp_path.rglob("*")}
    for shard in [(0, 3), (2, 3), (1, 2), None]:
        save(tmp_path, shard)
    assert {one: os.stat(one).st_ino for one in tmp_path.rglob("*")} == inodes
    assert content(tmp_path) == whole


# Refusals ---------------------------------------------------------------------------------------


def test_wrong_shards(tmp_path):
    with pytest.raises(ArgumentError, match=r"`shard` index must be below its count, got \(3, 3\)"):
        ODD.save(tmp_path, shard=(3, 3))
    with pytest.raises(ArgumentTypeError, match=r"`shard` must be \(index, count\), got '1/2'"):
        ODD.save(tmp_path, shard="1/2")
    with pytest.raises(ArgumentError, match="`shard count` must be at least 1, got 0"):
        ODD.save(tmp_path, shard=(0, 0))
    assert os.listdir(tmp_path) == []


def test_a_stream_is_refused_and_the_advice_works(tmp_path):
    ds = Dataset.range(60).map(lambda i: {"x": i, "t": "t" * int(i)})
    place = tmp_path / "out"
    with pytest.raises(ChainError) as caught:
        ds.filter(lambda r: r["x"] % 2 == 0).save(place, shard=(1, 3))
    assert "this one is a stream: nobody knows" in str(caught.value)
    assert f"ds[1::3].filter(...).save('{place}/1')" in str(caught.value)
    assert f"Dataset.open(['{place}/0', ..., '{place}/2']) is one dataset" in str(caught.value)
    for index in range(3):
        ds[index::3].filter(lambda r: r["x"] % 2 == 0).save(f"{place}/{index}")
    found = Dataset.open([f"{place}/{index}" for index in range(3)])
    assert sorted(int(one["x"]) for one in found) == list(range(0, 60, 2))
    assert {len(one["t"]) == one["x"] for one in found} == {True}
    batches = found.shuffle(seed=1)[:30].map(lambda r: r["x"]).batch(10)
    assert sorted(np.concatenate(list(batches)).tolist()) == list(range(0, 60, 2))


def test_another_dataset(tmp_path):
    save(tmp_path, (0, 2))
    message = "was begun with another dataset, which has other stages and other values"
    with pytest.raises(FileError, match=message):
        save(tmp_path, (1, 2), ds=Dataset.range(30))
    save(tmp_path, (1, 2))
    with pytest.raises(FileError, match="has another dataset"):
        save(tmp_path, (1, 2), ds=Dataset.range(30))


def test_a_shard_that_wrote_nothing_yet_does_not_bind_the_others(tmp_path):
    def broken(i):
        return {"x": 1 // (int(i) - 5)}

    ds = Dataset.range(60).map(broken)
    with pytest.raises(RecordError):
        save(tmp_path, (0, 2), ds=ds, part_bytes=40)
    mended = Dataset.range(60).map(lambda i: {"x": int(i)})
    for index in (1, 0):
        save(tmp_path, (index, 2), ds=mended, part_bytes=40)
    assert [int(one["x"]) for one in Dataset.open(tmp_path)] == list(range(60))


def test_other_shards_and_none(tmp_path):
    save(tmp_path, (0, 3))
    with pytest.raises(FileError, match=r"was begun with shard=\(0, 3\) to \(2, 3\): go on like"):
        save(tmp_path, (0, 2))
    with pytest.raises(FileError, match=r"was begun with shard=\(0, 3\) to \(2, 3\): go on like"):
        save(tmp_path)
    assert stopped_at(40, save, tmp_path / "alone")
    with pytest.raises(FileError, match="was begun without `shard`: go on like that, or remove"):
        save(tmp_path / "alone", (0, 2))


def test_other_sizes_of_parts(whole, tmp_path):
    save(tmp_path / "out", (0, 2))
    save(tmp_path / "out", (1, 2), part_bytes=3 * PART)  # what was begun is gone on with
    assert content(tmp_path / "out") == whole
    save(tmp_path / "one", (0, 2))
    save(tmp_path / "two", (1, 2), part_bytes=2 * PART)  # as if both had begun at once
    shutil.copytree(tmp_path / "two", tmp_path / "one", dirs_exist_ok=True)
    with pytest.raises(FileError, match=r"parts of \d+ and \d+ records: .* different `part_bytes`"):
        save(tmp_path / "one", (0, 2))


def test_a_shard_that_is_saved_already_is_refused(whole, tmp_path):
    place = str(tmp_path)
    with save_journal.open_journal(place, (1, 2)):
        with pytest.raises(FileError, match=r"another process is saving into .* shard=\(1, 2\)"):
            save(place, (1, 2))
        with pytest.raises(FileError, match="another process is saving into"):
            save(place)
        save(place, (0, 2))  # the other one is free
    save(place, (1, 2))
    assert content(place) == whole


def test_a_shard_waits_while_others_are_joined(whole, tmp_path):
    save(tmp_path, (0, 2))
    with save_journal.open_journal(str(tmp_path)):
        waiting = threading.Thread(target=save, args=(tmp_path, (1, 2)))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
    waiting.join(60)
    assert content(tmp_path) == whole


# File systems without locks ---------------------------------------------------------------------


@pytest.fixture
def no_locks(monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(save_journal, "JOINING_S", 0.0)


def test_without_locks(whole, tmp_path, no_locks):
    place = str(tmp_path)
    with save_journal.open_journal(place, (1, 2)):
        with pytest.raises(FileError, match=r"If none does, remove .*saving-1-of-2\.lock"):
            save(place, (1, 2))
        with pytest.raises(FileError, match=r"If none does, remove .*saving-1-of-2\.lock"):
            save(place)
        save(place, (0, 2))
    with (
        save_journal.open_journal(place),
        pytest.raises(FileError, match=r"If none does, remove .*saving\.lock"),
    ):
        save(place, (1, 2))
    save(place, (1, 2))
    assert content(place) == whole


def test_a_lock_file_that_a_dead_shard_left(whole, tmp_path, no_locks, monkeypatch):
    monkeypatch.setattr(save_journal, "is_dead", lambda mark: mark == "7-0123abcd")
    save(tmp_path, (0, 2))
    (tmp_path / "saving-1-of-2.lock").write_text("7-0123abcd")
    save(tmp_path, (1, 2))
    assert content(tmp_path) == whole


# Stopped, and at once ---------------------------------------------------------------------------


@pytest.mark.parametrize("again", [0, 1])
def test_stopped_at_any_moment(again, whole, tmp_path):
    """The second of two shards, which also joins them; then either goes on."""
    save(tmp_path / "first", (0, 2))
    event = again
    while True:
        shutil.copytree(tmp_path / "first", tmp_path / "out")
        was_stopped = stopped_at(event, lambda folder: save(folder, (1, 2)), tmp_path / "out")
        if was_stopped:
            stopped_at(event // 2, lambda folder: save(folder, (again, 2)), tmp_path / "out")
            save(tmp_path / "out", (again, 2))
            save(tmp_path / "out", (1 - again, 2))
        assert content(tmp_path / "out") == whole, event
        shutil.rmtree(tmp_path / "out")
        if not was_stopped:
            break
        event += 9
    assert event > 60


@pytest.mark.parametrize("times", [3, pytest.param(50, marks=pytest.mark.large)])
def test_shards_that_finish_at_once(times, whole, tmp_path, monkeypatch):
    """All of them have written their parts before any joins them."""
    opened = saving.open_journal
    for number in range(times):
        place, together = tmp_path / str(number), threading.Barrier(4)

        def at_once(folder, shard=save_journal.WHOLE, together=together):
            if shard == save_journal.WHOLE:  # to join the parts
                together.wait(60)
            return opened(folder, shard)

        monkeypatch.setattr(saving, "open_journal", at_once)
        threads = [threading.Thread(target=save, args=(place, (index, 4))) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert content(place) == whole
