"""The values of the members of a tar file, by their ending, as in webdataset's decoders.

- ``txt``, ``text``, ``transcript``: text; ``cls``, ``cls2``, ``index``, ``inx``, ``id``: an int64;
- ``json``, ``jsn``: parsed; ``npy``: an array; ``npz``: a dict of arrays;
- images: uint8[h, w, c]; and packed files such as ``json.gz`` like unpacked ones;
- pickles (``pkl``, ``pickle``, ``pyd``, ``pth``, ``pt``) are refused: reading one may run any code;
- all others: bytes.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from loaderx.errors import LoaderxError
from loaderx.sources.decoding import image_decoder
from loaderx.sources.files.npy import MAGIC, read_header
from loaderx.sources.files.unpacking import inflated, most_unpacked, too_large
from loaderx.sources.images import IMAGE_SUFFIXES
from loaderx.tree import Array

Decoder: TypeAlias = Callable[[bytes], object]

PICKLES = ("pkl", "pickle", "pyd", "pth", "pt")
_TEXTS = ("txt", "text", "transcript")
_NUMBERS = ("cls", "cls2", "index", "inx", "id")
_JSONS = ("json", "jsn")
_MOST_DIGITS = 100


def decoder_of(ending: str, way: bool | str, channels: int | None) -> Decoder | None:
    """The decoder of members with this ending; None if their bytes are left as they are."""
    if ending.endswith(".gz"):
        return _Unpacked(decoder_of(ending[:-3], way, channels))
    last = ending.rpartition(".")[2]
    if f".{last}" in IMAGE_SUFFIXES:
        return image_decoder(way, channels)
    return _DECODERS.get(last)


def is_pickle(ending: str) -> bool:
    plain = ending.removesuffix(".gz")
    return plain.rpartition(".")[2] in PICKLES


class _Unpacked:
    """Unpacks gzip, and decodes the content."""

    def __init__(self, decoder: Decoder | None) -> None:
        self._decoder = decoder

    def __call__(self, data: bytes) -> object:
        plain = inflated(data, most_unpacked(len(data)), is_gzip=True)
        return plain if self._decoder is None else self._decoder(plain)


def _text(data: bytes) -> str:
    return str(data, "utf-8")


def _integer(data: bytes) -> np.int64:
    if len(data) > _MOST_DIGITS:
        raise ValueError(f"{len(data)} bytes are not a whole number")
    return np.int64(int(data))


def _array(data: bytes) -> Array:
    header = read_header(io.BytesIO(data), len(data), "the array")
    stop = header.start + header.nbytes
    return header.array(bytearray(data[header.start : stop]))


def _arrays(data: bytes) -> dict[str, object]:
    found, most = dict[str, object](), most_unpacked(len(data))
    left = most
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{info.filename!r} is not packed as NumPy does it")
            if info.file_size > left:  # no more than this is unpacked
                raise too_large(most)
            left -= info.file_size
            plain = archive.read(info)
            is_array = plain.startswith(MAGIC)
            found[info.filename.removesuffix(".npy")] = _array(plain) if is_array else plain
    return found


_DECODERS: dict[str, Decoder] = {
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(_NUMBERS, _integer),
    **dict.fromkeys(_JSONS, json.loads),
    "npy": _array,
    "npz": _arrays,
}


def reason(error: Exception) -> str:
    """The error of a member, as the end of a sentence."""
    if isinstance(error, LoaderxError):
        return str(error)
    return f"{type(error).__name__}: {error}"
