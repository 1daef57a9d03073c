"""`Dataset.save` to URLs: the files are those of a local save, whoever writes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings

import odd_records
from loaderx import (
    ArgumentError,
    ChainError,
    DataLoader,
    Dataset,
    FileError,
    LoaderxWarning,
)
from loaderx.cli import main
from loaderx.engines import Executor, Processes, Threads
from loaderx.sources.native import writer
from loaderx.sources.remote import object_store
from loaderx.sources.remote.fsspec_store import FsspecStore
from odd_records import ODD, PART, save
from oracle import assert_same
from part_engines import InCaller
from saved_records import content, content_there, some_records
from stopping import killed_in_fork

pytestmark = pytest.mark.foreign  # obstore keeps threads and connections


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    """Parts are written here before they are uploaded, and nothing of them is left."""
    place = tmp_path / "working"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))  # of worker processes
    yield
    assert [name for name in os.listdir(place) if name.startswith("loaderx-saving-")] == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd") / "out"
    with pytest.warns(LoaderxWarning, match="1 of 60 records"):
        ODD.save(folder, part_bytes=PART, images=["image"], engine="inline")
    found = content(folder)
    assert sum(name.endswith("text.npy") for name in found) == 6
    return found


class Objects:
    """A folder of a bucket on the server."""

    url = "s3://bucket/data/odd"

    def __init__(self, server):
        self.server = server

    @property
    def files(self):
        start = "/bucket/data/odd/"
        there = dict(self.server.files)
        return {name[len(start) :]: data for name, data in there.items() if name.startswith(start)}

    def puts(self):
        """The names that were put, or written to."""
        return [one.rpartition("/")[2] for one in self.server.requests if one.startswith("PUT")]


@pytest.fixture
def bucket(server, monkeypatch):
    pytest.importorskip("obstore", reason="needs obstore")
    for name, value in {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "secret_word",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    server.buckets.add("bucket")
    return Objects(server)


@pytest.fixture
def hasty(monkeypatch):
    """No attempts after the first one."""
    monkeypatch.setattr(object_store, "RETRIES", {**object_store.RETRIES, "max_retries": 0})


# What is written --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "engine",
    [
        "inline",
        "auto",
        InCaller(),
        InCaller(times=2),
        Threads(2),
        Executor(lambda: ThreadPoolExecutor(2), num_workers=2),
    ],
    ids=["inline", "auto", "caller", "twice", "threads", "executor"],
)
def test_the_files_are_those_of_a_local_save(engine, bucket, whole):
    save(bucket.url, engine)
    assert content_there(bucket.files) == whole
    save(bucket.url, shard=(1, 3))  # is complete
    assert content_there(bucket.files) == whole


def test_parts_have_the_same_names_whoever_writes_them(bucket, whole):
    save(bucket.url)
    first = bucket.files
    for engine in (InCaller(), Threads(2)):
        bucket.server.files.clear()
        save(bucket.url, engine)
        assert bucket.files == first


@pytest.mark.parametrize("count", [2, 3, 30])
def test_shards(count, bucket, whole):
    order = np.random.default_rng(count).permutation(count).tolist()
    for index in order:
        if bucket.files and "loaderx.json" not in bucket.files:
            with pytest.raises(FileError, match="s3://bucket/data/odd is not complete: save again"):
                Dataset.open(bucket.url)
        save(bucket.url, "inline", (index, count))
    assert content_there(bucket.files) == whole


def test_shards_may_change_their_number(bucket, tmp_path):
    """A part is the same for all; none is made twice."""
    ds = Dataset.range(60).map(lambda i: {"image": b"image" * 9, "x": i})
    save(tmp_path / "out", ds=ds)
    for shard in [(0, 2), (2, 3), None]:
        save(bucket.url, shard=shard, ds=ds)
    assert content_there(bucket.files) == content(tmp_path / "out")
    assert len(bucket.puts()) == len(bucket.files) + len(list(tmp_path.glob("out/part-*")))


def test_streams(bucket, tmp_path):
    stream = (
        Dataset.range(90)
        .map(lambda i: {"x": i, "t": "t" * (i % 9)})
        .filter(lambda record: record["x"] % 3 > 0)
    )
    stream.save(tmp_path / "out", part_bytes=200)
    stream.save(bucket.url, part_bytes=200)
    assert content_there(bucket.files) == content(tmp_path / "out")


@given(some_records)
@settings(max_examples=10)
def test_any_records(records):
    """Through fsspec, in memory."""
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec")
    memory = fsspec.filesystem("memory")
    with tempfile.TemporaryDirectory() as folder:
        ds = Dataset.from_source(records)
        ds.save(f"{folder}/out", part_bytes=64, engine="inline")
        ds.save("memory://any/out", part_bytes=64, engine="inline")
        found = {name.removeprefix("/any/out/"): memory.cat(name) for name in memory.find("/any")}
        memory.rm("/any", recursive=True)
        assert content_there(found) == content(f"{folder}/out")


def test_file_systems_of_fsspec_leave_no_empty_folders(whole, tmp_path):
    pytest.importorskip("fsspec", reason="needs fsspec")
    place = tmp_path / "out"
    save(f"file://{place}", Threads(2))
    assert content_there(content(place)) == whole
    assert all(any(folder.iterdir()) for folder in place.glob("part-*"))
    found = Dataset.open(f"file://{place}", decode=False)
    assert_same(found, list(Dataset.open(place, decode=False)))


def test_a_large_file_is_put_in_pieces(bucket, tmp_path):
    """As obstore does with 5 MB and more."""
    ds = Dataset.from_arrays(x=np.arange(1_500_000))
    ds.save(bucket.url, engine="inline")
    ds.save(tmp_path / "out", engine="inline")
    assert len(bucket.server.uploads) == 1
    assert content_there(bucket.files) == content(tmp_path / "out")


def test_what_was_saved_is_opened(bucket, tmp_path, cache):
    ds = Dataset.range(60).map(lambda i: {"x": np.arange(3) + i, "id": i})
    ds.save(bucket.url, part_bytes=500, engine="inline")
    ds.save("s3://bucket/another/", part_bytes=700, engine="inline")
    expected = list(ds.shuffle(5).batch(8))
    made = Dataset.open(bucket.url, cache=cache).shuffle(5).batch(8)
    assert_same(DataLoader(made, engine="inline"), expected)
    with DataLoader(made, engine="processes", num_workers=1) as loader:
        assert_same(loader, expected)
    both = Dataset.open([bucket.url, "s3://bucket/another"], cache=cache)
    assert_same(both.batch(60), [*ds.batch(60)] * 2)
    both.save("s3://bucket/both", engine="inline")
    assert_same(Dataset.open("s3://bucket/both", cache=cache).batch(120), list(both.batch(120)))


def test_a_local_copy_is_complete(bucket, whole, tmp_path):
    save(bucket.url)
    for name, data in bucket.files.items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(data)
    before = content(tmp_path / "copy")
    save(tmp_path / "copy")
    assert content(tmp_path / "copy") == before


def test_a_copy_of_a_local_folder_is_complete(bucket, whole):
    bucket.server.files |= {f"/bucket/data/odd/{name}": data for name, data in whole.items()}
    save(bucket.url)
    assert (bucket.files, bucket.puts()) == (whole, [])


def test_convert(bucket, tmp_path, capsys):
    np.savez(tmp_path / "a.npz", x=np.arange(50))
    source = str(tmp_path / "a.npz")
    assert main(["convert", source, bucket.url, "--shard", "0/1"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"50 records, 528 bytes in 1 part: {bucket.url}"
    assert told[1] == f'open it: Dataset.open("{bucket.url}")'
    with pytest.warns(LoaderxWarning, match="shard=\\(0, 2\\) has nothing to save"):
        assert main(["convert", source, f"{bucket.url}-2", "--shard", "0/2"]) == 0
    told = f"shard 0/2 is saved, others are not yet: {bucket.url}-2\n"
    assert capsys.readouterr().out == told


# Killed, and gone on with -----------------------------------------------------------------------

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[3])
from odd_records import save
from loaderx.engines import Threads
save(sys.argv[1], Threads(2) if sys.argv[2] == "threads" else "inline")
"""


