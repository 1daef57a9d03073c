"""A line about a running loop, now and then."""

from __future__ import annotations

import sys
from time import perf_counter

from loaderx.errors import ArgumentError
from loaderx.loader.trace import Recording


class Watch(Recording):
    """Prints what the steps since the last line were like; keeps nothing of them."""

    def __init__(self, every: float) -> None:
        super().__init__()
        if not isinstance(every, (int, float)) or not every > 0:
            raise ArgumentError(f"`every` must be a number of seconds above 0, got {every!r}.")
        self._every = every
        self._since = perf_counter()
        self._steps, self._waited_s = 0, 0.0

    def waited(self, step: int, began: float, ended: float) -> bool:
        self._steps += 1
        self._waited_s += ended - began
        if ended - self._since >= self._every:
            self._print(step, ended - self._since)
            self._since, self._steps, self._waited_s = ended, 0, 0.0
        for kept in (self.tasks, self.timings, self.events):
            kept.clear()
        return False

    def _print(self, step: int, seconds: float) -> None:
        if not sys.stderr.isatty():
            return
        share = self._waited_s / seconds
        sys.stderr.write(
            f"loaderx: step {step:,}, {self._steps / seconds:,.1f} steps/s, waited for data "
            f"{share:.0%}\n"
        )
