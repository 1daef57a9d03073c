"""IDX files, such as MNIST: single files, and folders of images and labels with splits."""

from __future__ import annotations

import gzip
import os
import re
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np

from loaderx.errors import FileError, warn_user
from loaderx.sources.base import Source
from loaderx.sources.files.file_system import LOCAL_FILES, FileSystems
from loaderx.sources.files.paths import unpacked_name
from loaderx.sources.format import Folder, OpenOptions, OpenSplit, Splits
from loaderx.sources.formats.array_files import source_of_arrays
from loaderx.sources.mapping import (
    LARGE_UNPACKED,
    ByteReader,
    check_shape,
    map_array,
    read_exactly,
    reading,
)
from loaderx.sources.remote.urls import is_url
from loaderx.tree import Array, DType

# IDX files: the format of MNIST and of datasets like it.
#
# Two zero bytes, a type, the number of axes, the length of each axis as four bytes, then the
# numbers; everything has its high byte first.

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"
_MOST_DEFLATED = 1032  # bytes to which one byte of a gzip file can unpack


def open_idx(path: str | os.PathLike[str]) -> Array:
    """The array in an IDX file, packed with gzip or not; ``name.gz`` is found as ``name`` too.

    Bytes in a plain file are mapped into memory.  A packed file, or one with numbers of several
    bytes (whose order must be reversed), is read whole; unpacking 1 GB (2**30 bytes) or more warns.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "labels-idx1-ubyte")
    ...     with open(path, "wb") as file:
    ...         _ = file.write(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    ...     open_idx(path).tolist()
    [7, 2, 1]
    """
    return read_idx(os.fspath(path), LOCAL_FILES)


def read_idx(place: str, systems: FileSystems) -> Array:
    """Like `open_idx`, for a file that may lie behind a URL."""
    if not is_url(place):
        place = str(Path(place))
        if not os.path.exists(place) and os.path.exists(f"{place}.gz"):
            place = f"{place}.gz"
        if not os.path.exists(place):
            packed = f"{os.path.basename(place)}.gz"
            raise FileError(f"there is no file {place}, nor {packed} beside it.")
    with systems.open(place) as file:
        if file.read(2) == _GZIP:
            return _unpack(place, file)
        file.seek(0)
        with reading(f"{place}"):
            shape, dtype, start = _header(file, place)
            _check_size(place, os.fstat(file.fileno()).st_size - start, shape, dtype)
            if 0 in shape:
                return np.empty(shape, dtype.newbyteorder("="))
            mapped = map_array(file, dtype, shape, start)
    return mapped if dtype.itemsize == 1 else mapped.astype(dtype.newbyteorder("="))


def _unpack(place: str, packed: BinaryIO) -> Array:
    most = os.fstat(packed.fileno()).st_size * _MOST_DEFLATED
    packed.seek(0)
    with reading(f"{place}"), gzip.GzipFile(fileobj=packed) as file:
        shape, dtype, _ = _header(file, place)
        needed = dtype.itemsize * prod(shape)
        if needed > most:
            raise FileError(
                f"{place} is damaged: its header says {needed} bytes, and a gzip file of its size "
                f"can hold at most {most}."
            )
        if needed >= LARGE_UNPACKED:
            warn_user(
                f"{place} is unpacked into memory: {needed / 1e9:.1f} GB. Unpack it on disk "
                "(gunzip) to have it mapped instead."
            )
        data = read_exactly(file, needed, f"{place}")
        if file.read(1):
            raise FileError(f"{place} has more than its header says, {needed} bytes.")
        numbers = np.frombuffer(data, dtype).reshape(shape) if data else np.empty(shape, dtype)
        return numbers.astype(dtype.newbyteorder("="), copy=False)


def _header(file: ByteReader, place: str) -> tuple[tuple[int, ...], DType, int]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _TYPES or not magic[3]:
        raise FileError(
            f"{place} is not an IDX file: it begins with {magic.hex(' ') or 'nothing'} instead of "
            "two zeros, a type (08 for bytes) and the number of axes."
        )
    raw = file.read(4 * magic[3])
    if len(raw) < 4 * magic[3]:
        raise FileError(f"{place} is cut off: it ends within its header.")
    shape, dtype = tuple(np.frombuffer(raw, ">u4").tolist()), np.dtype(_TYPES[magic[2]])
    check_shape(shape, dtype, f"{place}")
    return shape, dtype, 4 + len(raw)


def _check_size(place: str, have: int, shape: tuple[int, ...], dtype: DType) -> None:
    needed = dtype.itemsize * prod(shape)
    if have == needed:
        return
    axes = " x ".join(map(str, shape))
    what = "is cut off" if have < needed else "has more than its header says"
    raise FileError(
        f"{place} {what}: {axes} numbers of {dtype.itemsize} bytes are {needed} bytes, the file "
        f"has {have}."
    )


_NAME = re.compile(r"(?:(.+)-)?(images|labels)[-.]idx\d-u?byte(\.gz)?")
_SPLITS = {"t10k": "test"}
_LEAVES = {"images": "image", "labels": "label"}


def open_files(files: list[str], options: OpenOptions) -> Source:
    """Each file is a leaf, named after the file: ``train-images-idx3-ubyte`` is ``image``."""
    arrays = {}
    for file in files:
        match = _NAME.fullmatch(unpacked_name(file))
        name = _LEAVES[match[2]] if match else unpacked_name(file).split(".")[0]
        if name in arrays:
            raise FileError(
                f"{file}: two IDX files of {name!r}. Each is a leaf of the records: open those of "
                f"one split, or the folder {os.path.dirname(file)} with split=."
            )
        arrays[name] = read_idx(file, options.cache.files)
    chosen = options.chosen(list(arrays), files[0])
    return source_of_arrays([files[0]], [{name: arrays[name] for name in chosen}], "idx")


def _matches(folder: Folder) -> dict[str, list[str]]:
    """The files of each split."""
    found: dict[str, list[str]] = {}
    for file in folder.files:
        if match := _NAME.fullmatch(file):
            if match[3] and folder.has(file.removesuffix(match[3])):
                continue  # torchvision leaves the downloaded files beside the unpacked ones
            split = match[1] or ""
            found.setdefault(_SPLITS.get(split, split), []).append(folder.join(file))
    return found


def is_folder(folder: Folder) -> bool:
    return bool(_matches(folder))


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    def opener(files: list[str]) -> OpenSplit:
        return lambda: open_files(files, options)

    return {split: opener(sorted(files)) for split, files in sorted(_matches(folder).items())[::-1]}