def run_killed(bucket, number, engine, *, is_done):
    """Saves in a process that is killed by the server, which did or did not do what was asked."""
    left, pid = [number], None

    def kill(_, path):
        if not pid or "PUT" not in bucket.server.requests[-1]:
            return None
        left[0] -= 1
        if left[0] == 0:
            os.kill(pid, signal.SIGKILL)
        return None if left[0] > 0 or (is_done and left[0] == 0) else 500

    bucket.server.fault = kill
    support = os.path.dirname(odd_records.__file__)
    with subprocess.Popen([sys.executable, "-c", SCRIPT, bucket.url, engine, support]) as process:
        pid = process.pid
        status = process.wait(300)
    bucket.server.fault = lambda number, path: None
    return status


@pytest.mark.parametrize(
    ("engine", "numbers"),
    [
        ("inline", [1, 30]),
        ("threads", [20]),
        pytest.param("inline", range(1, 120, 3), marks=pytest.mark.large),
        pytest.param("threads", range(1, 120, 3), marks=pytest.mark.large),
    ],
)
def test_killed_at_chosen_requests(engine, numbers, bucket, whole):
    for number in numbers:
        bucket.server.files.clear()
        status = run_killed(bucket, number, engine, is_done=number % 2 == 0)
        assert status == -signal.SIGKILL
        before = {name for name in bucket.files if name.startswith("saving-")}
        puts = len(bucket.puts())
        save(bucket.url)
        again = {one for one in bucket.puts()[puts:] if one.startswith("saving-")}
        assert content_there(bucket.files) == whole
        assert len(again) <= 2 * len({name for name in whole if name.endswith("id.npy")})
        assert not before or len(before & again) < len(before)


