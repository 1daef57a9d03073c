"""The work of a loader, sent to its workers once.

Everything is pickled by value where a worker could not import it (functions of a script, of a
notebook, lambdas).  Large arrays stay out of the pickle: they lie in a shared file that all workers
map, so the data is there once however many workers there are.  Arrays that are mapped from a file
already are opened again from that file, and so are h5py datasets.

An array that was read-only is so in the workers; one that could be written can be written there
too, and then the pages that were written are the worker's own.
"""

from __future__ import annotations

import io
import marshal
import mmap
import os
import pickle
import struct
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np

from loaderx.engines.base import Work
from loaderx.engines.processes.wire import map_file, shared_file
from loaderx.errors import LoaderxError

OUT_OF_BAND = 1 << 14  # bytes from which an array is shared
_HEAD = struct.Struct("<QQQ")  # lengths of the boot record, the pickle and the table of buffers
_BUFFER = struct.Struct("<QQQ")  # start, length, may it be written?
_PAGE = mmap.ALLOCATIONGRANULARITY
_PIECE = 1 << 28


class ShippingError(LoaderxError, TypeError):
    """Something in the dataset cannot be sent to another process."""


class Shipment:
    """The pickled work in a shared file, from which any number of workers can start."""

    def __init__(self, work: Work, free_share: float = 1.0) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self.pickled = _dump(work, buffers)
        raws, self._order = _distinct(buffers)
        self.nbytes = sum(raw.nbytes for raw in raws)
        _check_memory(self.nbytes, free_share)
        self.descriptor = shared_file("loaderx-data")
        weakref.finalize(self, os.close, self.descriptor).atexit = False
        self._write(raws)
        del self.pickled

    def _write(self, raws: list[memoryview]) -> None:
        boot = marshal.dumps(([str(place) for place in sys.path], list(map(str, sys.argv))))
        table_at = _HEAD.size + len(boot) + len(self.pickled)
        start = _up(table_at + _BUFFER.size * len(self._order))
        places = []
        for raw in raws:
            places.append((start, raw.nbytes, not raw.readonly))
            start = _up(start + raw.nbytes)
        table = b"".join(_BUFFER.pack(*places[number]) for number in self._order)
        os.ftruncate(self.descriptor, start)
        head = _HEAD.pack(len(boot), len(self.pickled), len(table))
        _write_at(self.descriptor, memoryview(head + boot + self.pickled + table), 0)
        for raw, (place, _, _) in zip(raws, places, strict=True):
            _write_at(self.descriptor, raw, place)


def unpack(descriptor: int) -> Any:
    """The work, in a worker."""
    boot, pickled, table = _HEAD.unpack(os.pread(descriptor, _HEAD.size, 0))
    size = os.fstat(descriptor).st_size
    frozen = map_file(descriptor, size, access=mmap.ACCESS_READ)
    own = map_file(descriptor, size, access=mmap.ACCESS_COPY)
    start = _HEAD.size + boot
    buffers = [
        memoryview(own if writable else frozen)[place : place + length]
        for place, length, writable in _BUFFER.iter_unpack(
            frozen[start + pickled : start + pickled + table]
        )
    ]
    return pickle.loads(memoryview(frozen)[start : start + pickled], buffers=buffers)


def dumps(value: Any) -> bytes:
    """A pickle of anything that can be pickled; classes of a script included."""
    pickled: bytes = cloudpickle.dumps(value, protocol=5)
    return pickled


def _dump(work: Work, buffers: list[pickle.PickleBuffer]) -> bytes:
    try:
        return _pickled(work, buffers)
    except Exception as error:
        culprit = _culprit(work)
        raise ShippingError(
            f"{culprit} cannot be sent to worker processes: {type(error).__name__}: {error}. "
            "Make what cannot be pickled (an open file, a lock, a connection) inside the function "
            "when it is first needed, or use engine='threads'."
        ) from error


