"""`FileSet`: the files of a dataset, each mapped when it is first read.

A mapped file takes a descriptor, and a process may have only so many.  So the set keeps a limited
number of maps and forgets the oldest; arrays that still look at a map keep it alive.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from loaderx.errors import FileError
from loaderx.sources.base import ForWorkers
from loaderx.sources.mapping import Identity
from loaderx.sources.ondisk.file_system import file_system_of
from loaderx.tree import Array

FEWEST_MAPS, _MOST_MAPS = 16, 1024  # the fewest are never forgotten


class FileSet(ForWorkers):
    """Files by number.  Their identities are taken when the set is made."""

    def __init__(self, paths: Sequence[str], identities: Sequence[Identity] | None = None) -> None:
        self.paths = list(paths)
        if identities is None:
            identities = [file_system_of(path).identity(path) for path in self.paths]
        self.identities = list(identities)
        self._begin()

    def _begin(self) -> None:
        self._maps: dict[int, Array] = {}
        self._most = _most_maps()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def sizes(self) -> list[int]:
        return [identity.size for identity in self.identities]

    def data(self, number: int) -> Array:
        """The bytes of a file: a read-only array of uint8 that is mapped into memory."""
        found = self._maps.get(number)
        if found is not None:
            return found
        with self._lock:
            found = self._maps.get(number)
            if found is None:
                path = self.paths[number]
                found = file_system_of(path).map(path, self.identities[number])
                while len(self._maps) >= self._most:
                    del self._maps[next(iter(self._maps))]
                self._maps[number] = found
        return found

    def for_workers(self) -> tuple[object, ...]:
        """Workers map the very files that this process sees, or say that they have changed."""
        return FileSet, (self.paths, self.identities)

    def __reduce__(self) -> tuple[object, ...]:
        # Another machine may have the same file under another inode, copied at another time.
        return _found_again, (self.paths, self.sizes)


def _found_again(paths: list[str], sizes: list[int]) -> FileSet:
    made = FileSet(paths)
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
