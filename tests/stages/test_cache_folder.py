"""cache(path): a folder that is filled as records are read, in any order, by any process."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import batches, sources, stage
from inside import node_of
from loaderx import (
    ArgumentTypeError,
    DataLoader,
    Dataset,
    FileError,
    LoaderxWarning,
    RecordError,
    StackError,
)
from loaderx.sources.native import row_files
from loaderx.sources.native import writer as native_writer
from loaderx.stages.cache import Cached
from loaderx.testing.comparing import check_all_equal
from plain import grow
from saved_records import check_same, some_records
from stopping import stopped_at

COUNT = 60


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    """Waiting for the disk is not what is tested here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Made:
    """A function that notes what it was called for."""

    def __init__(self, f):
        self.f, self.made = f, []

    def __call__(self, index):
        self.made.append(int(index))
        return self.f(int(index))


def fixed(index):
    number = int(index)
    return {"x": np.full(3, number), "y": np.float32(number), "t": (np.arange(2),)}


def various(index):
    number = int(index)
    return {
        "x": np.arange(number % 4),
        "text": "é" * number,
        "number": number,
        "words": ["a", "b"] * (number % 2),
        "maybe": None if number % 3 else {"z": number},
    }


FUNCTIONS = pytest.mark.parametrize("f", [fixed, various])


def above(ds):
    """Stages over what is kept."""
    return ds.shuffle(seed=2).batch(7, collate_fn=list)


def content(folder):
    """All files of a folder, and what is in them."""
    found = Path(folder).rglob("*")
    return {str(one.relative_to(folder)): one.read_bytes() for one in found if one.is_file()}


def saved(ds, folder):
    """What `save` makes of a dataset."""
    ds.save(folder, engine="inline")
    return content(folder)


# The stream is the same -------------------------------------------------------------------------


@FUNCTIONS
def test_filled_in_the_first_epoch_and_made_once(f, tmp_path):
    function, plain = Made(f), Dataset.range(COUNT).map(lambda i: f(int(i)))
    ds = above(Dataset.range(COUNT).map(function).cache(tmp_path / "kept"))
    assert os.listdir(tmp_path / "kept") == [".filling"]
    expected = list(above(plain))
    for _ in range(3):
        check_all_equal(list(ds), expected, "batch")
        assert len(function.made) == COUNT
    assert sorted(function.made) == list(range(COUNT))
    assert content(tmp_path / "kept") == saved(plain, tmp_path / "saved")
    again = above(Dataset.range(COUNT).map(function).cache(tmp_path / "kept"))
    check_all_equal(list(again), expected, "batch")
    assert len(function.made) == COUNT + 32  # those by which it is known again
    for one, two in zip(Dataset.open(tmp_path / "kept"), plain, strict=True):
        check_same(one, two)


def tops(ds, kind, size):
    match kind:
        case "shuffle":
            ds = ds.shuffle(seed=1)
        case "part":
            ds = ds[::2].repeat(2)
        case "again":
            ds = ds.sample([1] * len(ds), len(ds) + 3, seed=1)
        case "filter":
            ds = ds.shuffle(seed=3).map_with_index(lambda i, r: (i, r))
            return ds.filter(_is_kept).map(lambda pair: pair[1]).batch(size, collate_fn=list)
    return ds.batch(size, collate_fn=list)


def _is_kept(pair):
    return pair[0] % 3 > 0


@given(
    some_records,
    st.sampled_from(["plain", "shuffle", "part", "again", "filter"]),
    st.integers(1, 4),
    st.integers(0, 3),
)
@settings(max_examples=25)
def test_the_stream_is_the_same_from_every_step(records, kind, size, seen):
    """Cold, half filled and complete."""

    def stages(place=None):
        ds = Dataset.from_source(records)
        return tops(ds if place is None else ds.cache(place), kind, size)

    plain = iter(DataLoader(stages(), engine="inline"))
    states, expected = [plain.get_state()], []
    for element in plain:
        expected.append(element)
        states.append(plain.get_state())
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "kept")
        for _, _ in zip(range(seen), stages(place), strict=False):
            pass  # stopped after some
        for step, state in enumerate(states):
            again = iter(DataLoader(stages(place), engine="inline"))
            again.set_state(state)
            found = list(again)
            assert len(found) == len(expected) - step
            for one, two in zip(
                chain.from_iterable(found), chain.from_iterable(expected[step:]), strict=True
            ):
                check_same(one, two)


@st.composite
def cached_chains(draw, folder):
    """Any chain over records that are kept in the folder."""
    dataset = draw(sources()).map(grow).cache(os.path.join(folder, "kept"))
    for _ in range(draw(st.integers(0, 4))):
        grown = draw(stage(dataset))
        dataset = grown if len(grown) <= 100 else dataset
    return dataset if node_of(dataset).batched else draw(batches(dataset))