def _pickled(value: Any, buffers: list[pickle.PickleBuffer]) -> bytes:
    def keep(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < OUT_OF_BAND:
            return True  # in the pickle
        buffers.append(buffer)
        return False

    out = io.BytesIO()
    _Pickler(out, protocol=5, buffer_callback=keep).dump(value)
    return out.getvalue()


def _culprit(work: Work) -> str:
    for name, part in work.parts():
        try:
            _pickled(part, [])
        except Exception:
            return name
    return "the dataset"


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.nbytes >= OUT_OF_BAND:
            reduced = _reduce_mapped(value) or _reduce_strided(value)
            if reduced is not None:
                return reduced
        elif type(value).__module__.startswith("h5py.") and type(value).__name__ == "Dataset":
            return _open_h5py, (os.path.abspath(value.file.filename), value.name)
        return super().reducer_override(value)


def _reduce_strided(array: np.ndarray[Any, Any]) -> Any:
    """NumPy would put an array with gaps into the pickle."""
    flags = array.flags
    if flags.c_contiguous or flags.f_contiguous or array.dtype.hasobject:
        return None
    whole = np.ascontiguousarray(array)
    whole.flags.writeable = flags.writeable
    return np.asarray, (whole,)


def _reduce_mapped(array: np.ndarray[Any, Any]) -> Any:
    """An array on a mapped file: its path and place, if the file still says what the array says."""
    base: Any = array
    while isinstance(base, np.ndarray) and not (
        isinstance(base, np.memmap) and isinstance(base.base, mmap.mmap)
    ):
        base = base.base
    if base is None or getattr(base, "filename", None) is None or base.mode == "c":
        return None
    address, low, high = _bounds(array)
    start = base.offset + low - np.asarray(base).ctypes.data
    inside = address - low
    path = os.path.abspath(base.filename)
    if start < 0 or not _says_the_same(path, start, base, low, high - low):
        return None
    return _open_mapped, (path, start, high - low, inside, array.shape, array.strides, array.dtype)


def _bounds(array: np.ndarray[Any, Any]) -> tuple[int, int, int]:
    """The addresses of an array's first element, its lowest byte, and the end of its highest."""
    address: int = array.__array_interface__["data"][0]
    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    low = address + sum(step for step in reach if step < 0)
    return address, low, address + sum(step for step in reach if step > 0) + array.itemsize


def _says_the_same(path: str, start: int, base: Any, low: int, length: int) -> bool:
    """Is the file at this path still the one that was mapped?  A look at both ends."""
    whole = np.asarray(base).reshape(-1, order="A").view(np.uint8)
    first = low - whole.ctypes.data
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < start + length:
                return False
            for offset in (0, max(0, length - 4096)):
                file.seek(start + offset)
                piece = file.read(min(4096, length))
                if piece != whole[first + offset : first + offset + len(piece)].tobytes():
                    return False
    except (OSError, ValueError):
        return False
    return True


def _open_mapped(
    path: str,
    start: int,
    length: int,
    inside: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
) -> Any:
    whole = np.memmap(path, np.uint8, "r", start, (length,))
    return np.ndarray(shape, dtype, whole, inside, strides)


def _open_h5py(path: str, name: str) -> Any:
    import h5py  # type: ignore[import-untyped, unused-ignore]

    return h5py.File(path, "r")[name]


def _distinct(buffers: list[pickle.PickleBuffer]) -> tuple[list[memoryview], list[int]]:
    """The buffers without duplicates, and for each buffer which of them it is."""
    raws: list[memoryview] = []
    order: list[int] = []
    seen: dict[tuple[int, int, bool], int] = {}
    for buffer in buffers:
        raw = buffer.raw()
        place = np.frombuffer(raw, np.uint8).ctypes.data
        number = seen.setdefault((place, raw.nbytes, raw.readonly), len(raws))
        if number == len(raws):
            raws.append(raw)
        order.append(number)
    return raws, order


def _write_at(descriptor: int, data: memoryview, start: int) -> None:
    done = 0
    while done < data.nbytes:
        done += os.pwrite(descriptor, data[done : done + _PIECE], start + done)


def _up(place: int) -> int:
    return -(-place // _PAGE) * _PAGE


def _check_memory(needed: int, free_share: float) -> None:
    """Sharing data takes one more copy of it: better told now than by the kernel later."""
    free = _free_memory()
    if free is not None and needed > free * free_share:
        raise ShippingError(
            f"the dataset holds {needed / 1e9:.2f} GB in memory, and sharing it with worker "
            f"processes takes one more copy; {free / 1e9:.2f} GB are free. Save it with np.save "
            "and open it with Dataset.from_file: then nothing is copied."
        )


def _free_memory() -> int | None:
    try:
        with open("/proc/meminfo") as file:
            lines: Iterator[str] = (line for line in file if line.startswith("MemAvailable:"))
            return int(next(lines).split()[1]) * 1024
    except (OSError, StopIteration):
        return None
