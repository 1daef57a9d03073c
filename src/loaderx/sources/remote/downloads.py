"""The folder of downloads: each version of a file behind a URL has a folder of its own.

``downloads/<hash of the URL>-<hash of version and size>/`` holds the file under its own name, and
``.download.json``, whose mtime is the time of the last use.  While pieces are missing, the file is
named ``.part``, and ``.ranges`` beside it maps the pieces that are here (`pieces`); a new piece
counts as a use.

There are two locks (`flock`).  A process that begins, finishes or removes a file holds ``.lock``
for that moment.  Readers and fetchers share the lock of the file itself while it is open or mapped.
Removing a file needs that lock exclusively, so nothing in use is removed.  A piece that is here is
never written again.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import BinaryIO, cast

from loaderx.errors import FileError
from loaderx.sources.progress import progress
from loaderx.sources.remote.part_file import (
    Opened,
    PartFile,
    key_of,
    local_name,
    locked,
    remove,
)
from loaderx.sources.remote.pieces import PieceMap, PieceMarks, open_map
from loaderx.sources.remote.private_files import (
    HAS_LOCKS,
    READ,
    WRITE,
    is_linked,
    lock,
    open_own,
    own_folder,
)
from loaderx.sources.remote.room import DOWNLOADS, LOCK, NOTE, PART, RANGES, check_fits, relieve
from loaderx.sources.remote.store import RemoteFile, StoreOf
from loaderx.sources.remote.transfer import fetch_pieces
from loaderx.sources.remote.urls import file_name


class Downloads:
    """Finds files in the folder, and fetches missing ones."""

    def __init__(self, cache: str) -> None:
        self._cache, self.folder = cache, os.path.join(cache, DOWNLOADS)

    def open(self, file: RemoteFile, store_of: StoreOf, head: bytes = b"") -> BinaryIO:
        """The file on disk, which stays there while it is open or mapped."""
        while True:  # again, if another process removed it
            found = self._find(file, is_new=False)
            if found is not None:
                path = os.path.join(self.folder, key_of(file), local_name(file))
                return cast(BinaryIO, open(path, "rb", opener=_Opener(found.descriptor)))
            self._check_fits(file)
            fetch_whole(self.part(file, store_of, head))

    def _check_fits(self, file: RemoteFile) -> None:
        try:
            check_fits(self.folder, file.size, file.url)
        except BaseException:
            with contextlib.suppress(OSError):  # some of its pieces may be there
                os.rmdir(os.path.join(self.folder, key_of(file)))
            raise

    def part(self, file: RemoteFile, store_of: StoreOf, head: bytes = b"") -> PartFile:
        """The file, mapped, perhaps with missing pieces; ``head`` is its known beginning."""
        while True:
            opened = self._find(file, is_new=True)
            if opened is not None:
                return PartFile(self.folder, file, store_of, opened, head)

    def _find(self, file: RemoteFile, *, is_new: bool) -> Opened | None:
        """The finished file, or with ``is_new`` one that is begun; None: look again."""
        try:
            os.makedirs(self._cache, 0o700, exist_ok=True)
            with own_folder(self.folder) as root, own_folder(key_of(file), root) as at:
                found = self._finished(file, at)
                if found is not None:
                    return Opened(found, None)
                return self._begun(file, at) if is_new else None
        except OSError as error:
            raise FileError(
                f"{file.url} must be downloaded, and the cache folder {self._cache} cannot be "
                f"used: {error}. Give another one with `cache=`, or set LOADERX_CACHE."
            ) from error

    def _finished(self, file: RemoteFile, at: int) -> int | None:
        name = local_name(file)
        opened = open_own(name, READ, at)
        if opened is None:
            return None
        try:
            lock(opened, shared=True)
            if not is_linked(opened, name, at):  # it was just removed
                os.close(opened)
                return None
            if os.fstat(opened).st_size != file.size:
                path = os.path.join(self.folder, key_of(file), name)
                raise FileError(
                    f"{path} is damaged: it does not have the {file.size} bytes "
                    f"of {file.url}. Remove it."
                )
            with contextlib.suppress(OSError):
                os.utime(NOTE, dir_fd=at)  # the time of the last use
            return opened
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(opened)
            raise

    def _begun(self, file: RemoteFile, at: int) -> Opened | None:
        """The file with its full size and a map of its pieces; None: look again."""
        with locked(at) as is_locked:
            if not is_locked:
                return None
            if _is_there(local_name(file), at):
                remove((LOCK,), at)
                return None
            part = open_own(PART, WRITE, at)
            assert part is not None  # `.lock` keeps the folder
            try:
                lock(part, shared=True)
                return Opened(part, self._prepare(file, part, at))
            except BaseException:
                os.close(part)
                raise

    def _prepare(self, file: RemoteFile, part: int, at: int) -> PieceMap:
        _write_note(file, at)
        if not _is_there(RANGES, at):
            made = open_own(RANGES, WRITE, at)
            assert made is not None
            os.close(made)
        pieces = open_map(at)
        assert pieces is not None  # `.lock` keeps it
        try:
            marks = PieceMarks(key_of(file), file.size)
            pieces.check_locks(marks)
            size = marks.nbytes
            is_new = os.fstat(part).st_size != file.size
            if is_new or os.fstat(pieces.opened).st_size != size:
                os.truncate(pieces.opened, 0)
                os.truncate(pieces.opened, size)
            if is_new:
                os.truncate(part, 0)
                os.truncate(part, file.size)
            return pieces
        except BaseException:
            pieces.close()
            raise


def fetch_whole(part: PartFile) -> None:
    """Fetches all missing pieces of a file."""
    missing = part.all_missing()
    if len(missing):
        ranges = [part.marks.range_of(run) for run in part.marks.requests(missing)]
        left = sum(stop - start for start, stop in ranges)
        with progress(f"downloading {file_name(part.file.url)}", left) as shown:
            fetch_pieces([(part, missing)], shown.add)
    if not part.is_whole:
        part.finish()


def downloads_in(cache: str | None, url: str) -> Downloads:
    """The downloads of a cache folder."""
    if cache is None:
        raise FileError(
            f"{url} must be downloaded to be read, and there is no folder for it: give one with "
            "`cache=`."
        )
    if not HAS_LOCKS:
        raise FileError(
            f"{url}: the folder of downloads needs locks of files, which this system does not "
            "have. Download the files first, and open the copies."
        )
    found = Downloads(cache)
    relieve(found.folder)
    return found


class _Opener:
    """An opener that returns a descriptor that is already open."""

    def __init__(self, opened: int) -> None:
        self._opened = opened

    def __call__(self, path: str, flags: int) -> int:
        return self._opened


def _is_there(name: str, at: int) -> bool:
    try:
        os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _write_note(file: RemoteFile, at: int) -> None:
    opened = open_own(NOTE, WRITE | os.O_TRUNC, at)
    assert opened is not None  # `.lock` keeps the folder
    with open(opened, "w", encoding="utf-8") as note:
        json.dump({"kind": "downloaded", "files": [file.url]}, note)
