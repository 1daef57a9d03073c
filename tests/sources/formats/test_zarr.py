"""zarr groups and arrays."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from loaderx import Dataset
from loaderx.errors import FileError
from loaderx.sources.opening import open_path
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
