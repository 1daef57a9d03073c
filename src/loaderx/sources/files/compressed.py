"""Files that are compressed as a whole, by gzip, zlib or zstd: their content, piece by piece.

No piece is larger than 64 MB or so, whatever a file pretends to hold.  Such data has no index, so a
file is unpacked from its beginning, into a copy in the cache folder (`cache.unpack`) or, where it
has lines and there is no such folder, into memory (`formats.lines.files`).
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

import numpy as np

from loaderx.errors import MissingPackageError
from loaderx.sources.mapping import reading
from loaderx.tree import Array

HEAD_BYTES = 512  # read of a file for its magic bytes; a tar has them at byte 257
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
ZLIB = b"\x78"  # too many files begin with it for `packing_of`
# A byte of deflate stands for at most a kilobyte; of zstd, four bytes may stand for 128 kB.
_PIECE, _ZSTD_PIECE = 1 << 16, 1 << 11
_GZIP_BITS = 31  # as zlib calls it
_MOST_THREADS = 8

T = TypeVar("T")


class _Frame(Protocol):
    """A decompression object: of zlib, of zstandard, or of the standard library."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def packing_of(head: bytes) -> bytes | None:
    """The magic bytes of the compression of a file; None: it is not compressed."""
    return next((magic for magic in (GZIP, ZSTD) if head.startswith(magic)), None)


def pieces_of(path: str, packed: Iterable[bytes], magic: bytes) -> Iterator[bytes]:
    """The unpacked content of a file.  Only errors of the file itself become `FileError`.

    It may have several frames, one after the other.  Readers of files silently accept one that ends
    inside a frame; the objects used here know whether a frame has ended.
    """
    begin = _beginner(magic)
    frame, is_begun = begin(), False
    for given in packed:
        rest = given
        while rest:
            if magic == GZIP and not is_begun:  # members may have zeros behind them
                rest = rest.lstrip(b"\0")
            with reading(path):
                found = frame.decompress(rest) if rest else b""
            is_begun, rest = is_begun or bool(rest), b""
            if frame.eof:
                if magic == ZLIB:
                    yield found
                    return
                frame, rest, is_begun = begin(), frame.unused_data, False
            if found:
                yield found
    if is_begun:
        with reading(path):
            raise EOFError("what is compressed does not end")


def pieces_of_file(read: Callable[[int], bytes], magic: bytes) -> Iterator[bytes]:
    """The bytes of an open file in pieces for `pieces_of`."""
    return iter(lambda: read(_ZSTD_PIECE if magic == ZSTD else _PIECE), b"")


def unpacked(path: str, packed: Array, magic: bytes, check: Callable[[int], None]) -> Array:
    """The content of a file, in memory; ``check`` is called with the bytes there are so far."""
    found, step = bytearray(), _ZSTD_PIECE if magic == ZSTD else _PIECE
    starts = range(0, len(packed), step)
    for piece in pieces_of(path, (packed[at : at + step].tobytes() for at in starts), magic):
        found += piece
        check(len(found))
    array = np.frombuffer(found, np.uint8)
    array.flags.writeable = False
    return array


def told_bytes(head: bytes, tail: bytes, magic: bytes) -> int:
    """The bytes that a file surely has unpacked, as its head or its last bytes say; 0: unknown."""
    if magic == GZIP:
        return int.from_bytes(tail[-4:], "little")  # of the last member, modulo 4 GiB
    flags = head[4] if len(head) > 4 else 0
    width, is_single = flags >> 6, flags >> 5 & 1
    size = 1 << width if width or is_single else 0
    start = 5 + (1 - is_single) + (0, 1, 2, 4)[flags & 3]
    told = int.from_bytes(head[start : start + size], "little")
    return told + 256 if width == 1 else told


def in_threads(
    work: Callable[[int, threading.Event], T], count: int, workers: int = _MOST_THREADS
) -> Iterator[T]:
    """``work(0, stop)``, ``work(1, stop)``, … in order, several at once; unpacking frees the GIL.

    Once ``stop`` is set, another one has failed, or the program ends: ``work`` should raise.
    """
    stop = threading.Event()
    workers = min(count, workers, os.cpu_count() or 1)
    if workers < 2:
        yield from (work(number, stop) for number in range(count))
        return
    from concurrent.futures import ThreadPoolExecutor  # late: futures import logging

    with ThreadPoolExecutor(workers, "loaderx-unpack") as pool:
        try:
            yield from pool.map(lambda number: work(number, stop), range(count))
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _beginner(magic: bytes) -> Callable[[], _Frame]:
    if magic != ZSTD:
        bits = _GZIP_BITS if magic == GZIP else zlib.MAX_WBITS
        try:
            from isal import isal_zlib
        except ImportError:
            return lambda: zlib.decompressobj(bits)
        return lambda: isal_zlib.decompressobj(bits)
    try:
        from compression import zstd  # Python 3.14
    except ImportError:
        pass
    else:
        return lambda: zstd.ZstdDecompressor()
    try:
        import zstandard
    except ImportError as error:
        raise MissingPackageError(
            "a file compressed with zstd needs the package zstandard: "
            "pip install 'loaderx-jax[zstd]'."
        ) from error
    return lambda: zstandard.ZstdDecompressor().decompressobj()
