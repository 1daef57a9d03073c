"""Numbers that a stage can have: positions are below 2**62."""

from __future__ import annotations

from loaderx.errors import ArgumentError, check_int
from loaderx.order.epochs import LIMIT


def check_window(window: int) -> int:
    window = check_int("window", window, least=1)
    if window > LIMIT:
        raise ArgumentError(f"`window` must be at most 2**62, got {window}.")
    return window


def checked_length(length: int, limit: int = LIMIT) -> int:
    if length > limit:
        most = "2**62" if limit == LIMIT else str(limit)
        raise ArgumentError(f"a dataset can have at most {most} elements, this one has {length}.")
    return length
