"""safetensors: files that its own library wrote."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx import Dataset

pytestmark = [pytest.mark.owners, pytest.mark.foreign]


def test_the_same_arrays(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    rng = np.random.default_rng(0)
    kinds = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "u2", "u4", "u8", "?"]
    arrays = {kind.strip("?") or "b": (rng.random((5, 3)) * 100).astype(kind) for kind in kinds}
    numpy.save_file(arrays, tmp_path / "x.safetensors", {"made": "here"})
    (batch,) = Dataset.open(tmp_path / "x.safetensors").batch(5)
    for name, array in arrays.items():
        assert batch[name].dtype == array.dtype
        assert np.array_equal(batch[name], array)
