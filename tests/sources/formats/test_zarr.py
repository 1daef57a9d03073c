"""zarr groups and arrays."""

from __future__ import annotations

import numcodecs
import numpy as np
import pytest
import zarr

from loaderx import Dataset, RecordError
from loaderx.errors import FileError
from loaderx.sources.open.opening import open_path
from loaderx.testing import SourceContract

pytestmark = pytest.mark.foreign  # zarr keeps threads of its own

X = np.arange(40.0).reshape(10, 4)


class TestGroup(SourceContract):
    @pytest.fixture(autouse=True)
    def _files(self, tmp_path):
        group = zarr.open_group(tmp_path / "a.zarr", mode="w")
        for name, array in (("x", X), ("y", np.arange(10))):
            made = group.create_array(
                name, shape=array.shape, dtype=array.dtype, chunks=(3, 4)[: array.ndim]
            )
            made[:] = array
        self.place = tmp_path

    def make_source(self):
        ((found, _, _),) = open_path(self.place / "a.zarr")
        return found

    def expected_records(self):
        return [{"x": x, "y": y} for x, y in zip(X, np.arange(10))]


@pytest.mark.parametrize("version", [2, 3])
def test_a_single_array(tmp_path, version):
    made = zarr.create_array(
        tmp_path / "x.zarr", shape=X.shape, dtype=X.dtype, chunks=(4, 4), zarr_format=version
    )
    made[:] = X
    (batch,) = Dataset.open(tmp_path / "x.zarr").batch(10)
    assert batch["x"].tolist() == X.tolist()


def test_what_is_refused(tmp_path):
    zarr.open_group(tmp_path / "empty.zarr", mode="w")
    with pytest.raises(FileError, match="has no arrays at its top"):
        Dataset.open(tmp_path / "empty.zarr")
    zarr.open_group(tmp_path / "bad.zarr", mode="w")
    (tmp_path / "bad.zarr" / "zarr.json").write_text("{")
    with pytest.raises(FileError, match=r"bad.zarr is damaged or cut off"):
        Dataset.open(tmp_path / "bad.zarr")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kept", [0, 5, 16, -1])
def test_a_cut_chunk_of_blosc_is_refused(tmp_path, version, kept):
    """Blosc itself would read on behind the end of what it is given."""
    codec = (
        numcodecs.Blosc()
        if version == 2
        else zarr.codecs.BloscCodec(cname="lz4", shuffle="noshuffle")
    )
    made = zarr.create_array(
        tmp_path / "x.zarr", shape=(4000,), dtype="int64", chunks=(2000,), zarr_format=version,
        compressors=codec,
    )  # fmt: skip
    made[:] = np.arange(4000)
    (batch,) = Dataset.open(tmp_path / "x.zarr").batch(4000)
    assert batch["x"].tolist() == list(range(4000))
    chunk = tmp_path / "x.zarr" / ("1" if version == 2 else "c/1")
    chunk.write_bytes(chunk.read_bytes()[:kept])
    dataset = Dataset.open(tmp_path / "x.zarr")
    assert int(dataset[1999]["x"]) == 1999
    with pytest.raises(
        RecordError, match=r"x\.zarr is damaged or cut off: the chunk (c/)?1 has \d+ bytes"
    ):
        dataset[2000]


def test_an_error_of_a_chunk_names_the_array(tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    made = group.create_array(
        "x", shape=X.shape, dtype=X.dtype, chunks=X.shape, compressors=numcodecs.Zlib()
    )
    made[:] = X
    (tmp_path / "a.zarr" / "x" / "0.0").write_bytes(b"no data")
    with pytest.raises(RecordError, match=r"a.zarr, array 'x' is damaged or cut off: ") as caught:
        Dataset.open(tmp_path / "a.zarr")[0]
    assert isinstance(caught.value.__cause__, FileError)
