"""Sources from outside the package: taken as they are, refused where they are incomplete."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from loaderx import ArgumentError, ArgumentTypeError, ArraySpec, DataLoader, Dataset
from loaderx.sources import ArraySource, RangeSource, Source, adapt
from oracle import assert_same, stack

N = 10
SPEC = {"x": ArraySpec((2,), np.dtype(np.float32))}
X = np.arange(N * 2, dtype=np.float32).reshape(N, 2)
RECORDS = [{"x": X[i]} for i in range(N)]
BATCHES = [stack(RECORDS[k : k + 4]) for k in range(0, N, 4)]


class Sized(Source):
    def __len__(self):
        return N


class Gathers(Sized):
    def gather(self, indices, lend):
        return {"x": X[indices]}


class GathersWithoutLend(Sized):
    def gather(self, indices):
        return {"x": X[indices]}


class FillsBuffers(Sized):
    spec = SPEC
    thread_safe = True

    def gather(self, indices, lend):
        batch = self.buffers(len(indices), lend)
        X.take(indices, 0, batch["x"], "clip")
        return batch


class ListsRecords(Sized):
    def records(self, indices):
        return [{"x": X[i]} for i in indices]


class Indexes(Sized):
    def __getitem__(self, index):
        return {"x": X[index]}


class NoSubclass:
    """The whole interface, without the base class."""

    spec = SPEC
    thread_safe = True
    gathers = True

    def __len__(self):
        return N

    def label(self):
        return "mine"

    def gather(self, indices, lend):
        return {"x": X[indices]}

    def records(self, indices):
        return [{"x": X[i]} for i in indices]


WAYS = [Gathers, GathersWithoutLend, FillsBuffers, ListsRecords, Indexes, NoSubclass]


@pytest.mark.parametrize("make", WAYS)
def test_one_method_that_reads_is_enough(make):
    dataset = Dataset.from_source(make())
    assert len(dataset) == N
    assert_same(dataset, RECORDS)
    assert_same(dataset.batch(4), BATCHES)
    assert_same(dataset.map(lambda record: record).batch(4), BATCHES)
    assert_same(DataLoader(make(), batch_size=4, shuffle=False), BATCHES)


@pytest.mark.parametrize("make", WAYS[:-1])
def test_the_methods_that_are_not_written_follow_from_the_one_that_is(make):
    source = make()
    assert_same([source[3], source[-1]], [RECORDS[3], RECORDS[-1]])
    assert_same(source, RECORDS)  # by index, until an IndexError
    assert_same(source.records(np.array([2, 2, 0])), [RECORDS[i] for i in (2, 2, 0)])
    if make is not Indexes:
        for index in (N, -N - 1):
            with pytest.raises(IndexError, match=f"record {index} is out of range for 10 records"):
                source[index]


def test_defaults():
    source = Indexes()
    assert (source.spec, source.thread_safe, source.gathers) == (None, False, False)
    assert source.label() == "from_source(Indexes, 10 records)"
    assert Gathers().gathers
    assert repr(Dataset.from_source(source)).startswith("Dataset.from_source(Indexes, 10 records)")
    assert repr(Dataset.from_source([1, 2])).startswith("Dataset.from_source(list, 2 records)")
    assert repr(Dataset.from_source(NoSubclass())).startswith("Dataset.mine")


def test_gathering_can_be_switched_off():
    class Off(NoSubclass):
        gathers = False

        def gather(self, indices, lend):
            raise AssertionError("not to be used")

    assert_same(Dataset.from_source(Off()).batch(4), BATCHES)


def test_own_sources_are_taken_as_they_are():
    for source in (ArraySource({"x": X}), RangeSource(5)):
        assert adapt(source) is source
        assert len(Dataset.from_source(source)) == len(source)
    assert_same([ArraySource({"x": X})[-1]], [RECORDS[-1]])
    assert [int(n) for n in RangeSource(5)] == [0, 1, 2, 3, 4]


def test_the_spec_is_that_of_the_source():
    dataset = Dataset.from_source(FillsBuffers())
    assert repr(dataset.element_spec) == "{'x': float32[2]}"
    assert repr(dataset.batch(5).element_spec) == "{'x': float32[5,2]}"


def test_a_spec_may_leave_an_axis_open():
    class Ragged(Sized):
        @property
        def spec(self):
            return {"t": ArraySpec((None,), np.int32)}

        def records(self, indices):
            return [{"t": np.arange(i, dtype=np.int32)} for i in indices]

    dataset = Dataset.from_source(Ragged())
    assert repr(dataset.element_spec) == "{'t': int32[?]}"
    padded = dataset.batch(5, pad_to={"t": 9})
    assert repr(padded.element_spec) == "{'t': int32[5,9], 't_length': int32[5]}"
    assert padded[1]["t"].shape == (5, 9)


@pytest.mark.parametrize("spec", [None, {"t": ArraySpec((None,), np.dtype(np.int32))}])
def test_buffers_need_a_spec(spec):
    source = broken(FillsBuffers, spec=spec)
    with pytest.raises(Exception, match="buffers of Mine needs a spec without open axes, and it"):
        Dataset.from_source(source).batch(4)[0]


def test_buffers_are_aligned():
    batch = Dataset.from_source(FillsBuffers()).batch(5)[0]["x"]
    assert batch.ctypes.data % 64 == 0
    assert batch.flags.writeable


@pytest.mark.parametrize("thread_safe", [None, True, False])
def test_thread_safety_is_what_the_source_says_unless_told_otherwise(thread_safe):
    for make in (FillsBuffers, Gathers):
        said = FillsBuffers is make if thread_safe is None else thread_safe
        assert adapt(make(), thread_safe=thread_safe).thread_safe is said
    assert adapt(Gathers()).unsure == "Gathers"
    assert adapt(FillsBuffers()).unsure == ""
    assert adapt(Gathers(), thread_safe=False).unsure == ""


def test_worker_processes(tmp_path):
    class Opens(Sized):
        """Opens its file when it is first needed, in each process."""

        def __init__(self, path):
            self.path, self.file = path, None

        def gather(self, indices, lend):
            if self.file is None:
                self.file = open(self.path, "rb")  # noqa: SIM115
            rows, inverse = np.unique(indices, return_inverse=True)
            found = []
            for row in rows.tolist():
                self.file.seek(row * 8)
                found.append(np.frombuffer(self.file.read(8), np.float32))
            return {"x": np.stack(found)[inverse.reshape(-1)]}

    X.tofile(tmp_path / "x.bin")
    source = Opens(tmp_path / "x.bin")
    dataset = Dataset.from_source(source)[[9, 0, 9, 3]].batch(2)
    expected = [{"x": X[[9, 0]]}, {"x": X[[9, 3]]}]
    assert_same(dataset, expected)  # it is open now
    with DataLoader(dataset, engine="processes", num_workers=1) as loader:
        assert_same(loader, expected)
    source.file.close()


@pytest.mark.parametrize("make", [Gathers, Indexes, NoSubclass])
def test_a_dataset_of_it_can_be_pickled(make):
    again = pickle.loads(pickle.dumps(Dataset.from_source(make()).batch(4)))
    assert_same(again, BATCHES)


def broken(base=Gathers, **attributes):
    return type("Mine", (base,), attributes)()


LENGTH = {"__len__": lambda self: N}
READ = (
    r"Mine has no method that reads\. Add one of gather\(self, indices, lend\), where `lend` may "
    r"be left out \(the records stacked\), records\(self, indices\) \(a list of records\), or "
    r"__getitem__\(self, index\) \(one record\)\.$"
)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: broken(Source, gather=Gathers.gather),
            ArgumentTypeError,
            r"^Mine has no length: add __len__\(self\), the number of records\.$",
        ),
        (lambda: broken(Source, **LENGTH), ArgumentTypeError, READ),
        (lambda: Gathers, ArgumentTypeError, r"got the class Gathers\. Make an object of it: "),
        (
            lambda: broken(__len__=lambda self: "ten"),
            ArgumentTypeError,
            "__len__ of Mine must return the number of records: 'str' object cannot be",
        ),
        (
            lambda: broken(__len__=lambda self: -1),
            ArgumentTypeError,
            r"__len__ of Mine must return the number of records: __len__\(\) should return >= 0",
        ),
        (lambda: broken(__len__=lambda self: 0), ArgumentError, "is empty: Mine of length 0"),
        (
            lambda: broken(gather=lambda self: 0),
            ArgumentTypeError,
            r"^Mine has gather\(\); write gather\(self, indices, lend\), where `lend` may be left",
        ),
        (
            lambda: broken(gather=lambda self, a, b, c: 0),
            ArgumentTypeError,
            r"^Mine has gather\(a, b, c\); write gather\(self, indices, lend\)",
        ),
        (
            lambda: broken(gather=property(lambda self: {})),
            ArgumentTypeError,
            "Mine.gather must be a method, not a property or a value",
        ),
        (lambda: broken(label="mine"), ArgumentTypeError, "Mine.label must be a method"),
        (lambda: broken(fetch=3), ArgumentTypeError, "Mine.fetch must be a method"),
        (
            lambda: broken(fetch=lambda self, a, b: 0),
            ArgumentTypeError,
            r"^Mine has fetch\(a, b\); write fetch\(self, indices\)\.$",
        ),
        (
            lambda: broken(label=lambda self: 3),
            ArgumentTypeError,
            r"Mine.label\(\) must return text of one line, got 3",
        ),
        (
            lambda: broken(thread_safe=lambda self: True),
            ArgumentTypeError,
            "Mine.thread_safe must be True or False, got .*: put @property above it",
        ),
        (
            lambda: broken(spec=lambda self: None),
            ArgumentTypeError,
            "Mine.spec is a method: put @property above it",
        ),
        (
            lambda: broken(spec={"x": np.float32}),
            ArgumentTypeError,
            r'leaf "x" of Mine.spec is .*float32.*; it must be an ArraySpec, such as loaderx\.',
        ),
        (
            lambda: type("Mine", (), {**LENGTH, "gather": Gathers.gather})(),
            ArgumentTypeError,
            "Mine has no __getitem__. Make it a subclass of loaderx.sources.Source",
        ),
    ],
)
def test_what_is_incomplete_is_refused_with_what_to_add(make, error, message):
    with pytest.raises(error, match=message):
        Dataset.from_source(make())


def test_an_error_in_the_length_is_the_sources_own():
    class Broken(Gathers):
        def __len__(self):
            raise TypeError("mine")

    with pytest.raises(TypeError, match="^mine$"):
        Dataset.from_source(Broken())


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            lambda n: {"x": np.zeros((n, 2))},
            r'"x" as float64\[2\]; its spec says float32\[2\]',
        ),
        (
            lambda n: {"x": np.zeros((n, 3), np.float32)},
            r"\[3\]; its spec says float32\[2\]",
        ),
        (lambda n: {"y": np.zeros((n, 2))}, r"gave the leaves \['y'\]; its spec has \['x'\]"),
        (lambda n: {"x": np.zeros((3, 2), np.float32)}, r"4 records and gave an array of shape"),
    ],
)
def test_results_that_are_not_what_was_promised(batch, message):
    source = broken(FillsBuffers, gather=lambda self, indices: batch(len(indices)))
    with pytest.raises(Exception, match=message):
        Dataset.from_source(source).batch(4)[0]


def test_a_gather_of_another_library_is_left_alone():
    class Other:
        def __len__(self):
            return N

        def __getitem__(self, i):
            return {"x": X[i]}

        def gather(self, dim, index, *, sparse_grad):
            raise AssertionError("not meant for us")

    assert_same(Dataset.from_source(Other()).batch(4), BATCHES)
