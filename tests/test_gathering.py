"""Rows of any array are gathered for the price of those rows."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from loaderx import Dataset
from loaderx.gathering import take_rows, taken, taker

COUNT = 20_000


def numbers(*shape, dtype=np.float32):
    return np.arange(np.prod(shape), dtype=np.int64).astype(dtype).reshape(shape)


def unaligned(*shape, dtype=np.float32):
    """As members of a zip are."""
    data = numbers(*shape, dtype=dtype).tobytes()
    return np.frombuffer(b"x" + data, dtype, offset=1).reshape(shape)


def structured():
    rows = np.zeros(COUNT, [("small", "i1"), ("wide", "<f4", (16,))])
    rows["wide"] = numbers(COUNT, 16)
    return rows["wide"]


def objects():
    table = np.empty((COUNT, 2), object)
    table[:] = [[str(i), i] for i in range(COUNT)]
    return table[:, 1]


LAYOUTS = {
    "contiguous": lambda: numbers(COUNT, 16),
    "one axis": lambda: numbers(COUNT),
    "channels last of channels first": lambda: numbers(COUNT, 3, 4, 4).transpose(0, 2, 3, 1),
    "backwards": lambda: numbers(COUNT, 16)[::-1],
    "every second": lambda: numbers(2 * COUNT, 16)[::2],
    "a crop": lambda: numbers(COUNT, 6, 6)[:, 1:5, 1:5],
    "columns of a table": lambda: numbers(COUNT, 17)[:, :-1],
    "a column of a table": lambda: numbers(COUNT, 17)[:, 3],
    "fortran": lambda: np.asfortranarray(numbers(COUNT, 16)),
    "records last": lambda: numbers(4, 4, COUNT).transpose(2, 0, 1),
    "a field": structured,
    "windows": lambda: np.lib.stride_tricks.sliding_window_view(numbers(COUNT + 15), 16),
    "one row for all": lambda: np.broadcast_to(numbers(16), (COUNT, 16)),
    "unaligned": lambda: unaligned(COUNT, 16),
    "unaligned numbers": lambda: unaligned(COUNT, dtype=np.int64),
    "unaligned backwards": lambda: unaligned(COUNT, 16)[::-1],
    "other byte order": lambda: numbers(COUNT, 16, dtype=">f4"),
    "other byte order, fortran": lambda: np.asfortranarray(numbers(COUNT, 16, dtype=">f4")),
    "objects": objects,
    "empty rows": lambda: unaligned(COUNT, 1)[:, :0],
    "zero-sized rows of many axes": lambda: np.zeros((COUNT, 0, 4)).transpose(0, 2, 1),
}

INDICES = np.random.default_rng(0).integers(0, COUNT, 64)
LITTLE = 64 * 1024  # bytes; a copy of the array takes 20,000 rows, mostly of 64 bytes


def peak(function):
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        function()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_are_those_of_indexing(layout):
    array = LAYOUTS[layout]()
    for indices in (INDICES, INDICES[:1], INDICES[:0], np.array([COUNT - 1, 0, 0])):
        expected = array[indices]
        for write in (taker(array), lambda i, _, out, __: take_rows(array, i, out)):
            out = np.empty(expected.shape, array.dtype)
            write(indices, 0, out, "clip")
            np.testing.assert_array_equal(out, expected)
        found = taken(array, indices)
        np.testing.assert_array_equal(found, expected)
        assert found.flags.c_contiguous
        assert found.dtype == array.dtype


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_more_than_the_rows_is_copied(layout):
    array = LAYOUTS[layout]()
    out = np.empty((len(INDICES), *array.shape[1:]), array.dtype)
    assert peak(lambda: taker(array)(INDICES, 0, out, "clip")) < LITTLE
    assert peak(lambda: take_rows(array, INDICES, out)) < LITTLE
    assert peak(lambda: taken(array, INDICES)) < LITTLE


# Where arrays come from ---------------------------------------------------------------------------


def fortran_file(folder):
    np.save(folder / "x.npy", np.asfortranarray(numbers(COUNT, 16)))
    return Dataset.open(folder / "x.npy")


def members(folder):
    np.savez(folder / "x.npz", a=numbers(COUNT), x=numbers(COUNT, 16))
    return Dataset.open(folder / "x.npz")


def packed_member(folder):
    np.savez_compressed(folder / "x.npz", x=np.asfortranarray(numbers(COUNT, 16)))
    return Dataset.open(folder / "x.npz")


def several_files(folder):
    for part in range(2):
        np.savez(folder / f"x-{part}.npz", x=np.asfortranarray(numbers(COUNT, 16)))
    return Dataset.open(str(folder / "x-*.npz"))


def frame(_):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({f"c{i}": numbers(COUNT) for i in range(16)})
    return Dataset.from_arrays(x=table.to_numpy(), y=table["c3"].to_numpy())


def tensor(_):
    torch = pytest.importorskip("torch")
    return Dataset.from_arrays(x=torch.zeros(COUNT, 3, 4, 4).permute(0, 2, 3, 1))


DATASETS = {
    "a dict": lambda _: Dataset.from_arrays(x=LAYOUTS["fortran"](), y=LAYOUTS["backwards"]()),
    "a tuple": lambda _: Dataset.from_arrays((LAYOUTS["fortran"](), LAYOUTS["backwards"]())),
    "a fortran file": fortran_file,
    "members of an archive": members,
    "a compressed member": packed_member,
    "several files": several_files,
    "a frame": frame,
    "a tensor": tensor,
}


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("made", DATASETS)
def test_a_batch_of_a_dataset_copies_its_rows(made, shuffled, tmp_path):
    dataset = DATASETS[made](tmp_path)
    batches = iter((dataset.shuffle(seed=0) if shuffled else dataset).batch(64).repeat())
    next(batches)
    next(batches)
    assert peak(lambda: next(batches)) < LITTLE


def test_rows_that_a_batched_function_made_fortran(tmp_path):
    """A filter after it picks rows of a whole window of records."""

    def turned(batch):
        return {"x": np.asfortranarray(batch["x"])}

    data = numbers(4_096, 16)
    dataset = Dataset.from_arrays(x=data).map(turned, batched=True)
    even = dataset.filter(lambda batch: batch["x"][:, 0] % 32 == 0, batched=True)
    found = np.concatenate([batch["x"] for batch in even.batch(100)])
    np.testing.assert_array_equal(found, data[::2])
