"""Values that change between epochs, in workers that run, so that no others need to be started.

These are the dataset, if an attribute of it has changed, and the indices of a sampler.  A worker
gets them when it starts.  Later ones are pickled into a file that workers look at before each
batch.  Large ones are left to new workers, which share their arrays.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import tempfile
import weakref
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MOST_BYTES = 1 << 25  # each worker has a copy of its own

_VERSION_BYTES = 8


class Sent(Generic[T]):
    """A value, and its version.

    A worker has the version of the time when it was pickled, so it reads what is sent later alone.
    """

    def __init__(self, value: T) -> None:
        self._value, self._version = value, 0
        self._path: str | None = None
        self._descriptor: int | None = None  # in workers

    def __getstate__(self) -> tuple[int, str, T, int]:
        if self._path is None:
            descriptor, self._path = tempfile.mkstemp(prefix="loaderx-sent-")
            os.close(descriptor)
            weakref.finalize(self, _remove, self._path, os.getpid())
        return os.getpid(), self._path, self._value, self._version

    def __setstate__(self, state: tuple[int, str, T, int]) -> None:
        sender, path, value, version = state
        self.__init__(value)  # type: ignore[misc]
        self._version = version
        if sender != os.getpid():  # else it is a copy of the loader
            with contextlib.suppress(FileNotFoundError):  # a copy of a loader that is gone
                self._descriptor = os.open(path, os.O_RDONLY)
                weakref.finalize(self, os.close, self._descriptor)

    def send(self, value: T) -> bool:
        """Puts a value in place of the last one; False if new workers are needed to see it.

        They are if it is large, or cannot be pickled.  No worker may be at work meanwhile.
        """
        from loaderx.extend import TorchPickler  # slow to import

        self._value = value
        self._version += 1  # now: new workers do not read what was written in part
        if self._path is None:
            return True  # there are no workers
        out = _Limited()
        out.write(self._version.to_bytes(_VERSION_BYTES, "little"))
        try:
            TorchPickler(out, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
            with open(self._path, "r+b") as file:
                file.write(out.getbuffer())
                file.truncate()
        except Exception:  # new workers: their pickles leave out what cannot be sent
            return False
        return True

    def newest(self) -> T:
        """What was sent last."""
        if self._descriptor is not None:
            version = int.from_bytes(os.pread(self._descriptor, _VERSION_BYTES, 0), "little")
            if version > self._version:
                size = os.fstat(self._descriptor).st_size
                self._value = pickle.loads(os.pread(self._descriptor, size, _VERSION_BYTES))
                self._version = version
        return self._value


class _Limited(io.BytesIO):
    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_BYTES:
            raise OverflowError
        return super().write(data)


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner and os.path.exists(path):  # a fork leaves it to its parent
        os.unlink(path)
