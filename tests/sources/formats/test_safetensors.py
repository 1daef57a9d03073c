"""safetensors files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from loaderx import Dataset
from loaderx.errors import FileError
from loaderx.sources.open.opening import open_path
from loaderx.testing import SourceContract

NAMES = {"<f8": "F64", "<f4": "F32", "<i8": "I64", "<i4": "I32", "|u1": "U8", "|b1": "BOOL"}


def write(path, names=NAMES, **arrays):
    header, data = {"__metadata__": {"format": "np"}}, b""
    for name, array in arrays.items():
        raw = array.tobytes()
        kind = names[array.dtype.str]
        where = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": where}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


X = np.arange(12.0).reshape(6, 2)
Y = np.array([True, False] * 3)


class TestShards(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        write(tmp_path / "a.safetensors", x=X[:4], y=Y[:4])
        write(tmp_path / "b.safetensors", x=X[4:], y=Y[4:])
        self.place = tmp_path

    def make_source(self):
        ((found, _, _),) = open_path(self.place / "*.safetensors")
        return found

    def expected_records(self):
        return [{"x": x, "y": y} for x, y in zip(X, Y)]


def test_one_file_is_mapped(tmp_path):
    write(tmp_path / "a.safetensors", x=X, y=Y, many=np.arange(3))
    with pytest.raises(FileError, match=r"different numbers of rows \('x' 6, 'y' 6, 'many' 3\)"):
        Dataset.open(tmp_path / "a.safetensors")
    found = Dataset.open(tmp_path / "a.safetensors", columns=["y", "x"])
    (batch,) = found.batch(6)
    assert batch["x"].tolist() == X.tolist()
    assert batch["y"].dtype == bool


def test_a_name_that_says_nothing(tmp_path):
    write(tmp_path / "model", x=X)
    assert len(Dataset.open(tmp_path / "model")) == 6


def test_bfloat16(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="jax brings it")
    x = X.astype(ml_dtypes.bfloat16)
    write(tmp_path / "a.safetensors", {x.dtype.str: "BF16"}, x=x)
    (batch,) = Dataset.open(tmp_path / "a.safetensors").batch(6)
    assert batch["x"].dtype == ml_dtypes.bfloat16
    assert batch["x"].astype(float).tolist() == X.tolist()


def damaged(path, change):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h["x"].update(dtype="F7"), "tensor 'x' has the type 'F7', which NumPy"),
        (lambda h: h["x"].update(shape=[7, 2]), "tensor 'x' is damaged or cut off: bytes 0 to 96"),
        (lambda h: h["x"].update(data_offsets=[0, 9999]), "tensor 'x' is damaged or cut off"),
        (lambda h: h["x"].update(data_offsets=[-8, 88]), "tensor 'x' is damaged or cut off"),
        (lambda h: h["x"].update(shape=[]), "tensor 'x' is damaged or cut off"),
        (lambda h: h["x"].pop("shape"), "tensor 'x' is damaged or cut off: 'shape'"),
        (lambda h: h.update(x=3), "tensor 'x' is damaged: its header has 3"),
        (lambda h: h.clear(), "has no tensors"),
    ],
)
def test_a_damaged_header(tmp_path, change, message):
    path = tmp_path / "a.safetensors"
    write(path, x=X)
    damaged(path, change)
    with pytest.raises(FileError, match=message):
        Dataset.open(path)


def test_files_that_are_cut(tmp_path):
    path = tmp_path / "a.safetensors"
    write(path, x=X)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(FileError, match=r"a.safetensors"):
            Dataset.open(path)


def test_a_single_number(tmp_path):
    write(tmp_path / "a.safetensors", x=X, scale=np.array(3.0))
    with pytest.raises(FileError, match=r"'scale' is a single number.*columns=\['x'\]"):
        Dataset.open(tmp_path / "a.safetensors")
