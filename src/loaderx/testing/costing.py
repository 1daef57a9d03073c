"""The cost of a call, counted rather than timed, so that a busy machine changes nothing."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple


class Cost(NamedTuple):
    """The cost of one call."""

    nbytes: int  # the peak of memory that Python and NumPy hold, beyond what they held before
    calls: int  # calls of functions, those in C included


def cost_of(function: Callable[[], object]) -> Cost:
    """The cost of a call, after a first call has done all work that is done once."""
    return Cost(_bytes(function), _calls(function))


def _bytes(function: Callable[[], object]) -> int:
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        function()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not was_tracing:
            tracemalloc.stop()


def _calls(function: Callable[[], object]) -> int:
    count = 0

    def look(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
