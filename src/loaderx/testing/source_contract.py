"""The contract of sources, as tests."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import cloudpickle
import numpy as np

from loaderx import DataLoader, Dataset
from loaderx.errors import ArgumentTypeError, LoaderxWarning
from loaderx.memory import Pool
from loaderx.sources.base import Indices, Source, chunk_starts
from loaderx.stages.inputs import FromSource
from loaderx.testing.comparing import (
    can_be_stacked,
    check,
    check_all_equal,
    check_equal,
    check_raises,
    stacked,
)
from loaderx.testing.costing import Cost, cost_of
from loaderx.tree import Tree, as_array, flatten

_LEAST_RECORDS = 5
_READ, _FEW, _MANY = 64, 1_000, 1_000_000
_LITTLE = Cost(nbytes=64 * 1024, calls=256)  # tolerated: buffers, tables of a few levels
_DESCRIPTORS = "/proc/self/fd"


class SourceContract:
    """Tests of a source; a subclass says how to make it, and which records it must have.

    >>> from loaderx.sources import Source
    >>> class Squares(Source):
    ...     def __len__(self):
    ...         return 20
    ...
    ...     def gather(self, indices, lend):
    ...         return {"square": indices**2}
    >>> class TestSquares(SourceContract):
    ...     def make_source(self):
    ...         return Squares()
    ...
    ...     def expected_records(self):
    ...         return [{"square": np.int64(i * i)} for i in range(20)]

    In a file ``test_*.py``, that is all: pytest runs the tests that ``TestSquares`` inherits.  A
    source of files gets them from a fixture with ``autouse=True``, in the subclass, that keeps
    ``tmp_path`` in ``self``.

    >>> TestSquares().test_gather_takes_any_indices()
    """

    can_be_pickled: bool = True
    """False for a source that `pickle` refuses."""

    can_be_sent: bool = True
    """False for a source that worker processes cannot read."""

    def make_source(self) -> object:
        """A new source: anything that `Dataset.from_source` takes, or a `Dataset`."""
        raise NotImplementedError("a subclass of SourceContract needs make_source(self).")

    def expected_records(self) -> Sequence[Tree]:
        """All records, in order, as ``source[i]`` must give them; at least 5."""
        raise NotImplementedError("a subclass of SourceContract needs expected_records(self).")

    def make_sized_source(self, count: int) -> object | None:
        """A source of the same kind with ``count`` records, whatever is in them.

        It is asked for 1,000 and for 1,000,000.  None, if it cannot be made in any size.
        """
        return None

    # Length and single records ------------------------------------------------------------------

    def test_length(self) -> None:
        """``len`` is the number of records, and does not change by reading."""
        source, expected = self._made(), self._expected()
        dataset = _dataset(source)
        check(len(source) == len(expected), f"len is {len(source)}, not {len(expected)}.")
        list(dataset)
        check(len(source) == len(expected), f"after reading, len is {len(source)}.")

    def test_made_twice_it_is_the_same(self) -> None:
        """A saved state fits a source that is made again: length and spec are equal."""
        one, two = _dataset(self.make_source()), _dataset(self.make_source())
        check(len(one) == len(two), f"the lengths are {len(one)} and {len(two)}.")
        specs = repr(_read_by(one).spec), repr(_read_by(two).spec)
        check(specs[0] == specs[1], f"the specs are {' and '.join(specs)}.")

    def test_records(self) -> None:
        """All records, in order, and one by one from the last to the first."""
        dataset, expected = self._dataset(), self._expected()
        check_all_equal(list(dataset), expected, "record")
        for index in reversed(range(len(expected))):
            check_equal(dataset[index], expected[index], f"record {index}")

    def test_records_of_the_source_itself(self) -> None:
        """``source[i]`` is record i; beyond the end there is an IndexError."""
        source, expected = self._made(), self._expected()
        if not hasattr(source, "__getitem__"):
            return
        for index in (0, len(expected) - 1):
            check_equal(source[index], expected[index], f"source[{index}]")
        check_raises(IndexError, lambda: source[len(expected)], f"source[{len(expected)}]")
        try:
            last = source[-1]
        except IndexError:
            return  # a source may refuse negative indices
        check_equal(last, expected[-1], "source[-1]")

    # Many records at once -----------------------------------------------------------------------

    def test_batches(self) -> None:
        """Batches of any size are the records, stacked."""
        dataset, expected = self._dataset(), self._expected()
        if not can_be_stacked(expected):
            return
        for size in (1, 3, len(expected)):
            parts = [expected[k : k + size] for k in range(0, len(expected), size)]
            check_all_equal(list(dataset.batch(size)), [*map(stacked, parts)], f"batch({size})")

    def test_shuffled_batches(self) -> None:
        """Batches of shuffled records are those records, stacked."""
        dataset, expected = self._dataset(), self._expected()
        window = None if _read_by(dataset).random_access else 4
        dataset = dataset.shuffle(3, window=window)
        records = list(dataset.map(_same))
        if not can_be_stacked(expected):
            check(len(records) == len(expected), f"there are {len(records)} shuffled records.")
            return
        parts = [records[k : k + 4] for k in range(0, len(records), 4)]
        check_all_equal(list(dataset.batch(4)), [*map(stacked, parts)], "shuffled batch")

    def test_gather_takes_any_indices(self) -> None:
        """Indices that are unsorted, repeated, far apart, alone: one row for each, in order."""
        reader, expected = _read_by(self._dataset()), self._expected()
        if not reader.gathers:
            return
        for indices in _choices(len(expected)):
            asked = indices.copy()
            with _warnings_are_errors():
                batch = reader.gather(asked, Pool().lend)
            wanted = stacked([expected[i] for i in indices.tolist()])
            check_equal(batch, wanted, f"gather({indices.tolist()})")
            check(np.array_equal(asked, indices), "gather has changed `indices`: copy them first.")

    def test_records_take_any_indices(self) -> None:
        """As for gather; every record is there, in the order of the indices."""
        reader, expected = _read_by(self._dataset()), self._expected()
        for indices in _choices(len(expected)):
            asked = indices.copy()
            with _warnings_are_errors():
                found = reader.records(asked)
            wanted = [expected[i] for i in indices.tolist()]
            check_all_equal(found, wanted, f"records({indices.tolist()}), number")
            check(np.array_equal(asked, indices), "records has changed `indices`: copy them first.")

    def test_spec(self) -> None:
        """Where there is a spec, it is that of every record."""
        dataset, expected = self._dataset(), self._expected()
        spec = _read_by(dataset).spec
        if spec is None:
            return
        specs, structure = flatten(spec)
        for number, record in enumerate(expected):
            leaves, other = flatten(record)
            check(structure is other, f"spec has {structure.paths()}, a record {other.paths()}.")
            for path, leaf, one in zip(structure.paths(), leaves, specs, strict=True):
                array = as_array(leaf)
                found = f"record {number} has {array.dtype}{list(array.shape)}"
                fits = one.fits(array.dtype, array.shape)
                check(fits, f'spec says {one!r} for leaf "{path}"; {found}.')

    def test_chunks(self) -> None:
        """If the source names its chunks, shuffled chunks have every record once, each in order."""
        dataset, expected = self._dataset(), self._expected()
        starts = chunk_starts(_read_by(dataset))
        if starts is None:
            return
        for window in (None, 1, len(expected) // 2):
            order = Dataset.from_source(_Numbers(starts)).shuffle(3, block="source", window=window)
            wanted = [expected[int(number)] for number in order]
            shuffled = dataset.shuffle(3, block="source", window=window)
            check_all_equal(list(shuffled), wanted, f'shuffle(block="source", window={window}),')

    def test_a_batch_costs_the_same_in_many_records(self) -> None:
        """Reading 64 of a million records takes what 64 of a thousand take, in memory and calls."""
        few, many = self._cost(_FEW), self._cost(_MANY)
        if few is None or many is None:
            return
        for name, small, large, little in zip(few._fields, few, many, _LITTLE, strict=True):
            what = "bytes" if name == "nbytes" else "calls of functions"
            check(
                large <= 2 * small + little,
                f"{_READ} of {_MANY:,} records take {large:,} {what}, and of {_FEW:,} records "
                f"{small:,}. The source copies or searches all of its data for each batch. Of "
                "arrays that are not contiguous, array.take does: write array[indices].",
            )

    # Ownership ----------------------------------------------------------------------------------

    def test_results_are_the_callers_own(self) -> None:
        """Writing into a batch or a record changes neither the source nor other batches."""
        expected = copy.deepcopy(self._expected())  # which may share memory with the source
        dataset = self._dataset()
        if can_be_stacked(expected):
            first, second = dataset.batch(4)[0], dataset.batch(4)[0]
            _overwrite(first)
            check_equal(second, stacked(expected[:4]), "a batch, after writing into another")
        for number in range(len(expected)):
            _overwrite(dataset[number])
        check_all_equal(list(dataset), expected, "after writing into what it gave, record")

    # Elsewhere ----------------------------------------------------------------------------------

    def test_pickled(self) -> None:
        """A pickle of it reads the same, made before it is used or after."""
        if not self.can_be_pickled:
            return
        source, expected = self.make_source(), self._expected()
        unused = cloudpickle.dumps(source)
        list(_dataset(source))
        for pickled in (unused, cloudpickle.dumps(source)):
            again = _dataset(pickle.loads(pickled))
            check_all_equal(list(again), expected, "unpickled, record")

    def test_worker_processes(self) -> None:
        """Two worker processes read the same, also when this process has read before."""
        if not self.can_be_sent:
            return
        dataset, expected = self._dataset(), self._expected()
        list(dataset)
        with DataLoader(dataset, engine="processes", num_workers=2) as loader:
            check_all_equal(list(loader), expected, "in worker processes, record")

    def test_threads(self) -> None:
        """Where it says that it is thread-safe, four threads that read at once read the same."""
        dataset, expected = self._dataset(), self._expected()
        reader = _read_by(dataset)
        if not reader.thread_safe:
            return

        def read(number: int) -> list[object]:
            order = np.random.default_rng(number).permutation(len(expected))
            found = reader.records(order)
            return [found[place] for place in np.argsort(order)]

        with ThreadPoolExecutor(4) as threads:
            for found in threads.map(read, range(32)):
                check_all_equal(found, expected, "in a thread, record")

    def test_fetch(self) -> None:
        """If the source fetches, fetching in several threads does not change what is read."""
        dataset, expected = self._dataset(), self._expected()
        reader = _read_by(dataset)
        if not reader.fetches:
            return

        def fetch(number: int) -> int:
            return reader.fetch(np.random.default_rng(number).permutation(len(expected)))

        with ThreadPoolExecutor(4) as threads:
            fetched = [threads.submit(fetch, number) for number in range(8)]
            check_all_equal(list(dataset), expected, "while others fetch, record")
            for one in fetched:
                check(one.result() >= 0, f"fetch gave {one.result()}: how many bytes came?")
        check_all_equal(list(dataset), expected, "after it was fetched, record")

    def test_files_are_closed(self) -> None:
        """When the source is dropped, none of its files stays open."""
        if not os.path.isdir(_DESCRIPTORS):
            return
        gc.collect()
        before = _open_files()
        source = self.make_source()
        list(_dataset(source))
        del source
        gc.collect()
        left = _open_files() - before
        check(not left, f"files that are still open: {', '.join(sorted(left))}.")

    def test_repr(self) -> None:
        """The dataset's ``repr`` is one line for the source, and one for what it amounts to."""
        lines = repr(self._dataset()).splitlines()
        check(len(lines) == 2, f"label() must give one line: {lines}")
        check(lines[0].startswith("Dataset."), lines[0])

    # Helpers ------------------------------------------------------------------------------------

    def _expected(self) -> Sequence[object]:
        expected = self.expected_records()
        check(
            len(expected) >= _LEAST_RECORDS,
            f"these tests need {_LEAST_RECORDS} records; expected_records has {len(expected)}.",
        )
        return expected

    def _cost(self, count: int) -> Cost | None:
        """The cost of reading a batch of a source with ``count`` records."""
        source = self.make_sized_source(count)
        if source is None:
            return None
        reader, lend = _read_by(_dataset(source)), Pool().lend
        check(len(reader) == count, f"make_sized_source({count}) has {len(reader)} records.")
        indices = np.random.default_rng(0).integers(0, count, _READ)

        def read() -> None:
            if reader.gathers:
                reader.gather(indices, lend)
            else:
                reader.records(indices)

        read()
        read()
        return cost_of(read)

    def _made(self) -> Any:
        made = self.make_source()
        return _read_by(made) if isinstance(made, Dataset) else made

    def _dataset(self) -> Dataset[object]:
        return _dataset(self.make_source())


