"""CRC-32C against values that are known."""

from __future__ import annotations

import numpy as np
import pytest

from loaderx.sources.formats.tf import crc32c

KNOWN = {  # of RFC 3720 and of the catalogue of checksums
    b"": 0x00000000,
    b"a": 0xC1D04330,
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
}


def slowly(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("data", KNOWN, ids=lambda data: f"{len(data)}")
def test_known_values(data):
    assert crc32c.crc_of(np.frombuffer(data, np.uint8)) == KNOWN[data]


def test_any_length():
    drawn = np.random.default_rng(0)
    for length in (*range(70), 127, 128, 129, 200, 1000, 4097):
        data = drawn.integers(0, 256, length, dtype=np.uint8)
        assert crc32c.crc_of(data) == slowly(data.tobytes()), length


def test_rows_of_eight_bytes():
    rows = np.random.default_rng(1).integers(0, 256, (50, 8), dtype=np.uint8)
    assert crc32c.crc_of_eights(rows).tolist() == [slowly(row.tobytes()) for row in rows]
