"""The folder of downloads: each range once, whatever happens; private; within its limit."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest

from loaderx import Dataset, LoaderxWarning, cli
from loaderx.errors import ArgumentError, FileError
from loaderx.sources.mapping import open_regular

SIZE = 10_128  # of an .npy file with 10,000 bytes


@pytest.fixture
def url(server, tmp_path):
    """A file of eleven ranges."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 255, 10_000, np.uint8))
    server.files["/x.npy"] = (tmp_path / "x.npy").read_bytes()
    assert len(server.files["/x.npy"]) == SIZE
    return f"{server.url}/x.npy"


def array(url, cache):
    return Dataset.open(url, cache=cache).batch(10_000)[0]["x"]


def expected(server):
    return np.frombuffer(server.files["/x.npy"][128:], np.uint8)


def files_in(cache):
    return sorted(one.name for one in cache.glob("downloads/*/*"))


def test_ranges_are_fetched_once(server, url, cache, small_ranges):
    assert (array(url, cache) == expected(server)).all()
    assert len(server.ranges("/x.npy")) == 11
    assert (array(url, cache) == expected(server)).all()
    assert len(server.ranges("/x.npy")) == 11
    assert files_in(cache) == [".download.json", "x.npy"]


def test_several_at_once_fetch_each_range_once(server, url, cache, small_ranges):
    found = []  # datasets, which keep the file mapped while others wait for it
    threads = [
        threading.Thread(target=lambda: found.append(Dataset.open(url, cache=cache)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((one.batch(10_000)[0]["x"] == expected(server)).all() for one in found)
    assert len(found) == 8
    assert len(server.ranges("/x.npy")) == 11


def test_a_process_that_is_killed_leaves_what_it_has_fetched(server, url, cache, small_ranges):
    script = (
        "import sys; from loaderx.sources.remote import pieces, transfer; "
        "pieces.PIECE_BYTES = pieces.REQUEST_BYTES = 1000; transfer.CONCURRENCY = 1; "
        "from loaderx import Dataset; Dataset.open(sys.argv[1], cache=sys.argv[2])"
    )
    with subprocess.Popen([sys.executable, "-c", script, url, str(cache)]) as child:

        def kill(number, path):
            if len(server.ranges("/x.npy")) == 5:
                os.kill(child.pid, signal.SIGKILL)
                child.wait()
                return ("cut", 0)
            return None

        server.fault = kill
        assert child.wait() == -signal.SIGKILL
    server.fault = lambda number, path: None
    assert files_in(cache) == [".download.json", ".lock", ".part", ".ranges"]
    assert (array(url, cache) == expected(server)).all()
    sent = [one for one in server.ranges("/x.npy") if one[1] > one[0]]
    assert len(sent) == 11
    assert server.fetched_twice() == {}


def test_ctrl_c_leaves_what_it_has_fetched(server, url, cache, small_ranges):
    def interrupt(number, path):
        if number == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return ("cut", 0) if number >= 6 else None

    server.fault = interrupt
    with pytest.raises(KeyboardInterrupt):
        array(url, cache)
    assert not [one for one in threading.enumerate() if one.name == "loaderx-download"]
    server.fault = lambda number, path: None
    assert (array(url, cache) == expected(server)).all()
    assert server.fetched_twice() == {}


def test_ctrl_c_stops_what_is_fetched_ahead(server, cache, small_ranges, tmp_path):
    for n in range(6):
        np.savez(tmp_path / f"{n}.npz", x=np.zeros(20_000, np.uint8))
    server.add(tmp_path)

    def interrupt(number, path):
        if number == 20:
            os.kill(os.getpid(), signal.SIGINT)

    server.fault = interrupt
    with pytest.raises(KeyboardInterrupt):
        Dataset.open(server.url + "/{0..5}.npz", cache=cache)
    assert not [one for one in threading.enumerate() if one.name.startswith("loaderx-download")]
    server.fault = lambda number, path: None
    assert len(Dataset.open(server.url + "/{0..5}.npz", cache=cache)) == 120_000


def test_bodies_that_end_early_are_continued(server, url, cache, pauses):
    cuts = iter([("cut", 600), ("cut", 3000), ("cut", 1), None])
    server.fault = lambda number, path: next(cuts) if number else None
    assert (array(url, cache) == expected(server)).all()
    assert server.ranges("/x.npy") == [(512, 1112), (1112, 4112), (4112, 4113), (4113, SIZE)]
    assert len(pauses) == 3
    assert 0.05 <= pauses[0] <= 0.1


def test_a_server_that_stays_broken(server, url, cache, pauses):
    server.fault = lambda number, path: 503 if number else None
    with pytest.raises(FileError, match=r"x.npy cannot be read: the server answered 503 .*6 att"):
        array(url, cache)
    assert len(pauses) == 5
    assert pauses[-1] > pauses[0]


@pytest.mark.parametrize("size", [500, SIZE])
def test_a_server_without_ranges(server, url, cache, small_ranges, size):
    server.has_ranges = False
    server.fault = lambda number, path: ("cut", 2000) if number == 3 else None
    assert (array(url, cache) == expected(server)).all()


def test_a_server_without_etags(server, url, cache):
    server.has_etags = False
    with pytest.warns(LoaderxWarning, match=r"neither an ETag nor .*its first 512 bytes"):
        assert (array(url, cache) == expected(server)).all()
    assert (array(url, cache) == expected(server)).all()  # it is said once


def test_a_new_version_on_a_server_without_etags_is_known_by_its_head(server, cache):
    server.has_etags = False
    url = f"{server.url}/y.txt"
    found = []
    for text in (b"one\ntwo\n", b"a\nb\nccc\n"):  # what is so short is known whole
        server.files["/y.txt"] = text
        found.append([record["text"] for record in Dataset.open(url, cache=cache)])
    assert found == [["one", "two"], ["a", "b", "ccc"]]


def test_a_file_that_changes_in_mid_run(server, url, cache, small_ranges):
    server.fault = lambda number, path: (
        server.files.update({"/x.npy": bytes(SIZE)}) if number == 3 else None
    )
    message = r"x.npy has changed since the dataset was opened: its ETag .* Open the dataset again"
    with pytest.raises(FileError, match=message):
        array(url, cache)
    server.files["/x.npy"] = bytes(5)
    with pytest.raises(FileError, match="is not a NumPy array file|format that loaderx"):
        array(url, cache)


def test_a_file_that_shrinks_or_goes(server, url, cache):
    dataset = [None]

    def change(number, path):
        if number == 1:
            server.files["/x.npy"] = b"short"

    server.fault = change
    with pytest.raises(FileError, match=r"has changed .*: it has 5 bytes, and had 10128"):
        array(url, cache)
    assert dataset == [None]


def test_a_new_version_is_fetched_anew(server, url, cache):
    first = array(url, cache)
    server.files["/x.npy"] = server.files["/x.npy"][:128] + bytes(10_000)
    assert array(url, cache).sum() == 0
    assert first.sum() > 0
    assert files_in(cache).count("x.npy") == 2


# Private ----------------------------------------------------------------------------------------


def test_downloads_are_private(url, cache):
    array(url, cache)
    for place in [cache / "downloads", *cache.glob("downloads/**/*")]:
        mode = stat.S_IMODE(place.stat().st_mode)
        assert mode == (0o700 if place.is_dir() else 0o600), place


@pytest.mark.parametrize("name", ["x.npy", ".part"])
def test_links_are_not_followed(url, cache, tmp_path, name):
    array(url, cache)
    (entry,) = (cache / "downloads").iterdir()
    os.remove(entry / "x.npy")
    (entry / name).symlink_to(tmp_path / "x.npy")
    with pytest.raises(FileError, match=f"{name} in the cache folder is a link"):
        array(url, cache)
    assert (tmp_path / "x.npy").stat().st_size == SIZE


def test_a_linked_folder_is_not_followed(url, cache, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    cache.mkdir()
    (cache / "downloads").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileError, match="downloads in the cache folder is no folder of its own"):
        array(url, cache)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_folder_that_cannot_be_used(url, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match=r"must be downloaded, and the cache folder .* cannot be"):
        array(url, tmp_path / "file")


def test_without_a_cache_folder_downloads_go_to_the_usual_one(url, cache, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE", str(cache))
    array(url, False)
    assert sorted(one.name for one in cache.iterdir()) == ["answers", "downloads"]


# The limit --------------------------------------------------------------------------------------


@pytest.fixture
def many(server, tmp_path):
    """Five files of 10 kB."""
    for n in range(5):
        np.save(tmp_path / f"{n}.npy", np.full(10_000, n, np.uint8))
        server.files[f"/{n}.npy"] = (tmp_path / f"{n}.npy").read_bytes()
    return [f"{server.url}/{n}.npy" for n in range(5)]


def names(cache):
    return [one for one in files_in(cache) if one.endswith(".npy")]


def opened(url, cache, days):
    """The dataset of a file, which was used some days ago."""
    known = set(cache.glob("downloads/*"))
    dataset = Dataset.open(url, cache=cache)
    for entry in set(cache.glob("downloads/*")) - known:
        past = os.stat(entry).st_mtime - days * 86_400
        os.utime(entry / ".download.json", (past, past))
    return dataset


def test_the_oldest_make_room(many, cache, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", "35kB")
    for n, url in enumerate(many):
        opened(url, cache, 10 - n)
    assert names(cache) == ["2.npy", "3.npy", "4.npy"]


def test_what_is_in_use_stays(many, cache, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", "35kB")
    first = opened(many[0], cache, 10)
    for n, url in enumerate(many[1:]):
        opened(url, cache, 9 - n)
    assert names(cache) == ["0.npy", "3.npy", "4.npy"]
    assert first[0]["0"] == 0


def test_all_in_use_goes_over_the_limit(many, cache, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", "25kB")
    with pytest.warns(LoaderxWarning, match="go over their limit of 0.0 MB: all of them are in"):
        kept = [Dataset.open(url, cache=cache) for url in many]
    assert [one[0][str(n)] for n, one in enumerate(kept)] == [*range(5)]
    assert len(names(cache)) == 5


def test_data_that_is_larger_than_the_limit(server, cache, monkeypatch, tmp_path):
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", "80kB")
    for n in range(12):
        np.savez(tmp_path / f"{n}.npz", x=np.full(10_000, n, np.uint8))
    server.add(tmp_path)
    dataset = Dataset.open(server.url + "/{0..11}.npz", cache=cache)
    for _ in range(2):
        assert [int(one["x"]) for one in dataset[::10_000]] == [*range(12)]
        assert len([one for one in files_in(cache) if one.endswith(".npz")]) == 7


@pytest.mark.parametrize(
    ("limit", "error", "message"),
    [
        ("5kB", FileError, r"x.npy has 0.0 MB, and downloads may take 0.0 MB .*LOADERX_CACHE_LIMI"),
        ("much", ArgumentError, r"LOADERX_CACHE_LIMIT must be a size such as 200GB, got 'much'"),
    ],
)
def test_limits_that_do_not_do(url, cache, monkeypatch, limit, error, message):
    monkeypatch.setenv("LOADERX_CACHE_LIMIT", limit)
    with pytest.raises(error, match=message):
        array(url, cache)


# The command ------------------------------------------------------------------------------------


def test_the_command_shows_and_removes_downloads(many, cache, capsys):
    in_use = Dataset.open(many[0].replace("http://", "http://me:word@"), cache=cache)
    Dataset.open(many[1], cache=cache)
    assert cli.main(["cache", "--cache", str(cache)]) == 0
    *rows, total, advice = capsys.readouterr().out.splitlines()
    assert re.match(r"3 entries, [\d.]+ kB in ", total)
    assert advice == "remove them: the same command with --clear"
    assert sum("  download  " in row and row.endswith("/0.npy") for row in rows) == 1
    assert not any("word" in row for row in rows)
    assert cli.main(["cache", "--cache", str(cache), "--clear"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "kept 1 downloads that are in use"
    assert re.match(r"removed 2 entries, [\d.]+ kB from ", told[1])
    assert names(cache) == ["0.npy"]
    assert in_use[3]["0"] == 0


def test_a_map_keeps_its_file(url, cache):
    kept = Dataset.open(url, cache=cache)
    (path,) = cache.glob("downloads/*/x.npy")
    assert cli.main(["cache", "--cache", str(cache), "--clear"]) == 0
    with open_regular(path) as file:
        assert file.read(6) == b"\x93NUMPY"
    del kept


def test_a_cache_folder_without_locks(server, cache, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    server.files["/x.jsonl"] = b'{"x": 1}\n' * 100
    with pytest.raises(
        FileError, match=r"cannot be used: \[Errno 38\] .* Give another one with `ca"
    ):
        Dataset.open(f"{server.url}/x.jsonl", cache=cache)
