"""Datasets of the hub, of which a server on loopback plays the part."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest

from file_families import WRITERS
from file_server import COMMIT, serving
from loaderx import Dataset
from loaderx.errors import ArgumentError, FileError, LoaderxError

README = b"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/part-*
---
"""


WRITTEN = io.BytesIO()
np.save(WRITTEN, np.arange(5))


@pytest.fixture
def hub(server, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    for name in ("HF_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "repository"
    (folder / "data").mkdir(parents=True)
    for n in range(4):
        WRITERS["jsonl"](folder / "data" / f"part-{n}", [n])
    (folder / "README.md").write_bytes(README)
    (folder / "other.parquet").write_bytes(b"PAR1")
    server.add(folder, "me/data")
    return server


def xs(dataset):
    return [int(one["x"]) for one in dataset]


def test_the_readme_names_the_splits(hub, cache):
    assert xs(Dataset.open("hf://datasets/me/data", split="train", cache=cache)) == [0, 1, 2, 3]
    resolved = {one for one in hub.requests if "/resolve/" in one}
    assert all(f"/resolve/{COMMIT}/" in one for one in resolved)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("me/data/data/part-2.jsonl", [2]),
        ("me/data/data/part-{1,3}.jsonl", [1, 3]),
        ("me/data/data/*.jsonl", [0, 1, 2, 3]),
        ("me/data/**/part-[01].jsonl", [0, 1]),
        ("me/data@main/data", [0, 1, 2, 3]),
        (f"me/data@{COMMIT}/data/part-?.jsonl", [0, 1, 2, 3]),
    ],
)
def test_files_folders_and_patterns(hub, cache, path, expected):
    assert xs(Dataset.open(f"hf://datasets/{path}", cache=cache)) == expected


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("hf://datasets/me/none", FileError, "the hub has no such dataset or revision"),
        ("hf://datasets/me/data@none", FileError, "the hub has no such dataset or revision"),
        ("hf://datasets/me/data/none.npy", FileError, "there is no file or folder .*none.npy"),
        ("hf://datasets/me/data/none-*", FileError, "no file matches hf://.*none-"),
        ("hf://me/data", ArgumentError, "write hf://datasets/owner/name"),
    ],
)
def test_what_is_not_there(hub, cache, url, error, message):
    with pytest.raises(error, match=message):
        Dataset.open(url, cache=cache)


@pytest.mark.parametrize(
    "answer",
    [
        b"{}", b"[1]", b'[{"type": "file"}]', b'{"a', b"", b"[" * 100_000,
        b'[{"type": "file", "path": "\\ud800", "size": 1, "oid": "0"}]',
        b'[{"type": "file", "path": "a", "size": -1, "oid": "0"}]',
        b'[{"type": "file", "path": "a", "size": ' + b"9" * 5000 + b', "oid": "0"}]',
    ],
)  # fmt: skip
def test_answers_that_are_not_understood(hub, cache, answer):
    hub.files[f"/api/datasets/me/data/tree/{COMMIT}"] = answer
    with pytest.raises(FileError, match=r"of files is not understood|is not JSON \(6 attempts"):
        Dataset.open("hf://datasets/me/data", cache=cache)


def test_the_hub_sends_us_elsewhere(hub, cache, monkeypatch, small_ranges):
    monkeypatch.setattr("loaderx.sources.remote.transfer.CONCURRENCY", 1)
    monkeypatch.setenv("HF_TOKEN", "hf_word")
    data = b"".join(b'{"x": %d}\n' % n for n in range(1000))
    hub.files["/me/data/data/part-0.jsonl"] = data
    with serving() as cdn:
        cdn.files.update(hub.files)
        hub.cdn = cdn.url
        expired = iter([True])
        cdn.fault = lambda number, path: 403 if number == 5 and next(expired, False) else None
        dataset = Dataset.open("hf://datasets/me/data/data/part-0.jsonl", cache=cache)
        assert xs(dataset) == [*range(1000)]
        assert cdn.fetched_twice() == {}
        assert not [one for one in cdn.headers if "Authorization" in one]
    asked = [one for one in hub.requests if "/resolve/" in one]
    assert len(asked) == 2  # at first, and when the address had expired


