"""CRC-32C, the checksum of TFRecord files: of many short runs at once, and of one long run.

google-crc32c is used for long runs where it is installed.  Without it they are cut into pieces of
equal length whose checksums are taken side by side, in NumPy, and then joined in pairs: appending
zeros to a piece is a linear map of its checksum, so that it is four look-ups in a table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from loaderx.tree import Array

Checksums: TypeAlias = npt.NDArray[np.uint32]

_POLYNOMIAL = np.uint32(0x82F63B78)
_ONES = np.uint32(0xFFFFFFFF)
_MASK = np.uint32(0xA282EAD8)
_PIECE_BYTES = 64


@cache
def _tables() -> list[Checksums]:
    """Eight tables of 256: what a byte contributes if 0 to 7 bytes follow it."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ _POLYNOMIAL, table >> np.uint32(1))
    found = [table]
    for _ in range(7):
        found.append((found[-1] >> np.uint32(8)) ^ table[found[-1] & 255])
    return found


def masked(crc: Checksums) -> Checksums:
    """The form in which TFRecord stores a checksum."""
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + _MASK


def crc_of_eights(rows: Array) -> Checksums:
    """The checksum of each row of eight bytes."""
    words = rows.reshape(-1, 8).copy()
    words[:, :4] ^= 255
    return _eight_bytes(words) ^ _ONES


def crc_of(data: Array) -> int:
    """The checksum of one run of bytes."""
    known = google_crc32c()
    return known(data.tobytes()) if known is not None else _crc_in_pieces(data)


def _eight_bytes(rows: Array) -> Checksums:
    tables = _tables()
    found = tables[7][rows[:, 0]]
    for place in range(1, 8):
        found ^= tables[7 - place][rows[:, place]]
    return found


def _crc_in_pieces(data: Array) -> int:
    if len(data) < 4:
        return _crc_of_few(data.tolist())
    pieces = 1 << max(0, (len(data) - 1) // _PIECE_BYTES).bit_length()
    # Zeros before the data count for nothing once its first bytes stand for the initial value.
    padded = np.zeros(pieces * _PIECE_BYTES, np.uint8)
    padded[len(padded) - len(data) :] = data
    padded[len(padded) - len(data) :][:4] ^= 255
    rows = padded.reshape(pieces, _PIECE_BYTES)
    crc = np.zeros(pieces, np.uint32)
    for start in range(0, _PIECE_BYTES, 8):
        words = rows[:, start : start + 8].copy()
        words[:, :4] ^= crc.view(np.uint8).reshape(-1, 4)  # little-endian, see `_little`
        crc = _little(_eight_bytes(words))
    level = 0
    while len(crc) > 1:
        crc = _little(_mapped(_zeros(level), crc[::2]) ^ crc[1::2])
        level += 1
    return int(crc[0] ^ _ONES)


def _little(crc: Checksums) -> Checksums:
    return np.ascontiguousarray(crc.astype("<u4"))


def _crc_of_few(data: list[int]) -> int:
    crc, table = 0xFFFFFFFF, _tables()[0]
    for byte in data:
        crc = (crc >> 8) ^ int(table[(crc ^ byte) & 255])
    return crc ^ 0xFFFFFFFF


def _mapped(tables: list[Checksums], crc: Checksums) -> Checksums:
    found: Checksums = tables[0][crc & 255]
    for place in range(1, 4):
        found = found ^ tables[place][(crc >> np.uint32(8 * place)) & 255]
    return found


@cache
def _zeros(level: int) -> list[Checksums]:
    """What becomes of each byte of a checksum if ``_PIECE_BYTES << level`` zeros are appended."""
    if level == 0:
        found = [_tables()[7 - place] for place in range(4)]  # eight zeros
        for _ in range((_PIECE_BYTES // 8).bit_length() - 1):
            found = _twice(found)
        return found
    return _twice(_zeros(level - 1))


def _twice(tables: list[Checksums]) -> list[Checksums]:
    return [_mapped(tables, table) for table in tables]


@cache
def google_crc32c() -> Callable[[bytes], int] | None:
    """Its function, if it is installed."""
    try:
        from google_crc32c import value
    except ImportError:
        return None
    return cast("Callable[[bytes], int]", value)
