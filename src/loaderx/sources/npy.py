"""The header of an ``.npy`` file, with checks of its values.

NumPy parses it.  The checks here refuse values that would lead to a crash, to an allocation larger
than memory, or to bytes outside of the array.
"""

from __future__ import annotations

import io
import re
import struct
import threading
from typing import Literal, NamedTuple

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.mapping import ByteReader, check_shape, reading
from loaderx.tree import Array, DType

MAGIC = np.lib.format.MAGIC_PREFIX
_LENGTHS = {(1, 0): struct.Struct("<H"), (2, 0): struct.Struct("<I"), (3, 0): struct.Struct("<I")}
# What np.save writes for numbers.  NumPy parses headers with `ast`, which fails in Python 3.11 if
# several threads do it at once; parts of a dataset are opened by the threads that need them.
_PLAIN = re.compile(
    rb"\{'descr': '([<>|][biufc]\d{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n"
)
_PARSING = threading.Lock()
_MOST_CHARACTERS = 10_000  # of a header, as np.load has it: parsing longer ones is not safe


class Header(NamedTuple):
    """What the header of a file says about its array."""

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
    """Is all of the header among these first bytes of a file, as far as can be told from them?"""
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
        # NumPy has no public reader of this version, which differs from 2.0 in its encoding alone.
        # Escaped, its names are ASCII, and mean the same between their quotes.
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
    # A dtype with axes of its own; np.load refuses it, too.
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
