"""Sends the work of a loader to its workers, once.

What a worker could not import (functions of a script or notebook, lambdas) is pickled by value.
Large arrays stay out of the pickle: they lie in a shared file that all workers map, so the data
exists once for any number of workers.  Arrays that are mapped from a file are mapped again from it,
if it is still the same (`sources/mapping.py`); h5py datasets are opened again.

Read-only arrays stay read-only in the workers.  A writable array is writable there too; a worker
that writes gets its own copy of the pages that it writes to.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import marshal
import mmap
import os
import pickle
import struct
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import cloudpickle
import numpy as np

from loaderx.engines.base import Work
from loaderx.engines.processes import unsendable
from loaderx.engines.processes.mapped_files import (
    ByteRange,
    bounds,
    build_array,
    check_length,
    reduce_mapped,
)
from loaderx.engines.processes.mapped_ranges import LARGE_PAGE, MappedRange
from loaderx.engines.processes.protocol import map_file, shared_file
from loaderx.engines.processes.ulimits import explained
from loaderx.engines.signals import SignalsDeferred
from loaderx.errors import LoaderxError, one_line, warn_user
from loaderx.first_use import AttributesBeforeUse
from loaderx.free_memory import free_memory
from loaderx.sources.base import ForWorkers
from loaderx.sources.mapping import mapped_base
from loaderx.sources.remote.options import for_workers
from loaderx.tree import Array

_TORCH_DATASETS = "torch.utils.data.dataset"
SHARED_BYTES = 1 << 14  # bytes from which an array is shared
DIGEST_BYTES = 1 << 20  # the most data in memory for a digest
# Lengths of the boot record, the pickled `init`, the pickled work and the table of buffers.
_HEAD = struct.Struct("<QQQQ")
_BUFFER = struct.Struct("<QQQ")  # start, length, whether it is writable
_PAGE = mmap.ALLOCATIONGRANULARITY
_WRITE_BYTES = 1 << 28
_CachedFunction: Any = type(functools.cache(len))

_BufferPlaces: TypeAlias = list[tuple[int, int, bool]]
"""Where each buffer begins in the shared file, its length, and whether it is writable."""

Init: TypeAlias = Callable[[int, int], object]
"""A user's function, called in each worker with its number and the number of workers."""


class PicklingError(LoaderxError, TypeError):
    """Something in the dataset cannot be sent to another process."""


class ResetAttribute(NamedTuple):
    """An attribute that was sent with its value from before the first use of its object."""

    owner: str
    name: str
    kind: str  # type of the value that it is set to; empty: unset
    text: str


class SharedPayload:
    """The pickled work in a shared file, from which any number of workers can start."""

    def __init__(self, work: Work, free_share: float = 1.0, init: Init | None = None) -> None:
        buffers: list[pickle.PickleBuffer] = []
        replaced: list[str] = []
        self.reset_attributes: list[ResetAttribute] = []
        self._init = b"" if init is None else _pickled_init(init)
        self.pickled = pickled_work(work, buffers, replaced, self.reset_attributes)
        warn_of_replaced(replaced)
        raws, self._order = without_duplicates(buffers)
        self.nbytes = sum(raw.nbytes for raw in raws)
        _check_memory(self.nbytes, free_share)
        with explained("the dataset cannot be shared with worker processes"):
            with SignalsDeferred():
                self.descriptor = shared_file("loaderx-data")
                weakref.finalize(self, os.close, self.descriptor).atexit = False
            self._write(raws)
        del self.pickled

    def _write(self, raws: list[memoryview]) -> None:
        boot = marshal.dumps(([str(place) for place in sys.path], list(map(str, sys.argv))))
        table_at = _HEAD.size + len(boot) + len(self._init) + len(self.pickled)
        first = start = _round_up(table_at + _BUFFER.size * len(self._order), LARGE_PAGE)
        places: _BufferPlaces = []
        for raw in raws:
            start = _round_up(start, LARGE_PAGE if raw.nbytes >= LARGE_PAGE else _PAGE)
            places.append((start, raw.nbytes, not raw.readonly))
            start += raw.nbytes
        table = b"".join(_BUFFER.pack(*places[number]) for number in self._order)
        if raws:
            os.ftruncate(self.descriptor, start + LARGE_PAGE)  # a hole in a file costs nothing
        head = _HEAD.pack(len(boot), len(self._init), len(self.pickled), len(table))
        parts = (head, boot, self._init, self.pickled, table)
        _write_at(self.descriptor, memoryview(b"".join(parts)), 0)
        self._use_large_pages(first, start - first, places)
        for raw, (place, _, _) in zip(raws, places, strict=True):
            _write_at(self.descriptor, raw, place)

    def _use_large_pages(self, first: int, nbytes: int, places: _BufferPlaces) -> None:
        """Gets large pages for the large buffers before they are written: then none is copied."""
        large = [(place, size) for place, size, _ in places if size >= LARGE_PAGE]
        if not large:
            return
        try:
            shared = MappedRange(self.descriptor, first, nbytes)
        except LoaderxError:
            return  # no address space left here; workers have their own
        for place, size in large:
            for page in range(place, place + size, LARGE_PAGE):
                os.pwrite(self.descriptor, b"\0", page)  # the system refuses empty pages
            shared.use_large_pages(place - first, size)


