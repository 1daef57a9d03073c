"""Writes an ``.npy`` file piece by piece: its length is known only at the end.

Large pieces are written in whole blocks of 2 MB: Linux then keeps them in large pages, and while
the file is still in memory, its rows are read a tenth faster.
"""

from __future__ import annotations

import os
from typing import BinaryIO

import numpy as np

from loaderx.tree import Array

_HEADER_BYTES = 128  # room for any shape of ours; NumPy reads a header of any length
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
        self._rest = bytearray()  # less than a block, behind a whole number of them

    def append(self, rows: Array) -> None:
        """Adds rows; their bytes are written as they lie in memory."""
        rows = np.ascontiguousarray(rows, self.dtype)
        assert rows.shape[1:] == self.shape, (rows.shape, self.shape)
        if rows.size:
            self._write(rows.reshape(-1).view(np.uint8).data)  # times have no `data`
        self.rows += len(rows)

    def append_bytes(self, data: bytes | memoryview, rows: int) -> None:
        """Adds rows that are bytes already."""
        self._write(memoryview(data))
        self.rows += rows

    def _write(self, data: memoryview) -> None:
        is_large = len(data) >= BLOCK  # the rest of small ones is not kept: it may be many files
        missing = -(self._written + len(self._rest)) % BLOCK if is_large else 0
        self._flush(data[:missing])
        data = data[missing:]
        whole = len(data) - len(data) % BLOCK if is_large else len(data)
        self._flush(data[:whole])
        self._rest += data[whole:]

    def _flush(self, data: memoryview | bytes = b"") -> None:
        """Writes the rest of what came before, and this."""
        file = self._opened()
        if self._rest:
            rest, self._rest = self._rest, bytearray()
            rest += data
            data = memoryview(rest)
        file.write(data)
        self._written += len(data)

    def pause(self) -> None:
        """Gives the descriptor back until the next rows come."""
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
        """Closes the file as it is, which is no array then."""
        self._file.close()

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()
