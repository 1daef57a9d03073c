"""The interface through which a dataset reads records."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.memory import Lend
from loaderx.tree import Tree

Indices: TypeAlias = npt.NDArray[np.int64]


class Source(Protocol):
    """Records by index.  Indices are always within ``0 ... len - 1``."""

    @property
    def spec(self) -> Tree | None:
        """The spec of one record, where it is known without reading one."""

    @property
    def thread_safe(self) -> bool:
        """May several threads read at once?"""

    @property
    def gathers(self) -> bool:
        """Is there a `gather` that beats reading record by record?"""

    def __len__(self) -> int: ...

    def label(self) -> str:
        """What the dataset's ``repr`` shows."""

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        """The records stacked, in arrays that the caller owns."""

    def records(self, indices: Indices) -> list[Any]:
        """The records one by one; their arrays may be read-only views of the source."""


class ForWorkers:
    """What pickles by path, but goes to worker processes as arrays in shared memory.

    A worker then sees the very rows that this process sees, whatever has become of the path.
    """

    def for_workers(self) -> tuple[Any, ...]:
        """As ``__reduce__``; arrays in it are shared, or mapped again after a check."""
        raise NotImplementedError