def _dataset(source: object) -> Dataset[object]:
    return Dataset.from_source(source)


def _read_by(dataset: Dataset[object]) -> Source:
    node = dataset._node
    if not isinstance(node, FromSource):
        raise ArgumentTypeError(
            f"make_source must return a source, or a dataset without any stage; got\n{dataset!r}"
        )
    return node.source


class _Numbers(Source):
    """The indices of records, in chunks."""

    thread_safe = True

    def __init__(self, starts: Indices) -> None:
        self._starts = starts

    def __len__(self) -> int:
        return int(self._starts[-1])

    def chunks(self) -> Indices:
        return self._starts

    def records(self, indices: Indices) -> list[object]:
        return [*indices.tolist()]


@contextmanager
def _warnings_are_errors() -> Iterator[None]:
    """Makes a bulk read that fails an error: loaderx would only warn, and read one by one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", LoaderxWarning)
        yield


def _same(record: object) -> object:
    return record


def _choices(length: int) -> Iterator[Indices]:
    last = length - 1
    for chosen in (
        [0],
        [last],
        [last, 0],
        [2, 2, 0, last, 2],
        list(range(length)),
        list(reversed(range(length))),
        [last // 2] * (length + 1),
    ):
        yield np.array(chosen, np.int64)


def _overwrite(tree: object) -> None:
    for leaf in flatten(tree)[0]:
        if isinstance(leaf, np.ndarray):
            check(leaf.flags.writeable, "an array that was handed out is read-only.")
            leaf[...] = np.zeros((), leaf.dtype)


def _open_files() -> set[str]:
    found = set()
    for entry in os.listdir(_DESCRIPTORS):
        try:
            target = os.readlink(f"{_DESCRIPTORS}/{entry}")
        except OSError:
            continue  # the descriptor of this very listing
        if target.startswith("/") and not target.startswith(("/proc/", "/dev/")):
            found.add(f"{target} ({entry})")
    return found
