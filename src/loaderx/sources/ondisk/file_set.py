"""`FileSet`: the files of a dataset, each mapped when it is first read.

A mapped file takes a descriptor, and a process may have only so many.  So the set keeps a limited
number of maps and forgets the oldest; arrays that still look at a map keep it alive.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO

from loaderx.errors import FileError
from loaderx.sources.base import ForWorkers
from loaderx.sources.mapping import Identity
from loaderx.sources.ondisk.file_system import LOCAL_FILES, FileIdentity, FileSystems
from loaderx.sources.remote.urls import is_url
from loaderx.tree import Array

FEWEST_MAPS, _MOST_MAPS = 16, 1024  # the fewest are never forgotten
_AHEAD = 4  # files that are fetched ahead


class FileSet(ForWorkers):
    """Files by number.  Their identities are taken when the set is made."""

    def __init__(
        self,
        paths: Sequence[str],
        identities: Sequence[FileIdentity] | None = None,
        files: FileSystems = LOCAL_FILES,
    ) -> None:
        self.paths, self.files = list(paths), files
        if identities is None:
            if urls := [path for path in self.paths if is_url(path)]:
                files.remote().prepare(urls)
            identities = [files.of(path).identity(path) for path in self.paths]
        self.identities = list(identities)
        self._begin()

    def _begin(self) -> None:
        self._maps: dict[int, Array] = {}
        self._most = _most_maps()
        self._most_bytes: int | None = None  # of downloads; it is asked for at the first one
        self._lock = threading.Lock()
        self.is_remote = any(map(is_url, self.paths))
        if self.is_remote:
            # Late: `file_system` says why.
            from loaderx.sources.remote.room import HOLDERS

            HOLDERS.add(self)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def keeps_maps(self) -> bool:
        """Does it never forget a map?  Those of downloads must go to make room for others."""
        return len(self) <= FEWEST_MAPS and not self.is_remote

    @property
    def sizes(self) -> list[int]:
        return [identity.size for identity in self.identities]

    def data(self, number: int) -> Array:
        """The bytes of a file: a read-only array of uint8 that is mapped into memory."""
        found = self._maps.get(number)
        if found is not None:
            return found
        if is_url(
            self.paths[number]
        ):  # fetched without the lock: threads fetch several files at once
            found = self._map(number)
        with self._lock:
            have = self._maps.get(number)
            if have is not None:
                return have
            found = self._map(number) if found is None else found
            while len(self._maps) >= self._most:
                del self._maps[next(iter(self._maps))]
            if self.is_remote:
                self._let_go(found.nbytes)
            self._maps[number] = found
        return found

    def _let_go(self, nbytes: int) -> None:
        """Forgets the oldest maps of downloads, if these do not all fit under their limit."""
        if self._most_bytes is None:
            self._most_bytes = self.files.remote().most_mapped(sum(self.sizes))
        maps = self._maps  # another thread may replace it
        held = sum(array.nbytes for array in maps.values())
        for number in list(maps):
            if held + nbytes <= self._most_bytes:
                break
            held -= maps.pop(number).nbytes

    def _map(self, number: int) -> Array:
        path = self.paths[number]
        return self.files.of(path).map(path, self.identities[number])

    def open(self, number: int) -> AbstractContextManager[BinaryIO]:
        """A file, opened for reading."""
        return self.files.open(self.paths[number], self.identities[number])

    def fetched(self) -> Iterator[int]:
        """The numbers of all files; those behind URLs come once they are on disk.

        The next ones are fetched meanwhile, so that those who look at one file after another need
        not wait for each.
        """
        if not self.is_remote:
            yield from range(len(self))
            return
        # Late: `file_system` says why; futures import logging.
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
        """Has a file on disk, which may lie behind a URL; for those who look ahead."""
        if is_url(self.paths[number]):
            with self.open(number):
                pass

    def forget(self) -> None:
        """Lets go of all maps, so that their files can be removed from the folder of downloads."""
        self._maps = {}

    def for_workers(self) -> tuple[object, ...]:
        """Workers map the very files that this process sees, or say that they have changed."""
        return FileSet, (self.paths, self.identities, self.files)

    def __reduce__(self) -> tuple[object, ...]:
        # Another machine may have the same file under another inode, copied at another time.
        known = [None if isinstance(one, Identity) else one for one in self.identities]
        return _found_again, (self.paths, self.sizes, known, self.files)


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


def _most_maps() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return _MOST_MAPS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(FEWEST_MAPS, min(_MOST_MAPS, soft // 4))