@pytest.mark.parametrize("how", ["chain", "stream"])
def test_killed_at_any_moment(how, whole, tmp_path, monkeypatch):
    """Through fsspec, which shows files that are half written: they are not taken for whole."""
    pytest.importorskip("fsspec", reason="needs fsspec")
    ds = ODD if how == "chain" else ODD.filter(lambda record: record["id"] % 4 > 0)
    save(tmp_path / "local", ds=ds)
    put, remove = FsspecStore.put, FsspecStore.remove

    def run(url, event):
        left = [event]

        def is_over():
            left[0] -= 1
            return left[0] < 0

        def half_put(self, address, data, *, is_new=False):
            if is_over():
                os.kill(os.getpid(), signal.SIGKILL)
            data = data if isinstance(data, bytes) else data.read_bytes()
            if is_over() and not is_new:
                put(self, address, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            put(self, address, data, is_new=is_new)

        def half_removed(self, addresses):
            if is_over():
                remove(self, addresses[::2])
                os.kill(os.getpid(), signal.SIGKILL)
            remove(self, addresses)

        FsspecStore.put, FsspecStore.remove = half_put, half_removed
        save(url, ds=ds)

    event = 0
    while True:
        place = tmp_path / f"{event}"
        was_killed = killed_in_fork(lambda: run(f"file://{place}", event))  # noqa: B023
        save(f"file://{place}", ds=ds)
        assert content_there(content(place)) == content(tmp_path / "local"), event
        if not was_killed:
            break
        event += 29
    assert event > 60


def test_a_worker_that_is_killed(bucket, tmp_path):
    """Another one makes its part, and nothing of it is left on this machine."""
    mark, saver = tmp_path / "killed", os.getpid()

    def make(index):
        if index == 34 and os.getpid() != saver and not mark.exists():  # not in the sample
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": index, "image": b"image" * 9}

    ds = Dataset.range(60).map(make)
    save(bucket.url, Processes(1, prefetch=0), ds=ds)
    assert mark.exists()
    save(tmp_path / "out", ds=ds)
    assert content_there(bucket.files) == content(tmp_path / "out")


def test_what_a_killed_process_has_left_here_is_removed(bucket, tmp_path):
    killed_in_fork(lambda: (writer.workspace(), os.kill(os.getpid(), signal.SIGKILL)))
    assert len(os.listdir(tmp_path / "working")) == 1
    save(bucket.url)
    assert os.listdir(tmp_path / "working") == []


# Several at once --------------------------------------------------------------------------------


def job(engine="inline", shard=None):
    return {"part_bytes": PART, "images": ["image"], "engine": engine, "shard": shard}


@pytest.mark.parametrize("times", [1, pytest.param(15, marks=pytest.mark.large)])
@pytest.mark.parametrize(
    "jobs",
    [
        [job(), job(InCaller()), job(InCaller(2))],
        [job(shard=(index, 4)) for index in range(4)],
        [job(shard=(0, 2)), job(shard=(1, 2)), job(InCaller(), shard=(1, 2)), job()],
    ],
    ids=["whole", "shards", "both"],
)
def test_several_at_once(jobs, times, bucket, whole):
    """They do each other no harm, and none fails: it may find the folder complete."""
    for _ in range(times):
        bucket.server.files.clear()
        with ThreadPoolExecutor(len(jobs)) as pool, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # here: threads share the filters
            for done in [pool.submit(ODD.save, bucket.url, **job) for job in jobs]:
                done.result()
        assert "loaderx.json" in bucket.files
        save(bucket.url)
        assert content_there(bucket.files) == whole


def test_completed_by_another_process_at_the_last_moment(bucket, whole):
    save(bucket.url)
    complete = dict(bucket.server.files)
    for name in [*complete]:
        del bucket.server.files[name]

    def complete_it(_, path):
        if path.endswith("loaderx.json") and "PUT" in bucket.server.requests[-1]:
            bucket.server.fault = lambda number, path: None
            bucket.server.files.clear()
            bucket.server.files.update(complete)

    bucket.server.fault = complete_it
    save(bucket.url)
    assert bucket.server.files == complete


@pytest.mark.parametrize("ends_with", ["loaderx.json", "id.npy"])
def test_another_dataset_that_was_first(ends_with, bucket):
    """Its files stay: an object is put only where none is."""

    def save_another(_, path):
        if path.endswith(ends_with) and "PUT" in bucket.server.requests[-1]:
            bucket.server.fault = lambda number, path: None
            bucket.server.files.clear()  # it has seen nothing of the first one
            save(bucket.url, ds=Dataset.range(5).map(lambda i: {"image": b"image", "x": i}))

    bucket.server.fault = save_another
    with pytest.raises(FileError, match="odd has another dataset, which has other stages and"):
        save(bucket.url)
    kept = Dataset.open(bucket.url, decode=False)
    assert [int(one["x"]) for one in kept] == list(range(5))


def test_a_writer_that_was_given_up_changes_nothing(bucket, whole):
    """It puts its parts once more, after the folder is complete."""
    save(bucket.url, InCaller())
    complete = bucket.files
    bucket.server.files |= {
        name: data for name, data in bucket.server.written.items() if "/part-" in name
    }
    assert len(bucket.files) > len(complete)  # some had a type that is too narrow
    assert complete.items() <= bucket.files.items()
    kept = Dataset.open(bucket.url, decode=False)
    assert [one["id"] for one in kept] == [one["id"] for one in ODD]
    save(bucket.url)
    assert bucket.files == complete
    assert content_there(complete) == whole


# Failures ---------------------------------------------------------------------------------------


def test_a_put_that_fails_is_tried_again(bucket, whole):
    failed = []

    def fail(number, path):
        if "PUT" in bucket.server.requests[-1] and number % 9 == 0:
            failed.append(path)
            return 503
        return None

    bucket.server.fault = fail
    save(bucket.url, Threads(2))
    assert failed
    assert content_there(bucket.files) == whole


@pytest.mark.parametrize(
    ("engine", "status", "message"),
    [
        ("inline", 500, "500 Internal Server Error: .* What was done is kept: try again to resume"),
        (Threads(2), 500, "cannot be written: Generic S3 error: .* Check the address, the network"),
        (Processes(1, prefetch=0), 403, "the store refused access. Credentials are found by obs"),
    ],
    ids=["inline", "threads", "processes"],
)
def test_puts_that_fail_for_good(engine, status, message, bucket, whole, hasty):
    def fail(number, path):
        is_late = sum(name.startswith("saving-") for name in bucket.files) > 2
        return status if is_late and "PUT" in bucket.server.requests[-1] else None

    bucket.server.fault = fail
    with pytest.raises(FileError, match=f"^s3://bucket/data/odd/.*{message}"):
        save(bucket.url, engine)
    bucket.server.fault = lambda number, path: None
    assert sum(name.startswith("saving-") for name in bucket.files) > 2
    save(bucket.url, engine)
    assert content_there(bucket.files) == whole


def test_credentials_that_are_refused(bucket):
    bucket.server.password = "nobody"
    with pytest.raises(FileError, match="the store refused access. .* AWS_ACCESS_KEY_ID") as caught:
        save(bucket.url)
    assert "secret_word" not in str(caught.value)
    bucket.server.password = None
    bucket.server.fault = lambda *_: 403 if "PUT" in bucket.server.requests[-1] else None
    with pytest.raises(FileError, match=r"odd/part-0.*\.npy: the store refused access") as caught:
        save(bucket.url)
    assert "secret_word" not in str(caught.value)
    assert bucket.files == {}


def test_a_store_without_conditional_writes(bucket, whole, hasty):
    bucket.server.has_conditions = False
    save(bucket.url)
    assert content_there(bucket.files) == whole


def test_a_part_that_is_gone_is_made_again(bucket, whole):
    save(bucket.url, shard=(0, 2))
    gone = next(name for name in bucket.files if name.endswith("text.npy"))
    del bucket.server.files[f"/bucket/data/odd/{gone}"]
    save(bucket.url)
    assert content_there(bucket.files) == whole


def test_a_part_that_goes_while_it_is_saved(bucket, whole):
    def remove(_, path):
        parts = sorted(name for name in bucket.files if name.startswith("part-0"))
        if "saving-00005" in path and "PUT" in bucket.server.requests[-1]:
            bucket.server.fault = lambda number, path: None
            del bucket.server.files[f"/bucket/data/odd/{parts[0]}"]

    bucket.server.fault = remove
    ds = Dataset.range(60).map(lambda i: {"x": i, "image": b"image" * 9})
    with pytest.raises(FileError, match="part-00000-.* was changed while it was being saved. Save"):
        save(bucket.url, ds=ds, part_bytes=300)
    save(bucket.url, ds=ds, part_bytes=300)
    assert len(Dataset.open(bucket.url)) == 60


# Refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "https://me:pw@host/x?sig=1",
            r"cannot save into https://host/x: loaderx only reads from there\. Give a folder, and",
        ),
        (
            "http://host/x",
            r"copy it there when it is complete; or write .save\(url\) with the URL of a bucket",
        ),
        (
            "hf://datasets/me/mine",
            r"cannot save into hf://datasets/me/mine: loaderx only reads from there",
        ),
        ("s3://me:pw@bucket/x", "a URL of s3 has a password in it. Set the variables"),
        ("nonsense://x/y", r"neither loaderx \(s3, .*\) nor fsspec knows 'nonsense'"),
        ("s3:///x", "names no bucket"),
        ("s3://nobucket/x", "there is no bucket or container s3://nobucket"),
    ],
)
def test_urls_that_are_refused(url, message, bucket):
    with pytest.raises((ArgumentError, FileError), match=message) as caught:
        Dataset.range(3).save(url)
    assert "pw" not in str(caught.value)


