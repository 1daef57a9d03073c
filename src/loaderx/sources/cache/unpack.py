"""Unpacks compressed files once into the cache folder: compressed data cannot be indexed."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping

from loaderx.errors import FileError
from loaderx.sources.cache.folder import CacheFolder, CopyOf
from loaderx.sources.files.compressed import (
    HEAD_BYTES,
    in_threads,
    packing_of,
    pieces_of,
    pieces_of_file,
    told_bytes,
)
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.file_system import needs_folder
from loaderx.sources.files.paths import unpacked_name
from loaderx.sources.progress import Progress, progress
from loaderx.sources.remote.urls import file_name, harmless_name, is_url

_KEPT_FREE = 64_000_000  # bytes of the disk that are left free
_STEP = 1 << 20
_MOST_RATIO = 1 << 15  # four bytes stand for at most 128 kB: who says more is damaged
_HEAD, _TAIL = 32, 4  # bytes that may tell how large a file is unpacked


def unpack_all(files: list[str], cache: CacheFolder, *, in_memory: bool = False) -> list[str]:
    """The files, with compressed ones unpacked.

    With ``in_memory`` they are only marked if there is no folder: the format unpacks them itself.
    """
    alike, packed = dict[str, bytes | None](), dict[str, bytes]()
    for file in files:
        # Behind URLs each check is a round trip: only one file of each suffix is checked.
        key = os.path.splitext(file_name(file))[1].lower() if is_url(file) else file
        if key not in alike:
            alike[key] = packing_of(cache.files.of(file).head(file, HEAD_BYTES))
        if (magic := alike[key]) is not None:
            packed[file] = magic
    if in_memory and cache.folder is None:
        cache.files.packed.update(packed)
    else:
        unpack(packed, cache)
    return files


def unpack(packed: Mapping[str, bytes], cache: CacheFolder) -> None:
    """Redirects reads of files to their unpacked copies; those not in the cache are made.

    ``packed`` has the magic bytes of their compression.  Several files are unpacked at once.
    """
    paths = [path for path in packed if not cache.files.has_copy(path)]
    files = [_Packed(path, packed[path], cache) for path in paths]
    missing = [one for one in files if one.place is None]
    if missing:
        if cache.folder is None:
            raise needs_folder(missing[0].path, "unpacked")
        more = f" and {len(missing) - 1} more files" if len(missing) > 1 else ""
        needed = sum(one.least_bytes() for one in missing)
        check_room(f"{missing[0].path}{more}, unpacked,", cache.folder, needed)
        what = f"unpacking {file_name(missing[0].path)}{more}"
        with progress(what, sum(one.size for one in missing)) as shown:
            list(in_threads(lambda n, stop: missing[n].make(stop, shown), len(missing)))
    for one in files:
        assert one.place is not None
        cache.files.add_copy(one.path, os.path.join(one.place, one.name))


class _StoppedError(Exception):
    """Ends a thread: another one has failed, or the program ends."""


class _Packed:
    """A file, and the folder of its copy, if there is one."""

    def __init__(self, path: str, magic: bytes, cache: CacheFolder) -> None:
        self.path, self._magic, self._cache = path, magic, cache
        self.name = harmless_name(unpacked_name(path))
        (self.size,) = FileSet([path], files=cache.files).sizes
        self.place = cache.find_copy(self._copy(lambda folder: None))

    def _copy(self, make: Callable[[str], None]) -> CopyOf:
        return CopyOf("unpacked", 2, [self.path], make)

    def make(self, stop: threading.Event, shown: Progress) -> None:
        self.place = self._cache.copy(self._copy(lambda folder: self._unpack(folder, stop, shown)))

    def least_bytes(self) -> int:
        """What the file needs at least; it is not always told how much it unpacks to."""
        if self._cache.files.is_remote(self.path):
            return self.size
        with self._cache.files.open(self.path) as packed:
            head = packed.read(_HEAD)
            packed.seek(max(0, self.size - _TAIL))
            told = told_bytes(head, packed.read(_TAIL), self._magic)
            return told if self.size < told < _MOST_RATIO * self.size else self.size

    def _unpack(self, folder: str, stop: threading.Event, shown: Progress) -> None:
        with (
            self._cache.files.open(self.path) as packed,
            open(os.path.join(folder, self.name), "wb", _STEP) as out,
        ):
            before = written = waiting = 0
            cache = self._cache.folder or folder
            given = pieces_of_file(packed.read, self._magic)
            for piece in pieces_of(self.path, given, self._magic):
                waiting += len(piece)
                if waiting >= _STEP:
                    if stop.is_set():
                        raise _StoppedError
                    check_room(f"{self.path}, unpacked,", cache, written + waiting, written)
                    written, waiting = written + waiting, 0
                out.write(piece)
                shown.add(packed.tell() - before)
                before = packed.tell()


def check_room(what: str, cache: str, needed: int, written: int = 0) -> None:
    """Refuses to fill the disk of a cache folder; ``needed`` is the least that is known."""
    folder = cache
    while not os.path.isdir(folder):  # it is made later
        folder = os.path.dirname(folder)
    disk = shutil.disk_usage(folder)
    kept = min(_KEPT_FREE, disk.total // 100)
    if disk.free - (needed - written) < kept:
        raise FileError(
            f"{what} does not fit into the cache folder {cache}: it takes {needed / 1e6:,.0f} MB "
            f"or more, and the disk has {(disk.free + written) / 1e6:,.0f} MB free, of which "
            f"{kept / 1e6:,.0f} MB are kept free. Give another folder with `cache=` or "
            "LOADERX_CACHE (`loaderx cache` shows what this one holds). Lines, Parquet and Lance "
            "are read without a copy with cache=False."
        )
