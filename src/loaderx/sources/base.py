"""The interface through which a dataset reads records."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from loaderx.errors import ArgumentError, FileError, MissingPackageError, check_int, one_line
from loaderx.frozen import Frozen
from loaderx.memory import Layout, Lend, Pool
from loaderx.tree import Array, DType, Tree, flatten

Indices: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

Gather: TypeAlias = Callable[[Indices, Lend], Tree]

READERS = ("gather", "records", "__getitem__")
"""The methods that read.  A source has at least one of them; the others follow from it."""

_CHECKED_TOGETHER = 16  # records that are checked at once; more take much memory if they are large

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Source:
    """Records by index: the base class of all sources, loaderx's own and yours.

    A subclass writes ``__len__`` and one of these, whichever suits its data best:

    - `gather`, for records that can be stacked: many records in one call, no Python per record;
    - `records`, for records that differ in shape: many records in one call, as a list;
    - ``__getitem__``, one record.

    Everything else has a default.  `Dataset.from_source` refuses an incomplete subclass, and says
    what to add.  ``docs/extending.md`` has a complete example, `loaderx.testing` the tests.

    >>> class Squares(Source):
    ...     def __len__(self):
    ...         return 5
    ...
    ...     def gather(self, indices, lend):
    ...         return {"square": indices**2}
    >>> [int(record["square"]) for record in Squares()]
    [0, 1, 4, 9, 16]
    """

    def __len__(self) -> int:
        """The number of records; it must not change."""
        raise NotImplementedError(f"{type(self).__name__} has no __len__.")

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        """The records at ``indices``, stacked: a tree of arrays with one row for each index.

        Args:
            indices: int64, each from 0 to ``len - 1``; in any order, and some may be equal. For a
                file that is best read in ascending order, use ``np.unique(indices)``.
            lend: gives arrays for the result. loaderx reuses their memory for a later batch when
                nothing refers to them any more: see `buffers`. The parameter is optional: a
                source may return new arrays instead.

        Returns:
            Arrays that the caller may keep and write to: never views of the source's own data.
            Their dtypes and shapes are those of `spec`, if there is one.
        """
        raise NotImplementedError(f"{type(self).__name__} has no gather.")

    def records(self, indices: Indices) -> list[Tree]:
        """The records at ``indices`` as a list; ``indices`` is as in `gather`.

        Their arrays are new, or read-only views of the source's own data: views are copied when a
        record is handed out.  By default ``self[i]`` for each index, or else rows of `gather`.
        """
        if overrides(self, "__getitem__"):
            return [self[index] for index in indices.tolist()]
        if not overrides(self, "gather"):
            raise NotImplementedError(f"{type(self).__name__} has none of {', '.join(READERS)}.")
        gather: Callable[..., Tree] = self.gather
        lend = (Pool().lend,) if takes_lend(gather) else ()
        leaves, structure = flatten(gather(indices, *lend))
        return [structure.build(row) for row in zip(*leaves, strict=True)]

    def __getitem__(self, index: int) -> Tree:
        """One record, as in `records`; an `IndexError` if there is none.

        loaderx asks for 0 to ``len - 1``.  By default negative indices count from the end.
        """
        number, length = check_int("index", index), len(self)
        if not -length <= number < length:
            raise IndexError(f"record {number} is out of range for {length} records.")
        return self.records(np.array([number % length]))[0]

    @property
    def spec(self) -> Tree | None:
        """A record with an `ArraySpec` in place of each leaf.

        None (the default) if it is not known without reading a record.  None in the shape of a leaf
        means that the axis differs between records, which then cannot be gathered.  The spec is
        asked for once, and is part of the fingerprint in saved states.
        """
        return None

    @property
    def thread_safe(self) -> bool:
        """True if several threads may read at once.  If not (the default), they take turns."""
        return False

    @property
    def random_access(self) -> bool:
        """True if records are read as fast in any order as in their own.

        False for records that must be decoded in large blocks: shuffle then needs a window.
        """
        return True

    def chunks(self) -> Indices | None:
        """The first record of each stored chunk, followed by the number of records.

        For example ``[0, 1000, 2000, 2300]`` for 2,300 records in three row groups or shards.
        Chunks are the blocks of ``shuffle(block="source")``.  None (the default): there are none.
        A source whose chunks must be fetched or decoded as a whole is a `ChunkSource`.
        """
        return None

    @property
    def gathers(self) -> bool:
        """True if `gather` should be used; by default, if the subclass defines it."""
        return overrides(self, "gather")

    def fetch(self, indices: Indices) -> int:
        """Fetches the data of these records to this machine, and returns the bytes fetched.

        Threads of the loader call it ahead of reading, in the order of the stream, several at once.
        Reading must not depend on it, and its errors are dropped: reading will raise them.  The
        default does nothing.
        """
        return 0

    @property
    def fetches(self) -> bool:
        """True if `fetch` should be called; by default, if the subclass defines it."""
        return overrides(self, "fetch")

    @property
    def classes(self) -> dict[str, tuple[str, ...]]:
        """The class names of leaves whose numbers stand for classes, by leaf, if known."""
        return {}

    def label(self) -> str:
        """What the dataset's ``repr`` shows after ``Dataset.``, on one line."""
        return f"from_source({type(self).__name__}, {len(self)} records)"

    def buffers(self, rows: int, lend: Lend) -> Tree:
        """Arrays with the dtypes and shapes of `spec` for ``rows`` records, for `gather` to fill.

        They are aligned and come from ``lend``; their content is arbitrary.
        """
        leaves, structure = flatten(self.spec)
        if not leaves or any(None in leaf.shape for leaf in leaves):
            raise ArgumentError(
                f"buffers of {type(self).__name__} needs a spec without open axes, and it has "
                f"{self.spec!r}."
            )
        shapes = [((rows, *leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves]
        return structure.build(lend(Layout.of(*shapes)))


class OwnSource(Source):
    """A source of loaderx's own, whose results are not checked."""

    only_gathers = False
    """True if reading runs only NumPy."""

    identifies_data = False
    """True if what is sent to workers identifies its records: files, rather than their contents."""

    def gatherer(self, rows: int) -> Gather:
        """A `gather` for batches of one size, with lookups done beforehand where possible."""
        return self.gather

    def leaf(self, path: str) -> Source | None:
        """The values of one leaf as records, read without the others; None if it cannot do that."""
        return None


class ForWorkers:
    """A source that pickles as paths, but goes to worker processes as arrays in shared memory.

    A source is pickled to be sent to a worker, and most need nothing more: large arrays in its
    attributes are shared, mapped files are mapped again, and handles that were opened after the
    source was made, and cannot be pickled, are left out.  This base class is for a source whose
    pickle holds the paths of its files: it makes a worker see the same rows as this process, even
    if another file has that path now.
    """

    def for_workers(self) -> tuple[object, ...]:
        """Like ``__reduce__``; arrays in it are shared, or mapped again after a check."""
        raise NotImplementedError


def chunk_starts(source: Source) -> Indices | None:
    """The result of `Source.chunks`, checked, without empty chunks."""
    found = source.chunks()
    if found is None:
        return None
    starts = np.asarray(found)
    is_right = starts.ndim == 1 and starts.dtype.kind in "iu" and len(starts) > 0
    if is_right:
        starts = starts.astype(np.int64)
        ends_right = starts[0] == 0 and starts[-1] == len(source)
        is_right = ends_right and bool((np.diff(starts) >= 0).all())
    if not is_right:
        raise ArgumentError(
            f"{type(source).__name__}.chunks() must give where chunks begin, in ascending order "
            f"from 0 on, and then the number of records, {len(source)}; got "
            f"{starts.tolist()!r:.100}."
        )
    return np.unique(starts)


def overrides(source: Source, name: str) -> bool:
    """True if its class overrides a method or property of `Source`."""
    return getattr(type(source), name) is not getattr(Source, name)


def takes_lend(gather: Callable[..., Tree]) -> bool:
    """True for ``gather(indices, lend)``, False for ``gather(indices)``; else a `TypeError`."""
    try:
        parameters = list(inspect.signature(gather).parameters.values())
    except ValueError:  # a builtin without a signature
        return False
    positional = [one for one in parameters if one.kind in _POSITIONAL]
    needed = [one for one in parameters if one.default is one.empty and one.kind in _POSITIONAL]
    is_variadic = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    missing = any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in parameters)
    if missing or len(needed) > 2 or not (positional or is_variadic):
        listed = ", ".join(str(one) for one in parameters)
        raise TypeError(f"gather({listed})")
    return len(needed) == 2 or [one.name for one in positional[1:2]] == ["lend"]


class Problem(Frozen):
    """A record that cannot be read."""

    record: int
    where: str  # its file, and its place in it
    reason: str


class BadRecordError(FileError):
    """One record cannot be read; the others can.

    Any other `LoaderxError` of a bulk read counts as an error of the whole source.  After this one
    the records are read one by one, and the bad one gives a `RecordError`, which `on_error` may
    skip.
    """


class NumbersRecords(Protocol):
    """Files whose records are numbered through all of them."""

    def __len__(self) -> int: ...

    @property
    def counts(self) -> list[int]:
        """How many records each file has."""

    def file_of(self, index: int) -> tuple[str, int]:
        """The file of a record, and its number in it."""

    def where(self, index: int) -> str:
        """The file of a record and its place in it, for messages."""

    def check(self, index: int) -> str | None:
        """What the checksum of a record says of its bytes; None: nothing is wrong, or known."""


class FileSource(OwnSource):
    """Records of files: what `Dataset.open` and the command line need beyond `Source`."""

    identifies_data = True

    _reader: NumbersRecords | None = None
    """Numbers, shards and places of records come from here, unless a subclass overrides them."""

    def __len__(self) -> int:
        assert self._reader is not None
        return len(self._reader)

    @property
    def thread_safe(self) -> bool:
        return True

    one_file_per_record = False
    """True if each record is a file of its own: messages then name it beside the index."""

    @property
    def large_records(self) -> bool:
        """True if the records of a batch are too large to fit into the CPU caches together."""
        return False

    @property
    def shard_counts(self) -> Sequence[int] | None:
        """How many records each shard has; None if there are no shards."""
        return None if self._reader is None else self._reader.counts

    def chunks(self) -> Indices | None:
        counts = self.shard_counts
        if counts is None or len(counts) < 2:
            return None
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])

    def file_of(self, index: int) -> tuple[str, int] | None:
        """The file of a record, and its number in it; None if it is in no file, or in several."""
        return None if self._reader is None else self._reader.file_of(index)

    def where(self, index: int) -> str:
        """The file of a record and its place in it, for messages."""
        return f"record {index}" if self._reader is None else self._reader.where(index)

    def check(self, index: int) -> str | None:
        """What the checksum of a record says of its bytes; None: nothing is wrong, or known."""
        return None if self._reader is None else self._reader.check(index)

    def problems(self, first: int = 0, stop: int | None = None) -> Iterator[Problem | None]:
        """Reads and checks consecutive records, by default all: for each a problem, or None."""
        stop = len(self) if stop is None else stop
        together = 1 if self.one_file_per_record else _CHECKED_TOGETHER
        for start in range(first, stop, together):
            indices = range(start, min(start + together, stop))
            is_good = together > 1 and self._are_good(indices)
            yield from [None] * len(indices) if is_good else map(self._problem, indices)

    def _are_good(self, indices: range) -> bool:
        with contextlib.suppress(Exception):  # they are looked at one by one then
            self.records(np.array(indices))
            return all(self.check(index) is None for index in indices)
        return False

    def _problem(self, index: int) -> Problem | None:
        try:
            reason = self.check(index)
            if reason is None:
                self.records(np.array([index]))
        except MissingPackageError:
            raise
        except Exception as error:
            reason = one_line(error)
            if isinstance(error, BadRecordError):  # its message begins with the place
                reason = str(error).removeprefix(f"{self.where(index)}: ")
        return None if reason is None else Problem(index, self.where(index), reason)


class PaddedBatch(Frozen):
    """A batch, and the original lengths of its lists by leaf path."""

    tree: Tree
    lengths: dict[str, Array]


class PaddedGather(Protocol):
    """Gathers records with their lists padded."""

    def dtypes(self) -> dict[str, DType]:
        """The dtypes of the leaves, by path."""
        ...

    def gather(
        self, indices: Indices, values: Mapping[str, Array], lend: Lend
    ) -> PaddedBatch | None:
        """The records at ``indices``, lists padded with ``values``; None if impossible."""
        ...


class PadsLists:
    """A source that pads its lists itself, without Python code per record."""

    def padded(self, lengths: Mapping[str, int]) -> PaddedGather | None:
        """Its records with lists padded to these lengths, by path; None if it cannot."""
        raise NotImplementedError
