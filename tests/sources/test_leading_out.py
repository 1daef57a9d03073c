"""Names in descriptions stay below their folder; what came from a URL names no local file."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest

from file_server import serving
from loaderx import Dataset
from loaderx.errors import FileError, RecordError
from loaderx.sources.files.paths import is_below
from loaderx.sources.format import Folder
from loaderx.sources.formats.tf.tfds import read_info

FILES = Path(__file__).parents[1] / "files"
OUT = ["/etc/hostname", "../x.mds", "a/../../x.mds", "..", ".", "", "C:\\x.mds", "C:/x", "\\x",
       None, "s3://bucket/x", "..\\x.mds", 7, "x\0.mds"]  # fmt: skip


@pytest.mark.parametrize("name", OUT)
@pytest.mark.parametrize("path", ["/data/set", "hf://datasets/me/data"])
def test_names_that_lead_out(path, name):
    with pytest.raises(FileError) as caught:
        Folder(path).join(name)
    assert f"a description in {path} has {name!r} where the name of a file or folder below" in str(
        caught.value
    )


@pytest.mark.parametrize("name", ["x.mds", "a/x.mds", "./x", "a..b", "é x", "C:", "..a/b"])
def test_names_that_stay_below(name):
    assert Folder("/data").join(name) == f"/data/{name}"
    assert Folder("hf://datasets/me/x").join(name) == f"hf://datasets/me/x/{name}"
    assert is_below(name)


@pytest.mark.parametrize("name", ["../secret.mds", "/etc/hostname"])
def test_an_index_of_mds(tmp_path, name):
    folder = tmp_path / "set"
    shutil.copytree(next(one for one in FILES.rglob("index.json")).parent, folder)
    told = json.loads((folder / "index.json").read_text())
    told["shards"][0]["raw_data"]["basename"] = name
    (folder / "index.json").write_text(json.dumps(told))
    with pytest.raises(FileError, match="where the name of a file or folder below it is expected"):
        Dataset.open(folder, format="mds")


def test_a_template_of_tfds(tmp_path):
    split = {"name": "train", "shardLengths": ["1"], "filepathTemplate": "../{SPLIT}"}
    info = {"name": "x", "splits": [split]}
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(FileError, match=r"has '\.\./train' where the name of a file"):
        read_info(Folder(str(tmp_path)))


def test_links_of_the_user_are_followed(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "x.npy").symlink_to(tmp_path / "x.npy")
    assert len(Dataset.open(tmp_path / "set")) == 3


# Arrow ------------------------------------------------------------------------------------------

FEATURES = {"info": {"features": {"image": {"_type": "Image"}}}}


def write_image(path, told):
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    told = pa.array([told], pa.list_(kind) if isinstance(told, list) else kind)
    features = FEATURES
    if pa.types.is_list(told.type):
        features = {"info": {"features": {"image": [{"_type": "Image"}]}}}
    schema = pa.schema([("image", told.type)], {b"huggingface": json.dumps(features).encode()})
    table = pa.table([told], schema=schema)
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_stream(out, schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("in_list", [False, True])
def test_an_arrow_file_behind_a_url_names_no_local_file(tmp_path, is_packed, in_list):
    (tmp_path / "id_rsa").write_bytes(b"ssh key")
    told = {"bytes": None, "path": str(tmp_path / "id_rsa")}
    write_image(tmp_path / "x.arrow", [told] if in_list else told)
    content, name = (tmp_path / "x.arrow").read_bytes(), "/x.arrow"
    if is_packed:
        content, name = gzip.compress(content), "/x.arrow.gz"
    with serving() as server:
        server.files[name] = content
        with pytest.raises((RecordError, FileError)) as caught:
            list(Dataset.open(server.url + name, decode=False, cache=tmp_path / "cache"))
    assert "data behind a URL must not name files of this machine" in str(caught.value)
    assert "ssh key" not in str(caught.value)


def test_an_arrow_file_of_this_machine_may_name_others(tmp_path):
    (tmp_path / "x.png").write_bytes(b"an image")
    write_image(tmp_path / "x.arrow", {"bytes": None, "path": str(tmp_path / "x.png")})
    dataset = Dataset.open(tmp_path / "x.arrow", decode=False, cache=tmp_path / "cache")
    assert dataset[0]["image"] == b"an image"


# HDF5 -------------------------------------------------------------------------------------------


@pytest.fixture
def rows(tmp_path):
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"] = np.arange(4)
    return tmp_path / "rows.h5"


def write_virtual(path, source):
    layout = h5py.VirtualLayout((4,), "i8")
    layout[:] = h5py.VirtualSource(str(source), "x", (4,), "i8")
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("v", layout)


def test_virtual_datasets_of_files_below(tmp_path, rows):
    write_virtual(tmp_path / "v.h5", "rows.h5")
    assert [int(one["v"]) for one in Dataset.open(tmp_path / "v.h5")] == [0, 1, 2, 3]


def test_virtual_datasets_of_files_that_are_only_in_the_current_folder(tmp_path, rows, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    write_virtual(tmp_path / "below" / "v.h5", "rows.h5")
    with pytest.raises(
        FileError, match=r"is a virtual dataset of 'rows\.h5', which is not in .*below"
    ):
        Dataset.open(tmp_path / "below" / "v.h5")


@pytest.mark.parametrize("is_absolute", [False, True])
def test_virtual_datasets_of_files_elsewhere(tmp_path, rows, is_absolute):
    (tmp_path / "below").mkdir()
    write_virtual(tmp_path / "below" / "v.h5", rows if is_absolute else "../rows.h5")
    with pytest.raises(FileError, match=r"is a virtual dataset of '.*rows\.h5': it may name only"):
        Dataset.open(tmp_path / "below" / "v.h5")


@pytest.mark.parametrize("name", ["v.h5", "v.h5.gz"])
def test_virtual_datasets_behind_a_url(tmp_path, rows, name):
    write_virtual(tmp_path / "v.h5", "rows.h5")
    content = (tmp_path / "v.h5").read_bytes()
    with serving() as server:
        server.files[f"/{name}"] = gzip.compress(content) if name.endswith(".gz") else content
        with pytest.raises(FileError, match="in a file that was downloaded or unpacked"):
            Dataset.open(f"{server.url}/{name}", cache=tmp_path / "cache")


def test_external_storage(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret words")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (12,), "u1", external=[(str(tmp_path / "secret"), 0, 12)])
    with pytest.raises(FileError, match=r"dataset 'x' lies in another file \(external storage\)"):
        Dataset.open(tmp_path / "x.h5")


def test_external_links_are_not_followed(tmp_path, rows):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["y"] = np.arange(3)
        file["link"] = h5py.ExternalLink(str(rows), "/x")
    assert [*Dataset.open(tmp_path / "x.h5")[0]] == ["y"]
    with pytest.raises(ValueError, match="has no column 'link'"):
        Dataset.open(tmp_path / "x.h5", columns=["link"])
