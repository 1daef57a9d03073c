"""Megatron's token files: ``name.bin`` with the tokens, ``name.idx`` with where sequences lie."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.base import Indices, Source
from loaderx.sources.columns.columns import Column
from loaderx.sources.columns.table import TableSource
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Parts
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.heads import MEGATRON_MAGIC
from loaderx.sources.mapping import reading
from loaderx.tree import Array

_HEADER = struct.Struct("<9sQBQQ")  # magic, version, type, sequences, documents
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


class _Shard(NamedTuple):
    """What the header of an index says."""

    sequences: int
    dtype: np.dtype[np.generic]


class _Sequences(Column):
    """Sequences of tokens: read-only views of the mapped files."""

    def __init__(self, indexes: FileSet, data: FileSet, shards: Sequence[_Shard]) -> None:
        self._indexes, self._data, self._shards = indexes, data, list(shards)
        self._parts = Parts([shard.sequences for shard in shards])

    @property
    def spec(self) -> None:
        return None

    def values(self, indices: Indices) -> Sequence[object]:
        found: list[object] = [None] * len(indices)
        for part, places, local in self._parts.split(indices):
            tokens, starts, lengths = self._arrays(part)
            size = tokens.itemsize
            first, count = starts[local], lengths[local]
            is_wrong = (first < 0) | (count < 0) | (first % size != 0)
            is_wrong |= first // size + count > len(tokens)
            if is_wrong.any():
                number = int(local[np.flatnonzero(is_wrong)[0]])
                raise FileError(
                    f"{self._indexes.paths[part]} is damaged: sequence {number} lies outside "
                    f"{os.path.basename(self._data.paths[part])}."
                )
            begins = (first // size).tolist()
            each = range(len(indices)) if isinstance(places, slice) else places.tolist()
            for place, begin, length in zip(each, begins, count.tolist(), strict=True):
                found[place] = tokens[begin : begin + length]
        return found

    def _arrays(self, part: int) -> tuple[Array, Array, Array]:
        """The tokens, where each sequence begins (in bytes), and how long it is (in tokens)."""
        index, (sequences, dtype) = self._indexes.data(part), self._shards[part]
        data = self._data.data(part)
        tokens = np.ndarray((len(data) // dtype.itemsize,), dtype, data)
        lengths = np.ndarray((sequences,), "<i4", index, _HEADER.size)
        starts = np.ndarray((sequences,), "<i8", index, _HEADER.size + 4 * sequences)
        return tokens, starts, lengths


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
    columns = {name: _Sequences(indexes, data, shards)}
    return TableSource(columns, sum(counts), label="megatron", shard_counts=counts)


def _shard(indexes: FileSet, number: int) -> _Shard:
    path, index = indexes.paths[number], indexes.data(number)
    with reading(path):
        magic, version, code, sequences, documents = _HEADER.unpack_from(
            index[: _HEADER.size].tobytes()
        )
    if magic != MEGATRON_MAGIC or version != 1 or code not in _DTYPES:
        raise FileError(
            f"{path} is no index of Megatron that loaderx knows (version {version}, type {code})."
        )
    needed = _HEADER.size + 12 * sequences + 8 * documents
    if needed > len(index):
        raise FileError(
            f"{path} is cut off: {sequences} sequences need {needed} bytes, it has {len(index)}."
        )
    return _Shard(sequences, np.dtype(_DTYPES[code]))
