"""safetensors files: a header in JSON, then the tensors byte for byte, which are mapped."""

from __future__ import annotations

import json
import struct

import numpy as np

from loaderx.errors import FileError, MissingPackageError
from loaderx.sources.base import Source
from loaderx.sources.files.arrays import PlacedArray
from loaderx.sources.files.file_set import FileRanges, FileSet
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.array_files import source_of_arrays
from loaderx.sources.formats.heads import MOST_SAFETENSORS_HEADER
from loaderx.sources.mapping import check_shape, reading

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?", "C64": "<c8",
}  # fmt: skip
_HEAD_BYTES = 1 << 12  # which hold most headers
_OF_ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    opened = FileSet(files, files=options.cache.files)
    far = [one for one, file in enumerate(files) if options.cache.files.is_remote(file)]
    heads = [_first(one, min(_HEAD_BYTES, opened.sizes[one])) for one in far if opened.sizes[one]]
    if heads:
        opened.fetch_ranges(heads)  # all at once
    shards = [_arrays(opened, number, options) for number in range(len(opened))]
    return source_of_arrays(files, shards, "safetensors")


def _arrays(files: FileSet, number: int, options: OpenOptions) -> dict[str, PlacedArray]:
    path = files.paths[number]
    with reading(path):
        header, start = _header(files, number)
    names = options.chosen([name for name in header if name != "__metadata__"], path)
    if not names:
        raise FileError(f"{path} has no tensors.")
    return {
        name: _tensor(files, number, start, header[name], f"{path}, tensor {name!r}")
        for name in names
    }


def _header(files: FileSet, number: int) -> tuple[dict[str, object], int]:
    path, size = files.paths[number], files.sizes[number]
    if size < 8:
        raise FileError(f"{path} is cut off: it has {size} bytes, and no header.")
    (length,) = struct.unpack("<Q", _first_bytes(files, number, 8))
    if length > min(MOST_SAFETENSORS_HEADER, size - 8):
        raise FileError(f"{path} is damaged or cut off: its header would have {length} bytes.")
    header = json.loads(_first_bytes(files, number, 8 + length)[8:])
    if not isinstance(header, dict):
        raise FileError(f"{path} is not a safetensors file: its header is not a table of tensors.")
    return header, 8 + length


def _first_bytes(files: FileSet, number: int, count: int) -> bytes:
    """The first bytes of a file, which may lie behind a URL."""
    is_remote = files.files.is_remote(files.paths[number])
    data = files.data_with(_first(number, count)) if is_remote else files.data(number)
    return data[:count].tobytes()


def _first(number: int, count: int) -> FileRanges:
    return FileRanges(number, np.zeros(1, np.int64), np.array([count]))


def _tensor(files: FileSet, number: int, start: int, told: object, where: str) -> PlacedArray:
    with reading(where):
        if not isinstance(told, dict):
            raise FileError(f"{where} is damaged: its header has {told!r}.")
        dtype = _dtype(told["dtype"], where)
        shape = tuple(told["shape"])
        first, last = told["data_offsets"]
        check_shape(shape, dtype, where)
        needed = int(np.prod(shape, dtype=object)) * dtype.itemsize if shape else dtype.itemsize
        is_inside = isinstance(first, int) and isinstance(last, int) and 0 <= first <= last
        if not is_inside or start + last > files.identities[number].size or last - first != needed:
            raise FileError(
                f"{where} is damaged or cut off: bytes {first} to {last} do not hold {needed} "
                "bytes of this file."
            )
        return PlacedArray(files, number, start + first, dtype, shape, in_pieces=True)


def _dtype(name: object, where: str) -> np.dtype[np.generic]:
    if name in _DTYPES:
        return np.dtype(_DTYPES[str(name)])
    if name not in _OF_ML_DTYPES:
        raise FileError(f"{where} has the type {name!r}, which NumPy does not have.")
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingPackageError(
            f"{where} has the type {name}, which needs the package ml_dtypes: "
            "pip install ml_dtypes (jax brings it)."
        ) from error
    found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, _OF_ML_DTYPES[str(name)]))
    return found
