"""Reads and checks the header of an ``.npy`` file; writes ``.npy`` files piece by piece.

NumPy parses the header.  The checks here refuse values that would lead to a crash, to an allocation
larger than memory, or to bytes outside the array.
"""

from __future__ import annotations

import io
import os
import re
import struct
import threading
from typing import BinaryIO, Literal, NamedTuple

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.mapping import ByteReader, check_shape, reading
from loaderx.tree import Array, DType

MAGIC = np.lib.format.MAGIC_PREFIX
_LENGTHS = {(1, 0): struct.Struct("<H"), (2, 0): struct.Struct("<I"), (3, 0): struct.Struct("<I")}
# What np.save writes for numbers.  NumPy parses headers with `ast`, which fails in Python 3.11 if
# several threads do it at once, as they do when they open parts of a dataset.
_PLAIN = re.compile(
    rb"\{'descr': '([<>|][biufc]\d{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n"
)
_PARSING = threading.Lock()
_MOST_CHARACTERS = 10_000  # of a header, as in np.load: parsing longer ones is not safe


class Header(NamedTuple):
    """The header of an ``.npy`` file."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: DType
    start: int
    """Bytes before the first element, counted from the beginning of the file or member."""

    @property
    def nbytes(self) -> int:
        total = self.dtype.itemsize
        for length in self.shape:
            total *= length
        return total

    def array(self, data: bytearray) -> Array:
        """The read-only array with these bytes."""
        if not data:
            return np.empty(self.shape, self.dtype)
        order: Literal["F", "C"] = "F" if self.fortran else "C"
        array = np.frombuffer(data, self.dtype).reshape(self.shape, order=order)
        array.flags.writeable = False
        return array


def has_header(head: bytes) -> bool:
    """True if these first bytes of a file seem to contain the whole header."""
    begin = len(MAGIC) + 4
    is_known = head.startswith(MAGIC + b"\1") and len(head) >= begin
    return is_known and len(head) >= begin + int.from_bytes(head[begin - 2 : begin], "little")


def read_header(file: ByteReader, size: int, where: str) -> Header:
    """The header of the ``.npy`` that begins here and has ``size`` bytes in all."""
    with reading(where):
        header = _parse(file, where)
    _check(header, where)
    needed = header.start + header.nbytes
    if needed > size:
        raise FileError(f"{where} is cut off: {needed} bytes are expected, there are {size}.")
    return header


def _parse(file: ByteReader, where: str) -> Header:
    magic = file.read(len(MAGIC) + 2)
    if magic[:-2] != MAGIC:
        raise FileError(f"{where} is not a NumPy array file: it begins with {magic!r}.")
    version = (magic[-2], magic[-1])
    if version not in _LENGTHS:
        raise FileError(
            f"{where} has version {magic[-2]}.{magic[-1]} of the .npy format; 1.0, 2.0 and 3.0 are "
            "known."
        )
    kind = _LENGTHS[version]
    (length,) = kind.unpack(file.read(kind.size))
    # A character of version 3 has up to four bytes.
    if length > _MOST_CHARACTERS * (4 if version == (3, 0) else 1):
        raise FileError(f"{where} has a header of {length} bytes, which no array needs.")
    raw = file.read(length)
    if len(raw) < length:
        raise FileError(f"{where} is cut off: it ends within its header.")
    if version == (3, 0):
        # NumPy has no public reader of this version, which differs from 2.0 only in its encoding.
        # Escaped names are ASCII, and mean the same inside quotes.
        raw = raw.decode("utf-8").encode("ascii", "backslashreplace")
    start = len(magic) + kind.size + length
    if plain := _PLAIN.fullmatch(raw):
        shape = tuple(map(int, filter(None, plain[3].replace(b" ", b"").split(b","))))
        return Header(shape, plain[2] == b"True", np.dtype(plain[1].decode("ascii")), start)
    with _PARSING:
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(
            io.BytesIO(_LENGTHS[2, 0].pack(len(raw)) + raw),
            max_header_size=len(raw),  # checked above
        )
    return Header(shape, fortran, dtype, start)


def _check(header: Header, where: str) -> None:
    shape, dtype = header.shape, header.dtype
    if dtype.hasobject:
        raise FileError(
            f"{where} holds Python objects (dtype {dtype}), which only unpickling could read. "
            "loaderx never unpickles a file; save plain arrays instead."
        )
    # A dtype with axes of its own; np.load refuses it too.
    if dtype.subdtype is not None or not _has_units(dtype):
        raise FileError(f"{where} is damaged: its header has the dtype {dtype}.")
    if not dtype.itemsize:
        raise FileError(f"{where} has elements of no bytes (dtype {dtype.str}): there is no data.")
    check_shape(shape, dtype, where)


def _has_units(dtype: DType) -> bool:
    """False for times in multiples of 0 units, at which NumPy divides by zero."""
    if dtype.fields is not None:
        return all(_has_units(field[0]) for field in dtype.fields.values())
    return dtype.base.kind not in "mM" or np.datetime_data(dtype.base)[1] != 0


# Writes an ``.npy`` file piece by piece: its length is known only at the end.
#
# Large pieces are written in whole blocks of 2 MB: Linux then keeps them in large pages, and rows
# are read a tenth faster while the file is still in memory.

_HEADER_BYTES = 128  # enough for any shape written here; NumPy reads headers of any length
BLOCK = 2 << 20
_PREFIX = b"\x93NUMPY\x01\x00"


class NpyWriter:
    """Appends rows of one dtype and shape; the header is written when it is closed."""

    def __init__(self, path: str, dtype: np.dtype[np.generic], shape: tuple[int, ...] = ()) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape
        self.rows = 0
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 (closed by `close`)
        self._file.write(bytes(_HEADER_BYTES))
        self._written = _HEADER_BYTES
        self._rest = bytearray()  # less than a block, after a whole number of blocks

    def append(self, rows: Array) -> None:
        """Adds rows; their bytes are written as they are in memory."""
        rows = np.ascontiguousarray(rows, self.dtype)
        assert rows.shape[1:] == self.shape, (rows.shape, self.shape)
        if rows.size:
            self._write(rows.reshape(-1).view(np.uint8).data)  # times have no `data`
        self.rows += len(rows)

    def _write(self, data: memoryview) -> None:
        is_large = len(data) >= BLOCK  # small rests are not kept: there may be many files
        missing = -(self._written + len(self._rest)) % BLOCK if is_large else 0
        self._flush(data[:missing])
        data = data[missing:]
        whole = len(data) - len(data) % BLOCK if is_large else len(data)
        self._flush(data[:whole])
        self._rest += data[whole:]

    def _flush(self, data: memoryview | bytes = b"") -> None:
        """Writes the kept rest, and this."""
        file = self._opened()
        if self._rest:
            rest, self._rest = self._rest, bytearray()
            rest += data
            data = memoryview(rest)
        file.write(data)
        self._written += len(data)

    def pause(self) -> None:
        """Closes the file until the next rows come, to free its descriptor."""
        self._file.close()

    def _opened(self) -> BinaryIO:
        if self._file.closed:
            self._file = open(self.path, "r+b")  # noqa: SIM115 (closed by `close`)
            self._file.seek(0, os.SEEK_END)
        return self._file

    def close(self) -> None:
        """Writes the header, and waits until all of it is on disk."""
        self._flush()
        shape = (self.rows, *self.shape)
        text = f"{{'descr': {self.dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
        room = _HEADER_BYTES - len(_PREFIX) - 2
        header = text.ljust(room - 1).encode("latin1") + b"\n"
        assert len(header) == room, text
        self._opened().seek(0)
        self._file.write(_PREFIX + room.to_bytes(2, "little") + header)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Closes the file as it is, without a valid header."""
        self._file.close()

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()
