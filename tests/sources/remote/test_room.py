"""The limit of the folder of downloads: files count with what they have on disk."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
import warnings
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from loaderx import DataLoader, Dataset, LoaderxWarning
from loaderx.errors import FileError, RecordError
from loaderx.sources.remote import room
from loaderx.sources.remote.private_files import own_folder
from loaderx.sources.remote.room import Room, downloads_of, warn_if_exceeded

PIECE = 4096  # a block of the file system, so that pieces take what they have
LIMIT = 200_000
PART_ROWS = 4
ROWS = np.random.default_rng(0).integers(0, 255, (128, PIECE - 32), np.uint8)


@pytest.fixture(autouse=True)
def _pieces(monkeypatch):
    monkeypatch.setattr("loaderx.sources.remote.pieces.PIECE_BYTES", PIECE)
    monkeypatch.setattr("loaderx.sources.remote.pieces.REQUEST_BYTES", PIECE)
    monkeypatch.setattr("loaderx.sources.formats.npy.LARGE", 1000)
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", f"{LIMIT}")


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def url(server, tmp_path):
    """The native layout: 32 files of four pieces, 524 kB in all."""
    made = Dataset.from_arrays(x=ROWS)
    made.save(tmp_path / "data", part_bytes=PART_ROWS * ROWS[0].nbytes, engine="inline")
    server.add(tmp_path / "data")
    sizes = {len(data) for path, data in server.files.items() if path != "/loaderx.json"}
    assert sizes == {PART_ROWS * PIECE}
    return f"{server.url}/"


@pytest.fixture
def large(server, tmp_path):
    """One file that is larger than the limit."""
    np.save(tmp_path / "large.npy", ROWS)
    server.files["/large.npy"] = (tmp_path / "large.npy").read_bytes()
    return f"{server.url}/large.npy"


def on_disk(cache):
    return sum(one.nbytes for one in downloads_of(str(cache / "downloads")))


def watch(server, cache):
    """What the folder has at each request from now on."""
    found = []
    server.fault = lambda number, path: found.append(on_disk(cache))
    return found


def sent(server):
    return Counter(one for one in server.asked if one[0] != "/loaderx.json")


def test_what_is_read_of_a_large_dataset_is_sent_once(server, url, cache):
    some = [*range(0, 128, 2 * PART_ROWS), 125, 2]  # of each file two pieces: 140 kB
    for _ in range(2):
        made = Dataset.open(url, cache=cache)
        for _ in range(2):
            assert all((made[n]["x"] == ROWS[n]).all() for n in some)
    assert max(sent(server).values()) == 1
    assert server.fetched_twice().keys() <= {"/loaderx.json"}


@pytest.mark.parametrize("engine", [None, "threads"])
def test_a_pass_stays_under_the_limit(server, url, cache, tmp_path, monkeypatch, engine):
    monkeypatch.setenv("LOADERX_AHEAD_BYTES", "0")  # of so little data all would be ahead
    np.save(tmp_path / "other.npy", np.zeros(50_000, np.uint8))
    server.files["/other.npy"] = (tmp_path / "other.npy").read_bytes()
    other = Dataset.open(f"{server.url}/other.npy", cache=cache)
    assert len(other.batch(50_000)[0]["other"]) == 50_000
    del other
    found = watch(server, cache)
    made = Dataset.open(url, cache=cache)
    for _ in range(2):
        if engine is None:
            assert (np.array([one["x"] for one in made]) == ROWS).all()
        else:
            with DataLoader(made.batch(8), engine=engine) as loader:
                assert (np.concatenate([batch["x"] for batch in loader]) == ROWS).all()
    assert LIMIT * 0.8 < max(found) <= LIMIT
    assert on_disk(cache) <= LIMIT
    assert not list(cache.glob("downloads/*/other.npy"))


def test_a_file_that_is_larger_than_the_limit(server, large, cache):
    made = Dataset.open(large, cache=cache)
    for n in (3, 100, 3):
        assert (made[n]["large"] == ROWS[n]).all()
    assert len(sent(server)) == 3
    with pytest.warns(LoaderxWarning) as caught:
        all_of_it = made.batch(128)[0]["large"]
    assert (all_of_it == ROWS).all()
    assert (made.batch(64)[1]["large"] == ROWS[64:]).all()  # it is said once
    (told,) = caught
    assert str(told.message) == (
        f"the downloads in {cache / 'downloads'} go over their limit of 0.2 MB: all of them are in "
        "use. Raise LOADERX_CACHE_LIMIT, or use fewer or smaller files at a time."
    )
    assert told.filename == __file__
    assert max(sent(server).values()) == 1


def in_use(cache):
    """How many files are open or mapped."""
    found = 0
    for place in [*cache.glob("downloads/*/.part"), *cache.glob("downloads/*/*.npy")]:
        with open(place, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found += 1
    return found


def test_what_is_mapped_counts_with_what_has_come(url, cache, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", "500kB")  # a process keeps 31 kB of it
    made = Dataset.open(url, cache=cache)
    for n in (0, PART_ROWS, 2 * PART_ROWS):  # of each file 8 kB
        made[n]
    assert in_use(cache) == 3
    for n in range(3 * PART_ROWS):
        made[n]
    assert in_use(cache) == 1


def test_a_folder_that_was_removed(tmp_path, monkeypatch):
    monkeypatch.delenv("LOADERX_CACHE_LIMIT")
    with Room(str(tmp_path / "none"), 1000) as made:
        made.fill(1000)


def test_a_folder_that_cannot_be_looked_at(url, cache, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied", folder)

    made = Dataset.open(url, cache=cache)
    monkeypatch.setattr(room, "downloads_of", refuse)
    message = (
        r"the folder of downloads cannot be used: \[Errno 13\] Permission denied: '.*downloads'\. "
        r"Give another cache folder with `cache=`, or set LOADERX_CACHE\."
    )
    with pytest.raises(RecordError, match=message):
        made[0]


# Files that are fetched whole -------------------------------------------------------------------


def test_a_file_that_must_be_whole_and_cannot_fit(server, large, cache, tmp_path):
    np.savez(tmp_path / "x.npz", x=ROWS)
    server.files["/x.npz"] = (tmp_path / "x.npz").read_bytes()
    message = (
        r"x.npz has 0\.5 MB, and downloads may take 0\.2 MB in .*downloads\. Raise "
        r"LOADERX_CACHE_LIMIT, or give another folder with `cache=` or LOADERX_CACHE\.$"
    )
    with pytest.raises(FileError, match=message):
        Dataset.open(f"{server.url}/x.npz", cache=cache)
    assert not server.asked
    assert not list((cache / "downloads").iterdir())


def test_a_server_without_ranges_sends_whole_files(server, large, cache):
    server.has_ranges = False
    made = Dataset.open(large, cache=cache)
    with pytest.raises(RecordError, match=r"large.npy has 0\.5 MB, and downloads may take 0\.2 MB"):
        made.batch(2)[0]
    assert on_disk(cache) < 2 * PIECE  # what came when the file was looked at


def test_without_a_limit_that_was_set(server, cache, tmp_path, monkeypatch):
    """Of what the disk has left, and of what can be removed, 80 % may be taken."""
    monkeypatch.delenv("LOADERX_CACHE_LIMIT")
    monkeypatch.setattr("loaderx.sources.formats.npy.LARGE", 1 << 20)

    def disk_usage(folder):
        return SimpleNamespace(free=100_000 - on_disk(cache))

    monkeypatch.setattr(room, "shutil", SimpleNamespace(disk_usage=disk_usage))
    monkeypatch.setattr("loaderx.sources.remote.transfer.CONCURRENCY", 1)
    for name, rows in {"a": ROWS[:15], "b": ROWS[:18], "c": ROWS[:30]}.items():
        np.save(tmp_path / f"{name}.npy", rows)
        server.files[f"/{name}.npy"] = (tmp_path / f"{name}.npy").read_bytes()
    Dataset.open(f"{server.url}/a.npy", cache=cache)
    Dataset.open(f"{server.url}/b.npy", cache=cache)  # 74 kB, where 38 kB are free
    assert [one.name for one in cache.glob("downloads/*/*.npy")] == ["b.npy"]
    with pytest.raises(FileError, match=r"c.npy has 0\.1 MB, and downloads may take 0\.1 MB"):
        Dataset.open(f"{server.url}/c.npy", cache=cache)


# Which is the oldest ----------------------------------------------------------------------------


def made_older(cache, url, days):
    """Has a file used some days ago."""
    for note in cache.glob("downloads/*/.download.json"):
        if url in note.read_text():
            for place in note.parent.iterdir():
                past = place.stat().st_mtime - days * 86_400
                os.utime(place, (past, past))


def names(cache):
    return [
        (cache / "downloads" / one.name / ".download.json").read_text().split("/")[-1][0]
        for one in downloads_of(str(cache / "downloads"))
    ]


def test_a_piece_that_comes_is_a_use(server, cache, tmp_path):
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", ROWS[:8])
        server.files[f"/{name}.npy"] = (tmp_path / f"{name}.npy").read_bytes()
    a, b = (Dataset.open(f"{server.url}/{name}.npy", cache=cache) for name in "ab")
    assert (a[0]["a"] == b[0]["b"]).all()
    made_older(cache, "a.npy", 3)
    made_older(cache, "b.npy", 2)
    assert names(cache) == ["a", "b"]
    a[4]
    assert names(cache) == ["b", "a"]
    made_older(cache, "a.npy", 3)
    a.batch(8)[0]  # it is finished
    assert list(cache.glob("downloads/*/a.npy"))
    assert names(cache) == ["b", "a"]


# Processes --------------------------------------------------------------------------------------

READ = """
import sys
from loaderx.sources.remote import pieces, transfer
pieces.PIECE_BYTES = pieces.REQUEST_BYTES = 4096
transfer.CONCURRENCY = 2
from loaderx import Dataset
url, cache, step = sys.argv[1:]
found = Dataset.open(url, cache=cache)[::int(step)]
print(sum(int(one["x"].sum()) for one in found))
"""


def test_several_processes_stay_under_the_limit(server, url, cache):
    found = watch(server, cache)
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", READ, url, str(cache), step],
            stdout=subprocess.PIPE,
            text=True,
        )
        for step in ("1", "-1")
    ]
    assert [child.communicate()[0] for child in children] == [f"{ROWS.sum()}\n"] * 2
    # Each may add a share of what was free before it looks again, and has two requests under way.
    assert LIMIT * 0.8 < max(found) <= LIMIT + LIMIT // 16 + 2 * PIECE


def test_a_folder_that_another_process_removes_at_this_moment(tmp_path, monkeypatch):
    made, mkdir = [], os.mkdir

    def was_there(*args, **options):
        made.append(args[0])
        if len(made) == 1:
            raise FileExistsError
        mkdir(*args, **options)

    monkeypatch.setattr(os, "mkdir", was_there)
    with own_folder(str(tmp_path / "one")) as opened:
        assert os.path.samestat(os.fstat(opened), os.stat(tmp_path / "one"))
    assert len(made) == 2


# Looking at the folder --------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch):
    made = []

    def look(folder):
        made.append(folder)
        return downloads_of(folder)

    monkeypatch.setattr(room, "downloads_of", look)
    return made


def test_the_folder_is_looked_at_now_and_then(tmp_path, monkeypatch, looks):
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", "1.6MB")
    for _ in range(101):  # the second of 100 looks at 0 bytes, and may add a sixteenth
        with Room(str(tmp_path), 1000):
            pass
    assert len(looks) == 2


def test_a_full_folder_is_looked_at_now_and_then(tmp_path, monkeypatch, looks):
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", "1MB")
    (tmp_path / "used").mkdir(mode=0o700)
    with open(tmp_path / "used" / "file", "wb") as file:
        file.write(os.urandom(1_100_000))
        file.flush()
        fcntl.flock(file, fcntl.LOCK_SH)
        for _ in range(90):
            with Room(str(tmp_path), 100):
                pass
    assert len(looks) == 2 * 9  # each time before and after maps are let go
    with pytest.warns(LoaderxWarning, match=r"go over their limit of 1\.0 MB"):
        warn_if_exceeded(str(tmp_path))
    warn_if_exceeded(str(tmp_path))


def test_what_did_not_come_takes_no_room(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", "1MB")
    for _ in range(3):
        with pytest.raises(OSError, match="no more"), Room(str(tmp_path), 600_000) as made:
            made.fill(100_000)
            raise OSError("no more")
    warn_if_exceeded(str(tmp_path))
    with Room(str(tmp_path), 600_000), Room(str(tmp_path), 600_000):
        pass
    with pytest.warns(LoaderxWarning, match="go over their limit"):
        warn_if_exceeded(str(tmp_path))


def test_a_lower_limit_counts_where_nothing_new_comes(server, tmp_path, cache, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", "1MB")
    for name in ("a", "b", "c"):
        np.save(tmp_path / f"{name}.npy", ROWS[:10])
        server.files[f"/{name}.npy"] = (tmp_path / f"{name}.npy").read_bytes()
        assert len(Dataset.open(f"{server.url}/{name}.npy", cache=cache).batch(10)[0][name]) == 10
    held = sum(one.nbytes for one in downloads_of(str(cache / "downloads")))
    assert held > 3 * 10 * PIECE - 3 * PIECE
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", "60kB")
    gc.collect()
    kept = Dataset.open(f"{server.url}/c.npy", cache=cache)
    assert int(kept[0]["c"][0]) == int(ROWS[0][0])
    assert sum(one.nbytes for one in downloads_of(str(cache / "downloads"))) <= 60_000