def test_a_mirror_without_ranges(hub, cache):
    hub.has_ranges = False
    assert xs(Dataset.open("hf://datasets/me/data/data/*.jsonl", cache=cache)) == [0, 1, 2, 3]
    hub.files["/me/data/data/part-0.jsonl"] = b'{"x": 1}\n' * 100
    assert len(Dataset.open("hf://datasets/me/data/data/part-0.jsonl", cache=cache)) == 100


@pytest.mark.parametrize("by", ["variable", "file"])
def test_the_token_goes_to_the_hub(hub, cache, monkeypatch, tmp_path, by):
    hub.password = "hf_word"
    with pytest.raises(FileError, match=r"refused access|does not show it to you"):
        Dataset.open("hf://datasets/me/data", cache=cache)
    if by == "variable":
        monkeypatch.setenv("HF_TOKEN", "hf_word")
    else:
        os.makedirs(tmp_path / "home")
        (tmp_path / "home" / "token").write_text("hf_word\n")
    dataset = Dataset.open("hf://datasets/me/data", split="train", cache=cache)
    assert xs(dataset) == [0, 1, 2, 3]
    assert "hf_word" not in repr(dataset)


@pytest.mark.parametrize("name", ["part-0.jsonl", "part-0.npy"])
def test_other_bytes_than_the_hub_lists_are_refused(hub, cache, name):
    good = hub.files["/me/data/data/part-0.jsonl"]
    if name.endswith(".npy"):
        good = WRITTEN.getvalue()
    hub.files[f"/me/data/data/{name}"] = good
    bad = good[:-2] + bytes([good[-2] ^ 1]) + good[-1:]
    with serving() as cdn:
        cdn.files[f"/me/data/data/{name}"] = bad
        hub.cdn = cdn.url
        url = f"hf://datasets/me/data/data/{name}"
        with pytest.raises(
            LoaderxError, match=r"what came is not what the server lists: its SHA-256"
        ):
            list(Dataset.open(url, cache=cache))
        cdn.files[f"/me/data/data/{name}"] = good  # nothing of the bad one was kept
        assert len(list(Dataset.open(url, cache=cache))) > 0


@pytest.mark.parametrize("to", ["itself", "another"])
def test_pages_that_do_not_end(hub, cache, monkeypatch, to):
    path = f"/api/datasets/me/data/tree/{COMMIT}"
    hub.pages[path] = f"{path}?recursive=true"
    if to == "another":
        monkeypatch.setattr("loaderx.sources.remote.hub_store.MOST_PAGES", 1)
        hub.pages[path] = f"{path}?recursive=true&cursor=1"
    with pytest.raises(FileError, match="the hub's list of files does not end: after 1 pages it"):
        Dataset.open("hf://datasets/me/data", cache=cache)


def test_an_answer_without_end(hub, cache, monkeypatch):
    monkeypatch.setattr("loaderx.sources.remote.hub_store.MOST_BYTES", 20)
    with pytest.raises(FileError, match="an answer of the hub has more than 20 bytes"):
        Dataset.open("hf://datasets/me/data", cache=cache)


def test_a_private_dataset_that_was_renamed(hub, cache, monkeypatch, small_ranges):
    """The hub answers its old name with a redirect to the new one, on the same server."""
    monkeypatch.setenv("HF_TOKEN", "hf_word")
    hub.password = "hf_word"
    for at in ("revision/main", f"tree/{COMMIT}"):
        hub.redirects[f"/api/datasets/me/old/{at}"] = f"/api/datasets/me/data/{at}?recursive=true"
    data = b"".join(b'{"x": %d}\n' % n for n in range(1000))
    hub.files["/me/data/data/part-0.jsonl"] = data
    for name in ("README.md", *(f"data/part-{n}.jsonl" for n in range(4))):
        at = f"resolve/{COMMIT}/{name}"
        hub.redirects[f"/datasets/me/old/{at}"] = f"/datasets/me/data/{at}"
    dataset = Dataset.open("hf://datasets/me/old/data/part-0.jsonl", cache=cache)
    assert xs(dataset) == [*range(1000)]
    assert all("hf_word" in one["Authorization"] for one in hub.headers)
