"""CRC-32C, the checksum of TFRecord files.

Those of lengths, which are always checked, are computed together in NumPy; those of records, for
``loaderx verify``, by the package google-crc32c.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.errors import MissingPackageError
from loaderx.tree import Array

Checksums: TypeAlias = npt.NDArray[np.uint32]

_POLYNOMIAL = np.uint32(0x82F63B78)
_ONES = np.uint32(0xFFFFFFFF)
_MASK = np.uint32(0xA282EAD8)


@cache
def _tables() -> list[Checksums]:
    """Eight tables of 256: the contribution of a byte that 0 to 7 bytes follow."""
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
    tables = _tables()
    found = tables[7][words[:, 0]]
    for place in range(1, 8):
        found ^= tables[7 - place][words[:, place]]
    return found ^ _ONES


def crc_of(data: Array) -> int:
    """The checksum of one run of bytes."""
    try:
        from google_crc32c import value
    except ImportError as error:
        raise MissingPackageError(
            "the checksums of TFRecord files need the package google-crc32c: "
            "pip install 'loaderx-jax[tfrecord]'."
        ) from error
    found: int = value(data.tobytes())
    return found
