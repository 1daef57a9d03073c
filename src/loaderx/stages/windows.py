"""The `window` argument of the stages that work on windows."""

from __future__ import annotations

from loaderx.errors import ArgumentError, check_int
from loaderx.order.epochs import LIMIT


def check_window(window: int) -> int:
    window = check_int("window", window, least=1)
    if window > LIMIT:
        raise ArgumentError(f"`window` must be at most 2**62, got {window}.")
    return window
