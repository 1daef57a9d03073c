"""`Dataset.save`: what is saved is read again, by any engine, and after any stop."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile

import numpy as np
import pytest
from hypothesis import example, given, settings

from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    Dataset,
    FileError,
    LoaderxWarning,
    RecordError,
    StackError,
)
from loaderx.sources.native import save_journal
from loaderx.sources.native import writer as native_writer
from saved_records import check_same, content, some_records
from stopping import stopped_at


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    """Waiting for the disk is not what is tested here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def make(index):
    number = int(index)
    return {
        "id": number,
        "tokens": np.arange(number % 5, dtype=np.uint16),
        "text": "é" * (number % 4),
        "box": {"x": np.float64(number), "names": ["a"] * (number % 3)},
    }


RECORDS = Dataset.range(100).map(make)
SMALL = {"part_bytes": 800, "engine": "inline"}


def test_records_come_back(tmp_path):
    RECORDS.save(tmp_path / "out", **SMALL)
    found = Dataset.open(tmp_path / "out")
    assert len(found) == 100
    for one, two in zip(found, RECORDS, strict=True):
        check_same(one, two)
    names = sorted(os.listdir(tmp_path / "out"))
    assert names[0] == "loaderx.json"
    assert len(names) > 5
    assert np.load(tmp_path / "out" / "part-00000" / "box.x.npy").tolist()[:3] == [0, 1, 2]


@given(some_records)
@example([({"ä x": np.array([], bool), "a.b": None},)])
@example([{"a.b": 1, "a": {"b": 2}}, {"a.b": None, "a": {"b": 3}}])
@settings(max_examples=60)
def test_any_records_come_back(records):
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "out")
        Dataset.from_source(records).save(place, part_bytes=64, engine="inline")
        found = Dataset.open(place)
        assert len(found) == len(records)
        for one, two in zip(found, records, strict=True):
            check_same(one, two)


@pytest.mark.parametrize("engine", ["threads", "processes", "auto"])
def test_every_engine_writes_the_same_bytes(engine, tmp_path):
    RECORDS.save(tmp_path / "inline", **SMALL)
    RECORDS.save(tmp_path / "other", part_bytes=800, engine=engine, num_workers=2)
    assert content(tmp_path / "inline") == content(tmp_path / "other")


def test_arrays_are_gathered(tmp_path):
    images = np.arange(600, dtype=np.uint8).reshape(50, 4, 3)
    ds = Dataset.from_arrays(image=images, name=np.array([f"n{i}" for i in range(50)]))
    ds = ds.shuffle(seed=3)
    ds.save(tmp_path / "out")
    found = Dataset.open(tmp_path / "out")
    assert found.element_spec == ds.element_spec
    assert [one["name"] for one in found] == [one["name"] for one in ds]
    np.testing.assert_array_equal(found.batch(50)[0]["image"], ds.batch(50)[0]["image"])


@pytest.mark.parametrize(
    "stream",
    [
        RECORDS.filter(lambda r: r["id"] % 3 == 0),
        RECORDS.flat_map(lambda r: [r] * (r["id"] % 3)),
        Dataset.from_iterable(lambda: ({"x": i} for i in range(70))),
        Dataset.range(40).filter(lambda i: i < 20).repeat(2),
    ],
    ids=["filter", "flat_map", "iterable", "repeat"],
)
def test_streams(stream, tmp_path):
    stream.save(tmp_path / "out", **SMALL)
    for one, two in zip(Dataset.open(tmp_path / "out"), stream, strict=True):
        check_same(one, two)


def test_random_stages_are_saved_with_the_draws_of_the_first_epoch(tmp_path):
    ds = Dataset.range(20).shuffle(seed=1).random_map(lambda x, rng: {"x": x, "r": rng.random()})
    ds.save(tmp_path / "out")
    for one, two in zip(Dataset.open(tmp_path / "out"), ds, strict=True):
        assert one["x"] == two["x"]
        assert one["r"] == np.float32(two["r"])


