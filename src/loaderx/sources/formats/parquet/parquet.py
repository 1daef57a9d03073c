"""The files of a Parquet dataset: their footers, and their row groups as columns.

Only footers are read when a dataset is opened.  They have the number of records, the types, and
mostly the number of nulls; so what does not fit is refused before anything is decoded.  Of files
behind URLs, only what is read is fetched (`parquet_pieces`), unless all of them are to be copied.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loaderx.errors import FileError
from loaderx.locks import new_lock
from loaderx.sources.base import Source
from loaderx.sources.columns.data import ColumnData, ColumnType, joined
from loaderx.sources.columns.gaps import keeping, refuse_gaps
from loaderx.sources.files.file_set import FileRanges, FileSet
from loaderx.sources.files.parts import Parts
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.arrow.columns import arrow_columns
from loaderx.sources.formats.arrow.shard_types import ShardTypes
from loaderx.sources.formats.arrow.types import import_pyarrow
from loaderx.sources.formats.blocks import open_blocks
from loaderx.sources.formats.parquet.hive import hive_columns
from loaderx.sources.formats.parquet.pieces import (
    NothingToRead,
    ReachedError,
    chunk_ranges,
    data_with_footer,
    footers_here,
)
from loaderx.sources.mapping import reading
from loaderx.sources.remote.urls import is_url
from loaderx.tree import Array

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_KEPT_FOOTERS = 64  # of files that were read last: a footer with many row groups is slow to parse
_STEP_BYTES = 1 << 22  # of columns that are decoded at once; more is slower, not faster
_STEP_ROWS = 1 << 16


class RowGroup(NamedTuple):
    """A run of records that is decoded together."""

    file: int
    number: int  # within its file
    rows: int


class ParquetFiles:
    """Files with the same columns; their footers have been read and compared."""

    def __init__(
        self,
        files: FileSet,
        options: OpenOptions,
        *,
        in_pieces: bool = False,
    ) -> None:
        """``in_pieces``: all files lie behind URLs, and only bytes that are read are fetched."""
        import_pyarrow("a Parquet file")
        self._files, self._options, self.in_pieces = files, options, in_pieces
        self._fill, self.shards = options.fill, files.paths
        self._footers = _Footers(files, in_pieces=in_pieces)
        self._read_footers()

    # What the footers say ---------------------------------------------------------------------

    def _read_footers(self) -> None:
        groups: list[int] = []  # the row groups of each file
        rows: list[int] = []  # the records of each row group
        self.counts: list[int] = []
        self.nbytes = 0  # of the columns before compression
        types: ShardTypes | None = None
        counts = Counter[str]()  # of nulls
        for number in footers_here(self._files) if self.in_pieces else self._files.fetched():
            path, footer = self._files.paths[number], self._footers.of(number)
            if not footer.num_rows:  # an empty file may have any columns
                self.counts.append(0)
                groups.append(0)
                continue
            with reading(path):
                schema = footer.schema.to_arrow_schema()
                if types is None:
                    types = self._begin(schema, path)
                else:
                    types.add(schema, path)
                found = self._add(number, footer, types, counts)
            groups.append(len(found))
            rows += found
        self._groups, self.group_rows = Parts(groups), np.array(rows, np.int64)
        if types is None:
            others = f" and {len(self.counts) - 1} more" if len(self.counts) > 1 else ""
            raise FileError(f"{self._files.paths[0]}{others}: there are no records.")
        kinds = {**types.kinds, **{name: one.kind for name, one in self._hive.items()}}
        kinds = {name: kinds[name] for name in self.names}
        nulls: dict[str, int | None] = {**+counts}  # without zeros
        for name, one in self._hive.items():
            if one.has_nulls and name not in self._fill and not self._options.keeps(name):
                nulls[name] = None
        at = self._files.paths[0] + (" and others" if len(self.counts) > 1 else "")
        refuse_gaps(at, nulls, kinds)
        self.kinds = keeping(kinds, self._options)
        self.classes = types.classes

    def _begin(self, schema: pa.Schema, path: str) -> ShardTypes:
        hive = hive_columns(self._files.paths)
        hive = {name: one for name, one in hive.items() if name not in schema.names}
        columns = self._options.columns
        self._options.check_names([*schema.names, *hive], path)
        types = ShardTypes(schema, path, columns, beside=list(hive))
        self.names = [*schema.names, *hive] if columns is None else list(columns)
        self._read = types.names
        self._hive = {name: hive[name] for name in self.names if name in hive}
        return types

    def _add(
        self,
        number: int,
        footer: pq.FileMetaData,
        types: ShardTypes,
        nulls: Counter[str],
    ) -> list[int]:
        """Checks all row groups of a file, and returns the numbers of their records."""
        path = self._files.paths[number]
        if self._read:
            self._footers.check(number, self._read)
        leaves = self._leaves(footer, types.kinds)
        nulls.update(dict.fromkeys(filter(None, leaves.values()), 0))  # in the order of columns
        rows: list[int] = []
        for at in range(footer.num_row_groups):
            group = footer.row_group(at)
            rows.append(int(group.num_rows))
            for place, name in leaves.items():
                chunk = group.column(place)
                if chunk.physical_type != footer.schema.column(place).physical_type:
                    # `statistics` would end the process.
                    raise FileError(f"{path} is damaged: a column chunk has another type.")
                self.nbytes += max(0, chunk.total_uncompressed_size)
                stats = chunk.statistics if name is not None else None
                if name is not None and stats is not None and stats.null_count:
                    nulls[name] += stats.null_count
        if sum(rows) != footer.num_rows or min(rows) < 0:
            raise FileError(f"{path} is damaged: its row groups have {sum(rows)} records in all.")
        self.counts.append(sum(rows))
        return rows

    def _leaves(
        self, footer: pq.FileMetaData, kinds: Mapping[str, ColumnType]
    ) -> dict[int, str | None]:
        """The columns of the footer that are read: the leaf whose nulls they count, or None.

        It is None for lists, whose counts include empty ones, and for leaves whose missing values
        are filled or kept.
        """
        told = dict(_null_paths(kinds))
        found: dict[int, str | None] = {}
        for place in range(footer.num_columns):
            leaf = footer.schema.column(place)
            if leaf.path.split(".")[0] in kinds or leaf.path in kinds:
                name = told.get(leaf.path) if not leaf.max_repetition_level else None
                is_kept = name in self._fill or (name is not None and self._options.keeps(name))
                found[place] = None if is_kept else name
        return found

    # Data -------------------------------------------------------------------------------------

    def steps(self) -> Iterator[dict[str, ColumnData]]:
        """All records in order, some at a time."""
        row = max(1, self.nbytes // max(1, sum(self.counts)))
        most = max(1, min(_STEP_ROWS, _STEP_BYTES // row))
        for number, path in enumerate(self._files.paths):
            if not self.counts[number]:
                continue
            rows = 0
            with reading(path):
                file = self._footers.open(number)
                for batch in file.iter_batches(most, columns=self._read, use_threads=False):
                    rows += len(batch)
                    yield self._columns(number, batch, self.names)
            self._check_count(path, rows, self.counts[number])

    def block(self, number: int) -> dict[str, ColumnData]:
        """The columns of a row group."""
        group = RowGroup(*self._groups.locate(number), int(self.group_rows[number]))
        found = {
            name: one.data(group.file, group.rows, self._fill) for name, one in self._hive.items()
        }
        if not self._read:
            return found
        path = self._files.paths[group.file]
        with reading(path):
            file = self._footers.open(group.file, self._ranges(group.file, [group.number]))
            table = file.read_row_group(group.number, columns=self._read, use_threads=False)
            self._check_count(path, table.num_rows, group.rows)
            data = [self._decoded(batch, path) for batch in table.to_batches()]
            for name in self._read:
                found[name] = joined(self.kinds[name], [one[name] for one in data])
        return found

    def fetch(self, numbers: Sequence[int]) -> int:
        """Fetches row groups; returns the number of bytes that were fetched."""
        if not self._read:
            return 0
        places = sorted(self._groups.locate(number) for number in numbers)
        wanted = [
            self._ranges(file, [number for _, number in groups])
            for file, groups in itertools.groupby(places, lambda place: place[0])
        ]
        return self._files.fetch_ranges([one for one in wanted if one is not None])

    def _ranges(self, file: int, groups: Sequence[int]) -> FileRanges | None:
        """Where row groups lie, in pieces; None if there is nothing to fetch."""
        if not self.in_pieces:
            return None
        footer, read = self._footers.of(file), set(self._read)
        leaves = [footer.schema.column(place).path for place in range(footer.num_columns)]
        places = [n for n, path in enumerate(leaves) if path in read or path.split(".")[0] in read]
        found = chunk_ranges(self._files, file, footer, groups, places)
        return found if len(found.starts) else None

    def _columns(self, file: int, batch: pa.RecordBatch, names: list[str]) -> dict[str, ColumnData]:
        found = self._decoded(batch, self._files.paths[file])
        for name, one in self._hive.items():
            found[name] = one.data(file, len(batch), self._fill)
        return {name: found[name] for name in names}

    def _decoded(self, batch: pa.RecordBatch, path: str) -> dict[str, ColumnData]:
        return arrow_columns(batch, self._read, self.kinds, self._fill, path)

    def _check_count(self, path: str, rows: int, told: int) -> None:
        if rows != told:
            raise FileError(f"{path} is damaged: its footer says {told} records, {rows} came.")


class _Footers:
    """The footers of files that were read last."""

    def __init__(self, files: FileSet, *, in_pieces: bool) -> None:
        self._files, self._in_pieces = files, in_pieces
        self._begin()

    def _begin(self) -> None:
        self._kept: dict[int, pq.FileMetaData] = {}
        self._lock = new_lock()

    def of(self, number: int) -> pq.FileMetaData:
        with self._lock:
            footer = self._kept.get(number)
        if footer is None:
            path = self._files.paths[number]
            with reading(path):
                footer = self._reader(self._data(number)).metadata
            with self._lock:
                while len(self._kept) >= _KEPT_FOOTERS:
                    del self._kept[next(iter(self._kept))]
                self._kept[number] = footer
        return footer

    def check(self, number: int, columns: list[str]) -> None:
        """Makes the reader check the footer's entry of every row group.

        Of a damaged one it raises; reading it through `FileMetaData` would end the process, since
        exceptions of C++ are not caught there.
        """
        data = NothingToRead(self._files.sizes[number]) if self._in_pieces else self._data(number)
        file = self._reader(data, self.of(number), pre_buffer=True)
        try:
            next(file.iter_batches(1, columns=columns, use_threads=False), None)
        except ReachedError as error:
            error.__traceback__ = None  # pyarrow keeps the error, and so our frames

    def open(self, number: int, ranges: FileRanges | None = None) -> pq.ParquetFile:
        """A reader of its own for each call: several threads read at once.

        They read with ``use_threads=False``: a process that ends while Arrow's threads are at work
        may be aborted, and loaderx has workers of its own.  In pieces, ``ranges`` are here.
        """
        data = self._data(number) if ranges is None else self._files.data_with(ranges)
        return self._reader(data, self.of(number))

    def _data(self, number: int) -> Array:
        if self._in_pieces:
            return data_with_footer(self._files, number)
        return self._files.data(number)

    def _reader(
        self,
        data: Array | NothingToRead,
        metadata: pq.FileMetaData | None = None,
        *,
        pre_buffer: bool = False,
    ) -> pq.ParquetFile:
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = (
            pa.PythonFile(data, "r")
            if isinstance(data, NothingToRead)
            else pa.BufferReader(pa.py_buffer(data))
        )
        return pq.ParquetFile(
            file, metadata=metadata, pre_buffer=pre_buffer, page_checksum_verification=True
        )

    def __getstate__(self) -> dict[str, object]:
        return {"_files": self._files, "_in_pieces": self._in_pieces}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()


def _null_paths(kinds: Mapping[str, ColumnType], inside: str = "") -> Iterator[tuple[str, str]]:
    """The paths in a footer whose nulls are nulls of a leaf, and the names of those leaves."""
    for name, kind in kinds.items():
        path = f"{inside}.{name}" if inside else name
        if kind.kind == "struct":
            yield from _null_paths(kind.fields, path)
        else:
            yield path, path
            if kind.kind in ("image", "bytes"):
                yield f"{path}.bytes", path  # of the struct in which Hugging Face has it


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of Parquet files."""

    def open_parquet() -> ParquetFiles:
        found = FileSet(files, files=options.cache.files)
        in_pieces = not options.cache.makes_copies and all(map(is_url, files))
        return ParquetFiles(found, options, in_pieces=in_pieces)

    return open_blocks(open_parquet, files, options, "parquet")
