"""Megatron's token files: ``name.bin`` with the tokens, ``name.idx`` with their sequences."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.base import Indices, Source
from loaderx.sources.columns.elements import PartElements
from loaderx.sources.columns.run_columns import ListColumn, Lists
from loaderx.sources.columns.table import TableSource
from loaderx.sources.files.arrays import PlacedArray, PlacedArrays, placed_arrays
from loaderx.sources.files.cold import Span
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Located, Parts, lie_outside
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.heads import MEGATRON_MAGIC
from loaderx.sources.mapping import reading

_HEADER = struct.Struct("<9sQBQQ")  # magic, version, type, sequences, documents
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


class _Shard(NamedTuple):
    """The header of an index."""

    sequences: int
    dtype: np.dtype[np.generic]


class _Sequences(Lists):
    """Where sequences lie: the first byte of each, and its number of tokens."""

    def __init__(self, indexes: FileSet, data: FileSet, shards: Sequence[_Shard]) -> None:
        self._indexes, self._data = indexes, data
        counts = [shard.sequences for shard in shards]
        self.parts = Parts(counts)
        width = shards[0].dtype.itemsize
        self._width, self._tokens = width, np.array(data.sizes) // width
        self._lengths = self._numbers("<i4", [_HEADER.size] * len(counts))
        self._starts = self._numbers("<i8", [_HEADER.size + 4 * count for count in counts])

    def _numbers(self, dtype: str, offsets: list[int]) -> PartElements:
        """A number for each sequence."""
        counts = self.parts.counts
        arrays = [
            PlacedArray(self._indexes, number, offset, np.dtype(dtype), (count,))
            for number, (offset, count) in enumerate(zip(offsets, counts.tolist(), strict=True))
        ]
        return PartElements(self.parts, PlacedArrays(arrays), counts)

    def find(self, at: Located) -> tuple[Indices, Indices]:
        first, lengths = np.empty(len(at), "<i8"), np.empty(len(at), "<i4")
        self._starts.take(at, first)
        self._lengths.take(at, lengths)
        starts = first // self._width
        stops = starts + lengths
        beside = first % self._width != 0
        if lie_outside(starts, stops, at.each(self._tokens)) or beside.any():
            outside = (first < 0) | (lengths < 0) | (stops > at.each(self._tokens)) | beside
            place = int(np.flatnonzero(outside)[0])
            part = 0 if at.parts is None else int(at.parts[place])
            raise FileError(
                f"{self._indexes.paths[part]} is damaged: sequence {int(at.rows[place])} lies "
                f"outside {os.path.basename(self._data.paths[part])}."
            )
        return starts, stops

    def spans(self, at: Located) -> Iterator[Span]:
        yield from self._starts.spans(at, at.rows + 1)
        yield from self._lengths.spans(at, at.rows + 1)


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    systems = options.cache.files
    prefixes = list(dict.fromkeys(os.path.splitext(file)[0] for file in files))
    for prefix in prefixes:
        if not systems.of(prefix).is_file(f"{prefix}.idx"):
            raise FileError(
                f"{prefix}.bin has no {os.path.basename(prefix)}.idx beside it. For a flat file of "
                "tokens write Dataset.from_source(loaderx.sources.Tokens(path, length, dtype))."
            )
    indexes = FileSet([f"{prefix}.idx" for prefix in prefixes], files=systems)
    data = FileSet([f"{prefix}.bin" for prefix in prefixes], files=systems)
    shards = [_shard(indexes, number) for number in indexes.fetched()]
    kinds = {shard.dtype for shard in shards}
    if len(kinds) > 1:
        raise FileError(f"the files hold tokens of different types: {', '.join(map(str, kinds))}.")
    (name,) = options.chosen(["tokens"], indexes.paths[0])
    counts = [shard.sequences for shard in shards]
    lists, dtype = _Sequences(indexes, data, shards), shards[0].dtype
    tokens = [
        PlacedArray(data, number, 0, dtype, (size // dtype.itemsize,), in_pieces=True)
        for number, size in enumerate(data.sizes)
    ]
    column = ListColumn(lists.parts, lists, PartElements(lists.parts, placed_arrays(tokens)))
    return TableSource({name: column}, sum(counts), label="megatron", shard_counts=counts)


def _shard(indexes: FileSet, number: int) -> _Shard:
    path, index = indexes.paths[number], indexes.data(number)
    with reading(path):
        magic, version, code, sequences, documents = _HEADER.unpack_from(
            index[: _HEADER.size].tobytes()
        )
    if magic != MEGATRON_MAGIC or version != 1 or code not in _DTYPES:
        raise FileError(
            f"{path} is not an index of Megatron that loaderx reads (version {version}, "
            f"type {code})."
        )
    needed = _HEADER.size + 12 * sequences + 8 * documents
    if needed > len(index):
        raise FileError(
            f"{path} is cut off: {sequences} sequences need {needed} bytes, it has {len(index)}."
        )
    return _Shard(sequences, np.dtype(_DTYPES[code]))
