"""Files on disk: opened once, mapped, and known again.

Workers map a file anew, by its path.  Whether that is still the file that the dataset was made from
is told by its *identity*: device, inode, size, and the time of the last write.  loaderx takes it
from the descriptor that it maps, so nothing can come in between.  The identity of a memory map that
a user has made is taken when a dataset first sees it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import stat
import weakref
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from loaderx.errors import FileError, LoaderxError
from loaderx.tree import Array

LARGE_UNPACKED = 1 << 30  # bytes of one file from which unpacking it into memory warns
_PIECE = 1 << 20  # bytes that are read at once
_MOST_SAID = 300  # characters of a parser's complaint, which may quote a whole header
_MOST_AXES = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
_MOST_EMPTY = 1 << 40  # bytes that an array would have if its axes of length 0 had length 1
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Identity(NamedTuple):
    """What tells a file from another, and from itself after a change."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @staticmethod
    def of(file: BinaryIO) -> Identity:
        """The identity of an open file."""
        return _identity(os.fstat(file.fileno()))

    @staticmethod
    def at(path: str | os.PathLike[str]) -> Identity | None:
        """The identity of the file that has this path now, None if there is none."""
        try:
            return _identity(os.stat(path))
        except (OSError, ValueError):
            return None

    def is_same_file(self, other: Identity | None) -> bool:
        return other is not None and self[:2] == other[:2]

    def change(self, now: Identity | None) -> str | None:
        """What happened to the file, as the end of a sentence; None if it is as it was."""
        if now is None:
            return "has been removed"
        if not self.is_same_file(now):
            return "has been replaced by another file"
        if now.size != self.size:
            how = "grown" if now.size > self.size else "shrunk"
            return f"has {how} from {self.size} to {now.size} bytes"
        return None if self == now else "has been written to"


def _identity(status: os.stat_result) -> Identity:
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def changed(path: str | os.PathLike[str], change: str) -> FileError:
    """The error for a file that is not what it was."""
    return FileError(
        f"{path} {change} since the dataset was made. Make the dataset anew. To change a file that "
        "is in use, write a new one and rename it into place."
    )


@contextlib.contextmanager
def open_regular(path: str | os.PathLike[str], mode: str = "rb") -> Iterator[BinaryIO]:
    """Opens a file that has an end: a pipe would wait for its writer, a device may go on for ever.

    Whatever the operating system has against it becomes a `FileError`.
    """
    try:
        file: Any = open(path, mode, opener=_without_waiting)  # noqa: SIM115 (closed below)
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}.") from error
    except (OSError, ValueError) as error:
        kind = _kind(path)
        if kind:
            raise _no_regular_file(path, kind) from error
        raise FileError(f"{path} cannot be opened: {error}.") from error
    with file:
        kind = _KINDS.get(stat.S_IFMT(os.fstat(file.fileno()).st_mode))
        if kind:
            raise _no_regular_file(path, kind)
        yield file


def _without_waiting(path: str, flags: int) -> int:
    # Opening a named pipe would wait until somebody writes into it.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _kind(path: str | os.PathLike[str]) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    return None


def _no_regular_file(path: str | os.PathLike[str], kind: str) -> FileError:
    return FileError(f"{path} is {kind}, and a regular file is needed.")


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """Makes a `FileError` of whatever goes wrong while a file's content is interpreted.

    Parsers of damaged files raise almost anything (`struct.error`, `RecursionError`,
    `NotImplementedError`, ...), so there is no list of exceptions here.
    """
    try:
        yield
    except (LoaderxError, Warning):  # a warning may be an error, if the user wants it so
        raise
    except Exception as error:
        said = f"{error}"[:_MOST_SAID] or type(error).__name__
        raise FileError(f"{where} is damaged or cut off: {said}") from error


def read_exactly(file: Any, nbytes: int, where: str) -> bytearray:
    """The next bytes of an unpacked stream; memory grows with what really comes out of it."""
    data = bytearray()
    while len(data) < nbytes:
        piece = file.read(min(_PIECE, nbytes - len(data)))
        if not piece:
            raise FileError(f"{where} is cut off: {nbytes} bytes are expected, {len(data)} came.")
        try:
            data += piece
        except MemoryError as error:
            raise FileError(f"{where} does not fit into memory: {nbytes} bytes.") from error
    return data


def check_shape(shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> None:
    """Refuses what no array can have.  Whether the file is long enough is another question."""
    is_odd = any(type(length) is not int or length < 0 for length in shape)
    # 0 x 2**62: no bytes, so a file is long enough; but no array of NumPy, or no batch of them.
    extent = math.prod(max(1, length) for length in shape) * dtype.itemsize
    if is_odd or len(shape) > _MOST_AXES or (0 in shape and extent > _MOST_EMPTY):
        raise FileError(f"{where} is damaged: its header has the shape {shape}.")


# Which file a memory map shows: the map's own object is the key, so that views are covered, too.
_known: weakref.WeakKeyDictionary[mmap.mmap, tuple[Identity, bool]] = weakref.WeakKeyDictionary()


def map_array(
    file: BinaryIO,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    offset: int = 0,
    *,
    fortran: bool = False,
    mode: Any = "r",
) -> Array:
    """An array on an open file, whose identity is remembered."""
    order: Any = "F" if fortran else "C"
    mapped: Any = np.memmap(file, dtype=dtype, mode=mode, offset=offset, shape=shape, order=order)
    _known[mapped.base] = (Identity.of(file), True)
    return np.asarray(mapped)


def remember(array: Array) -> None:
    """Takes the identity of the file that a user has mapped, if that is what the array is."""
    base = mapped_base(array)
    if base is not None and base.filename is not None and base.base not in _known:
        identity = Identity.at(base.filename)
        if identity is not None:
            _known[base.base] = (identity, False)


def remembered(base: Any) -> tuple[Identity | None, bool]:
    """The identity of a mapped file, and whether it was taken together with the map."""
    return _known.get(base.base, (None, False))


def mapped_base(array: Array) -> Any:
    """The `np.memmap` that an array is, or is a view of; None if it is in memory."""
    base: Any = array
    while base is not None:
        owner: Any = getattr(base, "base", None)
        if isinstance(base, np.memmap) and isinstance(owner, mmap.mmap):
            return base
        base = owner
    return None
