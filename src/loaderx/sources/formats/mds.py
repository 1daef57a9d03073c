"""MosaicML's MDS: ``index.json`` and shards, each with the offsets of its samples at its head.

A sample is the sizes of its columns of variable size, then the bytes of all columns.  Where the
values lie is computed for all records of a batch at once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.memory import Layout, Lend
from loaderx.sources.adapt.arrays import describe_spec
from loaderx.sources.base import BadRecordError, FileSource, Indices
from loaderx.sources.cache.folder import Json
from loaderx.sources.cache.unpack import GZIP, ZSTD, unpack
from loaderx.sources.files.byte_ranges import gather_rows
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Parts
from loaderx.sources.files.record_files import RecordFiles
from loaderx.sources.format import Folder, OpenOptions, OpenSplit, Splits
from loaderx.sources.formats.mds_columns import MdsColumn, column_of
from loaderx.sources.mapping import reading
from loaderx.tree import Array, Tree

Numbers = npt.NDArray[np.int64]

_INDEX = "index.json"
_HEAD_BYTES, _WORDS = 1 << 16, (b'"shards"', b'"column_encodings"')  # that tell it from others
_PACKED = {"zstd": ZSTD, "gz": GZIP}


class Mds(FileSource):
    """The samples of the shards that one ``index.json`` lists."""

    def __init__(
        self, files: FileSet, counts: Sequence[int], columns: Sequence[MdsColumn], chosen: list[str]
    ) -> None:
        self._files, self._parts = files, Parts(counts)
        self._reader = RecordFiles(files, self._parts, "sample")
        self._columns = list(columns)
        numbers = {one.name: number for number, one in enumerate(columns)}
        self._chosen = [numbers[name] for name in chosen]
        self._specs = {columns[n].name: columns[n].spec for n in self._chosen}
        self._gathers = all(spec is not None for spec in self._specs.values())
        self._variable = [n for n, one in enumerate(columns) if one.size is None]

    @property
    def spec(self) -> Tree | None:
        return dict(self._specs) if self._gathers else None

    @property
    def gathers(self) -> bool:
        return self._gathers

    def label(self) -> str:
        if self._gathers:
            return f"open(mds: {describe_spec(self.spec)})"
        return f"open(mds: {', '.join(self._specs)})"

    def _locate(self, part: int, local: Indices) -> tuple[Array, Numbers, Numbers]:
        """The bytes of a shard, and where each column of each sample begins and ends in them."""
        data = self._files.data(part)
        offsets = np.ndarray((int(self._parts.counts[part]) + 1,), "<u4", data, 4)
        starts, ends = offsets[local].astype(np.int64), offsets[local + 1].astype(np.int64)
        heads = np.zeros((len(local), len(self._variable)), "<u4")
        inside = (starts >= 0) & (starts + heads[:1].nbytes <= ends) & (ends <= len(data))
        if inside.all() and heads.size:
            gather_rows(data, starts, heads)
        sizes = np.empty((len(local), len(self._columns)), np.int64)
        sizes[:, self._variable] = heads
        for number, column in enumerate(self._columns):
            if column.size is not None:
                sizes[:, number] = column.size
        stops = starts[:, None] + 4 * len(self._variable) + np.cumsum(sizes, 1)
        inside &= stops[:, -1] == ends
        if not inside.all():
            number = int(local[np.flatnonzero(~inside)[0]])
            raise FileError(
                f"{self._files.paths[part]} is damaged or cut off: sample {number} does not lie "
                "where its shard says."
            )
        return data, stops - sizes, stops

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        shapes = [
            ((len(indices), *(axis for axis in spec.shape if axis is not None)), spec.dtype)
            for spec in self._specs.values()
            if spec is not None
        ]
        out = lend(Layout.of(*shapes))
        for part, places, local in self._parts.split(indices):
            data, starts, stops = self._locate(part, local)
            with _decoding(self._files.paths[part]):
                for target, number in zip(out, self._chosen, strict=True):
                    self._fill(target, places, number, data, starts[:, number], stops[:, number])
        return dict(zip(self._specs, out, strict=True))

    def _fill(
        self,
        target: Array,
        places: slice | npt.NDArray[np.intp],
        number: int,
        data: Array,
        starts: Numbers,
        stops: Numbers,
    ) -> None:
        column = self._columns[number]
        if column.size is None:
            view = data.data
            values = np.empty(len(starts), object)
            values[:] = [
                column.decode(bytes(view[start:stop]))
                for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
            ]
            target[places] = values
        elif isinstance(places, slice):
            gather_rows(data, starts, target)
        else:
            rows = np.empty((len(starts), *target.shape[1:]), target.dtype)
            gather_rows(data, starts, rows)
            target[places] = rows

    def records(self, indices: Indices) -> list[Tree]:
        found: list[Tree] = [None] * len(indices)
        chosen = [(self._columns[n].name, self._columns[n].decode, n) for n in self._chosen]
        for part, places, local in self._parts.split(indices):
            data, starts, stops = self._locate(part, local)
            view = data.data
            first, last = starts.tolist(), stops.tolist()
            each = range(len(indices)) if isinstance(places, slice) else places.tolist()
            with _decoding(self._files.paths[part]):
                for row, place in enumerate(each):
                    begin, end = first[row], last[row]
                    found[place] = {
                        name: decode(bytes(view[begin[n] : end[n]])) for name, decode, n in chosen
                    }
        return found


@contextlib.contextmanager
def _decoding(path: str) -> Iterator[None]:
    """Has what decoders raise, which is almost anything, name the shard."""
    try:
        with reading(path):
            yield
    except BadRecordError as error:
        raise BadRecordError(f"{path}: {error}") from error


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
        paths = [_file(folder, shard, options) for shard in shards]
        files = FileSet(paths, files=options.cache.files)
        counts = [int(shard["samples"]) for shard in shards]
    for number in files.fetched():
        _check_file(files, number, counts[number])
    return Mds(files, counts, columns, chosen)


def _column(
    name: str, encoding: str, size: int | None, is_chosen: bool, options: OpenOptions, path: str
) -> MdsColumn:
    if is_chosen:
        return column_of(name, encoding, size, decode=options.decode, where=path)
    return MdsColumn(name, size, None, bytes)  # only its place is needed


def _check_shard(shard: Mapping[str, Json], first: Mapping[str, Json], where: str) -> None:
    if shard["format"] != "mds":
        raise FileError(f"{where} has the format {shard['format']!r}; loaderx reads 'mds'.")
    for key in ("column_names", "column_encodings", "column_sizes"):
        if shard[key] != first[key]:
            raise FileError(f"{where} has other {key.replace('_', ' ')} than the first shard.")


def _file(folder: Folder, shard: dict[str, dict[str, str]], options: OpenOptions) -> str:
    """The path of a shard, unpacked if only the packed one is there."""
    plain = folder.join(shard["raw_data"]["basename"])
    if folder.file_systems.of(plain).is_file(plain):
        return plain
    if not shard.get("zip_data"):
        raise _missing(folder, plain)
    packed, kind = folder.join(shard["zip_data"]["basename"]), str(shard["compression"])
    magic = _PACKED.get(kind.partition(":")[0])
    if magic is None:
        raise FileError(f"{packed} is packed with {kind}; loaderx unpacks zstd and gz.")
    if not folder.file_systems.of(packed).is_file(packed):
        raise _missing(folder, packed)
    unpack(packed, magic, options.cache)
    return packed


def _missing(folder: Folder, path: str) -> FileError:
    return FileError(
        f"{folder.join(_INDEX)} lists {path}, and there is no such file. Copy or download the "
        "whole folder."
    )


def _check_file(files: FileSet, number: int, count: int) -> None:
    path, data = files.paths[number], files.data(number)
    head = 4 * (count + 2)
    if len(data) < head or int.from_bytes(data[:4].tobytes(), "little") != count:
        raise FileError(f"{path} is damaged or cut off: it does not hold the {count} samples.")


def _has_index(folder: Folder) -> bool:
    """Is there an ``index.json`` of MDS?  Others use the name, too; its shards may be missing."""
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
