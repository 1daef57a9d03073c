"""`storage_options`: they reach the store and the workers, and nobody else."""

from __future__ import annotations

import base64
import gzip
import io
import pickle
import shutil
import zipfile

import cloudpickle
import numpy as np
import pytest

from file_families import WRITERS
from file_server import serving
from loaderx import DataLoader, Dataset
from loaderx.errors import ArgumentError, ArgumentTypeError, FileError, RecordError

TOKEN = {"headers": {"Authorization": "Bearer secret_word", "X-Team": "secret_word"}}


@pytest.fixture
def url(server, tmp_path):
    """A saved folder that needs a token."""
    Dataset.range(4000).map(lambda i: {"x": i}).save(tmp_path / "data")
    server.add(tmp_path / "data", "data")
    server.password = "Bearer secret_word"
    return f"{server.url}/data/"


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_headers_reach_the_server_from_all_workers(server, url, cache, engine, monkeypatch):
    monkeypatch.setenv("LOADERX_AHEAD_BYTES", "0")  # workers fetch themselves
    dataset = Dataset.open(url, cache=cache, storage_options=TOKEN).shuffle(1).batch(500)
    with DataLoader(dataset, engine=engine, num_workers=2) as loader:
        found = np.sort(np.concatenate([batch["x"] for batch in loader]))
    assert found.tolist() == [*range(4000)]
    assert all(one["X-Team"] == "secret_word" for one in server.headers)


