"""Options of worker processes, and the names of Grain's arrays in shared memory."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from loaderx.compat.grain.options import MultiprocessingOptions

__all__ = ["MultiprocessingOptions", "SharedMemoryArray", "SharedMemoryArrayMetadata"]


def __dir__() -> list[str]:
    return __all__


class SharedMemoryArray(np.ndarray[tuple[int, ...], np.dtype[np.generic]]):
    """A plain array: batches from workers are always in shared memory."""


@dataclasses.dataclass(slots=True, frozen=True)
class SharedMemoryArrayMetadata:
    """The location of a shared array; nothing here makes one."""

    name: str
    shape: tuple[int, ...]
    dtype: npt.DTypeLike
