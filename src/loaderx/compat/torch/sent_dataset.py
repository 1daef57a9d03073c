"""Sends a dataset that has changed to workers that run, so that no others need to be started.

A worker gets the dataset when it starts.  Between two epochs the dataset is pickled again, into a
file that workers look at before each batch.  A large one is left to new workers, which share its
arrays.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import weakref
from typing import Any

from loaderx.compat.torch.shared_lists import shared_file

MOST_BYTES = 1 << 25  # each worker has a copy of its own

_VERSION_BYTES = 8


class SentDataset:
    """What was sent last: a version, and a pickle.

    A worker has the version of the time when it was pickled, so it reads what is sent later alone.
    """

    def __init__(self) -> None:
        self._version = 0
        self._path: str | None = None
        self._descriptor: int | None = None  # in workers
        self._newest: Any = None

    def __getstate__(self) -> tuple[int, str, int]:
        if self._path is None:
            self._path = shared_file(self, "dataset")
        return os.getpid(), self._path, self._version

    def __setstate__(self, state: tuple[int, str, int]) -> None:
        self.__init__()  # type: ignore[misc]
        sender, path, self._version = state
        if sender != os.getpid():  # else it is a copy of the loader
            with contextlib.suppress(FileNotFoundError):  # a copy of a loader that is gone
                self._descriptor = os.open(path, os.O_RDONLY)
                weakref.finalize(self, os.close, self._descriptor)

    def send(self, parts: object) -> bool:
        """Sends objects in place of those from before; False if they are large, or not picklable.

        No worker may be at work meanwhile.
        """
        import cloudpickle  # slow to import, as is the module of `torch_by_value`

        from loaderx.extend import torch_by_value

        if self._path is None:
            return True  # no worker has been started
        self._version += 1  # now: new workers do not read what was written in part
        out = _Limited()
        out.write(self._version.to_bytes(_VERSION_BYTES, "little"))
        try:
            with torch_by_value():
                cloudpickle.Pickler(out, protocol=pickle.HIGHEST_PROTOCOL).dump(parts)
            with open(self._path, "r+b") as file:
                file.write(out.getbuffer())
                file.truncate()
        except Exception:  # new workers: their pickles leave out what cannot be sent
            return False
        return True

    def newest(self, parts: Any) -> Any:
        """In a worker: what was sent last, or else the objects that it was started with."""
        if self._descriptor is None:
            return parts
        version = int.from_bytes(os.pread(self._descriptor, _VERSION_BYTES, 0), "little")
        if version > self._version:
            size = os.fstat(self._descriptor).st_size
            self._newest = pickle.loads(os.pread(self._descriptor, size, _VERSION_BYTES))
            self._version = version
        return self._newest or parts


class _Limited(io.BytesIO):
    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_BYTES:
            raise OverflowError
        return super().write(data)
