"""Sources of records."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, SupportsIndex, TypeVar, runtime_checkable

import numpy as np

from loaderx import ArgumentError, FileError, PositionError
from loaderx.compat.grain.protocols import AssertedError, RandomAccessDataSource
from loaderx.extend import open_array_records

__all__ = [
    "ArrayRecordDataSource",
    "RandomAccessDataSource",
    "RangeDataSource",
    "SharedMemoryDataSource",
]


def __dir__() -> list[str]:
    return __all__


T = TypeVar("T")


class RangeDataSource:
    """The integers of Python's `range`."""

    def __init__(self, start: int, stop: int, step: int) -> None:
        if step == 0:
            raise AssertedError("`step` must not be 0.")
        self._start, self._stop, self._step = start, stop, step
        self._len = math.ceil((stop - start) / step)
        if self._len < 0:
            raise AssertedError(f"range({start}, {stop}, {step}) has no records.")

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, record_key: SupportsIndex) -> int:
        index = record_key.__index__()
        if not 0 <= index < self._len:
            raise PositionError(f"there is no record {index}: the source has {self._len}.")
        return self._start + index * self._step

    def __getitems__(self, record_keys: Sequence[SupportsIndex]) -> list[int]:
        return [self[key] for key in record_keys]

    def __repr__(self) -> str:
        return f"RangeDataSource(start={self._start}, stop={self._stop}, step={self._step})"


class SharedMemoryDataSource(list[T]):
    """Elements in memory.

    A plain list: worker processes share the memory of their parent in any case.
    """

    def __init__(self, elements: Sequence[T] | None = None, *, name: str | None = None) -> None:
        if elements is None:
            raise ArgumentError(
                "Pass the elements: a list of another process cannot be attached to by its name."
            )
        super().__init__(elements)
        self.name = name

    def __str__(self) -> str:
        return f"InMemoryDataSource(name={self.name}, len={len(self)})"

    def close(self) -> None:
        """Does nothing: there is no shared memory to be released."""

    def unlink(self) -> None:
        """Does nothing: there is no shared memory to be removed."""


@runtime_checkable
class FileInstruction(Protocol):
    """Some records of a file, as TFDS names them."""

    filename: str
    skip: int
    take: int
    examples_in_shard: int


PathOrInstruction = str | os.PathLike[str] | FileInstruction


class UnreadableError(FileError, RuntimeError):
    """A file cannot be opened; Grain raises a RuntimeError."""


class ArrayRecordDataSource:
    """The records of ArrayRecord files, as bytes.

    Files are read by loaderx itself.  Files compressed with zstd, the writer's default, need the
    package ``zstandard`` or ``array_record``; other kinds of compression need the latter.

    Args:
        paths: one path or file instruction, or several.
        reader_options: accepted, and without effect.
    """

    def __init__(
        self,
        paths: PathOrInstruction | Sequence[PathOrInstruction],
        reader_options: Mapping[str, str] | None = None,
    ) -> None:
        given = _as_sequence(paths)
        self._paths = [_path(one) for one in given]
        try:
            self._source = open_array_records(self._paths)
        except FileError as error:
            raise UnreadableError(*error.args) from error
        # Record number -> number among all records of the files.
        begins = self._source.chunks()
        if begins is None:
            begins = np.array([0, len(self._source)])
        counts = np.diff(begins).tolist()
        spans = [_span(one, count) for one, count in zip(given, counts, strict=True)]
        self._first = begins[:-1] + [skip for skip, _ in spans]
        self._ends = np.cumsum([take for _, take in spans])

    @property
    def paths(self) -> list[str]:
        """The files."""
        return self._paths

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, record_key: SupportsIndex) -> bytes:
        return self.__getitems__([record_key])[0]

    def __getitems__(self, record_keys: Sequence[SupportsIndex]) -> list[bytes]:
        keys = np.asarray([key.__index__() for key in record_keys], np.int64)
        if len(keys) and not (keys.min() >= 0 and keys.max() < len(self)):
            raise ArgumentError(f"Record key should be in [0, {len(self)}), got {keys.tolist()}.")
        part = np.searchsorted(self._ends, keys, side="right")
        before = np.concatenate([[0], self._ends])[part]
        found = self._source.records(self._first[part] + keys - before)
        return [record["data"] for record in found]

    def __iter__(self) -> Iterator[bytes]:
        return (self[index] for index in range(len(self)))

    def __enter__(self) -> ArrayRecordDataSource:
        return self

    def __exit__(self, *error: object) -> None:
        """Files are closed when the source is dropped."""

    def __repr__(self) -> str:
        # The text of the package `array_record`, since it is stored in states.
        digest = hashlib.sha1("".join(self._paths).encode(), usedforsecurity=False)
        return f"ArrayRecordDataSource(hash_of_paths={digest.hexdigest()})"


def _as_sequence(
    paths: PathOrInstruction | Sequence[PathOrInstruction],
) -> Sequence[PathOrInstruction]:
    if isinstance(paths, (str, os.PathLike, FileInstruction)):
        return [paths]
    if not isinstance(paths, Sequence):
        raise ArgumentError(
            f"`paths` must be a path, a file instruction, or several, got {type(paths).__name__}."
        )
    if not paths:
        raise ArgumentError("`paths` is empty: name at least one file.")
    return paths


def _path(one: PathOrInstruction) -> str:
    return one.filename if isinstance(one, FileInstruction) else os.fspath(one)


def _span(one: PathOrInstruction, count: int) -> tuple[int, int]:
    """The first record and the number of records."""
    if not isinstance(one, FileInstruction):
        return 0, count
    rest = count - one.skip
    take = rest if one.take < 0 else one.take
    if not 0 <= take <= rest:
        raise ArgumentError(
            f"{one.filename} has {count} records, and not {take} after the first {one.skip}."
        )
    return one.skip, take
