"""Data in the cache folder opens without a network, as the stores described it last."""

from __future__ import annotations

import gzip
import io
import os
import re
import socket
from contextlib import contextmanager
from urllib.parse import urlsplit

import fsspec
import numpy as np
import pytest

from file_families import WRITERS
from file_server import serving
from loaderx import DataLoader, Dataset, LoaderxWarning, cli
from loaderx.errors import FileError, RecordError
from oracle import assert_same

FAMILIES = [name for name in WRITERS if name != "native"]


@pytest.fixture
def hub(server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN_PATH", "/none")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return server


@pytest.fixture
def dead():
    """The address of a server that does not run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("LOADERX_OFFLINE", "1")


@contextmanager
def nobody_at(url):
    """The address of a server that has ended, which no other one gets."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", urlsplit(url).port))
        yield


def npy(*values):
    out = io.BytesIO()
    np.save(out, np.array(values))
    return out.getvalue()


def xs(dataset):
    return [int(one["x"]) for one in dataset]


def stream(dataset):
    return dataset.shuffle(3).batch(4).repeat(2)


def batches(dataset, engine="inline"):
    with DataLoader(stream(dataset), engine=engine, num_workers=2) as loader:
        return list(loader)


@pytest.mark.parametrize("family", WRITERS)
def test_a_folder_of_the_hub(family, hub, tmp_path, cache, monkeypatch):
    (tmp_path / "data").mkdir()
    for n in range(3 if family != "native" else 1):
        WRITERS[family](tmp_path / "data" / f"part-{n}", [*range(5 * n, 5 * n + 5)])
    hub.add(tmp_path / "data", "me/data")
    url = "hf://datasets/me/data" + ("/part-0" if family == "native" else "")
    expected = batches(Dataset.open(url, cache=cache))
    count = len(hub.requests)
    monkeypatch.setenv("LOADERX_OFFLINE", "1")
    assert_same(batches(Dataset.open(url, cache=cache)), expected)
    assert len(hub.requests) == count
    monkeypatch.delenv("LOADERX_OFFLINE")
    hub.fault = lambda number, path: 503
    with pytest.warns(
        LoaderxWarning, match=r"^hf://datasets gives no answer \(the server answered"
    ):
        again = Dataset.open(url, cache=cache)
    assert_same(batches(again, "processes" if family in ("csv", "native") else "threads"), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_files_of_a_web_server_that_is_gone(family, tmp_path, cache):
    (tmp_path / "data").mkdir()
    WRITERS[family](tmp_path / "data" / "part-0", [*range(9)])
    with serving() as server:
        server.add(tmp_path / "data")
        url = [server.url + path for path in server.files]
        expected = batches(Dataset.open(url, cache=cache))
    with nobody_at(server.url), pytest.warns(LoaderxWarning) as caught:
        again = Dataset.open(url, cache=cache)
    assert len(caught) == 1
    assert re.fullmatch(
        rf"{server.url} gives no answer \(127.0.0.1:\d+ cannot be reached: Connection refused\). "
        rf"What the cache folder {cache} has of it is used, as the server described it on "
        r"\d{4}-\d\d-\d\d \d\d:\d\d UTC; newer data is not seen. Set LOADERX_OFFLINE=1 to use that "
        "folder alone, without a warning.",
        str(caught[0].message),
    )
    if len(url) == 1:  # several are looked up by threads, which have no line of the user
        assert caught[0].filename == __file__
    assert_same(batches(again), expected)


@pytest.mark.parametrize("name", ["table.csv.gz", "table.jsonl.gz"])
def test_packed_files(name, tmp_path, cache, monkeypatch):
    kind = name.split(".")[1]
    WRITERS[kind](tmp_path / "table", [*range(9)])
    with serving() as server:
        server.files[f"/{name}"] = gzip.compress((tmp_path / f"table.{kind}").read_bytes())
        url = f"{server.url}/{name}"
        expected = batches(Dataset.open(url, cache=cache))
    monkeypatch.setenv("LOADERX_OFFLINE", "1")
    assert_same(batches(Dataset.open(url, cache=cache)), expected)


def test_a_saved_folder_of_a_web_server(tmp_path, cache, monkeypatch):
    Dataset.range(40).map(lambda i: {"x": i, "t": str(i)}).save(tmp_path / "data")
    with serving() as server:
        server.add(tmp_path / "data", "data")
        expected = batches(Dataset.open(f"{server.url}/data/", cache=cache))
    monkeypatch.setenv("LOADERX_OFFLINE", "1")
    assert_same(batches(Dataset.open(f"{server.url}/data/", cache=cache)), expected)


@pytest.mark.foreign  # obstore keeps threads and connections
def test_a_bucket(cache, monkeypatch, tmp_path):
    pytest.importorskip("obstore", reason="needs obstore")
    monkeypatch.setattr("loaderx.sources.remote.object_store.RETRIES", {"max_retries": 0})
    for name, value in {"ACCESS_KEY_ID": "me", "SECRET_ACCESS_KEY": "word", "REGION": "x"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    for n in range(2):
        WRITERS["tar"](tmp_path / f"part-{n}", [n, n + 10])
    with serving() as server:
        server.add(tmp_path, "bucket")
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        expected = batches(Dataset.open("s3://bucket/*.tar", cache=cache))
    warns = pytest.warns(LoaderxWarning, match="^s3://bucket gives no answer")
    with nobody_at(server.url), warns:
        assert_same(batches(Dataset.open("s3://bucket/*.tar", cache=cache)), expected)
    monkeypatch.setenv("LOADERX_OFFLINE", "1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    assert_same(batches(Dataset.open("s3://bucket", cache=cache)), expected)


def test_fsspec(cache, monkeypatch):
    files = fsspec.filesystem("memory")
    files.pipe("/answers/a.npy", npy(1, 2))
    expected = batches(Dataset.open("memory://answers/*.npy", cache=cache))
    files.rm("/answers", recursive=True)
    monkeypatch.setenv("LOADERX_OFFLINE", "1")
    assert_same(batches(Dataset.open("memory://answers/*.npy", cache=cache)), expected)
    with pytest.raises(FileError, match=r"^memory://answers cannot be written to: LOADERX_OFFLINE"):
        Dataset.range(3).map(lambda i: {"x": i}).save("memory://answers")


# What is not there ------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["hf://datasets/me/none", "http://localhost:1/x.npy", "s3://b/x"])
def test_what_was_never_opened(url, cache, offline, pauses):
    with pytest.raises(FileError) as caught:
        Dataset.open(url, cache=cache)
    assert str(caught.value) == (
        f"{url} is not, or only in part, in the cache folder {cache}, and no server is asked "
        "because LOADERX_OFFLINE is set. Read it once without LOADERX_OFFLINE, or give the folder "
        "that has it with `cache=` or LOADERX_CACHE."
    )
    assert not pauses


def test_records_that_were_never_read(server, tmp_path, cache, small_ranges, monkeypatch):
    Dataset.range(4000).map(lambda i: {"x": i}).save(tmp_path / "data")
    server.add(tmp_path / "data", "data")
    assert Dataset.open(f"{server.url}/data/", cache=cache)[3]["x"] == 3
    monkeypatch.setenv("LOADERX_OFFLINE", "true")
    again = Dataset.open(f"{server.url}/data/", cache=cache)
    assert again[3]["x"] == 3
    with pytest.raises(RecordError, match=r"/data/.* is not, or only in part, in the cache folder"):
        again[3999]
    monkeypatch.setenv("LOADERX_OFFLINE", "0")
    assert Dataset.open(f"{server.url}/data/", cache=cache)[3999]["x"] == 3999


def test_the_server_says_that_a_file_is_gone(server, cache):
    server.files["/x.npy"] = npy(1)
    Dataset.open(f"{server.url}/x.npy", cache=cache)
    server.fault = lambda number, path: 403
    with pytest.raises(FileError, match="the server refused access"):
        Dataset.open(f"{server.url}/x.npy", cache=cache)
    server.fault = lambda number, path: 404
    with pytest.raises(FileError, match=r"there is no file .*/x.npy \(404\)"):
        Dataset.open(f"{server.url}/x.npy", cache=cache)


def test_the_last_version_that_was_seen(server, cache, monkeypatch):
    for values in ([1, 2], [3, 4]):
        server.files["/x.npy"] = npy(*values)
        assert xs(Dataset.open(f"{server.url}/x.npy", cache=cache)) == values
    monkeypatch.setenv("LOADERX_OFFLINE", "1")
    assert xs(Dataset.open(f"{server.url}/x.npy", cache=cache)) == [3, 4]


# The folder of answers --------------------------------------------------------------------------


def answers(cache):
    return sorted((cache / "answers").iterdir())


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"[" * 90_000, b'[0, "[1]"]', "a byte", "link"]
)
def test_damaged_answers_are_none(server, cache, damage, monkeypatch, tmp_path):
    server.files["/x.npy"] = npy(1, 2)
    Dataset.open(f"{server.url}/x.npy", cache=cache)
    (kept,) = answers(cache)
    text = kept.read_bytes()
    if damage == "link":
        kept.rename(tmp_path / "elsewhere")
        kept.symlink_to(tmp_path / "elsewhere")
    else:
        kept.write_bytes(text.replace(b" 144,", b" 145,") if damage == "a byte" else damage)
        assert kept.read_bytes() != text
    monkeypatch.setenv("LOADERX_OFFLINE", "1")
    with pytest.raises(FileError, match="is not, or only in part, in the cache folder"):
        Dataset.open(f"{server.url}/x.npy", cache=cache)
    monkeypatch.delenv("LOADERX_OFFLINE")
    assert len(Dataset.open(f"{server.url}/x.npy", cache=cache)) == 2


def test_answers_are_private_and_hold_no_secrets(server, cache):
    server.files["/x.npy"] = npy(1, 2)
    secret = server.url.replace("http://", "http://me:word@") + "/x.npy?sig=secret&id=hidden"
    Dataset.open(secret, cache=cache)
    (kept,) = answers(cache)
    assert not re.search("word|secret|hidden", kept.read_text())
    assert os.stat(kept).st_mode & 0o077 == os.stat(kept.parent).st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_written_to(server, cache):
    server.files["/x.npy"] = npy(1, 2)
    cache.mkdir()
    (cache / "answers").write_text("a file")
    assert len(Dataset.open(f"{server.url}/x.npy", cache=cache)) == 2


def test_the_command_lists_and_removes_them(server, cache, capsys):
    server.files["/x.npy"] = npy(1, 2)
    Dataset.open(f"{server.url}/x.npy", cache=cache)
    assert cli.main(["cache", "--cache", str(cache)]) == 0
    assert re.search(r"answers +what servers have said\n", capsys.readouterr().out)
    assert cli.main(["cache", "--cache", str(cache), "--clear"]) == 0
    assert not (cache / "answers").exists()
    assert len(Dataset.open(f"{server.url}/x.npy", cache=cache)) == 2


def test_a_file_of_a_listing_that_was_seen(hub, cache, tmp_path, monkeypatch):
    for n in range(2):
        WRITERS["jsonl"](tmp_path / f"part-{n}", [n])
    hub.add(tmp_path, "me/data")
    url = "hf://datasets/me/data"
    assert xs(Dataset.open(f"{url}/*.jsonl", cache=cache)) == [0, 1]
    monkeypatch.setenv("LOADERX_OFFLINE", "1")
    assert xs(Dataset.open(f"{url}/part-1.jsonl", cache=cache)) == [1]
    assert xs(Dataset.open(url, cache=cache)) == [0, 1]
    with pytest.raises(FileError, match=r"part-2.jsonl is not, or only in part, in the cache"):
        Dataset.open(f"{url}/part-2.jsonl", cache=cache)


def test_workers_that_meet_what_is_not_there(server, tmp_path, cache, monkeypatch):
    Dataset.range(4000).map(lambda i: {"x": i}).save(tmp_path / "data")
    server.add(tmp_path / "data", "data")
    assert Dataset.open(f"{server.url}/data/", cache=cache)
    monkeypatch.setenv("LOADERX_OFFLINE", "1")
    again = Dataset.open(f"{server.url}/data/", cache=cache).batch(8)
    with (
        DataLoader(again, engine="processes", num_workers=1) as loader,
        pytest.raises(RecordError, match="because LOADERX_OFFLINE is set"),
    ):
        next(iter(loader))
