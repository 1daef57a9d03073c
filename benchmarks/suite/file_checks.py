"""What was read from files, as the digest wants it: a row of numbers for each record.

Three workloads need more than the bytes of their arrays:

- `parquet_text`: a batch has texts, `str` or `bytes`, of various lengths.
- `imagefolder`: every library decodes and resizes in its own way.  So each image has its number in
  the middle, in twelve black or white squares, and is known by it.
- `jsonl_pack`: which documents share a row is up to each library.  So rows are taken apart again;
  the first two tokens of a document say which one it is.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from suite.file_workloads import CENTRE, CLASSES, ROW, SHORTER_SIDE, VOCABULARY
from suite.packing import POSITIONS, SEGMENTS
from suite.workloads import Array, Job, Record

LEAST_FULL = 0.9
"""Share of packed rows that is not padding."""


class Seen:
    """All batches of one epoch, one after the other."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.filled, self.room = 0, 0

    def add(self, batch: Record) -> Record:
        """What the digest should look at instead of this batch."""
        if self.job.workload == "imagefolder":
            return with_ranks(batch, self.job.records)
        if self.job.workload == "jsonl_pack":
            self.filled += int(np.count_nonzero(batch[SEGMENTS]))
            self.room += batch[SEGMENTS].size
            return documents(batch)
        return batch

    def check(self) -> None:
        """Fails unless rows are as full as packing makes them."""
        if self.filled < LEAST_FULL * self.room:
            raise ValueError(f"packed rows are {self.filled / self.room:.2f} full")


# Texts --------------------------------------------------------------------------------------------


def is_text(leaf: Any) -> bool:
    if isinstance(leaf, list):
        return isinstance(leaf[0], (str, bytes))
    return isinstance(leaf, np.ndarray) and leaf.dtype.hasobject


_buffer = io.BytesIO()  # kept: new memory for every batch costs more than reading the texts


def sum_of_texts(leaf: Any) -> int:
    """Each text has a multiple of eight bytes, so that the order does not matter."""
    parts = leaf if isinstance(leaf, list) else leaf.tolist()
    _buffer.seek(0)
    _buffer.writelines(parts if isinstance(parts[0], bytes) else map(str.encode, parts))
    with _buffer.getbuffer() as found:
        words = np.frombuffer(found, np.uint64, _buffer.tell() // 8)
        total = int(words.sum(dtype=np.uint64))
        del words  # before the buffer can be written again
    return total


def words_of_texts(leaf: Any) -> Array:
    """A row of 64-bit words for each text, with zeros at its end."""
    parts = [part if isinstance(part, bytes) else part.encode() for part in leaf]
    rows = np.zeros((len(parts), max(map(len, parts))), np.uint8)
    for row, part in zip(rows, parts, strict=True):
        row[: len(part)] = np.frombuffer(part, np.uint8)
    return rows.view(np.uint64)


# Images -------------------------------------------------------------------------------------------

LINES, COLUMNS = 3, 4
BLACK, WHITE = 16, 235
SQUARE = 16  # pixels of the centre, once the shorter side has been resized


def draw_number(image: Array, number: int) -> None:
    """Squares in the middle of an image of any size: its number in binary, lowest bit first."""
    height, width = image.shape[:2]
    side = min(height, width) * SQUARE / SHORTER_SIDE
    for place in range(LINES * COLUMNS):
        line, column = divmod(place, COLUMNS)
        top = height / 2 + (line - LINES / 2) * side
        left = width / 2 + (column - COLUMNS / 2) * side
        value = WHITE if number >> place & 1 else BLACK
        image[round(top) : round(top + side), round(left) : round(left + side)] = value


def read_numbers(images: Array) -> Array:
    """The numbers of a batch of centres."""
    top, left = (CENTRE - LINES * SQUARE) // 2, (CENTRE - COLUMNS * SQUARE) // 2
    part = images[:, top : top + LINES * SQUARE, left : left + COLUMNS * SQUARE]
    squares = part.reshape(len(images), LINES, SQUARE, COLUMNS, SQUARE, 3)
    inner = slice(SQUARE // 4, -SQUARE // 4)
    bits = squares[:, :, inner, :, inner].mean(axis=(2, 4, 5)) > (BLACK + WHITE) / 2
    numbers: Array = bits.reshape(len(images), -1) @ (1 << np.arange(LINES * COLUMNS))
    return numbers


def with_ranks(batch: Record, records: int) -> Record:
    """The place of each image among the files instead of its class; -1 where that is wrong."""
    image, label = np.asarray(batch["image"]), np.asarray(batch["label"])
    if image.dtype != np.uint8 or image.shape[1:] != (CENTRE, CENTRE, 3):
        raise ValueError(f"images of {image.dtype} and of shape {image.shape[1:]}")
    numbers = read_numbers(image)
    ranks = numbers % CLASSES * (records // CLASSES) + numbers // CLASSES
    return {"image": image, "label": np.where(label == numbers % CLASSES, ranks, -1)}


# Packed documents ---------------------------------------------------------------------------------


def count_documents(batch: Record) -> int:
    """Segments are counted from 1 in every row."""
    return int(np.asarray(batch[SEGMENTS]).max(axis=1).sum())


def sum_of_packed(batch: Record) -> int:
    """Of tokens and positions, one number at a time: it does not matter where they are packed."""
    arrays = (np.ascontiguousarray(batch[name]) for name in ("tokens", POSITIONS))
    return sum(int(array.view(np.uint32).sum(dtype=np.uint64)) for array in arrays)


def documents(batch: Record) -> Record:
    """The documents of packed rows, one to a row again, with zeros at its end."""
    tokens, segments, positions = (
        np.asarray(batch[name]) for name in ("tokens", SEGMENTS, POSITIONS)
    )
    for array in (tokens, segments, positions):
        if array.dtype != np.int32 or array.shape[1:] != (ROW,):
            raise ValueError(f"packed rows of {array.dtype} and of shape {array.shape[1:]}")
    before = np.cumsum(segments.max(axis=1)) - segments.max(axis=1)
    used = segments > 0
    number = (before[:, None] + segments - 1)[used]
    found = np.zeros((count_documents(batch), ROW), np.int32)
    found[number, positions[used]] = tokens[used]
    label = (found[:, 0] - 1) * VOCABULARY + found[:, 1] - 1
    return {"tokens": found, "label": label}
