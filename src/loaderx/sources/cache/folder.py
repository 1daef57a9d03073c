"""The cache folder: what loaderx derives from files once, and finds again.

It is ``cache=`` of `Dataset.open`, else ``$LOADERX_CACHE``, else ``~/.cache/loaderx``.  In it are

- ``index/<key>/``: where the records of files lie, as ``.npy`` arrays and an ``index.json``;
- ``files/<key>/``: files that were unpacked or converted, each in its own folder;
- ``downloads/``: files behind URLs (`loaderx.sources.remote.downloads`);
- ``answers/``: what servers have said of them (`loaderx.sources.remote.answers`).

Indexes and copies have an ``index.json``, written last, with a checksum of itself; its mtime is the
time of the last use.  A damaged entry is made again.  A key is a hash of the kind, its version, and
each file's absolute path, size and stamp (of a local file: inode, mtime and ctime), so the entry of
a file that has changed is never found.  An entry is made under another name, and renamed when it is
complete: two processes may make an index at once.  One makes a copy while the others wait for it
(a lock in ``locks/``).  A killed process leaves nothing that could be taken for an entry; its
remains are removed when something is made next.  A folder that cannot be written to is no error:
indexes are then kept in memory, and a warning says so once.

A new cache folder is readable by its user only.  Entries of other users, or in folders of other
users, and links in place of entries are not used: where everybody can write, anybody may have put
them there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from loaderx.errors import ArgumentTypeError, FileError, warn_user
from loaderx.sources.cache.owners import ABANDONED_S, is_dead, own_mark
from loaderx.sources.files.arrays import open_npy
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.file_system import FileIdentity, FileSystems, needs_folder
from loaderx.sources.files.npy import NpyWriter
from loaderx.sources.files.parts import Parts
from loaderx.sources.progress import Progress, progress
from loaderx.sources.remote.private_files import HAS_LOCKS, is_own, locked, own_folder
from loaderx.tree import Array

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
CacheArgument: TypeAlias = "bool | str | os.PathLike[str] | CacheFolder | None"

INDEX, COPIES = SECTIONS = ("index", "files")
TURNS = "locks"
DESCRIPTION = "index.json"
_CHECKED_BYTES = 1 << 24  # arrays up to this size are compared with their checksum


class FileIndex(NamedTuple):
    """The index of a set of files: arrays that run through all of them."""

    arrays: dict[str, Array]
    parts: dict[str, Parts]  # how much of each array belongs to each file
    notes: list[Json]  # further results of the indexer for each file


class IndexedFile(NamedTuple):
    """The index of one file."""

    arrays: dict[str, Array]
    note: Json = None


Indexer: TypeAlias = Callable[[int], IndexedFile]
"""Makes the index of the file with this number."""


class CopyOf(NamedTuple):
    """A copy to be made from files."""

    kind: str  # as in "must be {kind} first"
    version: int
    paths: Sequence[str]
    make: Callable[[str], None]
    """Fills an empty folder; if it raises, nothing is kept and the caller gets the error."""
    options: Json = None  # everything that it depends on besides the files


class CacheFolder:
    """A folder for indexes and copies; without one, indexes are kept in memory."""

    def __init__(
        self, folder: str | None, *, makes_copies: bool = True, downloads: str | None = None
    ) -> None:
        """Without ``makes_copies``, only files that cannot be read otherwise are copied into it.

        Files behind URLs are fetched into ``downloads``, if that is another folder.
        """
        self.folder = folder
        self.makes_copies = makes_copies and folder is not None
        self.files = FileSystems(downloads or folder)  # all files are read through it
        self.used: dict[str, list[str]] = {"index": [], "copies": []}  # entries that were asked for

    # Indexes ----------------------------------------------------------------------------------

    def index(self, kind: str, version: int, files: FileSet, indexer: Indexer) -> FileIndex:
        """The index of files, found in the folder or made now and kept."""
        place = self._place(INDEX, key_of(kind, version, files.paths, files.identities))
        if place is not None and not is_usable(place):
            self._say_once(_foreign(place))
            place = None
        if place is not None:
            self.used["index"].append(place)
            with contextlib.suppress(Exception):  # a damaged entry is made again
                found = _read_index(place, len(files))
                _mark_as_used(place)
                return found
        what = f"indexing {len(files)} file{'s' if len(files) != 1 else ''} ({kind})"
        with progress(what, sum(files.sizes)) as shown:
            if place is not None:
                try:
                    return self._make_index(place, kind, files, indexer, shown)
                except OSError as error:  # a full or read-only disk
                    self._say_once(error)
            return _index_in_memory(files, indexer, shown)

    def _make_index(
        self, place: str, kind: str, files: FileSet, indexer: Indexer, shown: Progress
    ) -> FileIndex:
        with making(place, keep=lambda found: _is_whole_index(found, len(files))) as temporary:
            _write_index(temporary, kind, files, indexer, shown)
        return _read_index(place, len(files))

    # Copies -----------------------------------------------------------------------------------

    def copy(self, asked: CopyOf) -> str:
        """The folder of a copy, found in the cache or made now."""
        if self.folder is None:
            raise needs_folder(asked.paths[0], asked.kind)
        try:
            return self._find_or_make(asked)
        except OSError as error:
            raise FileError(
                f"{asked.paths[0]} must be {asked.kind} first, and the cache folder {self.folder} "
                f"cannot be written to: {error}. Give another one with `cache=`, or set "
                "LOADERX_CACHE."
            ) from error

    def copy_if_possible(self, asked: CopyOf) -> str | None:
        """Like `copy`, for callers that can do without: None if nothing can be written."""
        if not self.makes_copies:
            return None
        try:
            return self._find_or_make(asked)
        except OSError as error:
            self._say_once(error)
            return None

    def find_copy(self, asked: CopyOf) -> str | None:
        """The folder of a copy; None if it is not in the cache."""
        return None if self.folder is None else self._found(self._place_of(asked))

    def _place_of(self, asked: CopyOf) -> str:
        files = FileSet(asked.paths, files=self.files)
        key = key_of(asked.kind, asked.version, files.paths, files.identities, asked.options)
        place = self._place(COPIES, key)
        assert place is not None
        return place

    def _found(self, place: str) -> str | None:
        if not _is_whole(place):
            return None
        _mark_as_used(place)
        self.used["copies"].append(place)
        return place

    def _find_or_make(self, asked: CopyOf) -> str:
        place = self._place_of(asked)
        if not is_usable(place):
            raise _foreign(place)
        if self._found(place) is None:
            with turn(place):
                if self._found(place) is None:  # no other process made it while this one waited
                    self._make(place, asked)
        return place

    def _make(self, place: str, asked: CopyOf) -> None:
        with making(place, keep=_is_whole) as temporary:
            asked.make(temporary)
            told: dict[str, Json] = {"kind": asked.kind, "version": asked.version}
            told["files"] = list(asked.paths)
            _write_description(temporary, {**told, "made": _made(temporary)})
        self.used["copies"].append(place)

    # Notes ------------------------------------------------------------------------------------

    def note(self, key: str) -> dict[str, Any] | None:
        """What was kept under a key; None if there is nothing, or it is damaged."""
        place = self._place(INDEX, key)
        if place is not None and is_usable(place):
            with contextlib.suppress(Exception):
                found = _read_description(place)
                _mark_as_used(place)
                return found
        return None

    def keep_note(self, key: str, kind: str, about: str, told: Mapping[str, object]) -> None:
        """Keeps a few values under a key, if the folder can be written to."""
        place = self._place(INDEX, key)
        if place is None:
            return
        try:
            if not is_usable(place):
                raise _foreign(place)
            with making(place, keep=lambda _: self.note(key) is not None) as temporary:
                _write_description(temporary, {"kind": kind, "files": [about], **told})
        except OSError as error:
            self._say_once(error)

    def forget_note(self, key: str) -> None:
        place = self._place(INDEX, key)
        if place is not None and is_usable(place):
            shutil.rmtree(place, ignore_errors=True)

    def _place(self, section: str, key: str) -> str | None:
        return None if self.folder is None else os.path.join(self.folder, section, key)

    def _say_once(self, error: OSError) -> None:
        if self.folder not in _complained:
            _complained.add(self.folder)
            warn_user(
                f"the cache folder {self.folder} cannot be written to ({error}): indexes of files "
                "are kept in memory, and are made again in every process. Give a folder with "
                "`cache=`, or set LOADERX_CACHE."
            )


_complained: set[str | None] = set()


def cache_folder(cache: CacheArgument) -> CacheFolder:
    """The cache folder that the argument ``cache`` of `Dataset.open` stands for."""
    if isinstance(cache, CacheFolder):
        return cache
    if cache is False:
        return CacheFolder(None, downloads=_default_folder())
    if cache is None or cache is True:
        return CacheFolder(_default_folder())
    if isinstance(cache, (str, os.PathLike)):
        given = os.fspath(cache)
    else:
        raise ArgumentTypeError(f"`cache` must be a folder or False, got {cache!r}.")
    return CacheFolder(_absolute(given))


def _default_folder() -> str:
    return _absolute(os.environ.get("LOADERX_CACHE") or os.path.join("~", ".cache", "loaderx"))


def _absolute(folder: str) -> str:
    return os.path.abspath(os.path.expanduser(folder))


def key_of(
    kind: str,
    version: int,
    paths: Sequence[str],
    identities: Sequence[FileIdentity],
    options: Json = None,
) -> str:
    """The name of the entry for these files."""
    told: list[Json] = [kind, version, options]
    told += [
        [path, identity.size, identity.stamp]
        for path, identity in zip(paths, identities, strict=True)
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


@contextlib.contextmanager
def turn(place: str) -> Iterator[None]:
    """Lets one process make a copy, while those that want the same one wait.

    Without locks (Windows, some network file systems) each makes its own.
    """
    folder, key = os.path.dirname(os.path.dirname(place)), os.path.basename(place)
    _make_private(folder)
    with contextlib.ExitStack() as held:
        if HAS_LOCKS:
            at = held.enter_context(own_folder(os.path.join(folder, TURNS)))
            held.enter_context(locked(key, at))
        yield


@contextlib.contextmanager
def making(place: str, keep: Callable[[str], bool]) -> Iterator[str]:
    """A new folder, renamed to ``place`` if the block succeeds, else removed.

    If another process was faster, a folder that ``keep`` finds whole is left as it is: it may be in
    use, and workers open its files by name.
    """
    section = os.path.dirname(place)
    _make_private(os.path.dirname(section))
    remove_abandoned(section)
    temporary = unfinished(place)
    os.makedirs(temporary, 0o700)  # the data may be private
    try:
        yield temporary
        try:
            os.rename(temporary, place)
        except OSError:  # another process was faster, or the existing entry is damaged
            if not (is_usable(place) and keep(place)):
                shutil.rmtree(place, ignore_errors=True)
                os.rename(temporary, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_usable(place: str) -> bool:
    """True if an entry may be used, or may be made if it does not exist."""
    section = os.path.dirname(place)
    try:
        # A user may replace the section by a link, but not an entry.
        if not (is_own(os.lstat(section)) and is_own(os.stat(section))):
            return False
        found = os.lstat(place)
    except OSError:
        return True
    return stat.S_ISDIR(found.st_mode) and is_own(found)


def _foreign(place: str) -> PermissionError:
    return PermissionError(f"{place}, or its folder, is a link, or belongs to another user")


def unfinished(place: str) -> str:
    """A name for a future or former entry, which identifies the process that makes it."""
    return f"{place}.{own_mark()}-{secrets.token_hex(4)}.tmp"


def is_unfinished(name: str) -> bool:
    """True for the name of an entry that is being made, or whose maker has died."""
    return _UNFINISHED.search(name) is not None


def remove_abandoned(section: str) -> None:
    """Removes what dead processes left behind; checked once per process."""
    if section in looked_at or not os.path.isdir(section):
        return
    looked_at.add(section)
    now = time.time()
    with contextlib.suppress(OSError):  # another user's
        for name in os.listdir(section):
            found, place = _UNFINISHED.search(name), os.path.join(section, name)
            if found and not os.path.islink(place) and is_usable(place):
                is_old = now - last_write(place) > ABANDONED_S
                if is_old or is_dead(found[1]):
                    shutil.rmtree(place, ignore_errors=True)


def last_write(folder: str) -> float:
    """The time of the last write in a folder, in seconds since 1970."""
    times = [os.lstat(folder).st_mtime]
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # removed at this moment
                times.append(os.lstat(os.path.join(place, name)).st_mtime)
    return max(times)


looked_at: set[str] = set()
_UNFINISHED = re.compile(r"\.(\d+(?:-[0-9a-f]{8})?)-[0-9a-f]+\.tmp$")


def _make_private(folder: str) -> None:
    """Makes a cache folder that only this user can read; an existing one is not changed."""
    if not os.path.isdir(folder):
        os.makedirs(os.path.dirname(folder) or ".", exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.mkdir(folder, 0o700)


def _mark_as_used(place: str) -> None:
    """Sets the time of the last use, for ``loaderx cache --older-than``."""
    with contextlib.suppress(OSError):  # another user's, or read-only
        os.utime(os.path.join(place, DESCRIPTION))


# Descriptions -----------------------------------------------------------------------------------


def _write_description(folder: str, told: Mapping[str, Any]) -> None:
    text = {**told, "checksum": checksum_of(told)}
    with open(os.path.join(folder, DESCRIPTION), "w", encoding="utf-8") as file:
        json.dump(text, file)


def _read_description(folder: str) -> dict[str, Any]:
    """The description of an entry; a damaged one raises almost anything."""
    with open(os.path.join(folder, DESCRIPTION), encoding="utf-8") as file:
        told: dict[str, Any] = json.load(file)
    if told.pop("checksum") != checksum_of(told):
        raise FileError(f"{folder} is damaged.")
    return told


def checksum_of(told: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(told).encode())


def _made(folder: str) -> dict[str, Json]:
    """The size of each file of a copy, and checksums of the files that describe others.

    The data have no checksums: reading them all would take as long as making them.
    """
    found: dict[str, Json] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            size, checksum = os.lstat(path).st_size, 0
            if name.endswith(".json"):
                with open(path, "rb") as file:
                    checksum = zlib.crc32(file.read())
            found[os.path.relpath(path, folder)] = [size, checksum]
    found.pop(DESCRIPTION, None)
    return found


def _is_whole(place: str) -> bool:
    """True if a copy is as it was made.  A damaged one is made again."""
    if not is_usable(place):
        return False
    with contextlib.suppress(Exception):
        return bool(_read_description(place)["made"] == _made(place))
    return False


# Indexes on disk --------------------------------------------------------------------------------


def _write_index(folder: str, kind: str, files: FileSet, indexer: Indexer, shown: Progress) -> None:
    writers: dict[str, NpyWriter] = {}
    counts: dict[str, list[int]] = {}
    checksums: dict[str, int] = {}
    notes: list[Json] = []
    with contextlib.ExitStack() as opened:
        for number in files.fetched():
            found = indexer(number)
            for name, array in found.arrays.items():
                if name not in writers:
                    path = os.path.join(folder, f"{name}.npy")
                    writer = NpyWriter(path, array.dtype, array.shape[1:])
                    writers[name] = opened.enter_context(writer)
                    counts[name], checksums[name] = [0] * number, 0
                writers[name].append(array)
                checksums[name] = zlib.crc32(np.ascontiguousarray(array).data, checksums[name])
            for name in writers:
                counts[name].append(len(found.arrays.get(name, ())))
            notes.append(found.note)
            shown.add(files.identities[number].size)
    told: dict[str, Any] = {
        "kind": kind,
        "files": files.paths,
        "counts": counts,
        "checksums": checksums,
        "notes": notes,
    }
    _write_description(folder, told)


def _is_whole_index(folder: str, files: int) -> bool:
    with contextlib.suppress(Exception):
        _read_index(folder, files)
        return True
    return False


def _read_index(folder: str, files: int) -> FileIndex:
    told = _read_description(folder)
    arrays: dict[str, Array] = {}
    parts: dict[str, Parts] = {}
    for name, counts in told["counts"].items():
        array, parts[name] = open_npy(os.path.join(folder, f"{name}.npy")), Parts(counts)
        if len(counts) != files or len(parts[name]) != len(array):
            raise FileError(f"the index {folder} is damaged.")
        is_small = array.nbytes <= _CHECKED_BYTES
        if is_small and zlib.crc32(array.data) != told["checksums"][name]:
            raise FileError(f"the index {folder} is damaged.")
        arrays[name] = array
    if len(told["notes"]) != files:
        raise FileError(f"the index {folder} is damaged.")
    return FileIndex(arrays, parts, told["notes"])


def _index_in_memory(files: FileSet, indexer: Indexer, shown: Progress) -> FileIndex:
    found = []
    for number in files.fetched():
        found.append(indexer(number))
        shown.add(files.identities[number].size)
    names = dict.fromkeys(name for one in found for name in one.arrays)
    arrays = {
        name: np.concatenate([one.arrays[name] for one in found if name in one.arrays])
        for name in names
    }
    parts = {name: Parts([len(one.arrays.get(name, ())) for one in found]) for name in names}
    return FileIndex(arrays, parts, [one.note for one in found])