def load_init(descriptor: int) -> Init | None:
    """The function to call in a worker before it loads the work."""
    boot, length, _, _ = _HEAD.unpack(os.pread(descriptor, _HEAD.size, 0))
    if not length:
        return None
    init: Init = pickle.loads(os.pread(descriptor, length, _HEAD.size + boot))
    return init


def load_work(descriptor: int) -> Any:
    """Loads the work in a worker."""
    boot, init, pickled, table = _HEAD.unpack(os.pread(descriptor, _HEAD.size, 0))
    start = _HEAD.size + boot + init
    end = start + pickled + table
    head = memoryview(map_file(descriptor, end, access=mmap.ACCESS_READ))
    places = list(_BUFFER.iter_unpack(head[end - table : end]))
    buffers = _map_buffers(descriptor, _round_up(end, LARGE_PAGE), places) if places else []
    return pickle.loads(head[start : start + pickled], buffers=buffers)


def _map_buffers(descriptor: int, first: int, places: _BufferPlaces) -> list[memoryview]:
    size = os.fstat(descriptor).st_size - LARGE_PAGE - first
    own = frozen = MappedRange(descriptor, first, size, access=mmap.ACCESS_READ)
    if any(writable for _, _, writable in places):
        own = MappedRange(descriptor, first, size, access=mmap.ACCESS_COPY)
    return [
        (own if writable else frozen).view(place - first, length)
        for place, length, writable in places
    ]


def dumps(value: object) -> bytes:
    """Pickles anything that can be pickled, including classes of a script."""
    pickled: bytes = cloudpickle.dumps(value, protocol=5)
    return pickled


class TorchPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles torch's `Dataset`, `Subset` and the like so that unpickling does not import torch.

    That takes seconds.  If torch is imported by then, for a module that needs it, its classes are
    taken, so that `isinstance` says the same there.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) and value.__module__ == _TORCH_DATASETS:
            with contextlib.suppress(Exception):  # else by name
                return _torch_class, (value.__name__, _by_value(value))
        return super().reducer_override(value)


