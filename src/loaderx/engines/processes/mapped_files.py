"""Sends arrays on mapped files to workers by path and offset, not by their data.

The worker maps the file again, if it is still the same (`sources/mapping.py`).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.mapping import Identity, changed, map_array, open_regular, remembered
from loaderx.tree import Array


class ByteRange:
    """Memory from an array's lowest byte to its highest, without a copy."""

    def __init__(self, array: Array, low: int, length: int) -> None:
        self._array = array  # keeps the memory alive
        self.__array_interface__ = {
            "data": (low, not array.flags.writeable),
            "shape": (length,),
            "typestr": "|u1",
            "version": 3,
        }


def build_array(
    byte_range: Array,
    inside: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
) -> Array:
    return np.ndarray(shape, dtype, byte_range, inside, strides)


def reduce_mapped(array: Array, base: Any, *, is_elsewhere: bool) -> Any:
    """An array on a mapped file by path and offset; None if the path names another file now.

    Without its identity if it goes elsewhere: on another machine the file has another inode.
    """
    path = os.path.abspath(base.filename)
    address, low, high = bounds(array)
    start = _offset_in_file(base, low)
    identity = _checked_identity(base, path, start, ByteRange(array, low, high - low))
    if identity is None:
        return None
    return _open_mapped, (
        path, None if is_elsewhere else identity, base.mode == "r", start, high - low,
        address - low, array.shape, array.strides, array.dtype, array.flags.writeable,
    )  # fmt: skip


def _offset_in_file(base: Any, address: int) -> int:
    """The file offset of an address in a mapped array."""
    return int(base.offset) + address - int(np.asarray(base).ctypes.data)


def check_length(base: Any, array: Array) -> None:
    """Raises if the file has shrunk: reading past its end would kill the process (SIGBUS)."""
    known, _ = remembered(base)
    size = _size_now(base, known)
    if size is not None and size < _offset_in_file(base, bounds(array)[2]):
        before = "" if known is None else f"from {known.size} "
        raise changed(base.filename or "a mapped file", f"has shrunk {before}to {size} bytes")


def _size_now(base: Any, known: Identity | None) -> int | None:
    """The size of a mapped file; None if not known."""
    try:
        size: int = base.base.size()  # of the file itself, whatever its path names now
        return size
    except (OSError, ValueError):  # the map has no descriptor
        now = Identity.at(base.filename)
    return now.size if known is not None and now is not None and known.is_same_file(now) else None


def _checked_identity(base: Any, path: str, start: int, byte_range: ByteRange) -> Identity | None:
    """The identity by which workers check the file; None if the path names another file now."""
    known, is_exact = remembered(base)
    now = Identity.at(path)
    if known is not None and known.is_same_file(now):
        # A write through a writable map is seen by all: they share the pages.
        change = known.change(now) if base.mode == "r" else None
        if change:
            raise changed(path, change)
        if is_exact:
            return known
    elif known is not None:
        now = None
    if now is not None and _has_same_bytes(path, start, np.asarray(byte_range)):
        return now
    return None


def bounds(array: Array) -> tuple[int, int, int]:
    """The addresses of an array's first element, its lowest byte, and the end of its highest."""
    address: int = array.__array_interface__["data"][0]
    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    low = address + sum(step for step in reach if step < 0)
    return address, low, address + sum(step for step in reach if step > 0) + array.itemsize


def _has_same_bytes(path: str, start: int, seen: Array) -> bool:
    """True if file and array agree at both ends and at places in between.

    Nothing better can be checked for a file that was mapped before loaderx saw it.
    """
    length = len(seen)
    try:
        with open_regular(path) as file:
            for offset in {*range(0, length, max(4096, length // 64)), max(0, length - 4096)}:
                file.seek(start + offset)
                piece = file.read(min(4096, length - offset))
                if piece != seen[offset : offset + 4096].tobytes():
                    return False
    except (OSError, FileError):
        return False
    return True


def _open_mapped(
    path: str,
    identity: Identity | None,
    is_frozen: bool,
    start: int,
    length: int,
    inside: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    writable: bool,
) -> Array:
    with open_regular(path, "r+b" if writable else "rb") as file:
        now = Identity.of(file)
        # A file that others may write to must be the same file, and long enough.
        if identity is not None and (
            is_frozen or not identity.is_same_file(now) or now.size < start + length
        ):
            change = identity.change(now)
            if change:
                raise changed(path, change)
        byte = np.dtype(np.uint8)
        whole = map_array(file, byte, (length,), start, mode="r+" if writable else "r")
    return build_array(whole, inside, shape, strides, dtype)
