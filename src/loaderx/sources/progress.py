"""Shows the progress of long work after the first second: by tqdm, or else as one line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from time import monotonic
from typing import Protocol

QUIET_SECONDS = 1.0


class _Bar(Protocol):
    def update(self, n: int) -> object: ...
    def close(self) -> None: ...


class Progress:
    """Counts, and reports on standard error once more than a second has passed."""

    def __init__(self, what: str, total: int | None, unit: str) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._begun, self._done = monotonic(), 0
        self._bar: _Bar | None = None
        self._has_spoken = False

    def add(self, count: int) -> None:
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif not self._has_spoken and monotonic() - self._begun > QUIET_SECONDS:
            self._has_spoken = True
            self._bar = _tqdm(self._what, self._total, self._done, self._unit)
            if self._bar is None:
                sys.stderr.write(f"loaderx: {self._what}{_size(self._total, self._unit)} ...\n")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _size(total: int | None, unit: str) -> str:
    if total is None:
        return ""
    return f" ({total / 1e6:,.0f} MB)" if unit == "B" else f" ({total:,})"


@contextlib.contextmanager
def progress(what: str, total: int | None, unit: str = "B") -> Iterator[Progress]:
    """Progress of ``what``, such as "indexing 3 files", in bytes or another unit.

    The total is None if it is not known.
    """
    shown = Progress(what, total, unit)
    try:
        yield shown
    finally:
        shown.close()


def _tqdm(what: str, total: int | None, done: int, unit: str) -> _Bar | None:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    bar: _Bar = tqdm(
        desc=f"loaderx: {what}", total=total, initial=done, unit=unit, unit_scale=True, leave=False
    )
    return bar
