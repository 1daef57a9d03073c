"""Unpacks compressed files once into the cache folder: compressed data cannot be indexed."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol, cast

from loaderx.errors import FileError, MissingPackageError
from loaderx.sources.cache.folder import CacheFolder, CopyOf
from loaderx.sources.files.paths import unpacked_name
from loaderx.sources.files.unpacking import ZlibStream
from loaderx.sources.mapping import ByteReader, reading
from loaderx.sources.progress import progress
from loaderx.sources.remote.urls import file_name, harmless_name

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
ZLIB = b"\x78"  # too many files begin with it for `packing_of`
_KEPT_FREE = 64_000_000  # bytes of the disk that are left free
_PIECE = 1 << 20
_ZSTD_PIECE = 1 << 11  # four bytes may stand for 128 kB, so this unpacks to at most 64 MB


def packing_of(head: bytes) -> bytes | None:
    """The magic bytes of the compression of a file; None: it is not compressed."""
    return next((magic for magic in (GZIP, ZSTD) if head.startswith(magic)), None)


def unpack(path: str, magic: bytes, cache: CacheFolder) -> None:
    """Redirects reads of a file to its unpacked copy, which is made if it is not in the cache."""
    if cache.files.has_copy(path):
        return
    name = harmless_name(unpacked_name(path))

    def make(folder: str) -> None:
        with (
            cache.files.open(path) as packed,
            progress(f"unpacking {file_name(path)}", os.fstat(packed.fileno()).st_size) as shown,
            open(os.path.join(folder, name), "wb") as out,
        ):
            _check_disk(path, folder, os.fstat(packed.fileno()).st_size)
            before = 0
            for piece in pieces_of(path, packed, magic):
                _check_disk(path, folder, len(piece))
                out.write(piece)
                shown.add(packed.tell() - before)
                before = packed.tell()

    folder = cache.copy(CopyOf("unpacked", 2, [path], make))
    cache.files.add_copy(path, os.path.join(folder, name))


def pieces_of(path: str, packed: BinaryIO, magic: bytes) -> Iterator[bytes]:
    """The unpacked content of a file.  Only errors of the file itself become `FileError`."""
    with reading(path), _OPENERS[magic](packed) as stream:
        while piece := stream.read(_PIECE):
            yield piece


def _check_disk(path: str, folder: str, coming: int) -> None:
    """Refuses to fill the disk: the unpacked size of a file is not known beforehand."""
    disk = shutil.disk_usage(folder)
    kept = min(_KEPT_FREE, disk.total // 100)
    if disk.free - coming < kept:
        raise FileError(
            f"{path}, unpacked, does not fit into the cache folder: its disk has "
            f"{disk.free / 1e6:,.0f} MB free, of which {kept / 1e6:,.0f} MB are kept free. "
            "Give another folder with `cache=` or LOADERX_CACHE; `loaderx cache` shows what this "
            "one holds."
        )


def _gzip(file: BinaryIO) -> AbstractContextManager[BinaryIO]:
    try:
        from isal import igzip
    except ImportError:
        return cast("AbstractContextManager[BinaryIO]", gzip.GzipFile(fileobj=file))
    return cast("AbstractContextManager[BinaryIO]", igzip.IGzipFile(fileobj=file))


def open_zstd(file: BinaryIO) -> AbstractContextManager[BinaryIO]:
    try:
        from compression import zstd  # Python 3.14
    except ImportError:
        pass
    else:
        return cast("AbstractContextManager[BinaryIO]", zstd.ZstdFile(file))
    try:
        import zstandard
    except ImportError as error:
        raise MissingPackageError(
            "a file compressed with zstd needs the package zstandard: "
            "pip install 'loaderx-jax[zstd]'."
        ) from error
    stream = _ZstdFrames(file, lambda: zstandard.ZstdDecompressor().decompressobj())
    return contextlib.nullcontext(cast(BinaryIO, stream))


class _Frame(Protocol):
    """The part of `zstandard.ZstdDecompressionObj` that is used."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _ZstdFrames:
    """Unpacks consecutive frames of a file.

    The reader of zstandard silently accepts a file that ends inside a frame; its decompression
    objects know whether a frame has ended.
    """

    def __init__(self, file: BinaryIO, begin: Callable[[], _Frame]) -> None:
        self._file, self._begin = file, begin
        self._frame, self._rest, self._is_begun = begin(), b"", False

    def read(self, nbytes: int) -> bytes:
        """The next bytes, about as many as asked for; empty at the end."""
        found, size = [], 0
        while size < nbytes and (packed := self._rest or self._file.read(_ZSTD_PIECE)):
            found.append(self._frame.decompress(packed))
            size += len(found[-1])
            self._rest, self._is_begun = b"", not self._frame.eof
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, self._begin()
        if self._is_begun and size < nbytes:
            raise EOFError("its last zstd frame does not end")
        return b"".join(found)


_OPENERS: dict[bytes, Callable[[BinaryIO], AbstractContextManager[ByteReader]]] = {
    GZIP: _gzip,
    ZSTD: open_zstd,
    ZLIB: ZlibStream,
}