def test_classes_are_kept_while_they_are_numbers(tmp_path):
    rows = {"label": np.arange(4) % 2, "other": np.arange(4) % 2}
    Dataset.from_arrays(rows).save(tmp_path / "plain")
    told = json.loads((tmp_path / "plain" / "loaderx.json").read_text())
    told["classes"] = {"label": ["cat", "dog"], "other": ["a", "b"]}
    (tmp_path / "plain" / "loaderx.json").write_text(json.dumps(told))
    named = Dataset.open(tmp_path / "plain").map(lambda r: {**r, "other": str(r["other"])})
    named.save(tmp_path / "out")
    assert Dataset.open(tmp_path / "out").classes == {"label": ("cat", "dog")}


# Types that are found later ---------------------------------------------------------------------


def growing(index):
    """Arrays of one length at first, then of others; lists that are empty for long."""
    number = int(index)
    length = 2 if number < 40 else number % 4
    return {"x": np.arange(length), "words": ["w"] * (number // 60)}


def test_parts_are_widened_when_a_later_record_needs_it(tmp_path):
    ds = Dataset.range(100).map(growing)
    ds.save(tmp_path / "out", part_bytes=300, engine="inline")
    for one, two in zip(Dataset.open(tmp_path / "out"), ds, strict=True):
        check_same(one, two)


# Rows of lines --------------------------------------------------------------------------------


def packed(count=2000, row=512):
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(70), 0.9, count), 1, row).astype(int)
    records = [{"tokens": rng.integers(0, 50_000, n, np.uint16)} for n in lengths]
    return Dataset.from_source(records).pack({"tokens": row}, window=500)


def size_of(folder):
    return sum(len(data) for name, data in content(folder).items() if name != "loaderx.json")


def kinds_in(folder):
    told = json.loads((folder / "loaderx.json").read_text())
    return {name: kind["kind"] for name, kind in told["columns"].items()}, told["version"]


@pytest.mark.parametrize("part_bytes", [1 << 28, 100_000])
def test_packed_rows_take_little_more_than_their_tokens(tmp_path, part_bytes):
    rows = list(packed())
    packed().save(tmp_path / "out", part_bytes=part_bytes)
    kinds = {"tokens": "fixed", "tokens_segment_ids": "linear", "tokens_positions": "linear"}
    assert kinds_in(tmp_path / "out") == (kinds, 2)
    found = Dataset.open(tmp_path / "out")
    check_same(list(found), rows)
    order = np.random.default_rng(1).permutation(len(rows))
    for batch, some in zip(found[order].batch(16), np.split(order, range(16, len(rows), 16))):
        for leaf, values in batch.items():
            assert values.dtype == rows[0][leaf].dtype
            assert np.array_equal(values, np.stack([rows[i][leaf] for i in some]))
    headers = 128 * len(list((tmp_path / "out").rglob("*.npy")))
    assert size_of(tmp_path / "out") - headers <= 1.6 * sum(row["tokens"].nbytes for row in rows)
    found.save(tmp_path / "again", part_bytes=part_bytes)
    assert kinds_in(tmp_path / "again") == (kinds, 2)
    check_same(list(Dataset.open(tmp_path / "again")), rows)


def test_rows_stay_lines_only_while_that_saves_bytes(tmp_path):
    rng = np.random.default_rng(0)
    flat = [np.full(200, n, np.int32) for n in range(40)]
    busy = [np.repeat(rng.integers(0, 99, 50, np.int32), 4) for _ in range(40)]
    wild = [rng.integers(0, 99, 200, np.int32) for _ in range(40)]
    for rows, kind in (
        (flat, "linear"),
        (busy, "fixed"),  # too many lines to begin with
        (flat + busy, "linear"),  # and not too many to go on
        (flat + wild, "fixed"),
        (wild + flat, "fixed"),
        ([*flat, None], "fixed"),
        ([*flat, np.arange(7, dtype=np.int32)], "ragged"),
        ([one[:100] for one in flat], "fixed"),
        ([one.astype(np.int16) for one in flat], "fixed"),
        ([one.astype(np.int64) for one in flat], "linear"),
        ([np.stack([one] * 2) for one in flat], "fixed"),
    ):
        records = [{"a": {"x": row}} for row in rows]
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        Dataset.from_source(records).save(tmp_path / "out", part_bytes=9000, engine="inline")
        told = json.loads((tmp_path / "out" / "loaderx.json").read_text())
        assert told["columns"]["a"]["fields"]["x"]["kind"] == kind
        assert told["version"] == (2 if kind == "linear" else 1)
        check_same(list(Dataset.open(tmp_path / "out")), records)


