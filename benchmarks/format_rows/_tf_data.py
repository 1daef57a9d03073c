"""Records for the rows of TFRecord, ArrayRecord and TFDS: images, JPEGs (random bytes), texts."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

COUNTS = {"cifar": 100_000, "jpeg": 8_192, "text": 200_000}
SHARDS = 4


def counts(quick: bool) -> dict[str, int]:
    return {name: count // 50 if quick else count for name, count in COUNTS.items()}


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _run(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def example(name: str, data: bytes, label: int) -> bytes:
    """An Example of one run of bytes and one integer."""
    value = _run(1, _run(1, name.encode()) + _run(2, _run(1, _run(1, data))))
    number = _run(1, _run(1, b"label") + _run(2, _run(3, _run(1, _varint(label)))))
    return _run(1, value + number)


def payloads(kind: str, count: int) -> Iterator[bytes]:
    """Serialised Examples."""
    drawn = np.random.default_rng(0)
    words = [bytes(drawn.integers(97, 123, size).tolist()) for size in drawn.integers(2, 10, 2000)]
    for number in range(count):
        if kind == "cifar":
            yield example("image", drawn.bytes(3072), number % 10)
        elif kind == "jpeg":
            yield example("image", drawn.bytes(int(drawn.integers(50_000, 74_000))), number % 1000)
        else:
            chosen = drawn.integers(0, len(words), int(drawn.integers(50, 400)))
            yield example("text", b" ".join([words[i] for i in chosen]), number % 2)


def frame(payload: bytes) -> bytes:
    from loaderx.sources.formats.tf.crc32c import crc_of, crc_of_eights, masked

    length = struct.pack("<Q", len(payload))
    first = masked(crc_of_eights(np.frombuffer(length, np.uint8)))
    second = masked(np.array([crc_of(np.frombuffer(payload, np.uint8))], np.uint32))
    return length + struct.pack("<I", first[0]) + payload + struct.pack("<I", second[0])


def write_tfrecords(folder: Path, quick: bool) -> None:
    for kind, count in counts(quick).items():
        if (folder / f"{kind}.done").exists():
            continue
        files = [
            (folder / f"{kind}-{k:05d}-of-{SHARDS:05d}.tfrecord").open("wb") for k in range(SHARDS)
        ]
        for number, payload in enumerate(payloads(kind, count)):
            files[number * SHARDS // count].write(frame(payload))
        for file in files:
            file.close()
        (folder / f"{kind}.done").touch()