@functools.cache
def _by_value(kind: type) -> bytes:
    module = sys.modules[kind.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        return dumps(kind)
    finally:
        with contextlib.suppress(ValueError):  # another thread has just ended
            cloudpickle.unregister_pickle_by_value(module)


def _torch_class(name: str, pickled: bytes) -> Any:
    module = sys.modules.get(_TORCH_DATASETS)
    return pickle.loads(pickled) if module is None else getattr(module, name)


def digest_of(work: Work) -> str | None:
    """A digest of all that workers get: the chain, its functions, the identity of its files.

    None if it cannot be pickled, or holds much data in memory.
    """
    buffers: list[pickle.PickleBuffer] = []
    replaced: list[str] = []
    try:
        found = hashlib.sha256(_pickled(work, buffers, replaced))
    except Exception:
        return None
    raws = [buffer.raw() for buffer in buffers]
    if replaced or sum(raw.nbytes for raw in raws) > DIGEST_BYTES:
        return None
    for raw in raws:
        found.update(raw)
    return found.hexdigest()


def _pickled_init(init: Init) -> bytes:
    try:
        return dumps(init)
    except Exception as error:
        raise PicklingError(
            f"`init` of engines.Processes cannot be sent to worker processes: {one_line(error)}. "
            "Give it a function that uses nothing but modules and plain values."
        ) from error


def warn_of_replaced(replaced: Sequence[str]) -> None:
    """Warns of mapped files whose paths name other files by now."""
    if replaced:
        paths = ", ".join(dict.fromkeys(replaced))
        warn_user(
            f"no longer the files that were mapped: {paths}. Worker processes get the rows of "
            "the old files, as this process sees them, from a copy in memory."
        )


@for_workers()
def pickled_work(
    work: Work,
    buffers: list[pickle.PickleBuffer],
    replaced: list[str],
    reset: list[ResetAttribute],
    files: set[str] | None = None,
) -> bytes:
    """The work, without its large arrays.

    Args:
        work: to be pickled.
        buffers: gets the large arrays.
        replaced: gets the paths of mapped files that name other files by now.
        reset: gets the attributes that were sent with their values from before the first use.
        files: for workers that may be on other machines, where a file has another inode: gets the
            paths of the files that they read.  None: workers are processes of this machine.
    """
    try:
        return _pickled(work, buffers, replaced, files=files)
    except LoaderxError:
        raise
    except Exception as error:
        buffers.clear()
        replaced.clear()
        given = _given(work)
        with contextlib.suppress(Exception):
            return _pickled(work, buffers, replaced, given, reset, files)
        buffers.clear()
        raise _error_for(work, given, error) from error


def _error_for(work: Work, given: Sequence[AttributesBeforeUse], error: Exception) -> PicklingError:
    """Says what cannot be sent, and what to do about it."""

    def can_be_sent(value: object) -> bool:
        return _can_be_pickled(value, given)

    name, part = "the dataset", work
    for each, one in work.parts():
        if not can_be_sent(one):
            name, part = each, one
            break
    is_source = hasattr(part, "records")
    what = unsendable.advice(part, can_be_sent, given, is_source=is_source)
    other = " Or use engine='threads'." if work.thread_safe else ""
    return PicklingError(
        f"{name} cannot be sent to worker processes: {one_line(error)}. {what}{other}"
    )


def _given(work: Work) -> list[AttributesBeforeUse]:
    """The attributes of the user's objects from before their first use."""
    found = (
        getattr(holder, "given", None)
        for _, part in work.parts()
        for holder in (part, getattr(part, "function", None))
    )
    return [given for given in found if given is not None]


def _pickled(
    value: object,
    buffers: list[pickle.PickleBuffer],
    replaced: list[str],
    given: Sequence[AttributesBeforeUse] = (),
    reset: list[ResetAttribute] | None = None,
    files: set[str] | None = None,
) -> bytes:
    def keep(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < SHARED_BYTES:
            return True  # in the pickle
        buffers.append(buffer)
        return False

    out = io.BytesIO()
    pickler = _Pickler(out, protocol=5, buffer_callback=keep)
    pickler.replaced = replaced
    pickler.given, pickler.files = given, files
    pickler.reset_attributes = [] if reset is None else reset
    pickler.dump(value)
    return out.getvalue()


def _can_be_pickled(value: object, given: Sequence[AttributesBeforeUse] = ()) -> bool:
    try:
        _pickled(value, [], [], given)
    except Exception:
        return False
    return True


class _Pickler(TorchPickler):
    replaced: list[str]
    """Paths of mapped files that name other files by now."""
    given: Sequence[AttributesBeforeUse] = ()
    reset_attributes: list[ResetAttribute]
    files: set[str] | None = None
    """Paths of files, for workers that may be on other machines."""

    def reducer_override(self, value: Any) -> Any:
        for given in self.given:
            state = given.state(value, _can_be_pickled)
            if state is not None:
                self.reset_attributes += _reset_attributes(value, state)
                return _reduce_with_state(value, state)
        if type(value) in (np.ndarray, np.memmap):
            reduced = self._reduce_array(value) if value.nbytes else None
            if reduced is not None:
                return reduced
        elif isinstance(value, ForWorkers):
            if self.files is None:
                return value.for_workers()
            self.files.update(getattr(value, "paths", ()))
        elif type(value) is _CachedFunction:
            if not _is_importable(value):
                return _reduce_cached(value)
        elif type(value) is functools.cached_property:  # has a lock before Python 3.12
            return _cached_property, (value.func, value.attrname)
        elif type(value).__module__.startswith("h5py.") and type(value).__name__ == "Dataset":
            path = os.path.abspath(value.file.filename)
            if self.files is not None:
                self.files.add(path)
            return _open_h5py, (path, value.name)
        return super().reducer_override(value)

    def _reduce_array(self, array: Array) -> Any:
        """None if NumPy's own pickling does."""
        base = None if array.base is None else mapped_base(array)
        if base is not None:
            check_length(base, array)
        if array.nbytes < SHARED_BYTES or array.dtype.hasobject:
            return None
        if base is not None and base.filename is not None and base.mode != "c":
            reduced = reduce_mapped(array, base, is_elsewhere=self.files is not None)
            if reduced is not None:
                if self.files is not None:
                    self.files.add(os.path.abspath(base.filename))
                return reduced
            self.replaced.append(os.path.abspath(base.filename))
        return None if _is_flat_bytes(array) else _reduce_array(array)


def _reset_attributes(value: Any, state: dict[str, Any]) -> Iterator[ResetAttribute]:
    for name, held in vars(value).items():
        if name not in state:
            yield ResetAttribute(type(value).__name__, name, "", "not set")
        elif state[name] is not held:
            kind = type(state[name]).__name__
            yield ResetAttribute(type(value).__name__, name, kind, repr(state[name]))


def _reduce_with_state(value: Any, state: dict[str, Any]) -> Any:
    """Reduces an object as pickle would, with other attributes."""
    make, arguments, found, *items = value.__reduce_ex__(5)
    slots = found[1] if isinstance(found, tuple) else None
    return make, arguments, state if slots is None else (state, slots), *items


def _is_importable(function: Any) -> bool:
    """True if a worker can import it by name: not from a script, nor inside another function."""
    if function.__module__ == "__main__":
        return False
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _reduce_cached(function: Any) -> Any:
    """Reduces a function of `functools.lru_cache`; the copy's cache is empty."""
    copied = (*functools.WRAPPER_ASSIGNMENTS, "__wrapped__")
    added = {name: held for name, held in vars(function).items() if name not in copied}
    parameters = function.cache_parameters()
    return _cached, (function.__wrapped__, parameters), added or None


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _cached_property(function: Any, name: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname = name  # `__set_name__` is not called again
    return made


def _is_flat_bytes(array: Array) -> bool:
    return array.dtype == np.uint8 and array.ndim == 1 and array.flags.c_contiguous


def _reduce_array(array: Array) -> Any:
    """Reduces any array to a range of bytes, whatever its dtype, gaps or overlapping rows."""
    address, low, high = bounds(array)
    if high - low > 2 * array.nbytes:  # mostly gaps
        _check_memory(array.nbytes, 1.0)
        whole = np.ascontiguousarray(array)
        whole.flags.writeable = array.flags.writeable
        return _reduce_array(whole)
    byte_range = np.asarray(ByteRange(array, low, high - low))
    return build_array, (byte_range, address - low, array.shape, array.strides, array.dtype)


def _open_h5py(path: str, name: str) -> Any:
    import h5py  # type: ignore[import-untyped, unused-ignore]

    return h5py.File(path, "r")[name]


def without_duplicates(buffers: list[pickle.PickleBuffer]) -> tuple[list[memoryview], list[int]]:
    """The distinct buffers, and for each buffer its index among them."""
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
        done += os.pwrite(descriptor, data[done : done + _WRITE_BYTES], start + done)


def _round_up(place: int, step: int) -> int:
    return -(-place // step) * step


def _check_memory(needed: int, free_share: float) -> None:
    """Raises if the shared copy of the data does not fit, before the kernel kills the process."""
    free = free_memory()
    if free is not None and needed > free * free_share:
        raise PicklingError(
            f"the dataset holds {needed / 1e9:.2f} GB in memory, and sharing it with worker "
            f"processes takes one more copy, for which {free * free_share / 1e9:.2f} GB may be "
            "used. Save it with np.save and open it with Dataset.open: then nothing is copied."
        )