def lined(index):
    """Rows that are lines at first."""
    number = int(index)
    row = np.arange(128) // 50 + number
    return {"ids": row, "late": row if number < 12 else row * np.arange(128) ** 2}


def test_a_type_that_does_not_fit_names_the_records(tmp_path):
    def odd(i):
        return {"x": {"y": np.int64(i) if i < 8190 or i == 9999 else "text"}}

    ds = Dataset.range(10_000).map(odd)
    with pytest.raises(StackError, match=r'cannot save: leaf "x\.y" of record \d+ is a str'):
        ds.save(tmp_path / "out", engine="inline")

    def later(i):
        return {"x": np.int64(i) if i < 50 else np.int32(i)}

    with pytest.raises(
        StackError,
        match=r'leaf "x" of records 50 to 59 has the type int32, and in others it is int64\. '
        r"Make them alike in a \.map\(\)",
    ):
        Dataset.from_iterable(lambda: map(later, range(99))).save(tmp_path / "s", part_bytes=80)


# None -------------------------------------------------------------------------------------------


def optional(index):
    number = int(index)
    return {
        "age": None if number % 3 else number,
        "name": None if number < 50 else "é" * number,
        "pixels": None if number == 7 else np.full((2, 2), number, np.uint8),
        "tokens": None if number % 2 else np.arange(number % 5),
        "box": None if number % 4 else {"x": number, "label": None if number % 8 else "b"},
        "words": ["a", None] * (number % 3),
        "never": None,
    }


def test_none_comes_back(tmp_path):
    ds = Dataset.range(100).map(optional)
    ds.save(tmp_path / "out", **SMALL)
    found = Dataset.open(tmp_path / "out")
    for one, two in zip(found, ds, strict=True):
        check_same(one, two)
    told = json.loads((tmp_path / "out" / "loaderx.json").read_text())
    nulls = {name: kind.get("nulls") for name, kind in told["columns"].items()}
    assert nulls == {
        "age": 66, "name": 50, "pixels": 1, "tokens": 50, "box": 75, "words": None, "never": 100,
    }  # fmt: skip
    assert told["columns"]["box"]["fields"]["label"]["nulls"] == 12
    assert np.load(tmp_path / "out" / "part-00000" / "age.valid.npy")[:4].tolist() == [
        True, False, False, True,
    ]  # fmt: skip
    filled = Dataset.open(tmp_path / "out", columns=["age"], fill={"age": -1}).batch(5)
    assert next(iter(filled))["age"].tolist() == [0, -1, -1, 3, -1]
    found.save(tmp_path / "again", **SMALL)
    for one, two in zip(Dataset.open(tmp_path / "again"), ds, strict=True):
        check_same(one, two)


def test_a_record_that_is_none_is_refused(tmp_path):
    with pytest.raises(
        StackError, match="cannot save: record 1 is None: a leaf of a record may be"
    ):
        Dataset.from_source([{"x": 1}, None]).save(tmp_path)


