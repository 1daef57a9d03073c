"""Packing by hand, for those that have no packing of their own."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

import numpy as np

from suite.file_workloads import ROW, lines_of, tokenise_line
from suite.workloads import Array, Record

SEGMENTS, POSITIONS = "tokens_segment_ids", "tokens_positions"


def rows_by_best_fit(lengths: list[int]) -> list[list[int]]:
    """Which documents are in which row: longest first, each into the fullest row with room."""
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        place = bisect_left(rooms, (lengths[number], 0))
        if place == len(rooms):
            room, row = ROW, len(rows)
            rows.append([])
        else:
            room, row = rooms.pop(place)
        rows[row].append(number)
        insort(rooms, (room - lengths[number], row))
    return rows


def pack(documents: list[Array]) -> Record:
    """Rows of documents end to end, which document each token is of, and its place in it."""
    rows = rows_by_best_fit([len(document) for document in documents])
    tokens, segments, positions = (np.zeros((len(rows), ROW), np.int32) for _ in range(3))
    counted = np.arange(ROW, dtype=np.int32)
    for row, numbers in enumerate(rows):
        start = 0
        for segment, number in enumerate(numbers, 1):
            stop = start + len(documents[number])
            tokens[row, start:stop] = documents[number]
            segments[row, start:stop] = segment
            positions[row, start:stop] = counted[: stop - start]
            start = stop
    return {"tokens": tokens, SEGMENTS: segments, POSITIONS: positions}


def pack_lines(path: str, ix: Array) -> Record:
    """Reads, tokenises and packs some documents of a file of JSON lines."""
    lines = lines_of(path)
    return pack([tokenise_line(lines[index]) for index in ix.tolist()])


def cut(parts: Iterable[Record], batch_size: int) -> Iterator[Record]:
    """Rows that come in parts of any size, in batches; the last one may be short."""
    rest: Record = {}
    for part in parts:
        rows = {name: np.concatenate([rest[name], part[name]]) for name in part} if rest else part
        whole = len(rows["tokens"]) // batch_size * batch_size
        for start in range(0, whole, batch_size):
            yield {name: array[start : start + batch_size] for name, array in rows.items()}
        rest = {name: array[whole:] for name, array in rows.items()}
    if rest and len(rest["tokens"]):
        yield rest
