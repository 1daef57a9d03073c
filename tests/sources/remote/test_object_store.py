"""Object stores: a server on loopback speaks as much of S3 as is needed to read."""

from __future__ import annotations

import os
import sys

import pytest

from file_families import WRITERS
from loaderx import DataLoader, Dataset
from loaderx.errors import FileError, MissingPackageError, RecordError
from oracle import assert_same

pytestmark = pytest.mark.foreign  # obstore keeps threads and connections


@pytest.fixture
def bucket(server, monkeypatch, tmp_path):
    pytest.importorskip("obstore", reason="needs obstore")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret_word")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    folder = tmp_path / "data"
    for split in ("train", "test"):
        (folder / "set" / split).mkdir(parents=True)
        for n in range(3):
            WRITERS["parquet"](folder / "set" / split / f"part {n}", [n, n + 10])
    WRITERS["native"](folder / "native", list(range(20)))
    (folder / "pictures").mkdir()
    for n in range(2):
        WRITERS["images"](folder / "pictures" / f"class {n}", [n, n + 2, n + 4])
    server.add(folder, "bucket")
    return folder


def stream(dataset):
    return dataset.shuffle(5).batch(3).repeat(2)


@pytest.mark.parametrize("name", ["set/train", "set/test/*.parquet", "native", "pictures"])
def test_folders_and_patterns(bucket, server, cache, name):
    expected = list(DataLoader(stream(Dataset.open(bucket / name)), engine="inline"))
    made = stream(Dataset.open(f"s3://bucket/{name}", cache=cache))
    assert_same(DataLoader(made, engine="inline"), expected)
    assert server.fetched_twice() == {}


def test_splits(bucket, cache):
    assert len(Dataset.open("s3://bucket/set", split="train[:50%]+test", cache=cache)) == 9


def test_workers(bucket, server, cache):
    expected = list(DataLoader(stream(Dataset.open(bucket / "native")), engine="inline"))
    made = stream(Dataset.open("s3://bucket/native", cache=cache))
    with DataLoader(made, engine="processes", num_workers=2) as loader:
        assert_same(loader, expected)
    assert server.fetched_twice() == {}


def test_ranges_and_failures(bucket, server, cache, small_ranges, monkeypatch):
    expected = list(DataLoader(stream(Dataset.open(bucket / "native")), engine="inline"))
    server.fault = lambda number, path: [None, 503, None, None][number % 4]
    made = stream(Dataset.open("s3://bucket/native", cache=cache))
    assert_same(DataLoader(made, engine="inline"), expected)
    assert server.fetched_twice() == {}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket/none", r"there is no file or folder s3://bucket/none"),
        ("s3://nobucket/x", r"there is no bucket or container s3://nobucket"),
        ("s3:///x", r"names no bucket"),
        ("s3://bucket/none-*", r"no file matches s3://bucket/none-"),
    ],
)
def test_what_is_not_there(bucket, cache, url, message):
    with pytest.raises(FileError, match=message):
        Dataset.open(url, cache=cache)


def test_credentials_that_are_refused(bucket, server, cache):
    server.password = "nobody"
    with pytest.raises(FileError, match=r"the store refused access. .*AWS_ACCESS_KEY_ID") as caught:
        Dataset.open("s3://bucket/native", cache=cache)
    assert "secret_word" not in str(caught.value)


def test_a_file_that_changes(bucket, server, cache):
    def change(number, path):
        if path.endswith("x.npy") and "GET" in server.requests[-1]:
            server.files[path] = bytes(len(server.files[path]))

    server.fault = change
    made = Dataset.open("s3://bucket/native", cache=cache)
    with pytest.raises(RecordError, match=r"has changed since the dataset was opened: its ETag"):
        made[0]


@pytest.fixture
def keyless(monkeypatch, tmp_path):
    """A machine of nobody's cloud, without keys; the folder where it would tell its maker."""
    pytest.importorskip("obstore", reason="needs obstore")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("loaderx.sources.remote.object_store.MACHINE", str(tmp_path))
    monkeypatch.setattr("loaderx.sources.remote.object_store.RETRIES", {"max_retries": 0})
    return tmp_path


def test_without_keys_nobody_is_asked(keyless, server, cache, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    (keyless / "sys_vendor").write_text("QEMU\n")
    with pytest.raises(FileError, match="no keys are set"):
        Dataset.open("s3://bucket/x", cache=cache, storage_options={"anon": False})
    with pytest.raises(FileError) as caught:
        Dataset.open("s3://bucket/x", cache=cache)
    assert str(caught.value) == (
        "s3://bucket: no keys are set for it. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
        "(`aws configure export-credentials --format env` prints those of ~/.aws, which is not "
        "read), or give storage_options={'key': ..., 'secret': ...}. A public bucket needs none: "
        "set AWS_SKIP_SIGNATURE=true, or give storage_options={'anon': True}. If this machine has "
        "a role, set AWS_METADATA_ENDPOINT=http://169.254.169.254."
    )
    assert not server.requests


ROLE = {
    "/latest/api/token": b"word",
    "/latest/meta-data/iam/security-credentials/": b"role",
    "/latest/meta-data/iam/security-credentials/role": b"""{
        "AccessKeyId": "me", "SecretAccessKey": "word", "Token": "word", "Code": "Success",
        "Expiration": "2126-01-01T00:00:00Z"}""",
}


def test_the_role_of_a_machine(keyless, server, cache, monkeypatch):
    """AWS_METADATA_ENDPOINT says that there is one."""
    server.files.update(ROLE)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", server.url)
    with pytest.raises(FileError, match="there is no bucket or container s3://none"):
        Dataset.open("s3://none/*.tar", cache=cache)
    assert "Credential=me/" in server.headers[-1]["authorization"]


@pytest.mark.parametrize(
    ("name", "told"), [("sys_vendor", "Amazon EC2\n"), ("bios_version", "4.11.amazon\n")]
)
def test_machines_of_ec2_may_have_a_role(keyless, cache, name, told, monkeypatch):
    (keyless / name).write_text(told)
    monkeypatch.setenv("AWS_REGION", "nowhere\n")  # refused by obstore before anything is asked
    with pytest.raises(FileError) as caught:
        Dataset.open("s3://bucket/x", cache=cache)
    assert "no keys are set" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ],
)
def test_containers_may_have_a_role(keyless, cache, name, monkeypatch):
    monkeypatch.setenv(name, "/none")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(FileError) as caught:
        Dataset.open("s3://bucket/x", cache=cache)
    assert "no keys are set" not in str(caught.value)


def test_without_the_package(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'loaderx-jax\[remote\]'"):
        Dataset.open("s3://bucket/x", cache=cache)