def without_cache(ds):
    """The stream of a dataset in which nothing is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Cached,
            "make_record_operator",
            lambda self, request: self.input.record_operator(request),
        )
        return list(DataLoader(ds, engine="inline"))


@given(st.data())
@settings(max_examples=25)
def test_any_chain_above_it(data):
    """From every step, each time as in a new process that finds what others have left."""
    with tempfile.TemporaryDirectory() as folder:
        ds = data.draw(cached_chains(folder))
        expected = without_cache(ds)
        steps = data.draw(st.permutations(range(len(expected) + 1)))
        for step in steps[:12]:
            iterator = iter(DataLoader(pickle.loads(pickle.dumps(ds)), engine="inline"))
            iterator.seek(step)
            again = iter(DataLoader(pickle.loads(pickle.dumps(ds)), engine="inline"))
            again.set_state(iterator.get_state())
            check_all_equal(list(again), expected[step:], "batch")


@pytest.mark.parametrize(("engine", "f"), [("threads", various), ("processes", fixed)])
def test_workers_fill_it_together(engine, f, tmp_path):
    plain = Dataset.range(200).map(lambda i: f(int(i)))
    ds = plain.cache(tmp_path / "kept").shuffle(seed=0).batch(20, collate_fn=list)
    with DataLoader(ds, engine=engine, num_workers=2) as loader:
        for epoch in (0, 1):
            expected = plain.shuffle(seed=0).batch(20, collate_fn=list)
            check_all_equal(
                list(loader.epoch(epoch)), list(DataLoader(expected).epoch(epoch)), "batch"
            )
    assert content(tmp_path / "kept") == saved(plain, tmp_path / "saved")


def test_two_runs_at_once_find_what_the_other_has_made(tmp_path):
    functions = [Made(various), Made(various)]
    runs = [
        iter(Dataset.range(320).map(one).cache(tmp_path / "kept").batch(10, collate_fn=list))
        for one in functions
    ]
    expected = list(Dataset.range(320).map(various).batch(10, collate_fn=list))
    for batch in expected:
        for run in runs:
            check_all_equal(next(run), batch, "record")
    assert len(functions[0].made) + len(functions[1].made) <= 320 + 2 * 32
    assert "loaderx.json" in os.listdir(tmp_path / "kept")


def test_hosts_share_a_folder_or_have_one_each(tmp_path):
    plain = Dataset.range(64).map(lambda i: fixed(int(i)))

    def rows(ds, host, epoch):
        loader = DataLoader(ds.shuffle(seed=1).batch(8), shard=(host, 2), engine="inline")
        return list(loader.epoch(epoch))

    for shared in (True, False):
        for epoch in range(3):
            for host in range(2):
                name = "shared" if shared else f"own{host}"
                found = rows(plain.cache(tmp_path / name), host, epoch)
                check_all_equal(found, rows(plain, host, epoch), "batch")
        if shared:
            assert "loaderx.json" in os.listdir(tmp_path / "shared")
    assert content(tmp_path / "shared") == saved(plain, tmp_path / "saved")


def test_parts_of_it_complete_it_together(tmp_path):
    function = Made(various)
    ds = Dataset.range(COUNT).map(function).cache(tmp_path / "kept")
    train, valid = ds.split(0.8, 0.2, seed=0)
    for _ in range(2):
        list(train)
    assert os.listdir(tmp_path / "kept") == [".filling"]
    list(valid)
    assert sorted(os.listdir(tmp_path / "kept")) == ["loaderx.json", "part-00000"]
    assert len(function.made) == COUNT


def test_batches_are_gathered_when_it_is_complete(tmp_path):
    ds = Dataset.range(COUNT).map(lambda i: fixed(int(i))).cache(tmp_path / "kept").batch(10)
    first = list(ds)
    for batch in first:
        batch["x"][:] = -1
    second = list(ds)
    assert second[1]["x"][3].tolist() == [13, 13, 13]
    assert second[1]["x"].flags.writeable


def test_a_dataset_with_a_folder_can_be_pickled(tmp_path):
    ds = above(Dataset.range(COUNT).map(various).cache(tmp_path / "kept"))
    assert f".cache({tmp_path / 'kept'})" in repr(ds)
    check_all_equal(list(pickle.loads(pickle.dumps(ds))), list(ds), "batch")


# Stopped and gone on with -----------------------------------------------------------------------


@pytest.mark.parametrize(("f", "first"), [(fixed, 0), (various, 1)])
def test_stopped_at_any_moment(f, first, tmp_path):
    plain = Dataset.range(30).map(lambda i: f(int(i)))
    expected = list(plain.shuffle(seed=1).batch(3, collate_fn=list))
    whole = saved(plain, tmp_path / "saved")

    def read(folder):
        list(plain.cache(folder).shuffle(seed=1).batch(3, collate_fn=list))

    event = first
    while stopped_at(event, read, tmp_path / "kept"):
        stopped_at(event // 2, read, tmp_path / "kept")  # while it goes on, too
        function = Made(f)
        ds = Dataset.range(30).map(function).cache(tmp_path / "kept")
        found = list(ds.shuffle(seed=1).batch(3, collate_fn=list))
        check_all_equal(found, expected, "batch")
        assert content(tmp_path / "kept") == whole, event
        shutil.rmtree(tmp_path / "kept")
        event += 4
    assert event > 20


def test_what_was_written_is_not_made_again(tmp_path):
    def stop_early(folder):
        for number, _ in enumerate(Dataset.range(200).map(fixed).cache(folder).batch(10)):
            if number == 7:
                os.kill(os.getpid(), 9)

    assert stopped_at(1 << 40, stop_early, tmp_path / "kept")
    function = Made(fixed)
    list(Dataset.range(200).map(function).cache(tmp_path / "kept").batch(10))
    assert min(function.made[32:]) >= 70


def rows_files(folder):
    return sorted((folder / ".filling").glob("*.rows"))


@pytest.mark.parametrize("at", ["head", "data", "end"])
def test_damaged_rows_are_made_again(at, tmp_path):
    plain = Dataset.range(COUNT).map(various)
    it = iter(plain.cache(tmp_path / "kept").batch(10, collate_fn=list))
    for _ in range(4):
        next(it)
    (path,) = rows_files(tmp_path / "kept")
    damaged = bytearray(path.read_bytes())
    if at == "end":
        del damaged[-5:]
    else:
        # Behind the type and the 32 records by which the dataset is known again.
        start = damaged.rfind(b"LXR1")
        damaged[start + (8 if at == "head" else 120)] ^= 255
    path.write_bytes(damaged)
    found = list(plain.cache(tmp_path / "kept").batch(10, collate_fn=list))
    check_all_equal(found, list(plain.batch(10, collate_fn=list)), "batch")
    assert content(tmp_path / "kept") == saved(plain, tmp_path / "saved")


def test_a_damaged_description_is_said(tmp_path):
    ds = Dataset.range(COUNT).map(fixed)
    ds.cache(tmp_path / "kept")
    (tmp_path / "kept" / ".filling" / "begun.json").write_text("{")
    with pytest.raises(FileError, match=r"begun\.json is damaged .* Remove .*, and begin again"):
        ds.cache(tmp_path / "kept")


# What can go wrong ------------------------------------------------------------------------------


def test_another_dataset_is_refused(tmp_path):
    ds = Dataset.range(COUNT).map(fixed)
    ds.cache(tmp_path / "kept")
    with pytest.raises(FileError, match="kept was begun with another dataset, which has other"):
        Dataset.range(COUNT).map(various).cache(tmp_path / "kept")
    with pytest.raises(FileError, match=r"cannot save into .*: \.cache\(path\) has begun to fill"):
        ds.save(tmp_path / "kept")
    with pytest.raises(FileError, match=r"kept is not complete: \.cache\(path\) has begun to fill"):
        Dataset.open(tmp_path / "kept")
    list(ds.cache(tmp_path / "kept"))
    ds.save(tmp_path / "kept")  # it has it already
    with pytest.raises(FileError, match="kept has another dataset, which has other"):
        Dataset.range(COUNT).map(various).cache(tmp_path / "kept")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match=r"it has other files, such as notes\.txt"):
        ds.cache(tmp_path / "other")
    with pytest.raises(ArgumentTypeError, match="`path` must be a path, got 3"):
        ds.cache(3)


def test_a_save_that_was_stopped_is_refused_or_gone_on_with(tmp_path):
    ds, other = Dataset.range(90).map(fixed), Dataset.range(90).map(various)

    def save(folder):
        ds.save(folder, part_bytes=1000, engine="inline")

    assert stopped_at(25, save, tmp_path / "out")
    assert "part-00000" in os.listdir(tmp_path / "out")
    with pytest.raises(FileError, match="was begun with another dataset"):
        other.cache(tmp_path / "out")
    check_all_equal(list(ds.cache(tmp_path / "out")), list(ds), "record")
    check_all_equal(list(Dataset.open(tmp_path / "out")), list(ds), "record")


def test_a_full_disk_is_said_and_what_is_there_is_kept(tmp_path, monkeypatch):
    real = os.write
    plain = Dataset.range(COUNT).map(various)
    ds = plain.cache(tmp_path / "kept").batch(10, collate_fn=list)

    def full(descriptor, data):
        if len(data) > 100:
            return real(descriptor, data[:100])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(row_files.os, "write", full)
        with pytest.raises(
            FileError, match=r"cannot keep records in .*No space left .* a later run continues with"
        ):
            list(ds)
    check_all_equal(list(ds), list(plain.batch(10, collate_fn=list)), "batch")
    assert content(tmp_path / "kept") == saved(plain, tmp_path / "saved")


def test_a_disk_that_is_full_at_the_end_is_said(tmp_path, monkeypatch):
    plain = Dataset.range(COUNT).map(various)
    ds = above(plain.cache(tmp_path / "kept"))

    def full(self, records):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(native_writer.PartWriter, "append", full)
        with pytest.warns(
            LoaderxWarning, match=r"has all records, and cannot write .* tries again"
        ):
            found = list(ds)
        check_all_equal(found, list(above(plain)), "batch")
        check_all_equal(list(ds), found, "batch")
    assert isinstance(plain.cache(tmp_path / "kept"), Dataset)
    assert content(tmp_path / "kept") == saved(plain, tmp_path / "saved")


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileError, match=r"cannot (save into|keep records in) .*Not a directory"):
        Dataset.range(3).cache(tmp_path / "file" / "kept")


def test_a_complete_folder_may_be_read_only(tmp_path, monkeypatch):
    ds = Dataset.range(COUNT).map(fixed)
    expected = list(ds.cache(tmp_path / "kept"))

    def refuse(*args, **named):
        raise PermissionError(13, "Permission denied")

    for name in ("unlink", "mkdir", "link", "replace", "rename"):
        monkeypatch.setattr(os, name, refuse)
    check_all_equal(list(ds.cache(tmp_path / "kept")), expected, "record")
    with pytest.raises(FileError, match=r"cannot keep records in .*Permission denied"):
        ds.cache(tmp_path / "other")


def test_a_folder_that_is_removed_meanwhile_is_said(tmp_path):
    ds = Dataset.range(COUNT).map(fixed).cache(tmp_path / "kept").batch(40)
    shutil.rmtree(tmp_path / "kept")
    with pytest.raises(FileError, match=r"was removed while \.cache\(path\) was filling it"):
        list(ds)


def test_records_that_cannot_be_stored_together_are_said(tmp_path):
    def odd(index):
        return {"x": np.int64(1) if index < 40 else np.int32(1)}

    ds = Dataset.range(50).map(odd)
    with pytest.raises(StackError, match='leaf "x" of record 40 has the dtype int32'):
        ds.cache(tmp_path / "kept")

    def later(index):
        return {"x": np.int64(1) if index != 3001 else np.int32(1)}

    with pytest.raises(
        StackError, match='leaf "x" of some of the records 3001 to 3001 has the type int32'
    ):
        list(Dataset.range(9000).map(later).cache(tmp_path / "later")[3000:3010])


# Records that fail ------------------------------------------------------------------------------


def fragile(index):
    if index % 10 == 4:
        raise ValueError("bad")
    return {"x": np.full(2, index)}


def test_records_that_fail_are_never_kept(tmp_path):
    kept = Dataset.range(COUNT).map(fragile).cache(tmp_path / "kept")
    with pytest.raises(RecordError, match=r"map\(fragile\) failed on record 4: ValueError: bad"):
        list(kept)
    plain = Dataset.range(COUNT).map(fragile).on_error("replace").batch(6)
    ds = kept.on_error("replace").batch(6)
    for _ in range(2):
        with DataLoader(ds, engine="inline") as loader:
            check_all_equal(list(loader), list(plain), "batch")
            assert loader.stats().replaced == 6
    assert os.listdir(tmp_path / "kept") == [".filling"]
    left_out = kept.on_error("skip").batch(6)
    assert [len(batch["x"]) for batch in left_out] == [6] * 9


@pytest.mark.parametrize("in_folder", [True, False])
def test_failures_below_are_counted_once(in_folder, tmp_path):
    ds = Dataset.range(200).map(fragile).on_error("replace")

    def kept(name):
        return ds.cache(tmp_path / name if in_folder else None).batch(5).repeat(3)

    expected = list(ds.batch(5)) * 3  # replacements are those of the first epoch
    with DataLoader(kept("whole"), engine="inline") as loader:
        check_all_equal(list(loader), expected, "batch")
        assert loader.stats().replaced == 20
        assert sorted(one.index for one in loader.stats().failures) == list(range(4, 200, 10))
    late = iter(DataLoader(kept("late"), engine="inline"))
    late.seek(80)
    check_all_equal(list(late), expected[80:], "batch")
