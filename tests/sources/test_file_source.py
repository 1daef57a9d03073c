"""The base of sources of file formats: whose fault is an error?"""

from __future__ import annotations

import numpy as np
import pytest

from loaderx import Dataset, FileError, RecordError
from loaderx.sources.base import BadRecordError, FileSource, Problem


class Numbers(FileSource):
    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 6

    def where(self, index):
        return f"x.bin, record {index}"

    def gather(self, indices, lend):
        if 4 in indices:
            raise self.error
        return {"x": indices.copy()}


def rows(dataset):
    return [row for batch in dataset.batch(3) for row in batch["x"].tolist()]


def test_a_bad_record_fails_alone():
    dataset = Dataset.from_source(Numbers(BadRecordError("x.bin, record 4 is bad")))
    with pytest.raises(RecordError, match=r"record 4: BadRecordError: x\.bin, record 4") as caught:
        rows(dataset)
    assert caught.value.index == 4
    assert rows(dataset.on_error("skip")) == [0, 1, 2, 3, 5]


def test_of_a_single_read_it_is_the_records_own_too():
    dataset = Dataset.from_source(Numbers(BadRecordError("bad")))
    with pytest.raises(RecordError) as caught:
        dataset[4]
    assert caught.value.index == 4


def test_problems_name_the_place():
    found = list(Numbers(BadRecordError("bad")).problems())
    expected = Problem(4, "x.bin, record 4", "bad")
    assert repr(found) == repr([None, None, None, None, expected, None])


def test_it_is_a_file_error():
    with pytest.raises(FileError, match="bad"):
        Numbers(BadRecordError("bad")).records(np.array([4]))
