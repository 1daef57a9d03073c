"""The journals of a folder that is being saved into, and the locks that go with them.

A process that saves a whole folder has the journal ``saving.jsonl``; one that saves a shard of it
has its own, ``saving-2-of-8.jsonl``.  Each holds the exclusive lock of its journal, so that no two
processes save the same.  While shards are saved, their processes also share the lock of
``saving.jsonl``.  Whoever gets that one exclusively knows that nobody writes parts, and may join
those of all shards.

Behind a URL there are neither locks nor journals (`BucketJournal`).

On file systems without locks there are lock files with the same meaning, ``saving.lock`` and
``saving-2-of-8.lock``.  A process first makes its own, then looks for those that exclude it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from typing import BinaryIO, TypeAlias

from loaderx.errors import FileError
from loaderx.sources.cache.folder import Json
from loaderx.sources.cache.owners import is_dead, own_mark
from loaderx.sources.mapping import reading
from loaderx.sources.native.layout import sync_folder
from loaderx.sources.remote.bucket import Bucket
from loaderx.sources.remote.private_files import HAS_LOCKS, lock, try_lock
from loaderx.sources.remote.store import at_once
from loaderx.sources.remote.urls import is_url

WHOLE = (0, 1)
"""The shard that is the whole dataset."""

_STEM, _OF_SHARD = "saving", r"saving-\d+-of-\d+"
JOURNAL = f"{_STEM}.jsonl"
_OF_PART = re.compile(rf"{_STEM}-\d{{5,}}-[0-9a-f]{{16}}\.json")  # in a bucket
_JOURNAL = re.compile(rf"({_STEM}|{_OF_SHARD})\.jsonl|{_OF_PART.pattern}")
_SHARD_LOCK = re.compile(rf"{_OF_SHARD}\.lock")
OWN = rf"({_STEM}|{_OF_SHARD})\.(jsonl|lock)|{_OF_PART.pattern}"
"""Names of journals and lock files."""

JOINING_S = 30.0  # how long a shard waits for a process that may be about to join the parts

Line: TypeAlias = "dict[str, Json]"
Shard: TypeAlias = tuple[int, int]


class FolderInUseError(FileError):
    """Another process is saving into a folder."""


class Journal:
    """The journal of this process, which holds its lock."""

    def __init__(self, folder: str, shard: Shard, file: BinaryIO) -> None:
        self.folder, self.shard, self.file = folder, shard, file
        self.name = f"{_stem(shard)}.jsonl"

    def lines(self) -> dict[str, list[Line]]:
        """The lines of all journals of the folder, by name; this one is cut to whole lines."""
        found = {}
        for name in [self.name, *sorted(journals_in(self.folder) - {self.name})]:
            path, is_own = os.path.join(self.folder, name), name == self.name
            with contextlib.suppress(FileNotFoundError):  # removed by who completed the folder
                with contextlib.nullcontext(self.file) if is_own else open(path, "rb") as file:
                    file.seek(0)
                    content = file.read()
                whole = content[: content.rfind(b"\n") + 1]
                if is_own:
                    self.file.truncate(len(whole))
                with reading(path):
                    found[name] = [dict(json.loads(line)) for line in whole.splitlines()]
        return found

    def begin(self, line: Line) -> None:
        """Replaces all lines by one."""
        self.file.truncate(0)
        self.append(line)
        sync_folder(self.folder)

    def append(self, line: Line) -> None:
        """Adds a line, and waits until it is on disk."""
        self.file.seek(0, os.SEEK_END)
        self.file.write(json.dumps(line).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())


class BucketJournal(Journal):
    """In place of a journal, a bucket has an object for each part, which is put after its files.

    No lock is needed, whatever the shard: who writes a part again puts the same once more.
    """

    name = ""

    def __init__(self, url: str, shard: Shard) -> None:
        self.folder, self.shard, self.bucket = url, shard, Bucket(url)

    def lines(self) -> dict[str, list[Line]]:
        """The first line of all journals, and that of a part, for each part."""
        self.bucket.look()
        names = [name for name in self.bucket.files if _OF_PART.fullmatch(name)]
        found = {}
        for name, content in zip(names, at_once(self.bucket.read, names), strict=True):
            with contextlib.suppress(ValueError):  # cut off, where files appear before they end
                found[name] = json.loads(content)
        return found

    def begin(self, line: Line) -> None:
        """The first line, which goes with each part."""
        self._begun = line

    def append(self, line: Line) -> None:
        name = str(line["name"]).replace("part", _STEM)
        self.bucket.put(f"{name}.json", json.dumps([self._begun, line]).encode())


def journals_in(folder: str) -> set[str]:
    """The names of the journals in a folder."""
    return set(filter(is_journal, os.listdir(folder)))


def is_journal(name: str) -> bool:
    return _JOURNAL.fullmatch(name) is not None


def remove_journals(folder: str) -> None:
    """Removes the journals of a folder that is complete."""
    for name in journals_in(folder):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))


def _stem(shard: Shard) -> str:
    return _STEM if shard == WHOLE else f"{_STEM}-{shard[0]}-of-{shard[1]}"


# Locks ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_journal(folder: str, shard: Shard = WHOLE) -> Iterator[Journal]:
    """The journal of a folder or shard, created if needed and locked against other processes."""
    if is_url(folder):
        yield BucketJournal(folder, shard)
        return
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, _stem(shard))
    with open(f"{path}.jsonl", "a+b") as file, _locked(file, path, folder, shard):
        if shard == WHOLE:
            yield Journal(folder, shard, file)
            return
        with open(os.path.join(folder, JOURNAL), "ab") as whole:
            with contextlib.suppress(OSError):  # without locks, `_locked` has looked
                if HAS_LOCKS:
                    lock(whole.fileno(), shared=True)  # waits while the parts are joined
            yield Journal(folder, shard, file)


@contextlib.contextmanager
def _locked(journal: BinaryIO, path: str, folder: str, shard: Shard) -> Iterator[None]:
    """The lock of a journal; a lock file if the file system has no locks."""
    what = folder if shard == WHOLE else f"{folder} with shard={shard}"
    try:
        has_lock: bool | None = try_lock(journal.fileno())
    except OSError:  # Lustre without flock, some NFS
        has_lock = None
    if has_lock is False:
        raise FolderInUseError(f"another process is saving into {what}.")
    with contextlib.nullcontext() if has_lock else _lock_files(f"{path}.lock", folder, what):
        yield


@contextlib.contextmanager
def _lock_files(path: str, folder: str, what: str) -> Iterator[None]:
    while True:
        try:
            held = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            break
        except FileExistsError:
            if not _remove_left(path):
                raise _in_use(what, path) from None
    with open(held, "w", encoding="ascii") as file:
        file.write(own_mark())
    try:
        whole = f"{_STEM}.lock"
        is_whole = os.path.basename(path) == whole
        names = filter(_SHARD_LOCK.fullmatch, os.listdir(folder)) if is_whole else [whole]
        until = time.monotonic() + (0 if is_whole else JOINING_S)
        for other in [os.path.join(folder, name) for name in names]:
            while os.path.exists(other) and not _remove_left(other):
                if time.monotonic() >= until:
                    raise _in_use(folder, other)
                time.sleep(0.05)
        yield
    finally:
        os.unlink(path)


def _in_use(what: str, path: str) -> FolderInUseError:
    return FolderInUseError(
        f"another process is saving into {what}. If none does, remove {path}: the file system has "
        "no locks, and of a process on another machine it is not known whether it still lives."
    )


def _remove_left(path: str) -> bool:
    """Removes the lock file of a process that has died."""
    with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        if not is_dead(file.read()):
            return False
        os.unlink(path)
    return not os.path.exists(path)
