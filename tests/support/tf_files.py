"""Writes TFRecord files and ``tf.Example`` in every way that the formats allow."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from loaderx.sources.formats.tf.crc32c import crc_of, crc_of_eights, masked


def varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def run(number: int, data: bytes) -> bytes:
    """A field that is a run of bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values, packed: bool = True) -> bytes:
    """A Feature of a list of bytes, floats or integers; None is one without a kind."""
    if values is None:
        return b""
    if isinstance(values, np.ndarray):
        kind = 2 if values.dtype.kind == "f" else 3
        values = values.tolist()
    elif values and isinstance(values[0], (bytes, str)):
        kind = 1
        values = [one.encode() if isinstance(one, str) else one for one in values]
    else:
        kind = 2 if values and isinstance(values[0], float) else 3
    if kind == 1:
        return run(1, b"".join(run(1, one) for one in values))
    if kind == 2:
        texts = [struct.pack("<f", one) for one in values]
        return run(2, run(1, b"".join(texts)) if packed else b"".join(b"\x0d" + t for t in texts))
    texts = [varint(one) for one in values]
    return run(3, run(1, b"".join(texts)) if packed else b"".join(b"\x08" + t for t in texts))


def example(features: dict, packed: bool = True) -> bytes:
    """A serialised Example; ready-made features may be given as bytes."""
    entries = b""
    for key, values in features.items():
        data = values if isinstance(values, bytes) else feature(values, packed)
        name = key if isinstance(key, bytes) else key.encode()
        entries += run(1, run(1, name) + run(2, data))
    return run(1, entries)


def frame(payload: bytes) -> bytes:
    """A record of a TFRecord file."""
    length = struct.pack("<Q", len(payload))
    first = masked(crc_of_eights(np.frombuffer(length, np.uint8)))
    second = masked(np.array([crc_of(np.frombuffer(payload, np.uint8))], np.uint32))
    return length + struct.pack("<I", first[0]) + payload + struct.pack("<I", second[0])


def write_tfrecord(path: Path, payloads: list[bytes]) -> Path:
    path.write_bytes(b"".join(map(frame, payloads)))
    return path
