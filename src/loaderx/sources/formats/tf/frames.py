"""The frames of a TFRecord file: where each record lies.

A frame is the length of the record (8 bytes), a checksum of the length (4), the record, and a
checksum of the record (4).  To find the frames, each length must be read in turn; their checksums
are then compared all at once.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.sources.files.byte_ranges import gather_rows
from loaderx.sources.formats.tf.crc32c import crc_of, crc_of_eights, masked
from loaderx.tree import Array

HEADER_BYTES, FOOTER_BYTES = 12, 4
_AROUND = HEADER_BYTES + FOOTER_BYTES
_LENGTH = struct.Struct("<Q")
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


class Frames(NamedTuple):
    """Where the records of a file begin and end."""

    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]


def is_frame(head: bytes) -> bool:
    """True if these bytes begin with a length and its checksum."""
    if len(head) < HEADER_BYTES:
        return False
    data = np.frombuffer(head, np.uint8)
    return bool(_are_lengths(data, np.zeros(1, np.int64))[0])


def is_zlib_frame(head: bytes) -> bool:
    """The same for a file that was compressed with zlib as a whole."""
    if not head.startswith(_ZLIB):
        return False
    try:
        return is_frame(zlib.decompressobj().decompress(head, HEADER_BYTES))
    except zlib.error:
        return False


def find_frames(data: Array, path: str) -> Frames:
    """The frames of a file; a `FileError` names the first that is damaged or cut off."""
    view, size = data.data, len(data)
    positions, position, unpack = array("q"), 0, _LENGTH.unpack_from
    last = size - HEADER_BYTES
    while position <= last:
        positions.append(position)
        position += unpack(view, position)[0] + _AROUND
    is_cut = position > size
    positions.append(min(position, size))  # a damaged length may not even fit into an int64
    borders = np.frombuffer(positions, np.int64)
    frames = Frames(borders[:-1] + HEADER_BYTES, borders[1:] - FOOTER_BYTES)
    is_right = _are_lengths(data, borders[:-1])
    if not is_right.all():
        number = int(np.argmin(is_right))
        raise FileError(
            f"{path}, record {number}: the checksum of its length is wrong. The file is damaged"
            + (", or it is not a TFRecord file." if number == 0 else " from there on.")
        )
    if is_cut or position != size:
        number = len(positions) - 2 if is_cut else len(positions) - 1
        raise FileError(f"{path} is cut off within record {number}: it has {size} bytes.")
    return frames


def _are_lengths(data: Array, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    headers = np.empty((len(positions), HEADER_BYTES), np.uint8)
    gather_rows(data, positions, headers)
    found = np.ascontiguousarray(headers[:, 8:]).view("<u4")[:, 0]
    same: npt.NDArray[np.bool_] = masked(crc_of_eights(headers[:, :8])) == found
    return same


def is_payload_intact(data: Array, start: int, stop: int) -> bool:
    """True if the checksum of a record is right."""
    expected = data[stop : stop + FOOTER_BYTES].tobytes()
    crc = masked(np.array([crc_of(data[start:stop])], np.uint32))
    return len(expected) == FOOTER_BYTES and int(crc[0]) == int.from_bytes(expected, "little")
