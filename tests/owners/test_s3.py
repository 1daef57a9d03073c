"""S3 as moto plays it, read and written through obstore: streams and files are the local ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from file_families import WRITERS
from loaderx import DataLoader, Dataset
from loaderx.errors import FileError
from oracle import assert_same
from saved_records import content, content_there

pytestmark = [pytest.mark.owners, pytest.mark.foreign]

COUNT, BUCKET = 24, "bucket-{}"


class Bucket(NamedTuple):
    client: object
    name: str


@pytest.fixture
def bucket(monkeypatch):
    boto3 = pytest.importorskip("boto3", reason="needs boto3")
    moto_server = pytest.importorskip("moto.server", reason="needs moto[server]")
    pytest.importorskip("obstore", reason="needs obstore")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "secret_word",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket=BUCKET.format(port))  # moto has one memory for all servers
    yield Bucket(client, BUCKET.format(port))
    server.stop()


def upload(bucket, folder):
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            key = f"data/{file.relative_to(folder).as_posix()}"
            bucket.client.put_object(Bucket=bucket.name, Key=key, Body=file.read_bytes())


def stream(dataset):
    return dataset.shuffle(5).batch(8).repeat(2)


@pytest.mark.parametrize("family", WRITERS)
def test_every_family(bucket, tmp_path, family):
    folder = tmp_path / "data"
    folder.mkdir()
    bounds = [(0, COUNT)] if family == "native" else [(0, 7), (7, 15), (15, COUNT)]
    for number, (start, stop) in enumerate(bounds):
        WRITERS[family](folder / f"part-{number}", list(range(start, stop)))
    upload(bucket, folder)
    below = "/part-0" if family == "native" else ""
    expected = list(DataLoader(stream(Dataset.open(f"{folder}{below}")), engine="inline"))
    made = stream(Dataset.open(f"s3://{bucket.name}/data{below}", cache=tmp_path / "cache"))
    assert_same(DataLoader(made, engine="inline"), expected)
    with DataLoader(made, engine="processes", num_workers=2) as loader:
        assert_same(loader, expected)


def test_many_files(bucket, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for n in range(1100):  # more than a page of the listing
        (folder / f"{n}.txt").write_text(f"{n}\n")
    upload(bucket, folder)
    dataset = Dataset.open(f"s3://{bucket.name}/data", cache=tmp_path / "cache")
    assert [one["text"] for one in dataset] == [str(n) for n in range(1100)]


def test_what_is_not_there(bucket, tmp_path):
    with pytest.raises(FileError, match="there is no bucket or container s3://nobucket"):
        Dataset.open("s3://nobucket/x", cache=tmp_path / "cache")
    with pytest.raises(FileError, match="there is no file or folder s3://bucket-.*/none"):
        Dataset.open(f"s3://{bucket.name}/none", cache=tmp_path / "cache")


def odd(index):
    """Of another type late, in no record of the sample."""
    number = int(index)
    return {"x": np.arange(4 if number == 91 else 3) + number, "t": "t" * (number % 5)}


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_what_is_saved_is_what_is_saved_locally(bucket, tmp_path, engine):
    ds, url = Dataset.range(100).map(odd), f"s3://{bucket.name}/saved"
    ds.save(tmp_path / "local", part_bytes=300, engine="inline")
    for index in range(2):  # as if the first had been stopped
        ds.save(url, part_bytes=300, engine=engine, num_workers=1, shard=(index, 2))
    pages = bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name)
    keys = [one["Key"] for page in pages for one in page["Contents"]]
    found = {
        key.removeprefix("saved/"): bucket.client.get_object(Bucket=bucket.name, Key=key)["Body"]
        for key in keys
    }
    there = content_there({name: body.read() for name, body in found.items()})
    assert there == content(tmp_path / "local")
    assert_same(Dataset.open(url, cache=tmp_path / "cache").map(dict), [*ds])


def test_a_large_file_in_pieces(bucket, tmp_path):
    ds, url = Dataset.from_arrays(x=np.arange(1_500_000)), f"s3://{bucket.name}/saved"
    ds.save(url, engine="inline")
    ds.save(url)  # is complete
    opened = Dataset.open(url, cache=tmp_path / "cache")
    np.testing.assert_array_equal(opened.batch(1_500_000)[0]["x"], np.arange(1_500_000))
    with pytest.raises(FileError, match="saved has another dataset"):
        Dataset.range(5).save(url)
