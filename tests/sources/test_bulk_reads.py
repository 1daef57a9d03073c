"""Reads of many records at once that fail where single reads do not: said, once."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from loaderx import DataLoader, Dataset, LoaderxWarning, RecordError
from loaderx.sources import Source
from oracle import assert_same, stack

N = 12
X = np.arange(N * 3, dtype=np.float32).reshape(N, 3)


class Indexed:
    thread_safe = True

    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"x": X[i]}


class BadGather(Indexed):
    def gather(self, indices):
        if len(indices) > 1:
            raise ValueError("one index at a time")
        return {"x": X[indices]}


class BadGetitems(Indexed):
    def __getitems__(self, indices):
        raise NotImplementedError("some day")


class BadRecords(Source):
    thread_safe = True

    def __len__(self):
        return N

    def __getitem__(self, index):
        return {"x": X[index]}

    def records(self, indices):
        if len(indices) > 1:
            raise ValueError("one index at a time")
        return [self[i] for i in indices.tolist()]


class OnlyGather(Source):
    """Gathers, but not the same record twice."""

    thread_safe = True

    def __len__(self):
        return N

    def gather(self, indices):
        if len(np.unique(indices)) < len(indices):
            raise ValueError("an index twice")
        return {"x": X[indices]}


class LazyRows:
    """An array on disk that knows slices only."""

    shape, dtype = X.shape, X.dtype

    def __getitem__(self, index):
        if not isinstance(index, slice):
            raise TypeError("slices only")
        return X[index]


def said(make_batches):
    """What a list of batches is, and the warnings that came with it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = list(make_batches())
    assert {warning.category for warning in caught} <= {LoaderxWarning}
    return batches, [str(warning.message) for warning in caught]


EXPECTED = [stack([{"x": X[i]} for i in range(k, k + 4)]) for k in range(0, N, 4)]


@pytest.mark.parametrize(
    ("obj", "method", "reason"),
    [
        (BadGather(), "gather", "ValueError: one index at a time"),
        (BadGetitems(), "__getitems__", "NotImplementedError: some day"),
        (BadRecords(), "records", "ValueError: one index at a time"),
    ],
)
def test_a_bulk_read_that_fails_alone_is_said_once(obj, method, reason):
    dataset = Dataset.from_source(obj).batch(4)
    batches, warned = said(lambda: [*dataset, *DataLoader(dataset)])
    assert_same(batches, EXPECTED * 2)
    assert warned == [
        f"{method} of {type(obj).__name__} failed on 4 records that can be read one by one: "
        f"{reason}. They were read one by one, which is slower, and so will be all others on "
        f"which it fails. Correct {method}, or remove it."
    ]


def test_each_source_says_it():
    both = Dataset.zip((Dataset.from_source(BadGather()), Dataset.from_source(BadGather())))
    _, warned = said(lambda: both.batch(4))
    assert len(warned) == 2


def test_a_bulk_read_is_tried_again_for_the_next_batch():
    """Else a batch would depend on what was read before it."""
    dataset = Dataset.from_source(OnlyGather())
    table = [3, 3, 5, 0, 1, 2]
    batches, warned = said(lambda: dataset[table].batch(3))
    assert_same(batches, [stack([{"x": X[i]} for i in part]) for part in (table[:3], table[3:])])
    assert len(warned) == 1
    assert warned[0].startswith("gather of OnlyGather failed on 3 records")


def test_lazy_arrays_that_cannot_be_indexed_by_arrays():
    dataset = Dataset.from_arrays(x=LazyRows())[[0, 11, 5, 5]].batch(2)
    batches, warned = said(lambda: [*dataset, *dataset])
    assert_same(batches, [{"x": X[[0, 11]]}, {"x": X[[5, 5]]}] * 2)
    assert warned == [
        'indexing of leaf "x" failed on 2 records that can be read one by one: TypeError: slices '
        "only. They were read one by one, which is slower, and so will be all others on which "
        "it fails."
    ]


