"""The folder of downloads: each version of a file behind a URL has a folder of its own.

``downloads/<hash of the URL>-<hash of version and size>/`` holds the file in its own name, and
``.download.json``, whose time of the last write is that of the last use.  While it is fetched it is
``.part``, with ``.ranges`` beside it.  There are two locks (`flock`): who fetches has ``.lock``,
and others wait for it; who reads shares that of the finished file, for as long as it is open or
mapped.  What is removed to make room must be locked alone, so nothing in use is taken.  A finished
file is never written to again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from typing import BinaryIO, cast

from loaderx.errors import FileError
from loaderx.sources.remote.private_files import (
    HAS_LOCKS,
    READ,
    WRITE,
    is_linked,
    lock,
    open_own,
    own_folder,
    try_lock,
)
from loaderx.sources.remote.room import DOWNLOADS, LOCK, NOTE, PART, RANGES, make_room
from loaderx.sources.remote.store import RemoteFile, Store
from loaderx.sources.remote.transfer import Transfer, needs_ranges
from loaderx.sources.remote.urls import file_name

_ODD = re.compile(r"[^\w.+=@-]")


class Downloads:
    """Finds files in the folder, and fetches those that are not there."""

    def __init__(self, cache: str) -> None:
        self._cache, self.folder = cache, os.path.join(cache, DOWNLOADS)

    def open(self, file: RemoteFile, store: Store) -> BinaryIO:
        """The file on disk, which stays there while it is open or mapped."""
        try:
            os.makedirs(self._cache, 0o700, exist_ok=True)
            with own_folder(self.folder) as root:
                while True:  # once more, if another process has fetched or removed it
                    with own_folder(key_of(file), root) as at:
                        found = self._finished(file, at)
                        if found is not None:
                            return found
                        self._fetch(file, store, at)
        except OSError as error:
            raise FileError(
                f"{file.url} must be downloaded, and the cache folder {self._cache} cannot be "
                f"used: {error}. Give another one with `cache=`, or set LOADERX_CACHE."
            ) from error

    def _finished(self, file: RemoteFile, at: int) -> BinaryIO | None:
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
                raise FileError(
                    f"{self._path(file)} is damaged: it has not the {file.size} bytes of "
                    f"{file.url}. Remove it."
                )
            with contextlib.suppress(OSError):
                os.utime(NOTE, dir_fd=at)  # the time of the last use
            path = self._path(file)
            return cast(BinaryIO, open(path, "rb", opener=lambda *_: opened))
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(opened)
            raise

    def _path(self, file: RemoteFile) -> str:
        return os.path.join(self.folder, key_of(file), local_name(file))

    def _fetch(self, file: RemoteFile, store: Store, at: int) -> None:
        """Fetches the file, or waits for the process that does."""
        held = open_own(LOCK, WRITE, at)
        if held is None:  # the folder was just removed
            return
        try:
            if not try_lock(held):
                _log(f"waiting for another process, which downloads {file.url}")
                lock(held, shared=False)
            # Whoever had it has removed it, with the file in place.
            if is_linked(held, LOCK, at) and not _is_there(local_name(file), at):
                self._fetch_alone(file, store, at)
        finally:
            os.close(held)

    def _fetch_alone(self, file: RemoteFile, store: Store, at: int) -> None:
        part = open_own(PART, WRITE, at)
        assert part is not None  # `.lock` keeps the folder
        try:
            _write_note(file, at)
            self._make_room(file, part)
            self._transfer(file, store, part, at)
        finally:
            os.close(part)
        os.rename(PART, local_name(file), src_dir_fd=at, dst_dir_fd=at)
        os.fsync(at)
        for name in (RANGES, LOCK):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=at)

    def _make_room(self, file: RemoteFile, part: int) -> None:
        if os.fstat(part).st_size != file.size:
            os.truncate(part, 0)
            os.truncate(part, file.size)
        try:
            make_room(self.folder, file.size, file.url)
        except BaseException:
            os.truncate(part, 0)  # it takes no room
            raise

    def _transfer(self, file: RemoteFile, store: Store, part: int, at: int) -> None:
        if not needs_ranges(file.size):
            Transfer(file, store, part, None).run()
            return
        done = open_own(RANGES, WRITE, at)
        assert done is not None
        try:
            Transfer(file, store, part, done).run()
        finally:
            os.close(done)


def downloads_in(cache: str | None, url: str) -> Downloads:
    """The downloads of a cache folder."""
    if cache is None:
        raise FileError(
            f"{url} must be downloaded to be read, and cache=False leaves no place for it. Leave "
            "`cache` out, or give a folder; `loaderx cache --clear` removes what was downloaded."
        )
    if not HAS_LOCKS:
        raise FileError(
            f"{url}: the folder of downloads needs locks of files, which this system does not "
            "have. Download the files first, and open the copies."
        )
    return Downloads(cache)


def key_of(file: RemoteFile) -> str:
    """The name of the folder of this version of a file."""
    version = f"{file.version} {file.size}"
    hashes = (hashlib.sha256(text.encode()).hexdigest()[:32] for text in (file.url, version))
    return "-".join(hashes)


def local_name(file: RemoteFile) -> str:
    """The file's own name, which may tell its format, made harmless."""
    name = _ODD.sub("_", file_name(file.url)).lstrip(".")[-100:]
    return name or "file"


def _is_there(name: str, at: int) -> bool:
    try:
        os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _log(text: str) -> None:
    import logging  # late: it is slow to import

    logging.getLogger("loaderx").info(text)


def _write_note(file: RemoteFile, at: int) -> None:
    opened = open_own(NOTE, WRITE | os.O_TRUNC, at)
    assert opened is not None  # `.lock` keeps the folder
    with open(opened, "w", encoding="utf-8") as note:
        json.dump({"kind": "downloaded", "files": [file.url]}, note)
