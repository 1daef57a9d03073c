"""Files of rows in any order: what a cache holds while it is being filled.

Each process appends blocks to its own file, so that no locks are needed.  A block holds some rows
as columns, and their positions in the dataset.  Blocks are only appended: one that ends within the
file is whole, and a killed process leaves at most one truncated block.  Checksums detect other
damage, such as that of a machine that lost power.

A block has, in multiples of 8 bytes::

    head        32 bytes: mark, rows, bytes of data, number of its type, two checksums
    positions   int64[rows]
    data        the arrays of the columns (`arrays_of`); each has its length before it

A block without rows is a type, in JSON; types are numbered in the order of the file.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import struct
import weakref
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from loaderx.sources.base import Indices
from loaderx.sources.columns.data import ColumnType, arrays_of, collect
from loaderx.sources.columns.record_columns import Encoded
from loaderx.sources.mapping import reading
from loaderx.sources.native.layout import type_json, type_of
from loaderx.tree import Array, DType

_MARK = b"LXR1"
_HEAD = struct.Struct("<4sIQIII4x")  # the last is the checksum of the rest and the positions
_LARGE = 1 << 16  # bytes from which a copy costs more than a system call
_CHECKED = struct.Struct("<4sIQII")


class RowFileWriter:
    """Appends blocks to a new file."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
        weakref.finalize(self, os.close, self._descriptor)
        self.path, self.end = path, 0
        self._types: dict[ColumnType, int] = {}

    def append(self, positions: Indices, found: Encoded) -> int:
        """Writes rows, and returns where their block begins."""
        number = self._types.get(found.kind)
        if number is None:
            told = json.dumps(type_json(found.kind)).encode()
            self._write(_block(positions[:0], 0, [told.ljust(-(-len(told) // 8) * 8)]))
            number = self._types[found.kind] = len(self._types)
        start = self.end
        self._write(_block(positions, number, _pieces(found)))
        return start

    def _write(self, block: list[bytes | memoryview]) -> None:
        try:
            for large, pieces in itertools.groupby(block, lambda piece: len(piece) >= _LARGE):
                for piece in pieces if large else [b"".join(pieces)]:
                    left = memoryview(piece)
                    while left:
                        left = left[os.write(self._descriptor, left) :]
        except BaseException:  # a full disk, or Ctrl-C: nothing may follow half a block
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.end)
            raise
        self.end += sum(map(len, block))


def _block(
    positions: Indices, number: int, pieces: list[bytes | memoryview]
) -> list[bytes | memoryview]:
    checksum, nbytes = 0, 0
    for piece in pieces:
        checksum, nbytes = zlib.crc32(piece, checksum), nbytes + len(piece)
    told = positions.astype("<i8").tobytes()
    fields = (_MARK, len(positions), nbytes, number, checksum)
    head = _HEAD.pack(*fields, zlib.crc32(told, zlib.crc32(_CHECKED.pack(*fields))))
    return [head, told, *pieces]


def _pieces(found: Encoded) -> list[bytes | memoryview]:
    """The arrays as bytes."""
    pieces: list[bytes | memoryview] = []
    layouts = _layouts(found.kind)
    for array, (dtype, _) in zip(arrays_of(found.kind, found.data), layouts, strict=True):
        plain = np.ascontiguousarray(array, dtype)
        pieces.append(len(array).to_bytes(8, "little"))
        if plain.size:
            data = plain.reshape(-1).view(np.uint8).data  # times have no `data`
            pieces += [data, bytes(-len(data) % 8)]
    return pieces


def _layouts(kind: ColumnType) -> Iterator[tuple[DType, tuple[int, ...]]]:
    """The dtype and the shape of a row of each array, in the order of `arrays_of`."""
    if kind.kind != "list" and not kind.is_branch:
        yield kind.dtype or np.dtype(np.uint8), kind.stored_shape
    if kind.kind != "fixed" and not kind.is_branch:
        yield np.dtype(np.int64), ()
    if kind.nulls is not None:
        yield np.dtype(np.bool_), ()
    for field in kind.fields.values():
        yield from _layouts(field)


class Block(NamedTuple):
    """A block of a file: where it begins, and the positions and the type of its rows."""

    start: int
    positions: Indices
    kind: ColumnType


class RowFile:
    """A file that may grow while it is read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._end = 0  # of the blocks found so far
        self._types: list[ColumnType] = []
        self._map: mmap.mmap | None = None

    def new_blocks(self, size: int) -> list[Block]:
        """The blocks written since the last call; the file has ``size`` bytes."""
        if size <= self._end:
            return []
        found = []
        with open(self.path, "rb") as file:
            while (block := self._next(file, size)) is not None:
                if len(block.positions):
                    found.append(block)
        return found

    def _next(self, file: BinaryIO, size: int) -> Block | None:
        """The next block; None if it is not whole, or not there yet."""
        start = self._end
        file.seek(start)
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        *fields, checksum = _HEAD.unpack(head)
        mark, count, nbytes, number, of_data = fields
        end = start + _HEAD.size + 8 * count + nbytes
        if mark != _MARK or end > size:
            return None
        told = file.read(8 * count)
        if zlib.crc32(told, zlib.crc32(_CHECKED.pack(*fields))) != checksum:
            return None
        if not count:
            text = file.read(nbytes)
            if zlib.crc32(text) != of_data:
                return None
            with reading(self.path):
                self._types.append(type_of(json.loads(text)))
            number = len(self._types) - 1
        if number >= len(self._types):
            return None
        self._end = end
        return Block(start, np.frombuffer(told, "<i8").astype(np.int64), self._types[number])

    def read(self, start: int, *, is_checked: bool) -> Encoded | None:
        """The rows of a block, as views of the file; None if they are damaged."""
        _, count, nbytes, number, checksum, _ = _HEAD.unpack_from(
            self._mapped(start + _HEAD.size), start
        )
        begin = start + _HEAD.size + 8 * count
        mapped = self._mapped(begin + nbytes)
        if not is_checked and zlib.crc32(memoryview(mapped)[begin : begin + nbytes]) != checksum:
            return None
        kind = self._types[number]
        arrays = _arrays(mapped, begin, kind)
        return Encoded(kind, collect(kind, lambda *_: next(arrays)))

    def _mapped(self, size: int) -> mmap.mmap:
        """The file, mapped at least up to ``size``."""
        if self._map is None or len(self._map) < size:
            with open(self.path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map

    def unmap(self) -> None:
        """Drops the map; its descriptor is freed once no array uses it."""
        self._map = None


def _arrays(mapped: mmap.mmap, start: int, kind: ColumnType) -> Iterator[Array]:
    for dtype, shape in _layouts(kind):
        count = int.from_bytes(mapped[start : start + 8], "little")
        array: Array = np.ndarray((count, *shape), dtype, mapped, start + 8)
        yield array
        start += 8 + -(-array.nbytes // 8) * 8