class Damaged(Indexed):
    """Record 6 cannot be read, whichever way."""

    error = OSError

    def __getitem__(self, i):
        if i == 6:
            raise self.error("disk on fire")
        return super().__getitem__(i)

    def gather(self, indices):
        return stack([self[i] for i in indices.tolist()])


class DamagedMany(Damaged):
    gather = None

    def __getitems__(self, indices):
        return [self[i] for i in indices]


class DamagedSource(Source):
    thread_safe = True

    def __len__(self):
        return N

    def gather(self, indices):
        if 6 in indices:
            raise OSError("disk on fire")
        return {"x": X[indices]}


@pytest.mark.parametrize("make", [Damaged, DamagedMany, DamagedSource])
def test_an_error_of_the_data_is_the_error_of_its_record(make):
    dataset = Dataset.from_source(make()).batch(4)
    with pytest.raises(RecordError, match="record 6: OSError: disk on fire") as caught:
        list(dataset)
    assert caught.value.index == 6
    assert isinstance(caught.value.__cause__, OSError)
    kept = Dataset.from_source(make()).on_error("skip").batch(N - 1)
    assert_same(kept, [{"x": np.delete(X, 6, axis=0)}])


def test_an_error_of_loaderx_in_a_bulk_read_names_the_record_too():
    from loaderx import FileError

    class Broken(Damaged):
        error = FileError

    with pytest.raises(RecordError, match="record 6: FileError: disk on fire") as caught:
        list(Dataset.from_source(Broken()).batch(4))
    assert caught.value.index == 6


class Widening(Indexed):
    """Single records are float64, gathered ones float32; gathering fails for records 4 to 7."""

    def __getitem__(self, i):
        return {"x": X[i].astype(np.float64)}

    def gather(self, indices):
        if 5 in indices:
            raise ValueError("not these")
        return {"x": X[indices]}


@pytest.mark.parametrize("start", [0, 4])
def test_other_dtypes_of_single_reads_are_said(start):
    dataset = Dataset.from_source(Widening()).skip(start).batch(4)
    batches, warned = said(lambda: [*dataset, *dataset])
    dtypes = [str(batch["x"].dtype) for batch in batches]
    assert dtypes == ["float32", "float64", "float32"][start // 4 :] * 2
    assert len(warned) == 2
    assert warned[1] == (
        'leaf "x" of Widening is float32[3] by gather, and float64[3] where records are read one '
        "by one. Batches have one or the other: make both give the same."
    )


def test_where_warnings_are_errors_it_is_an_error():
    dataset = Dataset.from_source(BadGather()).batch(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(RecordError, match="gather of BadGather failed on 4 records that"):
                list(dataset)


def test_workers_deliver_the_same_batches():
    dataset = Dataset.from_source(BadGather()).batch(4)
    _, warned = said(lambda: dataset)  # said here, so that workers need not
    assert len(warned) == 1
    with DataLoader(dataset, engine="processes", num_workers=2) as loader:
        assert_same(loader, EXPECTED)


class WideningList(Indexed):
    def __getitem__(self, i):
        return {"x": X[i].astype(np.float64)}

    def __getitems__(self, indices):
        if 5 in indices:
            raise ValueError("not these")
        return [{"x": X[i]} for i in indices]


def test_the_records_that_were_read_alone_are_not_taken_for_those_of_the_bulk_read():
    dataset = Dataset.from_source(WideningList()).skip(4).batch(4)
    _, warned = said(lambda: [*dataset, *dataset])
    assert len(warned) == 2
    assert warned[1].startswith('leaf "x" of WideningList is float32[3] by __getitems__, and float')


def test_shapes_of_a_list_of_records_may_differ():
    class Ragged(Indexed):
        def __getitem__(self, i):
            return {"x": np.zeros(i)}

        def __getitems__(self, indices):
            if 5 in indices:
                raise ValueError("not these")
            return [self[i] for i in indices]

    _, warned = said(lambda: Dataset.from_source(Ragged()).batch(4, pad_to={"x": N}))
    assert len(warned) == 1
