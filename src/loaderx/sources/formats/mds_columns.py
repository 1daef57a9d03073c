"""The encodings of MDS columns: how the bytes of a value become the value."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np

from loaderx.errors import FileError, MissingPackageError, one_line
from loaderx.frozen import Frozen
from loaderx.sources.base import BadRecordError
from loaderx.sources.decoding import image_decoder
from loaderx.tree import Array, ArraySpec

Decode: TypeAlias = Callable[[bytes], object]

_SCALARS = {
    "int": "<i8", "uint8": "u1", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8", "int8": "i1",
    "int16": "<i2", "int32": "<i4", "int64": "<i8", "float16": "<f2", "float32": "<f4",
    "float64": "<f8",
}  # fmt: skip
_CODES = {  # of the dtype of an array that is not in the header
    8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4", 64: "<u8",
    65: "<i8", 66: "<f8",
}  # fmt: skip
_PARSED: dict[str, Decode] = {"str_int": int, "str_float": float, "json": json.loads}
_IMAGES = ("jpeg", "png")
_IMAGE_LISTS = ("list[jpeg]", "list[png]")


class MdsColumn(Frozen):
    """One column: the size of its values, if they have one, and their kind."""

    name: str
    size: int | None
    spec: ArraySpec | None = None  # of values that have a size
    is_text: bool = False
    decode: Callable[[object], object] | None = None  # of bytes that are not the value itself


def column_of(
    name: str, encoding: str, size: int | None, *, way: bool | str, where: str
) -> MdsColumn:
    """The column of an encoding; images are decoded in this way."""
    kind, _, options = encoding.partition(":")
    if kind in _SCALARS:
        return _fixed(name, np.dtype(_SCALARS[kind]), (), size, where)
    if kind == "ndarray":
        return _array_column(name, options, size, where)
    if kind in ("bytes", "str"):
        return MdsColumn(name, None, is_text=kind == "str")
    if kind in _PARSED:
        return MdsColumn(name, None, decode=_Decoder(_PARSED[kind]))
    if kind in (*_IMAGES, "pil", *_IMAGE_LISTS, "jpeg_array", "jpegarray"):
        return MdsColumn(name, None, decode=_Decoder(_image_decoder(kind, way)) if way else None)
    what = "pickles, which could run any code" if kind == "pkl" else f"the encoding {encoding!r}"
    raise FileError(
        f"{where}: column {name!r} has {what}: loaderx does not read it. Choose others with "
        "columns=."
    )


def _fixed(
    name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...], size: int | None, where: str
) -> MdsColumn:
    needed = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if size is not None and size != needed:
        raise FileError(
            f"{where} is damaged: column {name!r} has {size} bytes, and its values {needed}."
        )
    return MdsColumn(name, needed, ArraySpec(shape, dtype))


class _Decoder:
    """Makes a value of its bytes; any error in them is a bad record."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode

    def __call__(self, data: object) -> object:
        assert isinstance(data, bytes)
        try:
            return self._decode(data)
        except (MissingPackageError, Warning):
            raise
        except Exception as error:  # decoders raise almost anything for damaged values
            raise BadRecordError(f"a value is damaged: {one_line(error)}") from error


def _array_column(name: str, options: str, size: int | None, where: str) -> MdsColumn:
    kind, _, axes = options.partition(":")
    if kind and kind not in _SCALARS:
        raise FileError(f"{where}: column {name!r} is an array of {kind!r}, which is not known.")
    dtype = np.dtype(_SCALARS[kind]) if kind else None
    shape = tuple(map(int, axes.split(","))) if axes else None
    if dtype is not None and shape is not None:
        return _fixed(name, dtype, shape, size, where)
    return MdsColumn(name, None, decode=_Decoder(partial(_array, dtype, shape)))


def _array(dtype: np.dtype[np.generic] | None, shape: tuple[int, ...] | None, data: bytes) -> Array:
    start = 0
    if dtype is None:
        dtype, start = np.dtype(_CODES[data[0]]), 1
    if shape is None:
        axes, width = data[start] >> 2, 1 << (data[start] & 3)
        end = start + 1 + axes * width
        shape = tuple(np.frombuffer(data[start + 1 : end], f"<u{width}").tolist())
        start = end
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


def _image_decoder(kind: str, way: bool | str) -> Decode:
    if kind == "pil":
        return _raw_image
    decode = image_decoder(way)
    if kind in _IMAGES:
        return decode
    skip = 4 if kind in _IMAGE_LISTS else 0  # a list begins with a number that has no meaning yet
    return partial(_images, decode, skip)


def _images(decode: Callable[[bytes], Array], skip: int, data: bytes) -> list[Array]:
    return [decode(piece) for piece in _pieces(skip, data)]


def _pieces(skip: int, data: bytes) -> list[bytes]:
    count = int.from_bytes(data[skip : skip + 4], "little")
    start = skip + 4 + 4 * count
    if start > len(data):
        raise ValueError(f"a list of {count} images does not fit into {len(data)} bytes")
    sizes = np.frombuffer(data, "<u4", count, skip + 4).tolist()
    found = []
    for size in sizes:
        found.append(data[start : start + size])
        start += size
    return found


def _raw_image(data: bytes) -> Array:
    """Pixels as Pillow holds them: width, height, the length of the mode's name, the mode."""
    width, height, letters = np.frombuffer(data, "<u4", 3).tolist()
    mode = data[12 : 12 + letters].decode("ascii")
    if mode not in ("L", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LA"):
        raise ValueError(f"an image of mode {mode!r} cannot be read as bytes of channels")
    return np.frombuffer(data, np.uint8, offset=12 + letters).reshape(height, width, -1)
