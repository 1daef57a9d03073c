"""MDS: the values that MosaicML's own reader gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loaderx import Dataset

pytestmark = [pytest.mark.owners, pytest.mark.foreign]
FILES = Path(__file__).parents[1] / "files" / "mds"


@pytest.mark.parametrize("name", ["fixed", "mixed"])
def test_the_same_values(name):
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    theirs = streaming.StreamingDataset(local=str(FILES / name), batch_size=1)
    ours = Dataset.open(FILES / name)
    assert len(ours) == len(theirs)
    for index, record in enumerate(ours):
        expected = theirs[index]
        assert list(record) == list(expected)
        for key, value in expected.items():
            pixels = key in ("png", "pil")
            if key == "pngs":
                assert [one.tolist() for one in record[key]] == [
                    np.asarray(one).tolist() for one in value
                ]
            elif pixels:
                assert np.array_equal(record[key].squeeze(), np.asarray(value).squeeze())
            else:
                assert np.array_equal(record[key], value), key
