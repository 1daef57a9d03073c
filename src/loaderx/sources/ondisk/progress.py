"""Progress of work that may take long, shown after the first second: tqdm, or else one line."""

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
    """Counts bytes; says so on standard error once it takes more than a second."""

    def __init__(self, what: str, nbytes: int) -> None:
        self._what, self._nbytes = what, nbytes
        self._begun, self._done = monotonic(), 0
        self._bar: _Bar | None = None
        self._has_spoken = False

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        if self._bar is not None:
            self._bar.update(nbytes)
        elif not self._has_spoken and monotonic() - self._begun > QUIET_SECONDS:
            self._has_spoken = True
            self._bar = _tqdm(self._what, self._nbytes, self._done)
            if self._bar is None:
                print(f"loaderx: {self._what} ({self._nbytes / 1e6:,.0f} MB) ...", file=sys.stderr)  # noqa: T201

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


@contextlib.contextmanager
def progress(what: str, nbytes: int) -> Iterator[Progress]:
    """Progress of ``what``, such as "indexing 3 files"."""
    shown = Progress(what, nbytes)
    try:
        yield shown
    finally:
        shown.close()


def _tqdm(what: str, nbytes: int, done: int) -> _Bar | None:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    bar: _Bar = tqdm(
        desc=f"loaderx: {what}", total=nbytes, initial=done, unit="B", unit_scale=True, leave=False
    )
    return bar
