"""`from_source`: objects with `__getitem__`, that may fail, or have a `gather`."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx import DataLoader, Dataset, RecordError


def test_a_list_of_arrays_is_not_changed_by_a_map_in_place():
    rows = [{"x": np.zeros(2), "t": [1, 2]} for _ in range(4)]

    def append(record):
        record["t"].append(0)
        return {"t": record["t"]}

    dataset = Dataset.from_source(rows).map(append).batch(2)
    assert [b["t"].shape for b in dataset] == [b["t"].shape for b in dataset] == [(2, 3)] * 2
    first = next(iter(DataLoader(Dataset.from_source(rows), engine="inline")))
    first["x"] += 5
    assert not rows[0]["x"].any()


def test_a_passing_failure_of_a_source_is_tried_again():
    class Flaky:
        failed = False

        def __len__(self):
            return 10

        def __getitem__(self, i):
            if i == 5 and not self.failed:
                self.failed = True
                raise OSError("once")
            return i

    assert [b.tolist() for b in Dataset.from_source(Flaky()).batch(5)][1] == [5, 6, 7, 8, 9]


def test_a_failing_gather_names_its_record_at_every_step():
    class Bad:
        thread_safe = True

        def __len__(self):
            return 12

        def __getitem__(self, i):
            if i == 6:
                raise OSError("bad sector")
            return np.int64(i)

        def gather(self, indices):
            return np.array([self[int(i)] for i in indices])

    for loader in (
        DataLoader(Dataset.from_source(Bad()).batch(4), engine=e) for e in ("inline", "threads")
    ):
        with pytest.raises(RecordError, match="step 1: reading the source failed on record 6"):
            list(loader)
