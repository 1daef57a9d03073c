"""The lists of indices of an epoch, in a file that worker processes have mapped as well.

A sampler gives other indices in every epoch.  Workers that were started in the first epoch read the
indices of the next one from the file.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class SharedLists:
    """Lists of integers.  The file has the end of each list, then all numbers."""

    def __init__(self, lists: Sequence[Indices]) -> None:
        self._sizes = _sizes(lists)
        self._path = shared_file(self, "order")
        length = len(lists) + sum(self._sizes)
        self._numbers = np.memmap(self._path, np.int64, "w+", shape=(length,))
        self._fill(lists)

    def __getstate__(self) -> tuple[list[int], str]:
        return self._sizes, self._path

    def __setstate__(self, state: tuple[list[int], str]) -> None:
        self._sizes, self._path = state
        self._numbers = np.memmap(self._path, np.int64, "r")

    def _fill(self, lists: Sequence[Indices]) -> None:
        count = len(lists)
        self._numbers[:count] = np.cumsum([count, *self._sizes])[1:]
        self._numbers[count:] = np.concatenate(lists)

    def replace(self, lists: Sequence[Indices]) -> bool:
        """Puts other lists in place of these; False if they differ in number or length."""
        if _sizes(lists) != self._sizes:
            return False
        self._fill(lists)
        return True

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: int) -> Indices:
        start = len(self) if index == 0 else int(self._numbers[index - 1])
        return np.array(self._numbers[start : int(self._numbers[index])])


def shared_file(owner: object, name: str) -> str:
    """The path of an empty file that is removed with its owner."""
    descriptor, path = tempfile.mkstemp(prefix=f"loaderx-{name}-")
    os.close(descriptor)
    weakref.finalize(owner, _remove, path, os.getpid())
    return path


def _sizes(lists: Sequence[Indices]) -> list[int]:
    return [len(one) for one in lists]


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner and os.path.exists(path):  # a fork leaves it to its parent
        os.unlink(path)
