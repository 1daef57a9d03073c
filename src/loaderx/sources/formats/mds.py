"""MosaicML's MDS: ``index.json`` and shards, each with the offsets of its samples at its head.

A sample is the sizes of its columns of variable size, then the bytes of all columns.  Where the
values lie is computed for all records of a batch at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.base import Indices
from loaderx.sources.cache.folder import Json
from loaderx.sources.cache.unpack import unpack
from loaderx.sources.columns.column import Column
from loaderx.sources.columns.derived_columns import DecodedColumn
from loaderx.sources.columns.elements import Needs, PartElements, fetched_bytes
from loaderx.sources.columns.run_columns import BytesColumn, FixedRunColumn, Lists, TextColumn
from loaderx.sources.columns.table import TableSource
from loaderx.sources.files.arrays import PlacedArray, placed_arrays
from loaderx.sources.files.cold import Span
from loaderx.sources.files.compressed import GZIP, ZSTD
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Located, Parts
from loaderx.sources.files.record_files import RecordFiles
from loaderx.sources.format import Folder, OpenOptions, OpenSplit, Splits
from loaderx.sources.formats.mds_columns import MdsColumn, column_of
from loaderx.sources.mapping import reading

_INDEX = "index.json"
_HEAD_BYTES, _WORDS = 1 << 16, (b'"shards"', b'"column_encodings"')  # marks of the format
_PACKED = {"zstd": ZSTD, "gz": GZIP}


class Mds(TableSource):
    """The samples of the shards that one ``index.json`` lists."""

    def __init__(
        self, files: FileSet, counts: Sequence[int], columns: Sequence[MdsColumn], chosen: list[str]
    ) -> None:
        samples = _Samples(files, counts, columns)
        numbers = {one.name: number for number, one in enumerate(columns)}
        made = {name: samples.column(numbers[name]) for name in chosen}
        super().__init__(made, sum(counts), label="mds", shard_counts=counts)
        self._reader = RecordFiles(files, Parts(counts), "sample")


class _Samples:
    """Where the columns of samples lie in their shards."""

    def __init__(self, files: FileSet, counts: Sequence[int], columns: Sequence[MdsColumn]) -> None:
        self._files, self._columns, self._parts = files, columns, Parts(counts)
        self._bytes = fetched_bytes(files)
        self._sizes = np.array(files.sizes)
        heads = [
            PlacedArray(files, number, 4, np.dtype("<u4"), (count + 1,), in_pieces=True)
            for number, count in enumerate(counts)
        ]
        self._offsets = PartElements(self._parts, placed_arrays(heads), self._parts.counts + 1)
        self._variable = [number for number, one in enumerate(columns) if one.size is None]
        self._latest: tuple[Located, tuple[Indices, Indices]] | None = None

    def column(self, number: int) -> Column:
        """A column, by its number."""
        told, parts, lists = self._columns[number], self._parts, _Values(self, number)
        if told.size is not None:
            assert told.spec is not None
            return FixedRunColumn(parts, lists, self._bytes, told.spec)
        if told.is_text:
            return TextColumn(parts, lists, self._bytes)
        column = BytesColumn(parts, lists, self._bytes)
        return column if told.decode is None else DecodedColumn(column, told.decode)

    def find(self, at: Located) -> tuple[Indices, Indices]:
        """Where each column of each sample begins and ends; used by all columns of a batch."""
        latest = self._latest
        if latest is None or latest[0] is not at:
            self._latest = latest = at, self._find(at)
        return latest[1]

    def _find(self, at: Located) -> tuple[Indices, Indices]:
        starts, ends = self._offsets.pairs(at)
        heads = np.zeros((len(at), len(self._variable)), "<u4")
        begins = starts + 4 * len(self._variable)
        inside = (begins <= ends) & (ends <= at.each(self._sizes))
        if inside.all() and heads.size:
            for runs in self._bytes.runs(at.moved(starts), begins):
                runs.take_rows(heads)
        sizes = np.empty((len(at), len(self._columns)), np.int64)
        sizes[:, self._variable] = heads
        for number, column in enumerate(self._columns):
            if column.size is not None:
                sizes[:, number] = column.size
        stops = begins[:, None] + np.cumsum(sizes, 1)
        inside &= stops[:, -1] == ends
        if not inside.all():
            place = int(np.flatnonzero(~inside)[0])
            part = 0 if at.parts is None else int(at.parts[place])
            raise FileError(
                f"{self._files.paths[part]} is damaged or cut off: sample {int(at.rows[place])} "
                "does not lie where its shard says."
            )
        return stops - sizes, stops

    def spans(self, at: Located) -> Iterator[Span]:
        """The bytes that are read to find them."""
        yield from self._offsets.spans(at, at.rows + 2)
        starts, _ = self._offsets.pairs(at)
        yield from self._bytes.spans(at.moved(starts), starts + 4 * len(self._variable))

    def needs(self, at: Located) -> Iterator[Needs]:
        """The ranges to fetch to find them."""
        yield self._offsets.needs(at, at.rows + 2)
        starts, _ = self._offsets.pairs(at)
        yield self._bytes.needs(at.moved(starts), starts + 4 * len(self._variable))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_latest": None}


class _Values(Lists):
    """Where one column of samples lies."""

    def __init__(self, samples: _Samples, number: int) -> None:
        self._samples, self._number = samples, number

    def find(self, at: Located) -> tuple[Indices, Indices]:
        starts, stops = self._samples.find(at)
        return starts[:, self._number], stops[:, self._number]

    def spans(self, at: Located) -> Iterator[Span]:
        return self._samples.spans(at)

    def needs(self, at: Located) -> Iterator[Needs]:
        return self._samples.needs(at)


# Opening ----------------------------------------------------------------------------------------


def _open(folder: Folder, options: OpenOptions) -> Mds:
    path = folder.join(_INDEX)
    with folder.open(_INDEX) as file, reading(path):
        shards = json.load(file)["shards"]
        if not shards:
            raise FileError(f"{path} lists no shards.")
        first = shards[0]
        names, encodings = first["column_names"], first["column_encodings"]
        for number, shard in enumerate(shards):
            _check_shard(shard, first, f"{path}, shard {number}")
        chosen = options.chosen(list(names), path)
        columns = [
            _column(name, encoding, size, name in chosen, options, path)
            for name, encoding, size in zip(names, encodings, first["column_sizes"], strict=True)
        ]
        packed: dict[str, bytes] = {}
        paths = [_file(folder, shard, packed) for shard in shards]
        unpack(packed, options.cache)
        files = FileSet(paths, files=options.cache.files)
        counts = [int(shard["samples"]) for shard in shards]
    for number, count in enumerate(counts):
        _check_file(files, number, count)
    return Mds(files, counts, columns, chosen)


def _column(
    name: str, encoding: str, size: int | None, is_chosen: bool, options: OpenOptions, path: str
) -> MdsColumn:
    if is_chosen:
        return column_of(name, encoding, size, way=options.decode.below(name).way, where=path)
    return MdsColumn(name, size)  # only its place is needed


def _check_shard(shard: Mapping[str, Json], first: Mapping[str, Json], where: str) -> None:
    if shard["format"] != "mds":
        raise FileError(f"{where} has the format {shard['format']!r}; loaderx reads 'mds'.")
    for key in ("column_names", "column_encodings", "column_sizes"):
        if shard[key] != first[key]:
            raise FileError(f"{where} has other {key.replace('_', ' ')} than the first shard.")


def _file(folder: Folder, shard: dict[str, dict[str, str]], packed: dict[str, bytes]) -> str:
    """The path of a shard; where only the packed one exists, it is added to those to unpack."""
    plain = folder.join(shard["raw_data"]["basename"])
    if folder.file_systems.of(plain).is_file(plain):
        return plain
    if not shard.get("zip_data"):
        raise _missing(folder, plain)
    path, kind = folder.join(shard["zip_data"]["basename"]), str(shard["compression"])
    magic = _PACKED.get(kind.partition(":")[0])
    if magic is None:
        raise FileError(f"{path} is packed with {kind}; loaderx unpacks zstd and gz.")
    if not folder.file_systems.of(path).is_file(path):
        raise _missing(folder, path)
    packed[path] = magic
    return path


def _missing(folder: Folder, path: str) -> FileError:
    return FileError(
        f"{folder.join(_INDEX)} lists {path}, and there is no such file. Copy or download the "
        "whole folder."
    )


def _check_file(files: FileSet, number: int, count: int) -> None:
    path, size = files.paths[number], files.sizes[number]
    # The first bytes of a file behind a URL may not be here yet: samples that do not lie where it
    # says are noticed where they are read.
    is_remote = files.files.is_remote(path)
    head = files.known_head(number)[:4] if is_remote else files.data(number)[:4].tobytes()
    if size < 4 * (count + 2) or (len(head) == 4 and int.from_bytes(head, "little") != count):
        raise FileError(f"{path} is damaged or cut off: it does not hold the {count} samples.")


def _has_index(folder: Folder) -> bool:
    """True if there is an ``index.json`` of MDS, a name that others use, too."""
    if not folder.has(_INDEX):
        return False
    if any(".mds" in name for name in folder.files):
        return True
    with folder.open(_INDEX) as file:
        head = file.read(_HEAD_BYTES)
    return all(word in head for word in _WORDS)


def _split_folders(folder: Folder) -> list[Folder]:
    return [one for one in folder.folders if _has_index(one)]


def is_folder(folder: Folder) -> bool:
    return _has_index(folder) or bool(_split_folders(folder))


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    def opener(one: Folder) -> OpenSplit:
        return lambda: _open(one, options)

    below = {} if _has_index(folder) else {one.name: opener(one) for one in _split_folders(folder)}
    return below or {"": opener(folder)}
