"""Files on disk: opened once, mapped, and recognised later.

Workers map a file again, by its path.  Its *identity* (device, inode, size and mtime) tells whether
that is still the file from which the dataset was made.  loaderx takes it from the descriptor that
it maps, so that the file cannot change in between.  The identity of a user's own memory map is
taken when a dataset first gets it.

Entries of the cache folder live longer, and also depend on the *stamp* of a file: programs that
copy files preserve the mtime, but not the inode, nor the ctime, which nobody can set.  A changed
ctime alone (new permissions, another link) should not make a reading program fail, so only the
cache checks it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from loaderx.errors import FileError, LoaderxError
from loaderx.tree import Array, DType

MappedArray: TypeAlias = np.memmap[Any, DType]

LARGE_UNPACKED = 1 << 30  # bytes; unpacking a larger file into memory gives a warning
_PIECE = 1 << 20  # bytes that are read at once
_MOST_SHOWN = 300  # characters of a parser's message, which may quote a whole header
_MOST_AXES = 32 if np.__version__.startswith("1.") else 64
_MOST_EMPTY = 1 << 40  # bytes of an empty array if its axes of length 0 had length 1
_WILL_NEED = getattr(mmap, "MADV_WILLNEED", None)
_REQUEST = 128 << 10  # bytes; the kernel may ignore the rest of a larger request
CAN_REQUEST = _WILL_NEED is not None
"""True if the kernel can be asked for pages before they are touched."""

_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_NOT_READ = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE)
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class ByteReader(Protocol):
    """An open file, or a stream that unpacks one."""

    def read(self, nbytes: int, /) -> bytes: ...


class Identity(NamedTuple):
    """Distinguishes a file from others, and from itself after a change."""

    device: int
    inode: int
    size: int
    modified_ns: int
    status_ns: int  # ctime; also changes with a new name or new permissions

    @staticmethod
    def of(file: BinaryIO) -> Identity:
        """The identity of an open file."""
        return _identity(os.fstat(file.fileno()))

    @staticmethod
    def at(path: str | os.PathLike[str]) -> Identity | None:
        """The identity of the file that has this path now; None if there is none."""
        try:
            return _identity(os.stat(path))
        except (OSError, ValueError):
            return None

    @property
    def stamp(self) -> str:
        """Changes with every write or replacement, for a file of the same path and size."""
        return f"{self.inode} {self.modified_ns} {self.status_ns}"

    def is_same_file(self, other: Identity | None) -> bool:
        return other is not None and self[:2] == other[:2]

    def change(self, now: Identity | None) -> str | None:
        """What happened to the file, as the end of a sentence; None if it is unchanged."""
        if now is None:
            return "has been removed"
        if not self.is_same_file(now):
            return "has been replaced by another file"
        if now.size != self.size:
            how = "grown" if now.size > self.size else "shrunk"
            return f"has {how} from {self.size} to {now.size} bytes"
        return None if self.modified_ns == now.modified_ns else "has been written to"


def _identity(status: os.stat_result) -> Identity:
    return Identity(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


def changed(path: str | os.PathLike[str], change: str) -> FileError:
    """The error for a file that has changed."""
    return FileError(
        f"{path} {change} since the dataset was made. Make the dataset again. To change a file "
        "that is in use, write a new one and rename it into place."
    )


@contextlib.contextmanager
def open_regular(path: str | os.PathLike[str], mode: str = "rb") -> Iterator[BinaryIO]:
    """Opens a regular file only: a pipe would wait for its writer, and a device may never end.

    Every error of the operating system becomes a `FileError`.
    """
    try:
        opened = open(path, mode, opener=_without_waiting)  # noqa: SIM115 (closed below)
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}.") from error
    except (OSError, ValueError) as error:
        kind = _kind(path)
        if kind:
            raise _no_regular_file(path, kind) from error
        raise FileError(f"{path} cannot be opened: {error}.") from error
    file = cast(BinaryIO, opened)  # every mode that is passed here is binary
    with file:
        kind = _KINDS.get(stat.S_IFMT(os.fstat(file.fileno()).st_mode))
        if kind:
            raise _no_regular_file(path, kind)
        yield file


def read_whole(file: BinaryIO, most: int) -> bytes:
    """All bytes of a file, up to ``most``; ``file.read(most)`` would allocate that many."""
    return file.read(min(most, os.fstat(file.fileno()).st_size))


def _without_waiting(path: str, flags: int) -> int:
    # Opening a named pipe would wait until another process opens it for writing.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _kind(path: str | os.PathLike[str]) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    return None


def _no_regular_file(path: str | os.PathLike[str], kind: str) -> FileError:
    return FileError(f"{path} is {kind}, and a regular file is needed.")


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """Turns every error while the content of a file is interpreted into a `FileError`.

    Parsers of damaged files raise almost anything (`struct.error`, `RecursionError`,
    `NotImplementedError`, ...), so there is no list of exceptions here.  System errors do not blame
    the file: those of writing (a full disk) are raised unchanged, others with their own message.
    """
    try:
        yield
    except (LoaderxError, Warning):  # the user may have made warnings errors
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if number in _NOT_WRITTEN:
            raise
        if number in _NOT_READ:
            raise FileError(f"{where} cannot be read: {error}.") from error
        reason = f"{error}"[:_MOST_SHOWN] or type(error).__name__
        raise FileError(f"{where} is damaged or cut off: {reason}") from error


def read_exactly(file: ByteReader, nbytes: int, where: str) -> bytearray:
    """The next bytes of an unpacked stream; allocates only as much as is really there."""
    data = bytearray()
    while len(data) < nbytes:
        piece = file.read(min(_PIECE, nbytes - len(data)))
        if not piece:
            raise FileError(
                f"{where} is cut off: {nbytes} bytes are expected, there are {len(data)}."
            )
        try:
            data += piece
        except MemoryError as error:
            raise FileError(f"{where} does not fit into memory: {nbytes} bytes.") from error
    return data


def check_shape(shape: tuple[int, ...], dtype: DType, where: str) -> None:
    """Refuses a shape that no array can have.  The length of the file is checked elsewhere."""
    is_odd = any(type(length) is not int or length < 0 for length in shape)
    # 0 x 2**62 needs no bytes, so every file is long enough; but NumPy cannot make such an array.
    extent = math.prod(max(1, length) for length in shape) * dtype.itemsize
    if is_odd or len(shape) > _MOST_AXES or (0 in shape and extent > _MOST_EMPTY):
        raise FileError(f"{where} is damaged: its header has the shape {shape}.")


# The identity of mapped files.  The key is the map itself, which all views of an array share.
_known: weakref.WeakKeyDictionary[mmap.mmap, tuple[Identity, bool]] = weakref.WeakKeyDictionary()


def map_array(
    file: BinaryIO,
    dtype: DType,
    shape: tuple[int, ...],
    offset: int = 0,
    *,
    fortran: bool = False,
    mode: Literal["r", "r+"] = "r",
    holding: bool = True,
) -> Array:
    """An array on an open file, whose identity is remembered.

    Args:
        holding: keep a descriptor of the file, and so its lock and its true size. Callers that map
            many files do without, since descriptors are limited (`map_pages`).
    """
    order: Literal["F", "C"] = "F" if fortran else "C"
    identity = Identity.of(file)
    if holding:
        mapped = np.memmap(file, dtype=dtype, mode=mode, offset=offset, shape=shape, order=order)
    else:
        mapped = _without_descriptor(file, identity, dtype, shape, offset, order)
    _known[_file_map(mapped)] = (identity, True)
    return np.asarray(mapped)


def _without_descriptor(
    file: BinaryIO,
    identity: Identity,
    dtype: DType,
    shape: tuple[int, ...],
    offset: int,
    order: Literal["F", "C"],
) -> MappedArray:
    """Like ``np.memmap`` in mode "r", on a map that keeps no descriptor."""
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    stop = offset + dtype.itemsize * math.prod(shape)
    if stop > identity.size:  # reading past the end would kill the process
        raise ValueError(f"{stop} bytes are expected, there are {identity.size}")
    pages = map_pages(file, start, stop - start)
    mapped = np.ndarray.__new__(np.memmap, shape, dtype, pages, offset - start, order=order)
    # NumPy's constructor sets these; for type checkers they are final.
    vars(mapped).update(filename=os.path.abspath(file.name), offset=offset, mode="r")
    return mapped


def living_maps() -> int:
    """How many file maps this process has, as far as loaderx knows."""
    return len(_known)


def _file_map(array: MappedArray) -> mmap.mmap:
    """The map of the file, which NumPy's type hints call an array."""
    base: object = array.base
    assert isinstance(base, mmap.mmap)
    return base


