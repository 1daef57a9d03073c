"""Limits the size of the folder of downloads: the least recently used files are evicted.

The limit is ``$LOADERX_CACHE_LIMIT`` ("200GB"), else 80 % of what the disk has left for downloads.
A file counts with its bytes on disk: if it is fetched in pieces, only those that have come.  So
room is made for each request (`Room`), not for a whole file when it is begun.

Scanning a folder of thousands of files takes time.  So after a scan a process may add a share of
the free space before it scans again; and if something must be removed, a sixteenth of the limit is
freed at once.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import threading
import weakref
from collections.abc import Iterator
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
_PROCESSES = 16  # may fill the folder at once without exceeding the limit by much
_AT_ONCE = 16  # this part of the limit is freed at once
_STEP = 1024  # this part of the limit may come before the next scan, even if the folder is full


class Holder(Protocol):
    """Keeps files mapped, and can drop the maps."""

    def forget(self) -> None: ...


HOLDERS: weakref.WeakSet[Holder] = weakref.WeakSet()  # of files in the folder, in this process


class Download(NamedTuple):
    """The folder of one version of a file."""

    name: str
    nbytes: int  # on disk
    used_s: float
    is_finished: bool


def limit_bytes(folder: str, held: int) -> int:
    """How many bytes the downloads may take."""
    told = os.environ.get(CACHE_LIMIT, "").strip()
    if not told:
        return int(_SHARE * (shutil.disk_usage(folder).free + held))
    match = _LIMIT.fullmatch(told)
    if match is None:
        raise ArgumentError(f"LOADERX_CACHE_LIMIT must be a size such as 200GB, got {told!r}.")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()])


def downloads_of(folder: str) -> list[Download]:
    """All downloads of a folder, the most recently used last."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # just removed
                if entry.is_dir(follow_symlinks=False):
                    found.append(_download(entry.path, entry.name))
    return sorted(found, key=lambda one: one.used_s)


def _download(path: str, name: str) -> Download:
    nbytes, is_finished, used = 0, False, list[float]()
    made = os.stat(path, follow_symlinks=False).st_mtime
    with os.scandir(path) as files:
        for file in files:
            status = file.stat(follow_symlinks=False)
            nbytes += min(status.st_size, status.st_blocks * 512)
            is_finished = is_finished or not file.name.startswith(".")
            if file.name in (NOTE, PART):  # it was opened, or a piece of it came
                used.append(status.st_mtime)
    return Download(name, nbytes, max(used, default=made), is_finished)


def remove_download(folder: str, name: str) -> bool:
    """Removes a download, unless a process reads or fetches it."""
    with own_folder(folder) as root:
        try:
            with own_folder(name, root) as at:
                if not _empty(at):
                    return False
            os.rmdir(name, dir_fd=root)
        except OSError:  # another process is removing it, or starts to fetch it again
            return False
    return True


def _empty(at: int) -> bool:
    """Removes all files of a download, if both of its locks are free."""
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


@contextlib.contextmanager
def _looking() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(
            f"the folder of downloads cannot be used: {error}. Give another cache folder with "
            "`cache=`, or set LOADERX_CACHE."
        ) from error


@_looking()
def most_mapped(folder: str, nbytes: int) -> float:
    """How many bytes of a dataset of this size one process may keep mapped.

    Mapped files cannot be removed: if the dataset does not fit under the limit, each process keeps
    a small share, so that several processes do not block everything.
    """
    limit = limit_bytes(folder, _on_disk(downloads_of(folder)))
    return math.inf if nbytes <= limit else limit // _PROCESSES


@_looking()
def check_fits(folder: str, nbytes: int, url: str) -> None:
    """Raises if a file that must be fetched whole can never fit under the limit."""
    limit = limit_bytes(folder, 0)
    if nbytes > limit:  # the default limit grows if downloads are removed
        limit = limit_bytes(folder, _on_disk(downloads_of(folder)))
    if nbytes > limit:
        raise FileError(
            f"{url} has {nbytes / 1e6:,.1f} MB, and downloads may take {limit / 1e6:,.1f} MB "
            f"in {folder}. Raise LOADERX_CACHE_LIMIT, or give another folder with `cache=` or "
            "LOADERX_CACHE."
        )


