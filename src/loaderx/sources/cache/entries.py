"""The entries of a cache folder: how large each is, and when it was last used."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from typing import NamedTuple

from loaderx.errors import FileError
from loaderx.sources.cache.folder import DESCRIPTION, INDEX, SECTIONS, is_unfinished, unfinished
from loaderx.sources.remote.answers import ANSWERS
from loaderx.sources.remote.room import DOWNLOADS, NOTE, Download, downloads_of, remove_download


class CacheEntry(NamedTuple):
    """An index, a copy, a downloaded file, or the answers of stores."""

    place: str
    kind: str  # "index", "download", "answers", or how the copy was made
    first: str  # the file that it was made from, or the first of them
    files: int
    nbytes: int
    used_s: float  # when it was last used, in seconds since 1970
    is_finished: bool  # if not, a process is making it, or died while doing so


def cache_entries(folder: str) -> list[CacheEntry]:
    """All entries of a cache folder, the most recently used last."""
    found = []
    for section in SECTIONS:
        place = os.path.join(folder, section)
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            entry = os.path.join(place, name)
            with contextlib.suppress(FileNotFoundError):  # renamed or removed at this moment
                if not os.path.islink(entry):  # not made by loaderx: neither shown nor removed
                    found.append(_entry(entry))
    place = os.path.join(folder, ANSWERS)  # one entry: each answer is small
    with contextlib.suppress(FileNotFoundError):  # none, or renamed or removed at this moment
        if not os.path.islink(place):
            found.append(_entry(place)._replace(kind=ANSWERS, first="what servers have said"))
    place = os.path.join(folder, DOWNLOADS)
    found += [_downloaded(place, one) for one in downloads_of(place)]
    return sorted(found, key=lambda entry: entry.used_s)


def _downloaded(folder: str, one: Download) -> CacheEntry:
    place = os.path.join(folder, one.name)
    _, first, files = _description(place, NOTE)
    # An unfinished download counts as finished: locks tell whether it is being fetched.
    kind = "download" if one.is_finished else "partial"
    return CacheEntry(place, kind, first, files, one.nbytes, one.used_s, True)


def remove_entry(entry: CacheEntry) -> bool:
    """Removes an entry, unless it is a download in use.

    It is renamed first, so that a half-removed entry is never taken for a whole one.
    """
    if os.path.basename(os.path.dirname(entry.place)) == DOWNLOADS:
        return remove_download(*os.path.split(entry.place))
    temporary = unfinished(entry.place)
    try:
        os.rename(entry.place, temporary)
        shutil.rmtree(temporary)
    except FileNotFoundError:  # another process removed it
        pass
    except OSError as error:
        raise FileError(f"{entry.place} cannot be removed: {error}.") from error
    return True


def folder_bytes(folder: str) -> int:
    """The size of all files in a folder."""
    return sum(status.st_size for status in _files(folder))


def _entry(place: str) -> CacheEntry:
    kind, first, files = _description(place)
    is_finished = not is_unfinished(place)
    if os.path.basename(os.path.dirname(place)) == INDEX and first:
        kind = INDEX
    return CacheEntry(
        place,
        kind if is_finished else "unfinished",
        first,
        files,
        folder_bytes(place),
        max((status.st_mtime for status in _files(place)), default=os.path.getmtime(place)),
        is_finished,
    )


def _files(folder: str) -> Iterator[os.stat_result]:
    for place, _, names in os.walk(folder):
        for name in names:
            yield os.lstat(os.path.join(place, name))


def _description(place: str, name: str = DESCRIPTION) -> tuple[str, str, int]:
    """The kind, the first file and the number of files; empty if it cannot be read."""
    try:
        with open(os.path.join(place, name), encoding="utf-8") as file:
            told = json.load(file)
        return str(told["kind"]), str(told["files"][0]), len(told["files"])
    except (OSError, ValueError, LookupError, TypeError):
        return "unknown", "", 0
