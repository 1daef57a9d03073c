"""The rules for choosing an engine.  Nothing here measures, waits or starts anything.

W is how long the consumer waits for a batch made inline, C how long it works before asking for the
next one.  At best n workers deliver a batch every max(C, W / n).

Worker processes have a price: starting Python, importing what the user's functions and sources
need, and sharing the data.  They are worth a trial if they could save twice their price over the
expected rest of the stream: what is left of it, or, where the loader's epochs are short, as long
again as the loader has run so far.  An endless stream is expected to run for long.
"""

from __future__ import annotations

import math

from loaderx.engines.base import Work
from loaderx.frozen import Frozen
from loaderx.memory import COUNTS_REFERENCES

FAST_S = 150e-6  # handing a batch between threads costs about as much
SLOW_S = 2e-3  # from here on worker processes may be worth their start
SMALL_SHARE = 0.03
LARGE_SHARE = 0.2
START_S = 0.35  # assumed start time of a worker process (NumPy, loaderx), until one has been timed
PAYS_BACK = 2.0  # worker processes must be able to save this many times their price
GOES_ON = 10.0  # an endless stream is expected to run this many times longer than so far
TOO_SHORT = "the stream is too short for worker processes"


class Facts(Frozen):
    """What is known when an engine is chosen.  Times are in seconds."""

    made_s: float  # W
    own_s: float  # C
    best_s: float  # from one batch to the next, with the engine in use
    max_workers: int
    cores: int
    work: Work
    left_s: float | None  # rest of the stream at its present pace; None: endless
    ran_s: float  # how long the loader's iterators have run
    start_s: float = START_S  # for one worker process to start
    no_processes: str = ""  # why worker processes are impossible; empty if they are not
    holds_gil: bool = False  # threads are known to block each other

    @property
    def unsafe(self) -> str:
        """Why threads are not tried, if the source is not thread-safe."""
        known = "known to be " if self.work.unsure else ""
        return f"the source is not {known}thread-safe"

    def possible(self, workers: int) -> float:
        """By how much that many workers could shorten the time from one batch to the next."""
        return self.best_s - max(self.own_s, self.made_s / workers)

    def needed(self) -> int:
        """How many workers keep up with the consumer, plus a quarter to be safe."""
        needed = math.ceil(1.25 * self.made_s / max(1e-6, self.own_s))
        return max(1, min(self.max_workers, needed))

    def threads(self) -> int:
        """How many threads are worth a trial; 0: none."""
        workers, share = (1, LARGE_SHARE) if self.holds_gil else (self.needed(), SMALL_SHARE)
        is_worth_it = self.possible(workers) >= share * self.best_s
        return workers if self.work.thread_safe and is_worth_it else 0

    def price_s(self) -> float:
        """The time to start as many worker processes as are needed."""
        return self.start_s * max(1.0, self.needed() / self.cores)

    def could_save_s(self) -> float:
        """The time that they could save over the expected rest of the stream."""
        is_endless = self.left_s is None
        expected_s = self.ran_s * GOES_ON if is_endless else max(self.left_s or 0.0, self.ran_s)
        return expected_s * self.possible(self.needed()) / self.best_s

    def probes(self, threads: int) -> bool:
        """True if the work may hold the GIL, so that a trial should begin with one task."""
        may_hold = COUNTS_REFERENCES and not self.work.only_gathers and not self.holds_gil
        return threads > 1 and may_hold and self.made_s >= SLOW_S

    def is_better(self, period_s: float, own_s: float, workers: int) -> bool:
        """True if a trial with that many workers gained enough, given the consumer's own time."""
        base_s = min(self.best_s, self.made_s + own_s)
        possible_s = base_s - max(own_s, self.made_s / workers)
        least_s = max(SMALL_SHARE / 2 * base_s, min(possible_s, LARGE_SHARE * base_s) / 2)
        return base_s - period_s >= least_s

    def is_outdated(self, kind: str, workers: int) -> bool:
        """True if inline is better by now than the engine in use, or processes are too few."""
        is_slower = self.best_s > (1 + LARGE_SHARE) * (self.made_s + self.own_s)
        return is_slower or (kind == "processes" and self.needed() >= 2 * workers)

    def why_inline(self) -> str:
        """Why nothing else is worth a trial; empty if something is."""
        made, making = self.made_s, f"making a {self.work.noun} takes"
        if made < FAST_S:
            return f"{making} {say(made)}, less than handing it over would"
        if made < SMALL_SHARE * (made + self.own_s):
            return f"{making} {say(made)} of every {say(made + self.own_s)}"
        if not self.work.thread_safe and made < SLOW_S:
            return f"{self.unsafe}, and {making} {say(made)}, too little for worker processes"
        return ""

    def gain(self) -> str:
        """What the engine in use has gained, for messages."""
        inline_s = self.made_s + self.own_s
        pace = f"handed out every {say(self.best_s)}, inline every {say(inline_s)}"
        return f"a {self.work.noun} is {pace}"

    def why_no_threads(self) -> str:
        """Why threads are not used, or did not help."""
        if not self.work.thread_safe:
            return self.unsafe
        if self.holds_gil:
            return f"making a {self.work.noun} holds the GIL, so threads would wait for each other"
        period = say(self.made_s + self.own_s)
        return f"threads did not shorten the {period} from one {self.work.noun} to the next"

    def why_no_processes(self) -> str | None:
        """None if worker processes are worth a trial, else why not (empty: no need to say)."""
        is_gil_free = self.work.only_gathers or not COUNTS_REFERENCES  # then threads suffice
        if self.made_s < SLOW_S or (is_gil_free and self.work.thread_safe):
            return ""
        if self.possible(self.needed()) < LARGE_SHARE * self.best_s:
            return ""
        if self.no_processes:
            return self.no_processes
        price_s = self.price_s()
        if self.could_save_s() < PAYS_BACK * price_s:
            return f"{TOO_SHORT}, which would take {say(price_s)} to start"
        return None


def say(seconds: float) -> str:
    """A time for people to read."""
    if seconds >= 1:
        return f"{seconds:.2g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
