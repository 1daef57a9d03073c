"""Measurements of `auto`: how long the consumer waits, and how long it works in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from time import perf_counter, sleep
from typing import Literal, TypeAlias

from loaderx.engines.auto.decision import LARGE_SHARE

KEPT = 16  # times that are remembered
TRIAL_S = 0.1
LONG_OWN_S = 0.25  # this much above the usual, the consumer did something else, such as compiling
NAP_S = 0.5e-3
PROBE_S = 0.1  # total length of the naps
HELD = 0.6  # share of the nap time that must be overrun to conclude that the GIL is held

Found: TypeAlias = tuple[Literal["threads", "processes"], int]
"""An engine and its number of workers."""


class Clock:
    """Tells the time, and sleeps."""

    now = staticmethod(perf_counter)
    nap = staticmethod(sleep)


class Stretch:
    """Consecutive elements of one engine: the consumer's waits, and its own times."""

    def __init__(self) -> None:
        self.count = 0
        self.waited_s = self.worked_s = 0.0
        self.owns: deque[float] = deque(maxlen=KEPT)

    def add(self, wait_s: float, own_s: float | None) -> None:
        self.count += 1
        self.waited_s += wait_s
        if own_s is not None:
            self.owns.append(own_s)
            self.worked_s += min(own_s, most_own(self.owns))

    @property
    def seconds(self) -> float:
        return self.waited_s + self.worked_s

    @property
    def is_waiting(self) -> bool:
        """True if the consumer spends a good part of the time waiting."""
        return self.waited_s >= LARGE_SHARE * self.seconds

    @property
    def period_s(self) -> float:
        """From one element to the next."""
        return self.waited_s / self.count + usual(self.owns)


class Trial(Stretch):
    """The measurements of an engine on trial."""

    def __init__(self, engine: Found, made_s: float, *, probes: bool) -> None:
        super().__init__()
        self.engine = engine
        self.is_probing = probes  # the consumer takes naps while it waits
        self._made_s = made_s
        self._skipped = 1  # elements to ignore: the first waits for the workers to start
        self._nap_s = self._late_s = 0.0

    def note(self, wait_s: float, own_s: float | None, most_own_s: float) -> None:
        """One of its elements was handed out."""
        if self._skipped:
            self._skipped -= 1
        elif own_s is not None and own_s > most_own_s:
            self.restart(skipped=3 * self.engine[1])  # elements that are ready were made meanwhile
        else:
            self.add(wait_s, own_s)

    def restart(self, skipped: int = 1) -> None:
        """Measures from here on."""
        super().__init__()
        self._skipped = skipped

    @property
    def is_over(self) -> bool:
        """True if enough was measured.  Several workers deliver elements in bursts."""
        if self.is_probing:  # not needed if the consumer does not wait
            return self.count > 3 and self.waited_s < LARGE_SHARE * self.count * self._made_s
        return self.count % self.engine[1] == 0 and self.seconds >= TRIAL_S

    def probe(self, took_s: float) -> bool | None:
        """Takes the length of a nap; returns whether the GIL is held, None if not known yet."""
        self._nap_s += took_s
        self._late_s += took_s - NAP_S
        return None if self._nap_s < PROBE_S else self._late_s > HELD * self._nap_s


def usual(owns: Iterable[float]) -> float:
    """The consumer's usual time between two elements: the lower quartile, without one-off work."""
    times = sorted(owns)
    return times[(len(times) - 1) // 4] if times else 0.0


def most_own(owns: Iterable[float]) -> float:
    """The longest time that counts: beyond it, the consumer did more than a step."""
    return 4 * usual(owns) + LONG_OWN_S