def remember(array: Array) -> None:
    """Stores the identity of the file, if the array is on a file that the user mapped."""
    base = mapped_base(array)
    if base is not None and base.filename is not None and _file_map(base) not in _known:
        identity = Identity.at(base.filename)
        if identity is not None:
            _known[_file_map(base)] = (identity, False)


def remembered(base: MappedArray) -> tuple[Identity | None, bool]:
    """The identity of a mapped file, and whether it was taken together with the map."""
    return _known.get(_file_map(base), (None, False))


def request_pages(mapped: mmap.mmap, start: int, length: int) -> None:
    """Asks the kernel for a range of a mapped file that begins at a page."""
    assert _WILL_NEED is not None
    for place in range(start, start + length, _REQUEST):
        mapped.madvise(_WILL_NEED, place, min(_REQUEST, start + length - place))


def mapped_base(array: Array) -> MappedArray | None:
    """The `np.memmap` that an array is, or is a view of; None if it is in memory."""
    base: object = array
    while base is not None:
        owner: object = getattr(base, "base", None)
        if isinstance(base, np.memmap) and isinstance(owner, mmap.mmap):
            return base
        base = owner
    return None


# Maps of files that keep no descriptor.
#
# On Linux a process may have a thousand descriptors by default, but 65,530 maps.  Before Python
# 3.13 each `mmap` keeps a descriptor of its file.  There, Python maps empty pages, and the file is
# then mapped over them.

