"""The records of tests/files/array_record."""

from __future__ import annotations

import gzip
from pathlib import Path

PACKED = Path(__file__).parents[1] / "files" / "array_record"

FILES = {  # how many records, and how they are written
    "zstd": (40, "group_size:1"),
    "groups": (40, "group_size:7"),
    "plain": (40, "group_size:1,uncompressed"),
    "plain-groups": (40, "group_size:3,uncompressed"),
    "empty": (0, "group_size:1"),
    "brotli": (9, "group_size:2,brotli:6"),
    "snappy": (9, "group_size:1,snappy"),
    "transposed": (9, "group_size:3,transpose:true"),
}
OTHERS = {"brotli": "compressed with brotli", "snappy": "with snappy", "transposed": "transposed"}


def record(i: int) -> bytes:
    """Of 0 to 39 kB, so that chunks lie across the borders of blocks."""
    return b"" if i == 4 else b"record %d " % i * (i * i % 23 * 200)


def unpacked(name: str, folder: Path) -> Path:
    """A copy of one of the files, as the library wrote it."""
    path = folder / f"{name}.arrayrecord"
    path.write_bytes(gzip.decompress((PACKED / f"{name}.arrayrecord.gz").read_bytes()))
    return path
