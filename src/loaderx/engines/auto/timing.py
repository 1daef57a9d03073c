"""What `auto` has measured: how long the consumer waits, and what it does itself in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from time import perf_counter, sleep
from typing import Literal, TypeAlias

from loaderx.engines.auto.decision import LARGE_SHARE

KEPT = 16  # times that are remembered
TRIAL_S = 0.1
LONG_OWN_S = 0.25  # beyond what is usual: then the consumer did something else, such as compiling
NAP_S = 0.5e-3
PROBE_S = 0.1  # of naps
HELD = 0.6  # of this time somebody held the GIL: nearly all of it, since naps are part of it

Found: TypeAlias = tuple[Literal["threads", "processes"], int]
"""An engine, and its workers."""


class Clock:
    """Tells the time, and sleeps."""

    now = staticmethod(perf_counter)
    nap = staticmethod(sleep)


class Stretch:
    """Consecutive elements of one engine: how long the consumer waited, and what it did itself."""

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
        """Does the consumer wait for a good part of the time?"""
        return self.waited_s >= LARGE_SHARE * self.seconds

    @property
    def period_s(self) -> float:
        """From one element to the next."""
        return self.waited_s / self.count + usual(self.owns)


class Trial(Stretch):
    """What comes of an engine that is tried."""

    def __init__(self, engine: Found, made_s: float, *, probes: bool) -> None:
        super().__init__()
        self.engine = engine
        self.is_probing = probes  # does the consumer take naps while it waits?
        self._made_s = made_s
        self._skipped = 1  # elements that say nothing: the first waits for the workers to start
        self._nap_s = self._late_s = 0.0

    def note(self, wait_s: float, own_s: float | None, most_own_s: float) -> None:
        """One of its elements was handed out."""
        if self._skipped:
            self._skipped -= 1
        elif own_s is not None and own_s > most_own_s:
            self.restart(skipped=3 * self.engine[1])  # what is ready was made meanwhile
        else:
            self.add(wait_s, own_s)

    def restart(self, skipped: int = 1) -> None:
        """Measures from here on."""
        super().__init__()
        self._skipped = skipped

    @property
    def is_over(self) -> bool:
        """Is it known what the engine does?  Several workers hand out what they make at once."""
        if self.is_probing:  # it is not needed if nobody waits
            return self.count > 3 and self.waited_s < LARGE_SHARE * self.count * self._made_s
        return self.count % self.engine[1] == 0 and self.seconds >= TRIAL_S

    def probe(self, took_s: float) -> bool | None:
        """A nap took so long.  Says whether the GIL is held; None: it is not known yet."""
        self._nap_s += took_s
        self._late_s += took_s - NAP_S
        return None if self._nap_s < PROBE_S else self._late_s > HELD * self._nap_s


def usual(owns: Iterable[float]) -> float:
    """What the consumer does between two elements, without what happens once: a lower quartile."""
    times = sorted(owns)
    return times[(len(times) - 1) // 4] if times else 0.0


def most_own(owns: Iterable[float]) -> float:
    """From here on a time is left out: nobody's step takes that much longer than the others."""
    return 4 * usual(owns) + LONG_OWN_S
