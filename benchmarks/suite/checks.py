"""Checksums: every byte of every batch counts, whatever the order of the records.

`touch` is what the consumer does in a timed run: it adds up all words, and costs about what
reading the memory once costs.  `Digest` is slower and does not overlook a missed flip, a
swapped label or a record that came twice; it runs once for each contender, without a clock.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from suite.file_checks import is_text, sum_of_packed, sum_of_texts, words_of_texts
from suite.packing import SEGMENTS
from suite.workloads import Array, Record

MASK = (1 << 64) - 1


def words(leaf: Any) -> Array:
    """A row of words for each record.  Their size depends on the record, not on the batch."""
    if is_text(leaf):
        return words_of_texts(leaf)
    array = np.asarray(leaf)
    rows = len(array)
    size = array.nbytes // rows
    word = next(w for w in (8, 4, 2, 1) if size % w == 0)
    flat = np.ascontiguousarray(array).reshape(-1).view(f"u{word}")
    return flat.reshape(rows, size // word)


def touch(batch: Record) -> int:
    """The sum of all words."""
    if SEGMENTS in batch:
        return sum_of_packed(batch)
    return sum(
        sum_of_texts(leaf) if is_text(leaf) else int(words(leaf).sum(dtype=np.uint64))
        for leaf in batch.values()
    )


class Touch:
    """The usual consumer: call it with batches, and `total` is the sum of all their words."""

    def __init__(self) -> None:
        self._total = 0

    def __call__(self, batch: Record) -> None:
        self._total += touch(batch)

    def total(self) -> int:
        return self._total & MASK


class Digest:
    """A sum over records of a hash of the whole record, with labels and images together."""

    def __init__(self) -> None:
        self.records = 0
        self.whole = 0
        self.labels = 0
        self.total = 0.0
        self.numbers = 0
        self.weights: dict[tuple[str, int], Array] = {}

    def add(self, batch: Record) -> None:
        mixed: Any = np.uint64(0)
        for name, leaf in sorted(batch.items()):
            row = words(leaf)
            hashed = (row * self._weights(name, row.shape[1])).sum(axis=1, dtype=np.uint64)
            if name == "label":
                self.labels += int(mix(hashed).sum(dtype=np.uint64))
            elif not is_text(leaf):
                self.total += float(np.asarray(leaf).sum(dtype=np.float64))
                self.numbers += np.asarray(leaf).size
            mixed = mix(mixed + hashed)
            self.records += len(row) if name == min(batch) else 0
        self.whole += int(mixed.sum(dtype=np.uint64))

    def _weights(self, name: str, length: int) -> Array:
        key = (name, length)
        if key not in self.weights:
            places = np.arange(length, dtype=np.uint64) + np.uint64(sum(name.encode()))
            self.weights[key] = mix(places) | np.uint64(1)
        return self.weights[key]

    def result(self) -> dict[str, Any]:
        """``whole`` must agree exactly; ``mean`` is for those whose pixels are their own."""
        return {
            "records": self.records,
            "whole": f"{self.whole & MASK:016x}",
            "labels": f"{self.labels & MASK:016x}",
            "mean": self.total / max(1, self.numbers),
        }


def mix(x: Any) -> Any:
    """A hash of 64-bit words (that of splitmix64)."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def disagreement(
    found: dict[str, Any], expected: dict[str, Any], tolerance: float | None = None
) -> str | None:
    """What is wrong with a digest, or None.

    With a ``tolerance``, pixels may be other bytes, and their mean may differ by so much.
    """
    if found["records"] != expected["records"]:
        return f"{found['records']} records, expected {expected['records']}"
    if found["labels"] != expected["labels"]:
        return "the labels are not those of the reference: records are missing, double or wrong"
    if tolerance is not None:
        if abs(found["mean"] - expected["mean"]) > tolerance * abs(expected["mean"]):
            return f"mean pixel {found['mean']:.2f}, expected {expected['mean']:.2f}"
        return None
    if found["whole"] != expected["whole"]:
        return f"checksum {found['whole']}, expected {expected['whole']}"
    return None