# Refusals ---------------------------------------------------------------------------------------


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(ChainError, match=r"this dataset has batches: put \.save\(\.\.\.\) before"):
        Dataset.range(9).batch(2).save(tmp_path)
    with pytest.raises(ChainError, match=r"an endless dataset cannot be saved: .* \.take\(n\)"):
        Dataset.range(9).repeat().save(tmp_path)
    with pytest.raises(ChainError, match="the dataset has no records"):
        Dataset.range(9).filter(lambda i: False).save(tmp_path)
    with pytest.raises(StackError, match='leaf "x" of record 7 is an object, which cannot be'):
        Dataset.range(9).map(lambda i: {"x": object() if i == 7 else 1}).save(tmp_path)
    with pytest.raises(ArgumentTypeError, match="`folder` must be a path, got 3"):
        Dataset.range(9).save(3)
    with pytest.raises(ArgumentError, match="`part_bytes` must be at least 1, got 0"):
        Dataset.range(9).save(tmp_path, part_bytes=0)
    with pytest.raises(ArgumentError, match="`engine` must be one of"):
        Dataset.range(9).save(tmp_path, engine="fast")
    with pytest.raises(ArgumentError, match="`images` names 'y', and records have struct"):
        Dataset.from_arrays(x=np.zeros(3)).save(tmp_path, images=["y"])
    with pytest.raises(ArgumentError, match="`images` names 'x', which is float64: the bytes of"):
        Dataset.from_arrays(x=np.zeros(3)).save(tmp_path, images=["x"])
    assert os.listdir(tmp_path) == []


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match=r"it has other files, such as notes\.txt\. Give a folder"):
        RECORDS.save(tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_function_that_fails_names_its_record(tmp_path):
    def fail(i):
        return 1 // (int(i) - 50)

    with pytest.raises(RecordError, match=r"map\(fail\) failed on record 50: ZeroDivisionError"):
        Dataset.range(100).map(fail).save(tmp_path / "out", part_bytes=64, engine="inline")


def test_records_that_fail_are_replaced_and_counted(tmp_path):
    ds = Dataset.range(50).map(lambda i: 1 // (int(i) - 7)).on_error("replace")
    with pytest.warns(LoaderxWarning, match="1 of 50 records have failed, and others were saved"):
        ds.save(tmp_path / "out", engine="inline")
    assert len(Dataset.open(tmp_path / "out")) == 50


def test_a_complete_folder_is_left_alone_or_refused(tmp_path):
    RECORDS.save(tmp_path / "out", **SMALL)
    before = content(tmp_path / "out")
    RECORDS.save(tmp_path / "out")
    assert content(tmp_path / "out") == before
    message = r"out has another dataset, which has other stages and other values\. Give another"
    with pytest.raises(FileError, match=message):
        RECORDS.take(50).save(tmp_path / "out")
    with pytest.raises(FileError, match="has another dataset, which has other values"):
        Dataset.range(100).map(lambda i: {**make(i), "id": -1}).save(tmp_path / "out")


def test_two_processes_do_not_save_into_one_folder(tmp_path):
    with (
        save_journal.open_journal(str(tmp_path / "out")),
        pytest.raises(FileError, match="another process is saving into"),
    ):
        RECORDS.save(tmp_path / "out")


@pytest.fixture
def no_locks(monkeypatch):
    """A file system without flock."""

    def flock(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)


def test_a_file_system_without_locks(tmp_path, no_locks):
    RECORDS.save(tmp_path / "out", **SMALL)
    assert len(Dataset.open(tmp_path / "out")) == 100
    assert "saving.lock" not in os.listdir(tmp_path / "out")
    with save_journal.open_journal(str(tmp_path / "other")):
        lock = tmp_path / "other" / "saving.lock"
        with pytest.raises(FileError, match="another process is saving into") as caught:
            RECORDS.save(tmp_path / "other")
        assert f"If none does, remove {lock}" in str(caught.value)
    assert not lock.exists()


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_lock_that_was_left(tmp_path, no_locks, monkeypatch, is_dead):
    monkeypatch.setattr(save_journal, "is_dead", lambda mark: mark == "7-0123abcd" and is_dead)
    (tmp_path / "saving.lock").write_text("7-0123abcd")
    (tmp_path / "saving.jsonl").touch()
    if is_dead:
        RECORDS.save(tmp_path, **SMALL)
        assert len(Dataset.open(tmp_path)) == 100
    else:
        with pytest.raises(FileError, match="another process is saving into"):
            RECORDS.save(tmp_path, **SMALL)


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def full(self, records):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(native_writer.PartWriter, "append", full)
        with pytest.raises(FileError, match=r"No space left on device\. Finished parts are kept"):
            RECORDS.save(tmp_path / "out", **SMALL)
    RECORDS.save(tmp_path / "out", **SMALL)
    assert len(Dataset.open(tmp_path / "out")) == 100


# Stopped and gone on with -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ds", "event", "part_bytes"),
    [
        (Dataset.range(40).map(growing), 0, 500),
        (Dataset.range(40).map(growing).filter(lambda r: True), 1, 500),
        (Dataset.range(60).map(growing), 2, 500),
        (Dataset.range(16).map(lined), 3, 12_000),
        (packed(60, 128), 4, 30_000),
    ],
    ids=["index", "stream", "widened", "lines", "packed"],
)
def test_stopped_at_any_moment(ds, event, part_bytes, tmp_path):
    def save(folder):
        ds.save(folder, part_bytes=part_bytes, engine="inline")

    save(tmp_path / "whole")
    expected = content(tmp_path / "whole")
    while stopped_at(event, save, tmp_path / "out"):
        stopped_at(event // 2, save, tmp_path / "out")  # while it goes on, too
        save(tmp_path / "out")
        assert content(tmp_path / "out") == expected, event
        shutil.rmtree(tmp_path / "out")
        event += 5  # others for each dataset, to save time
    assert event > 20
    assert content(tmp_path / "out") == expected


def test_what_is_complete_is_not_made_again_when_stopped(tmp_path):
    fragile = Fragile()
    with pytest.raises(KeyboardInterrupt):
        Dataset.range(100).map(fragile).save(tmp_path, part_bytes=80, engine="inline")
    names = {"saving.jsonl", *[f"part-{number:05d}" for number in range(7)]}
    assert set(os.listdir(tmp_path)) == names
    fragile.breaks, fragile.made = False, []
    Dataset.range(100).map(fragile).save(tmp_path, part_bytes=80, engine="inline")
    assert min(fragile.made[32:]) == 70  # after those from which it is known again
    assert [int(one["x"]) for one in Dataset.open(tmp_path)] == list(range(100))


class Fragile:
    """A function in which Ctrl-C is pressed."""

    def __init__(self, value=0):
        self.value, self.breaks, self.made = value, True, []

    def __call__(self, index):
        if index == 77 and self.breaks:
            raise KeyboardInterrupt
        self.made.append(int(index))
        return {"x": index + self.value}


def test_stopped_and_begun_with_another_dataset(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        Dataset.range(100).map(Fragile()).save(tmp_path, part_bytes=80, engine="inline")
    with pytest.raises(FileError, match="was begun with another dataset, which has other values"):
        Dataset.range(100).map(Fragile(1)).save(tmp_path, part_bytes=80, engine="inline")


def test_damaged_parts_of_a_stopped_run_are_made_again(tmp_path):
    fragile = Fragile()
    with pytest.raises(KeyboardInterrupt):
        Dataset.range(100).map(fragile).save(tmp_path, part_bytes=80, engine="inline")
    fragile.breaks = False
    with open(tmp_path / "part-00002" / "x.npy", "ab") as file:
        file.write(b"more")
    shutil.rmtree(tmp_path / "part-00004")
    with open(tmp_path / "saving.jsonl", "ab") as file:
        file.write(b'{"name": "part-0')
    Dataset.range(100).map(fragile).save(tmp_path, part_bytes=80, engine="inline")
    assert [int(one["x"]) for one in Dataset.open(tmp_path)] == list(range(100))


@pytest.mark.parametrize(
    "damage", [b"{}\n", b"[1]\n", b"no\n", b'{"name": "part-00001"}\n', b'{"type": 3}\n']
)
def test_a_damaged_journal_is_said_when_stopped(damage, tmp_path):
    fragile = Fragile()
    with pytest.raises(KeyboardInterrupt):
        Dataset.range(100).map(fragile).save(tmp_path, part_bytes=80, engine="inline")
    fragile.breaks = False
    with open(tmp_path / "saving.jsonl", "ab") as file:
        file.write(damage)
    with pytest.raises(FileError, match=r"saving\.jsonl is damaged .* Remove .*, and save again"):
        Dataset.range(100).map(fragile).save(tmp_path, part_bytes=80, engine="inline")
