"""`window` against `sliding_window_view` of NumPy: values, orders, engines, positions, refusals."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from loaderx import ArgumentError, ChainError, DataLoader, Dataset, RecordError, StackError, engines
from oracle import same

X = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)


def windows_of(x, n, stride=1, gap=0):
    """The windows of an array, [windows, n, ...]."""
    found = sliding_window_view(x, (n - 1) * (gap + 1) + 1, axis=0)
    return np.moveaxis(found, -1, 1)[::stride, :: gap + 1]


# Values -----------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 4), st.integers(0, 3))
def test_windows_are_those_of_numpy(n, stride, gap, more):
    length = (n - 1) * (gap + 1) + 1 + 3 * more
    expected = windows_of(X[:length], n, stride, gap)
    dataset = Dataset.from_arrays(x=X[:length], t=np.arange(length)).window(
        n, stride=stride, gap=gap
    )
    assert len(dataset) == len(expected)
    (batch,) = dataset.batch(len(expected))
    assert np.array_equal(batch["x"], expected)
    assert np.array_equal(batch["t"], windows_of(np.arange(length), n, stride, gap))
    assert batch["x"].flags.c_contiguous
    assert batch["x"].flags.writeable
    for number in range(len(expected)):
        assert np.array_equal(dataset[number]["x"], expected[number])


def test_what_a_window_looks_like():
    dataset = Dataset.from_arrays(x=X).window(4, stride=2, gap=1)
    assert repr(dataset).splitlines()[1:] == ["  .window(4, stride=2, gap=1)", "  # 27 records"]
    assert str(dataset.element_spec) == "{'x': float32[4,2]}"
    assert str(dataset.batch(9).element_spec) == "{'x': float32[9,4,2]}"
    assert not np.shares_memory(dataset[0]["x"], X)


@pytest.mark.parametrize("kind", ["map", "objects", "memmap", "hdf5", "parts", "tuple"])
def test_records_of_any_kind(kind, tmp_path):
    expected = windows_of(X, 5, 3)
    leaf = "x"
    if kind == "map":
        dataset = Dataset.from_arrays(x=X).map(dict)
    elif kind == "objects":
        dataset = Dataset.from_source([{"x": row} for row in X])
    elif kind == "memmap":
        np.save(tmp_path / "x.npy", X)
        dataset = Dataset.from_arrays(x=np.load(tmp_path / "x.npy", mmap_mode="r"))
    elif kind == "hdf5":
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file.create_dataset("x", data=X, chunks=(7, 2))
        dataset = Dataset.open(tmp_path / "x.h5")
    elif kind == "parts":
        dataset = Dataset.concatenate(Dataset.from_arrays(x=X[:23]), Dataset.from_arrays(x=X[23:]))
    else:
        dataset, leaf = Dataset.from_arrays(X, X), 1
    for batches in (dataset.window(5, stride=3).batch(4), dataset.window(5, stride=3).batch(19)):
        found = np.concatenate([batch[leaf] for batch in DataLoader(batches, engine="threads")])
        assert np.array_equal(found, expected)


def test_records_that_differ_in_shape_cannot_be_stacked():
    ragged = Dataset.from_source([{"t": [1] * n} for n in (1, 2, 3)]).window(2)
    with pytest.raises(StackError, match=r"^window\(2\) is given stacked runs of records: "):
        ragged[0]


# Orders -----------------------------------------------------------------------------------------


def augmented():
    made = Dataset.from_arrays(x=np.arange(40), y=X[:40]).window(6, stride=2).shuffle(3)
    return made.random_map(jitter_window).batch(5).repeat(2)


def jitter_window(window, rng):
    return {**window, "y": window["y"] + rng.normal(size=2)}


@pytest.mark.parametrize("engine", [engines.Threads(3), engines.Processes(2)], ids=type)
def test_every_engine_gives_the_same_stream_and_resumes_at_every_step(engine):
    expected = list(DataLoader(augmented(), engine="inline"))
    states = []
    with DataLoader(augmented(), engine=engine) as loader:
        iterator = iter(loader)
        for element in expected:
            states.append(iterator.get_state())
            assert same(next(iterator), element)
        for step, state in enumerate(states):
            iterator = iter(loader)
            iterator.set_state(state)
            assert same(list(iterator), expected[step:])


def test_hosts_share_a_batch():
    windows = Dataset.from_arrays(x=X).window(8).shuffle(1).batch(6, drop_remainder=True)
    parts = [list(DataLoader(windows, shard=(host, 2))) for host in range(2)]
    for whole, first, second in zip(windows, *parts, strict=True):
        assert np.array_equal(whole["x"], np.concatenate([first["x"], second["x"]]))


def test_a_stream_of_windows():
    kept = Dataset.range(40).window(4, stride=4).filter(lambda window: window[0] % 8 == 0)
    assert [batch[:, 0].tolist() for batch in kept.batch(2)] == [[0, 8], [16, 24], [32]]


def test_parts_split_before_windows_share_no_record():
    train, test = Dataset.range(50).split(40, 10, shuffle=False)
    found = [{int(x) for window in part.window(4) for x in window} for part in (train, test)]
    assert found == [set(range(40)), set(range(40, 50))]
    whole = Dataset.range(40).window(4, stride=4)
    assert [len(part) for part in whole.split(8, 2)] == [8, 2]  # none is in two windows


def test_no_two_windows_have_the_same_draws():
    windows = Dataset.from_arrays(y=np.zeros((30, 2))).window(3)
    drawn = windows.random_map(lambda window, rng: rng.random()).repeat(2)
    assert len(set(map(float, drawn))) == 2 * 28


# Positions --------------------------------------------------------------------------------------


def test_records_of_windows_and_the_steps_of_a_record():
    dataset = Dataset.range(30).window(3, stride=2, gap=1).shuffle(2).batch(4).repeat(2)
    steps = {record: set() for record in range(30)}
    for step, batch in enumerate(dataset):
        found = dataset.records(step)
        assert found.index.tolist() == batch.reshape(-1).tolist()
        assert found.row.tolist() == np.repeat(np.arange(len(batch)), 3).tolist()
        for record in batch.reshape(-1).tolist():
            steps[record].add(step)
    for record, expected in steps.items():
        assert dataset.steps_of(record).tolist() == sorted(expected)


def fails_on_7(record):
    if record == 7:
        raise ValueError("seven")
    return record


def test_a_window_with_a_bad_record_is_named_and_replaced():
    windows = Dataset.range(20).map(fails_on_7).window(3, stride=3)
    with pytest.raises(RecordError, match="seven") as caught:
        list(windows)
    assert caught.value.index == 7
    replaced = [window.tolist() for window in windows.on_error("replace")]
    whole = [[first, first + 1, first + 2] for first in range(0, 18, 3)]
    assert replaced[:2] + replaced[3:] == whole[:2] + whole[3:]
    assert replaced[2] in whole
    assert len(list(windows.on_error("skip"))) == 5


def test_removed_records_are_masked_in_windows():
    windows = Dataset.from_arrays(x=np.arange(5)).without([3], fill="mask").window(2)
    assert [one["x"].tolist() for one in windows] == [[0, 1], [1, 2], [2, 0], [0, 4]]
    assert windows[2]["mask"].tolist() == [True, False]


# Series -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_of_several_series_do_not_cross(stride):
    lengths = [7, 2, 5, 3, 9]
    series = [np.arange(100 * k, 100 * k + n) for k, n in enumerate(lengths)]
    expected = [
        window.tolist() for one in series if len(one) >= 3 for window in windows_of(one, 3, stride)
    ]
    labels = np.repeat(list("abcde"), lengths)
    dataset = Dataset.from_arrays(x=np.concatenate(series), name=labels)
    for groups in ("name", labels):
        windows = dataset.window(3, stride=stride, groups=groups)
        assert [window["x"].tolist() for window in windows] == expected
    joined = Dataset.concatenate(
        Dataset.from_arrays(x=one).window(3, stride=stride) for one in series if len(one) >= 3
    )
    assert [window["x"].tolist() for window in joined] == expected


# Refusals ---------------------------------------------------------------------------------------

R = Dataset.range(10)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: R.batch(2).window(2), ChainError, r"put \.window\(\.\.\.\) before \.batch"),
        (lambda: R.filter(bool).window(2), ChainError, "window of a stream: which records are ne"),
        (lambda: R.shuffle().window(2), ChainError, r"after \.shuffle\(\): .* not be neighbours"),
        (lambda: R.repeat(2).window(2), ChainError, r"after \.repeat\(2\): the records of a win"),
        (
            lambda: R.on_error("replace").window(2),
            ChainError,
            r"after \.on_error\('replace'\): the records .* Put \.window\(\.\.\.\) before it\.",
        ),
        (
            lambda: R.without([3]).window(2),
            ChainError,
            r"after \.without\(1 records, fill='replace'\): .* Write fill=\"mask\" there\.",
        ),
        (lambda: R.window(4, gap=3), ArgumentError, r"window\(4, gap=3\) spans 13 records, and th"),
        (lambda: R.window(0), ArgumentError, "`n` must be at least 1, got 0"),
        (lambda: R.window(2, stride=0), ArgumentError, "`stride` must be at least 1"),
        (lambda: R.window(2, gap=-1), ArgumentError, "`gap` must be at least 0"),
        (
            lambda: R.window(2, groups=range(10)),
            ArgumentError,
            "spans 2 records, and nowhere do 2 in a row have the same label",
        ),
        (lambda: R.window(2, groups=[1]), ArgumentError, "`groups` must have one label for each"),
        (lambda: R.window(4).split(3, 4), ChainError, r"after \.window\(4\): the parts would sha"),
        (lambda: R.window(2, sampling_rate=2), TypeError, "Write gap=sampling_rate - 1"),
        (lambda: R.window(2, shift=2), TypeError, "Write stride=shift"),
    ],
)
def test_refusals(make, error, message):
    with pytest.raises(error, match=message):
        make()
