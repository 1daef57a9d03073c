"""Arrays in files: ``.npy``, ``.npz``, a folder of ``.npy``.  Mapped, never unpickled.

An uncompressed ``.npz`` is a zip archive whose members lie in it byte for byte, so each can be
mapped where it lies.  A compressed member cannot; it is unpacked once, when it is first needed.
"""

from __future__ import annotations

import os
import struct
import threading
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from loaderx.errors import FileError, LoaderxWarning
from loaderx.tree import Array

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, then the lengths of name and extra field


def open_arrays(path: str | os.PathLike[str], keys: Sequence[str] | None = None) -> dict[str, Any]:
    """The named arrays of a file or folder (all of them by default), mapped into memory."""
    place = Path(path)
    if place.is_dir():
        members = {file.stem: file for file in sorted(place.glob("*.npy"))}
        if not members:
            raise FileError(f"{place} has no .npy files.")
        return {key: _map_npy(members[key]) for key in _chosen(place, list(members), keys)}
    if not place.exists():
        raise FileError(f"there is no file or folder {place}.")
    if zipfile.is_zipfile(place):
        return _open_npz(place, keys)
    if place.suffix == ".npz":
        raise FileError(f"{place} is not an .npz file, or it is cut off: it is no zip archive.")
    return dict.fromkeys(_chosen(place, [place.stem], keys), _map_npy(place))


def _chosen(place: Path, have: list[str], keys: Sequence[str] | None) -> list[str]:
    if keys is None:
        return have
    wanted = [key.removesuffix(".npy") for key in keys]
    for key in wanted:
        if key not in have:
            raise FileError(f"{place} has no array {key!r}; it has {', '.join(map(repr, have))}.")
    return wanted


def _map_npy(place: Path) -> Array:
    with place.open("rb") as file:
        return _map_array(place, file, f"{place}", 0)


def _open_npz(place: Path, keys: Sequence[str] | None) -> dict[str, Any]:
    with zipfile.ZipFile(place) as archive, place.open("rb") as file:
        stored = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        members = {info.filename.removesuffix(".npy"): info for info in stored}
        if not members:
            raise FileError(f"{place} has no arrays (.npy members).")
        opened: dict[str, Any] = {}
        for key in _chosen(place, list(members), keys):
            info = members[key]
            where = f"{place}, array {key!r}"
            if info.compress_type == zipfile.ZIP_STORED:
                start = _data_offset(file, info.header_offset, where)
                opened[key] = _map_array(place, file, where, start)
            else:
                opened[key] = CompressedArray(place, info.filename)
                warnings.warn(
                    f"{where} is compressed: it is read whole into memory when it is first used. "
                    "Save it with np.savez instead of np.savez_compressed to have it mapped.",
                    LoaderxWarning,
                    stacklevel=4,
                )
        return opened


def _data_offset(file: BinaryIO, header: int, where: str) -> int:
    file.seek(header)
    raw = file.read(_LOCAL_HEADER.size)
    if len(raw) < _LOCAL_HEADER.size or raw[:4] != b"PK\x03\x04":
        raise FileError(f"{where}: the archive is damaged.")
    _, name, extra = _LOCAL_HEADER.unpack(raw)
    return header + _LOCAL_HEADER.size + int(name) + int(extra)


def _map_array(place: Path, file: BinaryIO, where: str, start: int) -> Array:
    file.seek(start)
    shape, fortran, dtype = _read_header(file, where)
    offset = file.tell()
    needed = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    size = os.fstat(file.fileno()).st_size
    if size < needed:
        raise FileError(f"{where} is cut off: {needed} bytes are expected, the file has {size}.")
    if 0 in shape:
        return np.empty(shape, dtype)
    order: Any = "F" if fortran else "C"
    return np.memmap(place, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)


def _read_header(file: Any, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file)
    except (ValueError, EOFError, OSError) as error:
        raise FileError(f"{where} is not a NumPy array file: {error}") from error
    if dtype.hasobject:
        raise FileError(
            f"{where} holds Python objects (dtype {dtype}), which only unpickling could read. "
            "loaderx never unpickles a file; save plain arrays instead."
        )
    return shape, fortran, dtype


class CompressedArray:
    """A compressed member of an ``.npz``: known by its header, unpacked at its first use."""

    def __init__(self, place: Path, member: str) -> None:
        self._place, self._member = place.resolve(), member
        with zipfile.ZipFile(place) as archive, archive.open(member) as file:
            self.shape, _, self.dtype = _read_header(file, f"{place}, array {member!r}")
        self._array: Array | None = None
        self._lock = threading.Lock()

    def whole(self) -> Array:
        """The array itself, read now if it was not before."""
        with self._lock:
            if self._array is None:
                self._array = self._read()
        return self._array

    def __getitem__(self, index: Any) -> Any:
        return self.whole()[index]

    def _read(self) -> Array:
        try:
            with zipfile.ZipFile(self._place) as archive, archive.open(self._member) as file:
                array: Array = np.lib.format.read_array(file, allow_pickle=False)
                return array
        except (zipfile.BadZipFile, zlib.error, ValueError, EOFError) as error:
            raise FileError(f"{self._place}, array {self._member!r} is damaged: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())