def test_workers_fetch_compressed_lines_with_them(server, tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.jsonl.gz").write_bytes(gzip.compress(b'{"x": 7}\n' * 5))
    server.add(tmp_path / "data")
    server.password = "Bearer secret_word"
    url = f"{server.url}/x.jsonl.gz"
    dataset = Dataset.open(url, cache=False, storage_options=TOKEN).batch(5)
    shutil.rmtree(tmp_path / "cache")
    with DataLoader(dataset, engine="processes", num_workers=1) as loader:
        assert [batch["x"].tolist() for batch in loader] == [[7] * 5]


def test_without_them_access_is_refused(url, cache):
    with pytest.raises(FileError, match=r"403 Forbidden.*storage_options={'headers'"):
        Dataset.open(url + "x.npy", cache=cache)


def test_they_are_not_shown_or_kept(server, url, cache, small_ranges):
    dataset = Dataset.open(url, cache=cache, storage_options=TOKEN)
    with DataLoader(dataset.filter(lambda r: r["x"] < 50).batch(2)) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.counts()
        shown = [repr(dataset), repr(loader), iterator.get_state(), pickle.dumps(dataset)]
        shown += [cloudpickle.dumps(loader)]
    shown += [path.read_bytes() for path in cache.rglob("*") if path.is_file()]
    server.password = "another"
    with pytest.raises(FileError) as refused:
        Dataset.open(url + "x.npy", cache=cache, storage_options=TOKEN)
    assert "secret_word" not in f"{shown} {refused.value!r}"


def test_the_stream_is_the_same_with_another_token(server, url, cache):
    states, batches = [], []
    for token in ("secret_word", "secret_word_2"):
        given = {"headers": {"authorization": f"Bearer {token}"}}
        loader = DataLoader(Dataset.open(url, cache=cache, storage_options=given).batch(7))
        iterator = iter(loader)
        batches.append(next(iterator)["x"].tolist())
        states.append(iterator.get_state())
    assert states[0] == states[1]
    assert batches[0] == batches[1]


def test_a_pickle_reads_what_is_here(url, cache, small_ranges):
    dataset = Dataset.open(url, cache=cache, storage_options=TOKEN)
    assert dataset[0]["x"] == 0
    again = pickle.loads(pickle.dumps(dataset))
    assert again[0]["x"] == 0
    with pytest.raises(RecordError, match="which a pickle of a dataset leaves out"):
        again[3999]


def test_headers_that_loaderx_sets_stay_as_they_are(server, url, cache):
    given = {"headers": {**TOKEN["headers"], "range": "bytes=7-8", "accept-encoding": "gzip"}}
    assert Dataset.open(url, cache=cache, storage_options=given)[3999]["x"] == 3999
    assert not [one for one in server.headers if "7-8" in str(one) or "gzip" in str(one)]


def test_compressed_lines_that_workers_fetch_again(server, cache, monkeypatch):
    monkeypatch.setenv("LOADERX_CACHE", str(cache))
    server.files["/x.txt.gz"] = gzip.compress(b"a\nb\n")
    server.password = "Bearer secret_word"
    found = Dataset.open(f"{server.url}/x.txt.gz", cache=False, storage_options=TOKEN)
    shutil.rmtree(cache)
    with DataLoader(found.batch(2), engine="processes", num_workers=1) as loader:
        assert [batch["text"].tolist() for batch in loader] == [["a", "b"]]


def test_a_redirect_to_another_server_loses_them(server, cache):
    out = io.BytesIO()
    np.save(out, np.arange(3))
    with serving() as other:
        other.files["/x.npy"] = out.getvalue()
        server.redirects["/x.npy"] = f"{other.url}/x.npy"
        found = Dataset.open(f"{server.url}/x.npy", cache=cache, storage_options=TOKEN)
        assert len(found) == 3
        assert server.headers[0]["X-Team"] == "secret_word"
        assert not [one for one in other.headers if "secret_word" in str(one)]


def test_the_password_of_a_url_goes_before_a_header(server, url, cache):
    server.password = base64.b64encode(b"me:word").decode()
    secret = url.replace("http://", "http://me:word@")
    assert len(Dataset.open(secret, cache=cache, storage_options=TOKEN)) == 4000


def test_a_token_of_the_hub(server, cache, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "of_another_account")
    WRITERS["jsonl"](tmp_path / "part", [1, 2])
    server.add(tmp_path, "me/data")
    server.password = "Bearer hf_word"
    url = "hf://datasets/me/data/part.jsonl"
    assert len(Dataset.open(url, cache=cache, storage_options={"token": "hf_word"})) == 2
    with pytest.raises(FileError, match="403 Forbidden"):
        Dataset.open(url, cache=cache)


@pytest.mark.foreign  # obstore keeps threads and connections
@pytest.mark.parametrize(
    "names", [("key", "secret", "endpoint_url"), ("access_key_id", "secret_access_key", "endpoint")]
)
def test_keys_of_s3(server, cache, names, tmp_path, monkeypatch):
    pytest.importorskip("obstore", reason="needs obstore")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    WRITERS["tar"](tmp_path / "part", [1, 2])
    server.add(tmp_path, "bucket")
    server.password = "Credential=me/"
    given = dict(zip(names, ("me", "secret_word", server.url), strict=True))
    found = Dataset.open("s3://bucket", cache=cache, storage_options={**given, "region": "x"})
    with DataLoader(found.batch(2), engine="processes", num_workers=1) as loader:
        assert [len(batch["cls"]) for batch in loader] == [2]
    assert "secret_word" not in str(pickle.dumps(found))


@pytest.mark.foreign
def test_a_public_bucket(server, cache, tmp_path, monkeypatch):
    pytest.importorskip("obstore", reason="needs obstore")
    WRITERS["tar"](tmp_path / "part", [1, 2])
    server.add(tmp_path, "bucket")
    given = {"anon": True, "endpoint_url": server.url, "region": "x"}
    assert len(Dataset.open("s3://bucket", cache=cache, storage_options=given)) == 2
    assert not [one for one in server.headers if "authorization" in map(str.lower, one)]


def test_the_password_of_an_endpoint_of_the_hub(server, cache, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", server.url.replace("http://", "http://me:word@"))
    monkeypatch.setenv("HF_TOKEN_PATH", "/none")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    WRITERS["jsonl"](tmp_path / "part", [1, 2])
    server.add(tmp_path, "me/data")
    server.password = base64.b64encode(b"me:word").decode()
    assert len(Dataset.open("hf://datasets/me/data/part.jsonl", cache=cache)) == 2


@pytest.mark.foreign  # fsspec keeps the file open
def test_options_of_fsspec(cache, tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as out:
        out.writestr("x.txt", "a\nb\n")
    given = {"fo": str(tmp_path / "all.zip")}
    found = Dataset.open("zip://x.txt", cache=cache, storage_options=given)
    assert [one["text"] for one in found] == ["a", "b"]


# Wrong ones -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("x", ArgumentTypeError, r"`storage_options` must be a dict .*, got str\."),
        ({"token": "x"}, ArgumentError, r"http://.*: for http:// `storage_options` may have "
         r"'headers' only, and it has 'token'\."),
        ({7: "x"}, ArgumentTypeError, r"must be a dict with names as keys, .*, got dict\."),
        ({"headers": "x"}, ArgumentTypeError, r"\['headers'\] must be a dict of texts, got str"),
        ({"headers": {"a b": "x"}}, ArgumentError, r"\['headers'\]: 'a b' must be the name "
         "of a header, and its value a text in one line, of characters of latin-1"),
        ({"headers": {"A": "secret\n"}}, ArgumentError, r": 'A' must .* its value a text in one"),
        ({"headers": {"A": "secret €"}}, ArgumentError, r": 'A' must .* its value a text in one"),
        ({"headers": {"a:b": "x"}}, ArgumentError, r"\['headers'\]: 'a:b' must be the name of a"),
        ({"headers": {"A": 7}}, ArgumentError, r": 'A' must .* its value a text in one"),
    ],
)  # fmt: skip
def test_wrong_options(server, cache, given, error, message):
    with pytest.raises(error, match=message) as caught:
        Dataset.open(f"{server.url}/x.npy", cache=cache, storage_options=given)
    assert "secret" not in str(caught.value)
    assert not server.requests


def test_options_of_files_of_this_machine(tmp_path):
    with pytest.raises(ArgumentError, match=r"`storage_options` are for URLs, and .*x.npy is none"):
        Dataset.open(tmp_path / "x.npy", storage_options=TOKEN)


def test_a_wrong_token_of_the_hub():
    with pytest.raises(
        ArgumentError, match=r"\['token'\]: .* its value a text in one line"
    ) as caught:
        Dataset.open("hf://datasets/me/data", storage_options={"token": "secret\n"})
    assert "secret" not in str(caught.value)
