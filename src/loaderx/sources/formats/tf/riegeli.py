"""Riegeli files, on which ArrayRecord is built: blocks, chunks, and the records of simple chunks.

Every 64 KiB there is a block header of 24 bytes, in the middle of any data.  A chunk is
a header of 40 bytes (hash, size of its data, hash of these, kind and number of its records, size
of these) and its data.  A simple chunk has the sizes of its records and their bytes, one after the
other, both compressed or not.  The other kind, transposed, is left to the library `array_record`.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from loaderx.errors import MissingPackageError
from loaderx.sources.base import BadRecordError
from loaderx.sources.formats.tf.example import read_varint
from loaderx.sources.formats.tf.leaves import decode_varints

BLOCK_BYTES, BLOCK_HEADER, CHUNK_HEADER = 1 << 16, 24, 40
"""The first bytes of every file: a block header, and the beginning of an empty chunk."""

SIMPLE, TRANSPOSED = ord("r"), ord("t")
_PLAIN, _ZSTD = 0, ord("z")
_COMPRESSIONS = {ord("b"): "brotli", ord("s"): "snappy"}
_HEADER = struct.Struct("<8xQ8xQQ")
_ONE_RECORD = 1 << 8 | SIMPLE
_IN_BLOCK = BLOCK_BYTES - 1


class OtherChunkError(Exception):
    """Raised for a chunk that only the library `array_record` can read; names its kind."""


class Chunk(NamedTuple):
    """A chunk of records."""

    kind: int
    records: int
    decoded_bytes: int
    data: memoryview | bytes


def read_run(data: memoryview, position: int, size: int) -> memoryview | bytes:
    """Bytes of a file without the block headers among them."""
    pieces = []
    while True:
        into = position & _IN_BLOCK
        if into < BLOCK_HEADER:
            position += BLOCK_HEADER - into
            into = BLOCK_HEADER
        piece = data[position : position + min(size, BLOCK_BYTES - into)]
        pieces.append(piece)
        size -= len(piece)
        if not size:
            return piece if len(pieces) == 1 else b"".join(pieces)
        if not piece:
            raise BadRecordError("the file is cut off within a chunk")
        position += len(piece)


def read_chunk(data: memoryview, position: int) -> Chunk:
    """The chunk that begins at a position."""
    if not position & _IN_BLOCK:
        position += BLOCK_HEADER
    start = position + CHUNK_HEADER
    if position >= 0 and start <= len(data) and (position ^ start) < BLOCK_BYTES:
        size, told, decoded = _HEADER.unpack_from(data, position)
    else:
        if not 0 <= position < len(data):
            raise BadRecordError("a chunk lies outside the file")
        size, told, decoded = _HEADER.unpack(read_run(data, position, CHUNK_HEADER))
        rest = BLOCK_BYTES - (position & _IN_BLOCK)
        start += BLOCK_HEADER if rest < CHUNK_HEADER else 0
    stop = start + size
    if stop > len(data):
        raise BadRecordError("a chunk is longer than the file")
    if (start >> 16) == ((stop - 1) >> 16) and start & _IN_BLOCK:
        return Chunk(told & 255, told >> 8, decoded, data[start:stop])
    return Chunk(told & 255, told >> 8, decoded, read_run(data, start, size) if size else b"")


def only_record(chunk: Chunk) -> bytes:
    """The record of a chunk that has one."""
    data, decoded = chunk.data, chunk.decoded_bytes
    if chunk.kind != SIMPLE or chunk.records != 1:
        raise _unexpected(chunk)
    sizes_bytes, at = data[1], 2
    if sizes_bytes >= 128:
        sizes_bytes, at = read_varint(memoryview(data), 1, len(data))
    return _unpacked(data[0], data[at + sizes_bytes :], decoded)


def single_record(data: memoryview, position: int) -> bytes:
    """The record of a chunk that has one: the way by which nearly all records are read.

    It does the work of `read_chunk` and `only_record` for a chunk of zstd within one block, and
    leaves all others, damaged ones too, to them.
    """
    start = position + CHUNK_HEADER + (0 if position & _IN_BLOCK else BLOCK_HEADER)
    if position >= 0 and start < len(data) and (position ^ start) < BLOCK_BYTES:
        size, told, decoded = _HEADER.unpack_from(data, start - CHUNK_HEADER)
        stop = start + size
        if (start ^ (stop - 1)) < BLOCK_BYTES and told == _ONE_RECORD and stop <= len(data):
            sizes_bytes = data[start + 1]
            if data[start] == _ZSTD and sizes_bytes < 128 and decoded:
                length_bytes = (decoded.bit_length() + 6) // 7  # of a varint before the frame
                at = start + 2 + sizes_bytes + length_bytes
                found = unzstd(data[at:stop], decoded)
                if len(found) == decoded:
                    return found
    return only_record(read_chunk(data, position))


def records_of(chunk: Chunk) -> list[bytes]:
    """The records of a simple chunk."""
    if chunk.kind != SIMPLE:
        raise _unexpected(chunk)
    view = memoryview(chunk.data)
    if not view:
        raise BadRecordError("a chunk has no data")
    sizes_bytes, at = read_varint(view, 1, len(view))
    packed = view[at : at + sizes_bytes]
    if view[0] == _PLAIN:
        stored = bytes(packed)
    else:
        length, _ = read_varint(packed, 0, len(packed))
        if length > 10 * chunk.records:
            raise BadRecordError("the sizes of its records are damaged")
        stored = _unpacked(view[0], packed, length)
    sizes = _sizes(stored, chunk)
    values = _unpacked(view[0], view[at + sizes_bytes :], chunk.decoded_bytes)
    stops = np.cumsum(sizes).tolist()
    return [values[stop - size : stop] for stop, size in zip(stops, sizes.tolist(), strict=True)]


def _sizes(stored: bytes, chunk: Chunk) -> npt.NDArray[np.int64]:
    data = np.frombuffer(stored, np.uint8)
    ends = np.flatnonzero(data < 128)
    if len(ends) != chunk.records or (len(data) and data[-1] >= 128):
        raise BadRecordError("the sizes of its records are damaged")
    sizes = decode_varints(data, ends)
    if (sizes < 0).any() or sum(sizes.tolist()) != chunk.decoded_bytes:
        raise BadRecordError("the sizes of its records are damaged")
    return sizes


def _unpacked(compression: int, data: memoryview | bytes, expected: int) -> bytes:
    """The bytes of a buffer, whose number must be the expected one."""
    if compression == _PLAIN:
        found = bytes(data)
    elif compression == _ZSTD:
        view = memoryview(data)
        length, at = read_varint(view, 0, len(view))
        if length != expected:
            raise BadRecordError("the sizes of its records are damaged")
        found = unzstd(view[at:], length)
    else:
        name = _COMPRESSIONS.get(compression, f"{compression:#x}")
        raise OtherChunkError(f"a chunk is compressed with {name}")
    if len(found) != expected:
        raise BadRecordError(f"its data are {len(found)} bytes instead of {expected}")
    return found


def _unexpected(chunk: Chunk) -> Exception:
    if chunk.kind == TRANSPOSED:
        return OtherChunkError("a chunk is transposed")
    return BadRecordError("there is no chunk of records where one should be")


# zstd -------------------------------------------------------------------------------------------


def unzstd(data: memoryview, size: int) -> bytes:
    """The content of a frame of zstd; at most ``size`` bytes."""
    try:
        return zstd_function()(data, size)
    except (MissingPackageError, BadRecordError):
        raise
    except Exception as error:  # its own ZstdError, of one package or the other; MemoryError
        raise BadRecordError(f"a chunk is compressed with zstd, and damaged ({error})") from error


@cache
def zstd_function() -> Callable[[memoryview, int], bytes]:
    """The function of the installed package; its arguments are a frame and the most bytes."""
    try:
        from compression import zstd  # Python 3.14
    except ImportError:
        pass
    else:
        return lambda data, size: cast(bytes, zstd.ZstdDecompressor().decompress(data, size))
    try:
        import zstandard
    except ImportError as error:
        raise MissingPackageError(
            "a file with chunks compressed with zstd needs the package zstandard: "
            "pip install 'loaderx-jax[zstd]'."
        ) from error
    own = threading.local()  # a decompressor belongs to one thread, and is slow to make

    def decompress(data: memoryview, size: int) -> bytes:
        try:
            decompressor = own.decompressor
        except AttributeError:
            decompressor = own.decompressor = zstandard.ZstdDecompressor()
        return cast(bytes, decompressor.decompress(data, size))

    return decompress
