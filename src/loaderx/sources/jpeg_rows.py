"""Baseline JPEGs that end earlier: so a decoder need not read what lies below a part of the image.

A file says in its header how many rows it has, and a decoder stops after them.  It warns of what is
left over, and so must be told to pass over warnings.  But then it would fill a file that is cut off
with gray: hence only files that end with the mark of the end are made shorter.
"""

from __future__ import annotations

_END = b"\xff\xd9"
_START_OF_SCAN = 0xDA
_BASELINE = (0xC0, 0xC1)
_OTHER_FRAMES = {*range(0xC2, 0xD0)} - {0xC4, 0xC8, 0xCC}  # progressive, lossless, arithmetic
_BARE = {0x01, *range(0xD0, 0xDA)}  # marks without a length, which no header has
_BLOCK = 8
_LEAST_SAVED = 16  # rows


def ends_after(data: bytes, rows: int) -> bytearray | None:
    """The file with only as many rows as the first ``rows`` need.

    Colours of a row are made with those of the next, so a row of blocks more is kept: the first
    ``rows`` are what the whole file gives.  None: it cannot be cut, or that would save nothing.
    """
    try:
        found = _frame(data)
    except IndexError:  # the header is damaged, or reaches the end
        return None
    if found is None or not data.endswith(_END):
        return None
    place, height, blocks = found
    kept = (-(-rows // blocks) + 1) * blocks
    if kept > height - _LEAST_SAVED:
        return None
    made = bytearray(data)
    made[place : place + 2] = kept.to_bytes(2, "big")
    return made


def _frame(data: bytes) -> tuple[int, int, int] | None:
    """Where the height stands, the height, and the rows of a row of blocks."""
    at, frame = 2, 0
    while (mark := data[at + 1]) != _START_OF_SCAN:
        if data[at] != 0xFF or mark == 0xFF or mark in _OTHER_FRAMES or mark in _BARE:
            return None
        if mark in _BASELINE:
            frame = at
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    components = data[frame + 9]
    if not frame or data[at] != 0xFF or data[at + 4] != components:
        return None  # the colours follow each other, each with all rows
    tallest = max(data[frame + 11 + 3 * number] & 15 for number in range(components))
    height = int.from_bytes(data[frame + 5 : frame + 7], "big")
    return frame + 5, height, _BLOCK * tallest