def _on_disk(downloads: list[Download]) -> int:
    return sum(one.nbytes for one in downloads)


# Room -------------------------------------------------------------------------------------------


class _Added:
    """The bytes that this process adds to a folder."""

    def __init__(self) -> None:
        self.left = 0  # bytes that may be requested before the next scan
        self.coming = 0  # bytes requested that are not on disk yet
        self.exceeded: int | None = None  # the limit, once it was exceeded
        self.has_warned = False


class _State:
    """All folders that this process has added to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.folders: dict[str, _Added] = {}
        self.relieved: set[tuple[str, str]] = set()  # folders, with the limit that was enforced


_state = _State()


class Room:
    """A context with room for some bytes that are requested.

    The least recently used downloads are removed, so that they fit under the limit.
    """

    def __init__(self, folder: str, nbytes: int) -> None:
        self._folder, self._nbytes = folder, nbytes

    def __enter__(self) -> Room:
        with _state.lock:
            added = _state.folders.setdefault(self._folder, _Added())
            added.coming += self._nbytes
            added.left -= self._nbytes
            try:
                if added.left < 0:
                    _make_room(self._folder, added)
            except BaseException:
                added.coming -= self._nbytes
                raise
        return self

    def fill(self, nbytes: int) -> None:
        """Notes that ``nbytes`` of them are on disk, where a scan counts them."""
        with _state.lock:
            nbytes = min(nbytes, self._nbytes)  # after a failure bytes may come twice
            self._nbytes -= nbytes
            _state.folders[self._folder].coming -= nbytes

    def __exit__(self, *_: object) -> None:
        self.fill(self._nbytes)  # the others do not come


@_looking()
def _make_room(folder: str, added: _Added) -> None:
    if not os.path.isdir(folder):  # removed; its open files will go too
        return
    held, limit = _removed(folder, added.coming)
    if held > limit:
        for holder in list(HOLDERS):  # drops maps of files that are not being read
            holder.forget()
        held, limit = _removed(folder, added.coming)
    added.left = max((limit - held) // _PROCESSES, limit // _STEP)
    if held > limit:
        added.exceeded = limit


@_looking()
def relieve(folder: str) -> None:
    """Enforces a limit that the user set, once for each limit.

    So a lowered limit takes effect even if nothing is downloaded.
    """
    told = folder, os.environ.get(CACHE_LIMIT, "").strip()
    with _state.lock:
        if told[1] and told not in _state.relieved and os.path.isdir(folder):
            _removed(folder, 0)
            _state.relieved.add(told)


def warn_if_exceeded(folder: str) -> None:
    """Warns once, in the reading thread: fetching threads have no line of user code to name."""
    with _state.lock:
        added = _state.folders.get(folder)
        if added is None or added.exceeded is None or added.has_warned:
            return
        added.has_warned = True
    warn_user(
        f"the downloads in {folder} go over their limit of {added.exceeded / 1e6:,.1f} MB: all of "
        "them are in use. Raise LOADERX_CACHE_LIMIT, or use fewer or smaller files at a time."
    )


def _removed(folder: str, coming: int) -> tuple[int, int]:
    """Removes the oldest downloads if needed; returns the bytes held, and the limit."""
    downloads = downloads_of(folder)
    on_disk = _on_disk(downloads)
    held, limit = on_disk + coming, limit_bytes(folder, on_disk)
    most = limit if held <= limit else limit - limit // _AT_ONCE
    for one in downloads:
        if held <= most:
            break
        if one.nbytes and remove_download(folder, one.name):
            held -= one.nbytes
    return held, limit


def _begin_anew() -> None:  # in a fork, which has no threads that fetch
    _state.lock = threading.Lock()
    for added in _state.folders.values():
        added.left = added.coming = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