def test_a_cache_is_refused(bucket):
    with pytest.raises(
        ArgumentError, match=r"save into s3://bucket/x: .cache\(path\) fills folders only\. Give"
    ):
        Dataset.range(3).cache("s3://bucket/x")


def test_folders_with_other_files(bucket):
    bucket.server.files["/bucket/data/odd/notes/a.txt"] = b"mine"
    with pytest.raises(FileError, match="s3://bucket/data/odd: it has other files, such as notes"):
        save(bucket.url)
    assert list(bucket.files) == ["notes/a.txt"]


def test_another_dataset(bucket):
    save(bucket.url, shard=(0, 2))
    message = "odd was begun with another dataset, which has other stages and other values"
    other = Dataset.range(30).map(lambda i: {"image": b"image", "x": i})
    with pytest.raises(FileError, match=message):
        save(bucket.url, ds=other)
    save(bucket.url)
    with pytest.raises(FileError, match="odd has another dataset, which has other stages and"):
        save(bucket.url, ds=other)


def test_parts_of_other_sizes(bucket, whole):
    save(bucket.url, shard=(0, 2))
    save(bucket.url, shard=(1, 2), part_bytes=3 * PART)  # what was begun is gone on with
    assert content_there(bucket.files) == whole


def test_shards_of_a_stream(bucket):
    with pytest.raises(ChainError, match=r"\.save\('s3://bucket/data/odd/1'\)\. Dataset.open"):
        save(bucket.url, shard=(1, 2), ds=ODD.filter(lambda record: True))
