"""Shows the progress of long work on standard error.

On a terminal, one line is written again and again after the first second.  In a log file a line is
added after 10 seconds, after 20 more, and so on, in the end every five minutes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from time import monotonic

_TERMINAL_WAIT_S, _REFRESH_S = 1.0, 0.1
_LOG_WAIT_S, _MOST_LOG_WAIT_S = 10.0, 300.0


class Progress:
    """Counts, and reports now and then."""

    def __init__(self, what: str, total: int | None, unit: str) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._on_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._begun, self._done, self._is_shown = monotonic(), 0, False
        self._wait_s = _TERMINAL_WAIT_S if self._on_terminal else _LOG_WAIT_S
        self._next = self._begun + self._wait_s

    def add(self, count: int) -> None:
        self._done += count
        now = monotonic()
        if now < self._next:
            return
        if self._on_terminal:
            self._wait_s = _REFRESH_S
            self._write(f"\r\x1b[K{self._line(now)}")
            self._is_shown = True
        else:
            self._wait_s = min(2 * self._wait_s, _MOST_LOG_WAIT_S)
            self._write(f"{self._line(now)}\n")
        self._next = now + self._wait_s

    def close(self) -> None:
        if self._is_shown:
            self._write("\r\x1b[K")

    def _line(self, now: float) -> str:
        told = self._amount(self._done)
        if self._total:
            # What was done before a restart counts as done, so the first estimates are too short.
            left = (now - self._begun) * max(0, self._total - self._done) / max(1, self._done)
            share = min(1.0, self._done / self._total)
            told = f"{share:.0%} of {self._amount(self._total)}, {_time(left)} left"
        return f"loaderx: {self._what}: {told}"

    def _amount(self, count: int) -> str:
        from loaderx.display.values import size_text  # late: most work ends before

        return size_text(count) if self._unit == "B" else f"{count:,} {self._unit.strip()}"

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _time(seconds: float) -> str:
    """Seconds as hours, minutes and seconds.

    >>> _time(7), _time(3700)
    ('0:07', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


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


def tell(text: str) -> None:
    """Writes a line to the log: what was done or chosen on the user's behalf."""
    import logging  # late: slow to import

    logging.getLogger("loaderx").info(text)
