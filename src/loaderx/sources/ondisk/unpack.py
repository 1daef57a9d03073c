"""Compressed files, unpacked once into the cache folder: what is compressed cannot be indexed."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol, cast

from loaderx.errors import MissingPackageError
from loaderx.sources.mapping import reading
from loaderx.sources.ondisk.cache import CacheFolder
from loaderx.sources.ondisk.progress import progress
from loaderx.sources.remote.urls import file_name

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SUFFIXES = {".gz": "", ".zst": "", ".zstd": "", ".tgz": ".tar"}
_PIECE = 1 << 20
_ZSTD_PIECE = 1 << 11  # four bytes may stand for 128 kB: this is 64 MB at the most
_SHARD = re.compile(r"-\d+-of-\d+$")  # as TensorFlow names them, after the suffix


def packing_of(head: bytes) -> bytes | None:
    """The magic bytes of the compression that a file begins with; None: it is not compressed."""
    return next((magic for magic in (GZIP, ZSTD) if head.startswith(magic)), None)


def unpacked_name(path: str) -> str:
    """The name of a file without the suffix of its compression.

    >>> unpacked_name("a.jsonl.gz"), unpacked_name("b.tgz")
    ('a.jsonl', 'b.tar')
    """
    name = file_name(path)
    stem, suffix = os.path.splitext(name)
    return stem + _SUFFIXES[suffix.lower()] if suffix.lower() in _SUFFIXES else name


def plain_name(path: str) -> str:
    """The name that tells a file's format: without compression, and without a shard's number.

    >>> plain_name("a.jsonl.gz"), plain_name("mnist-train.tfrecord-00000-of-00010")
    ('a.jsonl', 'mnist-train.tfrecord')
    """
    return _SHARD.sub("", unpacked_name(path))


def unpacked(path: str, magic: bytes, cache: CacheFolder) -> str:
    """The path of the unpacked file, which is made now if it is not in the cache."""
    name = unpacked_name(path)

    def make(folder: str) -> None:
        opener = _gzip if magic == GZIP else _zstd
        with (
            cache.files.open(path) as packed,
            progress(f"unpacking {file_name(path)}", os.fstat(packed.fileno()).st_size) as shown,
            reading(path),
            opener(packed) as stream,
            open(os.path.join(folder, name), "wb") as out,
        ):
            before = 0
            while piece := stream.read(_PIECE):
                out.write(piece)
                shown.add(packed.tell() - before)
                before = packed.tell()

    return os.path.join(cache.copy("unpacked", 1, [path], make), name)


def _gzip(file: BinaryIO) -> AbstractContextManager[BinaryIO]:
    try:
        from isal import igzip
    except ImportError:
        return cast("AbstractContextManager[BinaryIO]", gzip.GzipFile(fileobj=file))
    return cast("AbstractContextManager[BinaryIO]", igzip.IGzipFile(fileobj=file))


def _zstd(file: BinaryIO) -> AbstractContextManager[BinaryIO]:
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
    """What is used of `zstandard.ZstdDecompressionObj`."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _ZstdFrames:
    """Unpacks frames that follow each other in a file.

    The reader that zstandard has takes the end of the file for the end of a frame, wherever that
    is; its frames know.
    """

    def __init__(self, file: BinaryIO, begin: Callable[[], _Frame]) -> None:
        self._file, self._begin = file, begin
        self._frame, self._rest, self._is_begun = begin(), b"", False

    def read(self, nbytes: int) -> bytes:
        """What comes next, about as many bytes; nothing, at the end."""
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