_FIXED = 0x10  # MAP_FIXED of Linux, which `mmap` does not name
_UNTRACKED: dict[str, bool] = {"trackfd": False} if sys.version_info >= (3, 13) else {}

_Map: TypeAlias = Callable[[int, int, int, int, int, int], int]


def map_pages(file: BinaryIO, start: int, nbytes: int) -> mmap.mmap:
    """Maps a range of a file, read-only; it begins at a page and lies within the file."""
    number = file.fileno()
    if _UNTRACKED:
        return mmap.mmap(number, nbytes, access=mmap.ACCESS_READ, offset=start, **_UNTRACKED)
    put, pages = _find_mmap(), _empty_pages(nbytes)
    if put is None or pages is None:
        return mmap.mmap(number, nbytes, access=mmap.ACCESS_READ, offset=start)
    address: int = np.frombuffer(pages, np.uint8).__array_interface__["data"][0]
    flags = mmap.MAP_SHARED | _FIXED
    if put(address, nbytes, mmap.PROT_READ, flags, number, start) != address:
        raise OSError(f"{nbytes} bytes of {file.name} cannot be mapped")
    return pages


def _empty_pages(nbytes: int) -> mmap.mmap | None:
    """None if the system refuses so many bytes, though no page is ever used."""
    try:
        return mmap.mmap(-1, nbytes, access=mmap.ACCESS_READ)
    except OSError:
        return None


def keeps_descriptors() -> bool:
    """True if maps keep a descriptor here after all."""
    return sys.platform == "win32" if _UNTRACKED else _find_mmap() is None


@cache
def _find_mmap() -> _Map | None:
    if sys.platform != "linux":
        return None
    import ctypes  # late: usually imported by NumPy already

    try:
        found = ctypes.CDLL(None).mmap
    except (OSError, AttributeError):
        return None
    size, number = ctypes.c_size_t, ctypes.c_int
    found.restype = ctypes.c_void_p
    found.argtypes = [ctypes.c_void_p, size, number, number, number, ctypes.c_long]
    put: _Map = found
    return put
