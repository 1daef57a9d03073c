"""The size of the folder of downloads: what was not used for longest makes room for what comes.

The limit is ``$LOADERX_CACHE_LIMIT`` ("200GB"), else 80 % of what the disk has left for downloads.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
import weakref
from typing import NamedTuple, Protocol

from loaderx.errors import ArgumentError, FileError, warn_user
from loaderx.sources.remote.private_files import (
    READ,
    WRITE,
    is_linked,
    open_own,
    own_folder,
    try_lock,
)

CACHE_LIMIT = "LOADERX_CACHE_LIMIT"
DOWNLOADS = "downloads"  # within the cache folder
LOCK, NOTE, PART, RANGES = ".lock", ".download.json", ".part", ".ranges"
_LIMIT = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SHARE = 0.8
_PROCESSES = 16  # that may fill the folder at once without going over the limit by much


class Holder(Protocol):
    """Keeps files mapped, and can let go of them."""

    def forget(self) -> None: ...


HOLDERS: weakref.WeakSet[Holder] = weakref.WeakSet()  # of files in the folder, in this process


class Download(NamedTuple):
    """The folder of one version of a file."""

    name: str
    nbytes: int  # on disk
    room: int  # that it takes, or will take when it is finished
    used_s: float
    is_finished: bool


def limit_bytes(folder: str, held: int) -> int:
    """How much the downloads may take."""
    told = os.environ.get(CACHE_LIMIT, "").strip()
    if not told:
        return int(_SHARE * (shutil.disk_usage(folder).free + held))
    match = _LIMIT.fullmatch(told)
    if match is None:
        raise ArgumentError(f"LOADERX_CACHE_LIMIT must be a size such as 200GB, got {told!r}.")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()])


def downloads_of(folder: str) -> list[Download]:
    """All downloads of a folder; those that were used last come last."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # removed at this moment
                if entry.is_dir(follow_symlinks=False):
                    found.append(_download(entry.path, entry.name))
    return sorted(found, key=lambda one: one.used_s)


def _download(path: str, name: str) -> Download:
    nbytes, room, is_finished = 0, 0, False
    used = os.stat(path, follow_symlinks=False).st_mtime
    with os.scandir(path) as files:
        for file in files:
            status = file.stat(follow_symlinks=False)
            nbytes += min(status.st_size, status.st_blocks * 512)
            room += status.st_size
            is_finished = is_finished or not file.name.startswith(".")
            if file.name == NOTE:
                used = status.st_mtime
    return Download(name, nbytes, room, used, is_finished)


def remove_download(folder: str, name: str) -> bool:
    """Removes a download, unless a process reads or fetches it."""
    with own_folder(folder) as root:
        try:
            with own_folder(name, root) as at:
                if not _empty(at):
                    return False
            os.rmdir(name, dir_fd=root)
        except OSError:  # another process removes it, or begins to fetch it again
            return False
    return True


def _empty(at: int) -> bool:
    """Removes all files of a download, if both of its locks can be had."""
    fetching = open_own(LOCK, WRITE, at)
    if fetching is None:
        return True
    try:
        if not (try_lock(fetching) and is_linked(fetching, LOCK, at)):
            return False
        for name in os.listdir(at):
            if (name == PART or not name.startswith(".")) and not _remove_file(name, at):
                return False
        for name in (RANGES, NOTE, LOCK):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=at)
    finally:
        os.close(fetching)
    return True


def _remove_file(name: str, at: int) -> bool:
    opened = open_own(name, READ, at)
    if opened is None:
        return True
    try:
        if not try_lock(opened):
            return False
        os.unlink(name, dir_fd=at)
    finally:
        os.close(opened)
    return True


def most_mapped(folder: str, nbytes: int) -> int:
    """How much of the downloads of a dataset of this size one process may keep mapped.

    What is mapped cannot be removed: where not all of it fits under the limit, each process keeps a
    small share, so that several do not hold on to all of it.
    """
    limit = limit_bytes(folder, sum(one.nbytes for one in downloads_of(folder)))
    return nbytes if nbytes <= limit else limit // _PROCESSES


# Room -------------------------------------------------------------------------------------------

_lock = threading.Lock()
_room: dict[str, int] = {}  # bytes that this process may add before it looks at the folder again
_complained: set[str] = set()


def make_room(folder: str, nbytes: int, url: str) -> None:
    """Removes what was not used for longest, so that a file that is begun fits under the limit.

    It has its full size already, though not its bytes: so all processes count it.
    """
    with _lock:
        left = _room.get(folder, 0) - nbytes
        if left >= 0:
            _room[folder] = left
            return
        downloads = downloads_of(folder)
        held = sum(one.room for one in downloads)
        limit = limit_bytes(folder, sum(one.nbytes for one in downloads))
        if nbytes > limit:
            raise FileError(
                f"{url} has {nbytes / 1e6:,.1f} MB, and downloads may take {limit / 1e6:,.1f} MB "
                f"in {folder}. Raise LOADERX_CACHE_LIMIT, or give another folder with `cache=` or "
                "LOADERX_CACHE."
            )
        held = _remove(folder, downloads, held, limit)
        if held > limit:
            for holder in list(HOLDERS):  # maps of files that are not being read now
                holder.forget()
            held = _remove(folder, downloads_of(folder), held, limit)
        if held > limit and folder not in _complained:
            _complained.add(folder)
            warn_user(
                f"the downloads in {folder} go over their limit of {limit / 1e6:,.1f} MB: all of "
                "them are in use. Raise LOADERX_CACHE_LIMIT, or use fewer files at a time."
            )
        _room[folder] = max(0, limit - held) // _PROCESSES


def _remove(folder: str, downloads: list[Download], held: int, most: int) -> int:
    """What is held after the oldest were removed."""
    for one in downloads:
        if held <= most:
            break
        if one.room and remove_download(folder, one.name):
            held -= one.room
    return held
