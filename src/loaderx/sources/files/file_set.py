"""`FileSet`: the files of a dataset, each mapped when it is first read.

The number of maps of a process is limited, and that of descriptors even more.  A map takes a
descriptor where the system cannot do without (`map_pages`), and each download takes one for its
lock.  So the set keeps a limited number of maps.  When there are too many, it forgets some of every
age: if it forgot the oldest, a reader of all files in turn would never find one.  Arrays on a map
keep it alive.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from loaderx.errors import FileError
from loaderx.locks import new_lock
from loaderx.sources.base import ForWorkers, Indices
from loaderx.sources.files.file_system import LOCAL_FILES, FileIdentity, FileSystems
from loaderx.sources.mapping import Identity, keeps_descriptors, living_maps
from loaderx.tree import Array

if TYPE_CHECKING:
    from loaderx.sources.remote.part_file import PartFile

MOST_LIVING = 32_768  # maps of this process; Linux allows 65,530
MOST_HELD = 1024  # maps of a set that take descriptors
FEWEST_MAPS, FEWEST_HELD = 1024, 16  # maps of a set that are never forgotten; with descriptors
_THINNED = 8  # one of this many is forgotten at a time
_MOST_HEADS = 1024  # heads that are sent to workers
_AHEAD, _MANY_AHEAD = 4, 16  # large and small files to fetch at once


class FileRanges(NamedTuple):
    """Ranges of bytes of a file of a set, none empty."""

    number: int
    starts: Indices
    stops: Indices


class FileSet(ForWorkers):
    """Files by number.  Their identities are taken when the set is made."""

    def __init__(
        self,
        paths: Sequence[str],
        identities: Sequence[FileIdentity] | None = None,
        files: FileSystems = LOCAL_FILES,
        heads: Sequence[bytes] = (),
    ) -> None:
        """``heads`` are the first bytes of files behind URLs, if already fetched."""
        self.paths, self.files, self._heads = list(paths), files, heads
        if identities is None:
            if urls := [path for path in self.paths if files.is_remote(path)]:
                files.remote().prepare(urls)
            identities = [files.of(path).identity(path) for path in self.paths]
        self.identities = list(identities)
        self._begin()

    def _begin(self) -> None:
        self._maps: dict[int, Array] = {}
        self._parts: dict[int, PartFile] = {}  # mapped while pieces are missing
        self._fetched: set[int] = set()  # files that are known to be on disk, whole
        self._most_bytes: float | None = None  # of mapped downloads; set at the first one
        self._lock = new_lock()
        self.is_remote = any(map(self.files.is_remote, self.paths))
        self._holds = self.is_remote or keeps_descriptors()
        # A file with missing pieces takes three descriptors.
        self._most = _most_held(2 if self.is_remote else 1)
        if self.is_remote:
            # Late, as in `file_system`.
            from loaderx.sources.remote.room import HOLDERS

            HOLDERS.add(self)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def keeps_maps(self) -> bool:
        """True if it never forgets a map.  Maps of downloads are dropped to make room."""
        return len(self) <= (FEWEST_HELD if self._holds else FEWEST_MAPS) and not self.is_remote

    @property
    def sizes(self) -> list[int]:
        return [identity.size for identity in self.identities]

    def data(self, number: int) -> Array:
        """The bytes of a file: a read-only array of uint8 that is mapped into memory."""
        found = self._maps.get(number)
        if found is not None:
            return found
        if self.files.is_remote(self.paths[number]):
            # Fetched without the lock: threads fetch several files at once.
            found = self._map(number)
        with self._lock:
            have = self._maps.get(number)
            if have is not None:
                return have
            found = self._map(number) if found is None else found
            self._let_go(found.nbytes)
            self._maps[number] = found
        return found

    def _let_go(self, nbytes: int, fewest: int = 0) -> None:
        """Forgets some maps if there are too many, and the oldest downloads if too large."""
        maps, parts = self._maps, self._parts  # another thread may replace them
        if self._has_too_many(len(maps) + len(parts)):
            _thin(maps)
            _thin(parts)
        if not self.is_remote:
            return
        if self._most_bytes is None:
            self._most_bytes = self.files.remote().most_mapped(sum(self.sizes))
        if math.isinf(self._most_bytes):
            return
        held = nbytes + sum(one.nbytes for one in maps.values())
        held += sum(one.nbytes for one in parts.values())
        while held > self._most_bytes and len(maps) + len(parts) > fewest:
            held -= _oldest(maps or parts).nbytes

    def _has_too_many(self, kept: int) -> bool:
        if self._holds:
            return kept >= self._most
        return kept >= FEWEST_MAPS and living_maps() >= MOST_LIVING

    def _map(self, number: int) -> Array:
        path = self.paths[number]
        return self.files.of(path).map(path, self.identities[number])

    # Parts of files ---------------------------------------------------------------------------

    def data_with(self, ranges: FileRanges) -> Array:
        """Like `data`, for a file behind a URL: these ranges are there, others may be zeros."""
        part = self._part(ranges.number)
        self._fetch([(part, ranges.starts, ranges.stops)])
        return part.data

    def fetch_ranges(self, wanted: Sequence[FileRanges]) -> int:
        """Fetches ranges of files behind URLs, many at once; returns the bytes fetched."""
        return self._fetch([(self._part(one.number), one.starts, one.stops) for one in wanted])

    def _fetch(self, wanted: Sequence[tuple[PartFile, Indices, Indices]]) -> int:
        came = self.files.remote().fetch_ranges(wanted)
        if came:
            with self._lock:
                self._let_go(0, fewest=1)  # the kept parts have grown
        return came

    def whole(self, number: int) -> Array | None:
        """The bytes of a file behind a URL if it is complete, else None."""
        part = self._parts.get(number)
        return part.data if part is not None and part.is_whole else None

    @property
    def is_whole(self) -> bool:
        """True if all files are complete.  None of them can be evicted while it is mapped here."""
        parts = self._parts
        return len(parts) == len(self) and all(part.is_whole for part in list(parts.values()))

    def known_head(self, number: int) -> bytes:
        """The first bytes of a file behind a URL that came when it was looked up."""
        return (
            self._heads[number]
            if self._heads
            else self.files.remote().known_head(self.paths[number])
        )

    def _part(self, number: int) -> PartFile:
        found = self._parts.get(number)
        if found is not None:
            return found
        identity = self.identities[number]
        assert not isinstance(identity, Identity)
        path, head = self.paths[number], self.known_head(number)
        made = self.files.remote().part(path, identity, head)
        with self._lock:
            have = self._parts.get(number)
            if have is not None:
                return have
            self._let_go(made.nbytes)
            self._parts[number] = made
        return made

    # Whole files ------------------------------------------------------------------------------

    def open(self, number: int) -> AbstractContextManager[BinaryIO]:
        """A file, opened for reading."""
        return self.files.open(self.paths[number], self.identities[number])

    def fetched(self) -> Iterator[int]:
        """The numbers of all files, each once it is on disk.

        The next ones are fetched meanwhile, so that a caller that goes through the files need not
        wait for each.
        """
        if not self.is_remote:
            yield from range(len(self))
            return
        # Late, as in `file_system`; futures import logging.
        from concurrent.futures import Future, ThreadPoolExecutor

        from loaderx.sources.remote.transfer import stop_with

        stop = threading.Event()
        with ThreadPoolExecutor(_AHEAD, "loaderx-download", stop_with, (stop,)) as pool:
            waiting: deque[Future[None]] = deque()
            try:
                for number in range(len(self) + _AHEAD):
                    if number < len(self):
                        waiting.append(pool.submit(self.fetch, number))
                    if number >= _AHEAD:
                        waiting.popleft().result()
                        yield number - _AHEAD
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)

    def fetch(self, number: int) -> None:
        """Fetches a file if it lies behind a URL; for callers that look ahead."""
        if self.files.is_remote(self.paths[number]):
            with self.open(number):
                pass

    def fetch_files(self, numbers: Iterable[int]) -> int:
        """Fetches files behind URLs, many at once; returns the bytes of those that were missing.

        It does not check again whether files that were fetched before are still there.
        """
        missing = [one for one in numbers if one not in self._fetched]
        if not missing:
            return 0
        from concurrent.futures import ThreadPoolExecutor

        from loaderx.sources.remote.transfer import current_stop, stop_with

        own, workers = threading.Event(), min(_MANY_AHEAD, len(missing))
        stop = current_stop() or own
        with ThreadPoolExecutor(workers, "loaderx-download", stop_with, (stop,)) as pool:
            try:
                list(pool.map(self.fetch, missing))
            finally:
                own.set()
                pool.shutdown(cancel_futures=True)
        self._fetched.update(missing)
        return sum(self.identities[one].size for one in missing)

    def forget(self) -> None:
        """Drops all maps, so that their files can be removed from the folder of downloads."""
        self._maps, self._parts = {}, {}

    def for_workers(self) -> tuple[object, ...]:
        """Workers map the same files as this process, or raise that they have changed."""
        has_heads = self.is_remote and len(self) <= _MOST_HEADS
        heads = [self.known_head(number) for number in range(len(self))] if has_heads else ()
        return FileSet, (self.paths, self.identities, self.files, heads)

    def __reduce__(self) -> tuple[object, ...]:
        # Another machine may have the same file under another inode, copied at another time.
        known = [None if isinstance(one, Identity) else one for one in self.identities]
        return _found_again, (self.paths, self.sizes, known, self.files)


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


def _thin(kept: dict[int, Array] | dict[int, PartFile]) -> None:
    """Removes some, old and new ones."""
    for number in list(kept)[::_THINNED]:
        del kept[number]


def _oldest(kept: dict[int, Array] | dict[int, PartFile]) -> _Sized:
    """Removes the oldest one, and returns it."""
    return kept.pop(next(iter(kept)))


def _found_again(
    paths: list[str], sizes: list[int], known: list[FileIdentity | None], files: FileSystems
) -> FileSet:
    identities = [
        one or files.of(path).identity(path) for path, one in zip(paths, known, strict=True)
    ]
    made = FileSet(paths, identities, files)
    for path, size, now in zip(paths, sizes, made.sizes, strict=True):
        if size != now:
            raise FileError(
                f"{path} has {now} bytes, and had {size} when the dataset was made. Make the "
                "dataset again."
            )
    return made


def _most_held(share: int) -> int:
    try:
        import resource
    except ImportError:  # Windows
        return MOST_HELD // share
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(FEWEST_HELD, min(MOST_HELD, soft // 4) // share)
