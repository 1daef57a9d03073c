"""ArrayRecord files: Riegeli files that end with a list of their chunks.

The last block of a file says where that list begins.  It has the place of each chunk and
the number of its records, which is mostly one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError, LoaderxError, MissingPackageError
from loaderx.locks import new_lock
from loaderx.sources.base import BadRecordError, Indices, Source
from loaderx.sources.cache.folder import CacheFolder, IndexedFile
from loaderx.sources.files.cold import Span
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Located, Parts
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.heads import RIEGELI_SIGNATURE, is_array_record
from loaderx.sources.formats.tf.decoders import Leaves
from loaderx.sources.formats.tf.example import fields, read_varint
from loaderx.sources.formats.tf.example_index import find_positions
from loaderx.sources.formats.tf.example_source import ExampleReader
from loaderx.sources.formats.tf.leaves import Leaf, decode_varints, missing_leaf, one_block
from loaderx.sources.formats.tf.payloads import NAME, PayloadReader, PayloadSource
from loaderx.sources.formats.tf.riegeli import (
    BLOCK_BYTES,
    OtherChunkError,
    read_chunk,
    records_of,
    single_record,
)
from loaderx.tree import Array

_VERSION = 1
_MAGIC = 0x71930E704FDAE05E
_MOST_RECORDS = 1 << 48
_Numbers = npt.NDArray[np.int64]


class ArrayRecordFiles(PayloadReader):
    """The records of ArrayRecord files as bytes, by number."""

    def __init__(self, files: FileSet, cache: CacheFolder) -> None:
        def indexer(number: int) -> IndexedFile:
            return _index_file(files.data(number), files.paths[number])

        index = cache.index("array-record", _VERSION, files, indexer)
        self._offsets, self._ends = index.arrays["offsets"], index.arrays["ends"]
        self._chunks = index.parts["offsets"]
        notes = cast("list[tuple[int, str]]", index.notes)
        super().__init__(files, Parts([count for count, _ in notes]))
        self._library = LibraryReaders(files, [reason for _, reason in notes])
        # Then the number of a record is that of its chunk.
        self._has_single = bool((self.parts.counts == self._chunks.counts).all())
        self._latest: tuple[int, int, list[bytes]] = (-1, -1, [])

    def spans(self, indices: Indices, names: Sequence[str] = ()) -> Iterator[Span]:
        """The bytes of the whole chunks of records."""
        for part, _, local in self.parts.split(indices):
            first, count = int(self._chunks.starts[part]), int(self._chunks.counts[part])
            if self._library.is_needed(part):
                continue
            data = self.files.data(part)
            offsets, ends = self._offsets[first : first + count], self._ends[first : first + count]
            chunks = np.searchsorted(ends, local, side="right")
            yield Span(data, offsets[chunks], np.append(offsets[1:], len(data))[chunks])

    def payloads(self, indices: Indices) -> list[bytes]:
        try:
            if self._has_single:
                return self._single_records(indices)
            return self._records_of_chunks(indices)
        except MissingPackageError as error:  # zstandard is missing now
            self._library.take_over(error)
            self._has_single = False
            return self._records_of_chunks(indices)
        except LoaderxError:
            raise
        except (OtherChunkError, IndexError, ValueError) as error:
            raise BadRecordError(f"its chunk is damaged ({error})") from error

    def _single_records(self, indices: Indices) -> list[bytes]:
        offsets = self._offsets[indices].tolist()
        if len(self.files) == 1:
            data = self.files.data(0).data
            return [single_record(data, offset) for offset in offsets]
        numbers = np.searchsorted(self.parts.ends, indices, side="right").tolist()
        maps = {number: self.files.data(number).data for number in set(numbers)}
        return [
            single_record(maps[number], offset)
            for number, offset in zip(numbers, offsets, strict=True)
        ]

    def _records_of_chunks(self, indices: Indices) -> list[bytes]:
        found: list[bytes] = [b""] * len(indices)
        for part, places, local in self.parts.split(indices):
            each = np.arange(len(indices))[places]
            if self._library.is_needed(part):
                for place, data in zip(each, self._library.read(part, local), strict=True):
                    found[int(place)] = data
                continue
            first = int(self._chunks.starts[part])
            ends = self._ends[first : first + int(self._chunks.counts[part])]
            chunks = np.searchsorted(ends, local, side="right")
            for place in np.argsort(chunks, kind="stable").tolist():
                chunk, record = int(chunks[place]), int(local[place])
                begin = int(ends[chunk - 1]) if chunk else 0
                inside = self._chunk(part, chunk, int(self._offsets[first + chunk]))
                found[int(each[place])] = inside[record - begin]
        return found

    def _chunk(self, part: int, chunk: int, offset: int) -> list[bytes]:
        """The records of a chunk; the latest one is kept, for neighbours that come next."""
        latest = self._latest
        if latest[:2] == (part, chunk):
            return latest[2]
        found = records_of(read_chunk(self.files.data(part).data, offset))
        self._latest = (part, chunk, found)
        return found

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_latest": (-1, -1, [])}


class ArrayRecordExamples(ArrayRecordFiles, ExampleReader):
    """The same for records that are Examples: their features are found in each batch."""

    def leaves(self, indices: Indices, names: Sequence[str]) -> Leaves:
        payloads = self.payloads(indices)
        data = np.frombuffer(b"".join(payloads), np.uint8)
        stops = np.cumsum([len(one) for one in payloads])
        starts = np.concatenate([[0], stops[:-1]])
        found = find_positions(data, starts, stops, counted=False)
        if found.damaged:
            raise BadRecordError(f"it is not a tf.Example ({next(iter(found.damaged.values()))})")
        block = one_block(data)
        leaves = {}
        for name in names:
            feature = found.features.get(name.encode())
            leaves[name] = (
                missing_leaf(len(indices))
                if feature is None
                else Leaf(block, Located(None, feature.at), feature.sizes)
            )
        return leaves


# The list of chunks -----------------------------------------------------------------------------


def _index_file(data: Array, path: str) -> IndexedFile:
    try:
        offsets, counts = _find_chunks(data, path)
        with contextlib.suppress(BadRecordError):  # that record fails when it is read
            if len(offsets):
                records_of(read_chunk(data.data, int(offsets[0])))
    except (OtherChunkError, MissingPackageError) as error:  # others may be of this kind
        reader = _library_reader(path, error)
        count = reader.num_records()
        reader.close()
        nothing = np.zeros(0, np.int64)
        return IndexedFile({"offsets": nothing, "ends": nothing}, [count, str(error)])
    arrays: dict[str, Array] = {"offsets": offsets, "ends": np.cumsum(counts)}
    return IndexedFile(arrays, [int(counts.sum()), ""])


def _find_chunks(data: Array, path: str) -> tuple[_Numbers, _Numbers]:
    """The places of the chunks of a file, and the number of records in each."""
    if not is_array_record(data[: len(RIEGELI_SIGNATURE)].tobytes()):
        raise FileError(f"{path} is not an ArrayRecord file: its first bytes are different.")
    try:
        footer = _footer_position(data.data)
        _, *footers = records_of(read_chunk(data.data, footer))
        offsets, counts = _parse_footers(footers)
    except (BadRecordError, ValueError, IndexError) as error:
        raise FileError(f"{path} is damaged or cut off: {error}.") from error
    is_wrong = (offsets <= 0) | (offsets >= footer) | (counts <= 0) | (counts > _MOST_RECORDS)
    if is_wrong.any() or (np.diff(offsets) <= 0).any():
        raise FileError(f"{path} is damaged: its list of chunks is wrong.")
    return offsets, counts


def _footer_position(data: memoryview) -> int:
    last = len(data) - BLOCK_BYTES
    if last <= 0 or last % BLOCK_BYTES:
        raise BadRecordError("its last block is missing")
    for record in records_of(read_chunk(data, last)):
        told = _numbers(memoryview(record))
        if told.get(2) == _MAGIC and told.get(1, 0) < last:
            return told.get(1, 0)
    raise BadRecordError("its last block does not say where the list of chunks is")


def _parse_footers(footers: list[bytes]) -> tuple[_Numbers, _Numbers]:
    """Offsets and counts; all are read at once if each has the same three fields."""
    joined = np.frombuffer(b"".join(footers), np.uint8)
    ends = np.flatnonzero(joined < 128)
    if len(ends) == 6 * len(footers):
        rows = decode_varints(joined, ends).reshape(-1, 6)
        if (rows[:, ::2] == [8, 16, 24]).all():
            return rows[:, 1].copy(), rows[:, 5].copy()
    told = [_numbers(memoryview(one)) for one in footers]
    offsets = [min(one.get(1, 0), _MOST_RECORDS) for one in told]
    counts = [min(one.get(3, 0), _MOST_RECORDS + 1) for one in told]
    return np.array(offsets, np.int64), np.array(counts, np.int64)


def _numbers(message: memoryview) -> dict[int, int]:
    return {
        field.number: read_varint(message, field.start, field.stop)[0]
        for field in fields(message, 0, len(message))
        if field.wire == 0
    }


# The library ------------------------------------------------------------------------------------


class _LibraryReader(Protocol):
    def num_records(self) -> int: ...
    def read(self, indices: list[int]) -> list[bytes]: ...
    def close(self) -> None: ...


def _library_reader(path: str, reason: str | Exception) -> _LibraryReader:
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as error:
        if isinstance(reason, MissingPackageError):  # another package that can decompress
            raise reason from None
        raise MissingPackageError(
            f"{path}: {reason}, which needs the package array_record: pip install array_record."
        ) from error
    try:
        return cast(_LibraryReader, ArrayRecordReader(path))
    except Exception as error:  # it may raise anything
        raise FileError(f"{path}: array_record cannot open it ({error}).") from error


class LibraryReaders:
    """Reads files whose chunks are compressed with brotli or snappy, or transposed.

    Without zstandard, it reads those compressed with zstd as well.
    """

    def __init__(self, files: FileSet, reasons: Sequence[str]) -> None:
        self._files, self._reasons = files, list(reasons)
        self._begin()

    def _begin(self) -> None:
        self._readers: dict[int, _LibraryReader] = {}
        self._lock = new_lock()

    def is_needed(self, part: int) -> bool:
        return bool(self._reasons[part])

    def take_over(self, error: MissingPackageError) -> None:
        """Reads all files from now on; raises the error if it cannot."""
        _library_reader(self._files.paths[0], error).close()
        self._reasons = [reason or str(error) for reason in self._reasons]

    def read(self, part: int, local: Indices) -> list[bytes]:
        """These records of a file."""
        with self._lock:
            if part not in self._readers:
                path = self._files.paths[part]
                self._readers[part] = _library_reader(path, self._reasons[part])
            try:
                return self._readers[part].read(local.tolist())
            except Exception as error:  # it may raise anything
                raise BadRecordError(f"array_record cannot read it ({error})") from error

    def __getstate__(self) -> tuple[FileSet, list[str]]:
        return self._files, self._reasons

    def __setstate__(self, state: tuple[FileSet, list[str]]) -> None:
        self._files, self._reasons = state
        self._begin()


# ArrayRecord files, read without the library of that name.
#
# A file does not describe its records: they are ``{"data": bytes}``.  Where these are
# Examples, ``.map(lambda record: parse_example(record["data"]))`` takes them apart.  Simple chunks,
# uncompressed or compressed with zstd, are what every writer makes that is not told otherwise; the
# others are left to the library.


def open_array_records(files: list[str], cache: CacheFolder) -> PayloadSource:
    """The records of files, as bytes."""
    reader = ArrayRecordFiles(FileSet(files, files=cache.files), cache)
    if not len(reader):
        raise FileError(f"{files[0]} has no records.")
    return PayloadSource(reader, "array_record")


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    options.chosen([NAME], files[0])
    return open_array_records(files, options.cache)
