"""The native layout behind URLs: what is read is fetched, once, and is what was written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from file_families import WRITERS
from inside import source_of
from loaderx import DataLoader, Dataset, cli
from loaderx.errors import FileError, RecordError
from loaderx.memory import Pool
from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.native.layout import Description, write_description
from loaderx.sources.native.writer import PartWriter
from loaderx.sources.remote.transfer import stop_with
from oracle import assert_same

HEAD = 512


def records(count):
    made = np.random.default_rng(0)
    return [
        {
            "fixed": made.integers(0, 255, (10, 10), np.uint8),
            "text": "äb" * int(made.integers(0, 30)),
            "ragged": made.integers(0, 99, (int(made.integers(0, 40)), 2)),
            "nested": [["x" * int(n) for n in made.integers(0, 9, 2)] for _ in range(number % 3)],
            "struct": {"y": float(number), "pair": (number, b"z" * number)},
        }
        for number in range(count)
    ]


@pytest.fixture
def local(tmp_path):
    Dataset.from_source(records(80)).save(tmp_path / "data", part_bytes=20_000, engine="inline")
    return Dataset.open(tmp_path / "data")


@pytest.fixture
def url(server, local, tmp_path):
    server.add(tmp_path / "data")
    return f"{server.url}/"


def first_of_part(server, number):
    """The first record of a part."""
    told = json.loads(server.files["/loaderx.json"])["parts"]
    assert len(told) > number
    return sum(part["records"] for part in told[:number])


def unfinished(cache):
    return sorted(one.name for one in cache.glob("downloads/*/.*") if one.name != ".download.json")


def sent(server):
    return sum(stop - start for _, start, stop in server.asked)


def test_all_records(server, local, url, cache, small_ranges):
    made = Dataset.open(url, cache=cache)
    order = np.random.default_rng(1).permutation(80)
    assert_same([made[int(i)] for i in order], [local[int(i)] for i in order])
    assert server.fetched_twice() == {}
    data = {path: len(file) for path, file in server.files.items() if path != "/loaderx.json"}
    assert sent(server) == sum(max(0, size - HEAD) for size in data.values()) + len(
        server.files["/loaderx.json"]
    )
    assert not unfinished(cache)


def test_opening_looks_at_each_file_once(server, url, cache):
    Dataset.open(url, cache=cache)
    assert len(server.requests) == len(server.files)
    assert sent(server) == len(server.files["/loaderx.json"])


def test_a_record_takes_what_it_needs(server, cache, tmp_path, small_ranges):
    rows = np.random.default_rng(0).integers(0, 255, (80, 100), np.uint8)
    Dataset.from_arrays(x=rows, y=rows).save(tmp_path / "rows", engine="inline")
    server.add(tmp_path / "rows", "rows")
    made = Dataset.open(f"{server.url}/rows/", columns=["x"], cache=cache)
    assert (made[40]["x"] == rows[40]).all()  # bytes 4,128 to 4,227
    assert server.ranges("/rows/part-00000/x.npy") == [(4000, 5000)]
    assert (made[39]["x"] == rows[39]).all()  # bytes 4,028 to 4,127
    assert (made[48]["x"] == rows[48]).all()  # bytes 4,928 to 5,027
    assert server.ranges("/rows/part-00000/x.npy") == [(4000, 5000), (5000, 6000)]
    assert not server.ranges("/rows/part-00000/y.npy")
    assert unfinished(cache) == [".lock", ".part", ".ranges"]


def test_fetch(server, local, url, cache, small_ranges):
    made = Dataset.open(url, cache=cache)
    source = source_of(made)
    assert source.fetches
    assert not source_of(local).fetches
    indices = np.array([3, 40, 79, 41, 3])
    before = sent(server)
    assert source.fetch(indices) == sent(server) - before > 0
    assert source.fetch(indices) == 0
    count = len(server.requests)
    assert_same([made[int(i)] for i in indices], [local[int(i)] for i in indices])
    assert len(server.requests) == count


def test_fetch_by_several_threads(server, local, url, cache, small_ranges, monkeypatch):
    source = source_of(Dataset.open(url, cache=cache))
    before, found, polls = sent(server), [], []
    waits_for_others = "loaderx.sources.remote.transfer.wait_for_processes"
    monkeypatch.setattr(waits_for_others, lambda: polls.append(1))
    threads = [
        threading.Thread(target=lambda n=n: found.append(source.fetch(np.arange(n, 80 - n))))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(found) == sent(server) - before
    assert server.fetched_twice() == {}
    assert not polls  # threads are told when a piece is here; only processes have to look


def test_a_fetch_that_is_stopped_keeps_its_pieces(server, cache, tmp_path, monkeypatch):
    monkeypatch.setattr("loaderx.sources.remote.pieces.PIECE_BYTES", 1000)
    monkeypatch.setattr("loaderx.sources.remote.http_store.READ_BYTES", 300)
    rows = np.random.default_rng(0).integers(0, 255, (80, 100), np.uint8)
    Dataset.from_arrays(x=rows).save(tmp_path / "rows", engine="inline")
    server.add(tmp_path / "rows")
    source = source_of(Dataset.open(f"{server.url}/", cache=cache))
    stop, told = threading.Event(), []

    def fetch():
        stop_with(stop)
        with pytest.raises(FileError, match="a download was stopped") as caught:
            source.fetch(np.arange(80))
        told.append(caught.value)

    # Of the first answer three pieces come, and the first bytes of the second one end it.
    server.fault = lambda number, path: ("cut", 2500) if number == 2 else stop.set()
    thread = threading.Thread(target=fetch)
    thread.start()
    thread.join()
    assert told
    server.fault = lambda number, path: None
    assert source.fetch(np.arange(28)) == 0
    assert source.fetch(np.arange(40, 45)) == 1000
    assert (source.gather(np.arange(80), Pool().lend)["x"] == rows).all()


@pytest.mark.parametrize("order", [{}, {"block": 8, "window": 16}, {"window": 80}])
def test_streams(server, local, url, cache, small_ranges, order):
    def chain(dataset):
        kept = dataset.map(lambda one: {"fixed": one["fixed"], "y": one["struct"]["y"]})
        return kept.shuffle(3, **order).batch(7).repeat(2)

    assert_same(
        DataLoader(chain(Dataset.open(url, cache=cache)), engine="inline"),
        list(DataLoader(chain(local), engine="inline")),
    )
    assert server.fetched_twice() == {}


def test_padded_and_packed(server, local, url, cache, small_ranges):
    def chain(dataset):
        kept = dataset.map(lambda one: {"ragged": one["ragged"][:, 0]})
        return kept.shuffle(3).pack({"ragged": 50})

    assert_same(list(chain(Dataset.open(url, cache=cache))), list(chain(local)))


def test_columns_are_saved_again(server, local, url, cache, small_ranges, tmp_path):
    Dataset.open(url, cache=cache).save(tmp_path / "copy", engine="inline")
    assert_same(list(Dataset.open(tmp_path / "copy")), list(local))


def test_nulls(server, cache, tmp_path, small_ranges):
    values, valid = np.arange(3000), np.arange(3000) % 7 > 0
    kinds = {"x": ColumnType("fixed", values.dtype, nulls=int((~valid).sum()))}
    with PartWriter(str(tmp_path), 0, kinds) as writer:
        writer.append({"x": ColumnData(3000, values, valid=valid)})
        write_description(str(tmp_path), Description(kinds, [writer.close()]))
    server.add(tmp_path)
    source = source_of(Dataset.open(f"{server.url}/", fill={"x": -1}, cache=cache))
    chosen = np.array([2999, 70, 71])
    assert source.fetch(chosen) == 2 * (1000 - HEAD) + 2 * 128  # the first and the last pieces
    count = len(server.requests)
    assert [int(one["x"]) for one in source.records(chosen)] == [2999, -1, 71]
    assert len(server.requests) == count


def test_a_server_that_fails_now_and_then(server, local, url, cache, small_ranges, pauses):
    made = np.random.default_rng(0)
    faults = [made.choice([0, 1, 2], p=[0.95, 0.025, 0.025]) for _ in range(5000)]
    server.fault = lambda number, path: [None, 503, ("cut", 100)][faults[number]]
    found = Dataset.open(url, cache=cache)
    assert_same(list(found.shuffle(2)), list(local.shuffle(2)))
    assert pauses
    assert server.fetched_twice() == {}


def test_a_server_without_ranges(server, local, url, cache, small_ranges):
    server.has_ranges = False
    found = Dataset.open(url, cache=cache)
    assert_same(list(found.shuffle(2)), list(local.shuffle(2)))
    assert not unfinished(cache)


def test_a_file_that_changes_in_mid_run(server, local, url, cache, small_ranges):
    found = Dataset.open(url, columns=["fixed"], cache=cache)
    assert_same([found[0]], [{"fixed": local[0]["fixed"]}])
    name = "/part-00000/fixed.npy"
    server.files[name] = server.files[name][:-1] + b"?"
    with pytest.raises(
        RecordError, match="fixed.npy has changed since the dataset was opened: its"
    ):
        found[first_of_part(server, 1) - 1]
    assert_same([found[0]], [{"fixed": local[0]["fixed"]}])  # it is here


def test_a_large_array(server, cache, tmp_path, small_ranges, monkeypatch):
    monkeypatch.setattr("loaderx.sources.formats.npy.LARGE", 1000)
    rows = np.random.default_rng(0).normal(size=(500, 4, 2))
    np.save(tmp_path / "a.npy", rows)
    np.save(tmp_path / "f.npy", np.asfortranarray(rows[:, 0]))
    server.add(tmp_path)
    made = Dataset.open(f"{server.url}/a.npy", cache=cache)
    assert made.element_spec == Dataset.open(tmp_path / "a.npy").element_spec
    assert (made.batch(3)[100]["a"] == rows[300:303]).all()
    assert server.ranges("/a.npy") == [(19_000, 20_000)]
    assert (made.shuffle(1).batch(500)[0]["a"].sum(0) - rows.sum(0) < 1e-9).all()
    assert server.fetched_twice() == {}
    turned = Dataset.open(f"{server.url}/f.npy", cache=cache)
    assert (turned.batch(500)[0]["f"] == rows[:, 0]).all()


# The folder -------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"\1" * 9, b"\1" * 400, None])
def test_a_damaged_map(server, local, url, cache, small_ranges, damage):
    found = Dataset.open(url, columns=["fixed"], cache=cache)
    for number in (3, 35, 70):
        found[number]
    del found
    for place in cache.glob("downloads/*/.ranges"):
        if damage is None:
            place.unlink()
        else:
            place.write_bytes(damage)
    found = Dataset.open(url, columns=["fixed"], cache=cache)
    assert_same([one["fixed"] for one in found], [one["fixed"] for one in local])
    assert not unfinished(cache)


def test_what_is_here_is_kept(server, local, url, cache, small_ranges):
    list(Dataset.open(url, columns=["fixed", "text"], cache=cache)[:50])
    found = Dataset.open(url, cache=cache)
    assert_same(list(found), list(local))
    assert set(server.fetched_twice()) <= {"/loaderx.json"}  # what is opened is looked at


def test_after_a_restart_of_the_machine(server, cache, tmp_path, small_ranges, monkeypatch):
    rows = np.random.default_rng(0).integers(0, 255, (80, 100), np.uint8)
    np.save(tmp_path / "x.npy", rows)
    server.add(tmp_path)
    monkeypatch.setattr("loaderx.sources.formats.npy.LARGE", 1000)
    monkeypatch.setattr("loaderx.sources.remote.part_file.SYNC_BYTES", 3000)
    found = Dataset.open(f"{server.url}/x.npy", cache=cache)
    for number in (5, 15, 25, 35, 45):  # of five pieces the first three are on disk
        found[number]
    del found
    monkeypatch.setattr("loaderx.sources.remote.pieces.boot_id", lambda: "another one")
    found = Dataset.open(f"{server.url}/x.npy", cache=cache)
    assert (found.batch(80)[0]["x"] == rows).all()
    assert server.fetched_twice() == {"/x.npy": 2000}


def test_pieces_in_use_are_not_removed(server, local, url, cache, small_ranges, capsys):
    found = Dataset.open(url, columns=["fixed"], cache=cache)
    found[0]
    assert cli.main(["cache", "--cache", str(cache), "--clear"]) == 0
    assert "kept 1 downloads that are in use" in capsys.readouterr().out
    assert unfinished(cache) == [".lock", ".part", ".ranges"]
    assert_same([one["fixed"] for one in found], [one["fixed"] for one in local])
    del found
    assert cli.main(["cache", "--cache", str(cache), "--clear"]) == 0
    assert not list((cache / "downloads").iterdir())


def test_a_folder_without_record_locks(server, local, url, cache, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    found = Dataset.open(url, cache=cache)
    monkeypatch.setattr("loaderx.sources.remote.pieces.try_lock_range", refuse)
    message = "must be downloaded, and the cache folder .* cannot be used: .*No locks available"
    with pytest.raises(RecordError, match=message):
        found[0]


def test_a_folder_that_is_removed_while_it_is_in_use(server, local, url, cache, small_ranges):
    found = Dataset.open(url, columns=["fixed"], cache=cache)
    found[0]
    shutil.rmtree(cache / "downloads")
    other = Dataset.open(url, columns=["fixed"], cache=cache)
    last = first_of_part(server, 1) - 1
    assert_same([other[last]], [{"fixed": local[last]["fixed"]}])
    for each in (found, other):  # each has files of its own
        assert_same([one["fixed"] for one in each], [one["fixed"] for one in local])
    assert not unfinished(cache)


def test_a_header_that_is_not_what_the_description_says(server, local, url, cache):
    name = "/part-00000/fixed.npy"
    server.files[name] = server.files[name].replace(b"'|u1'", b"'|i1'")
    with pytest.raises(FileError, match=r"fixed.npy has int8.*, and loaderx.json says uint8"):
        Dataset.open(url, cache=cache)


def test_a_damaged_header_of_another_part(server, local, url, cache, small_ranges):
    name = "/part-00001/fixed.npy"
    server.files[name] = server.files[name].replace(b"'|u1'", b"'|i1'")
    found = Dataset.open(url, columns=["fixed"], cache=cache)
    found[0]
    with pytest.raises(RecordError, match=r"part-00001/fixed.npy has int8.*: it was changed or is"):
        found[first_of_part(server, 1)]


def test_images(server, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN_PATH", "/none")
    WRITERS["images"](tmp_path / "images", [*range(12)])
    server.add(tmp_path / "images", "me/data")
    made = Dataset.open("hf://datasets/me/data", cache=cache)
    source = source_of(made)
    assert source.fetches
    assert not source_of(Dataset.open(tmp_path / "images")).fetches
    assert source.fetch(np.array([3, 5, 3])) == sent(server) > 0
    assert source.fetch(np.array([5, 3])) == 0
    count = len(server.requests)
    assert made[3]["image"].shape == made[5]["image"].shape
    assert len(server.requests) == count
    assert len(server.asked) == 2


# Processes --------------------------------------------------------------------------------------

READ = """
import sys
from loaderx.sources.remote import pieces, transfer
pieces.PIECE_BYTES = pieces.REQUEST_BYTES = 1000
transfer.CONCURRENCY = 2
from loaderx import Dataset
url, cache, seed = sys.argv[1:]
found = Dataset.open(url, cache=cache).shuffle(int(seed))
print(sum(one["struct"]["y"] for one in found))
"""


def reader(url, cache, seed):
    command = [sys.executable, "-c", READ, url, str(cache), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_several_processes_at_once(server, local, url, cache):
    children = [reader(url, cache, seed) for seed in range(2)]
    assert [child.communicate()[0] for child in children] == ["3160.0\n"] * 2
    looks = server.asked.count(("/loaderx.json", 0, len(server.files["/loaderx.json"])))
    assert looks == 2
    server.asked = [one for one in server.asked if one[0] != "/loaderx.json"]
    assert server.fetched_twice() == {}
    assert not unfinished(cache)


def kill_at(server, child, number):
    """Kills a process at its request of this number."""
    begun = len(server.requests)

    def kill(count, path):
        if count - begun >= number and child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            return ("cut", 0)
        return None

    server.fault = kill
    child.communicate()
    server.fault = lambda count, path: None


def test_a_killed_process_leaves_its_pieces(server, local, url, cache, small_ranges):
    child = reader(url, cache, 0)
    kill_at(server, child, len(server.files) + 12)
    assert child.returncode == -signal.SIGKILL
    assert unfinished(cache)
    assert_same(list(Dataset.open(url, cache=cache)), list(local))
    server.asked = [one for one in server.asked if one[0] != "/loaderx.json"]
    # Two requests were under way, whose pieces had not been marked.
    assert sum(server.fetched_twice().values()) <= 2000
    assert ".part" not in unfinished(cache)


@pytest.mark.large
def test_processes_that_are_killed_again_and_again(server, local, url, cache, small_ranges):
    made = np.random.default_rng(0)
    kills = 0
    for seed in range(12):  # two at a time, of which one is killed
        child, other = reader(url, cache, seed), reader(url, cache, seed + 1)
        kill_at(server, child, int(made.integers(0, 2 * len(server.files))))
        kills += child.returncode == -signal.SIGKILL
        assert other.communicate()[0] == "3160.0\n"
        for place in list(cache.glob("downloads/*"))[seed % 2 :: 2]:
            shutil.rmtree(place)
    assert kills
    assert_same(list(Dataset.open(url, cache=cache)), list(local))
    assert ".part" not in unfinished(cache)


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_engines(server, cache, tmp_path, engine):
    rows = np.random.default_rng(0).integers(0, 255, (64, 20_000), np.uint8)
    Dataset.from_arrays(x=rows, n=np.arange(64)).save(
        tmp_path / "rows", part_bytes=700_000, engine="inline"
    )
    server.add(tmp_path / "rows", "rows")
    made = Dataset.open(f"{server.url}/rows/", cache=cache).shuffle(1).batch(8)
    seen = []
    with DataLoader(made, engine=engine, num_workers=2) as loader:
        for batch in loader:
            assert (batch["x"] == rows[batch["n"]]).all()
            seen += batch["n"].tolist()
    assert sorted(seen) == [*range(64)]
    looks = [one for one in server.asked if one[2] <= HEAD]
    assert server.fetched_twice() == {}
    assert all(start >= HEAD for path, start, _ in server.asked if ".json" not in path), looks
