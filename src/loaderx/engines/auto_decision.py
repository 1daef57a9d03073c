"""What to choose, given what was measured.  Nothing here measures, waits or starts anything.

W is how long the consumer waits for a batch that is made inline, C what it does itself until it
asks for the next one.  The best that n workers could do is a batch every max(C, W / n).

Worker processes have a price: starting Python, importing what the user's functions and sources
need, and sharing the data.  They are worth a trial if they could save twice their price over the
time that the stream is expected to go on: what is left of it, or, where the loader's epochs are
short, as long again as the loader has run by now.  An endless stream is meant to run for long.
"""

from __future__ import annotations

import math

from loaderx.frozen import Frozen
from loaderx.memory import COUNTS_REFERENCES

FAST_S = 150e-6  # handing a batch between threads costs about as much
SLOW_S = 2e-3  # from here on worker processes may be worth their start
SMALL_SHARE = 0.03
LARGE_SHARE = 0.2
START_S = 0.35  # for a worker process with NumPy and loaderx to start, until one has been timed
PAYS_BACK = 2.0  # times their price must be what worker processes could save
GOES_ON = 10.0  # times as long as it has run, an endless stream is expected to go on
TOO_SHORT = "the stream is too short for worker processes"


class Facts(Frozen):
    """What is known when an engine is to be chosen.  Times are in seconds."""

    made_s: float  # W
    own_s: float  # C
    best_s: float  # from one batch to the next, with the engine in use
    max_workers: int
    cores: int
    thread_safe: bool
    only_gathers: bool  # nothing to do but gather rows of arrays: the GIL is free meanwhile
    left_s: float | None  # of the stream at its present pace; None: endless
    ran_s: float  # that the loader's iterators have run
    start_s: float = START_S  # for one worker process to start
    no_processes: str = ""  # why there can be none
    is_unsure: bool = False  # is it not known whether threads may read the source?
    holds_gil: bool = False  # is it known that threads would wait for each other?
    noun: str = "batch"  # what is made: a batch, or part of a stream

    @property
    def unsafe(self) -> str:
        """Why threads are not tried, if the source is not thread-safe."""
        known = "known to be " if self.is_unsure else ""
        return f"the source is not {known}thread-safe"

    def possible(self, workers: int) -> float:
        """By how much so many workers could shorten the time from one batch to the next."""
        return self.best_s - max(self.own_s, self.made_s / workers)

    def needed(self) -> int:
        """As many workers as keep up with the consumer, a quarter more to be safe."""
        needed = math.ceil(1.25 * self.made_s / max(1e-6, self.own_s))
        return max(1, min(self.max_workers, needed))

    def threads(self) -> int:
        """The threads that are worth a trial; 0: none."""
        workers, share = (1, LARGE_SHARE) if self.holds_gil else (self.needed(), SMALL_SHARE)
        is_worth_it = self.possible(workers) >= share * self.best_s
        return workers if self.thread_safe and is_worth_it else 0

    def price_s(self) -> float:
        """What it takes to start as many worker processes as are needed."""
        return self.start_s * max(1.0, self.needed() / self.cores)

    def could_save_s(self) -> float:
        """What they could save over the time that the stream is expected to go on."""
        is_endless = self.left_s is None
        expected_s = self.ran_s * GOES_ON if is_endless else max(self.left_s or 0.0, self.ran_s)
        return expected_s * self.possible(self.needed()) / self.best_s


def why_inline(facts: Facts) -> str:
    """Why nothing else is worth a trial; empty if something is."""
    made, making = facts.made_s, f"making a {facts.noun} takes"
    if made < FAST_S:
        return f"{making} {say(made)}, less than handing it over would"
    if made < SMALL_SHARE * (made + facts.own_s):
        return f"{making} {say(made)} of every {say(made + facts.own_s)}"
    if not facts.thread_safe and made < SLOW_S:
        return f"{facts.unsafe}, and {making} {say(made)}, too little for worker processes"
    return ""


def why_no_processes(facts: Facts) -> str | None:
    """None if worker processes are worth a trial, else why not (empty: no need to say)."""
    threads_do_it_all = facts.only_gathers or not COUNTS_REFERENCES  # there is no GIL to wait for
    if facts.made_s < SLOW_S or (threads_do_it_all and facts.thread_safe):
        return ""
    if facts.possible(facts.needed()) < LARGE_SHARE * facts.best_s:
        return ""
    if facts.no_processes:
        return facts.no_processes
    price_s = facts.price_s()
    if facts.could_save_s() < PAYS_BACK * price_s:
        return f"{TOO_SHORT}, which would take {say(price_s)} to start"
    return None


def say(seconds: float) -> str:
    """A time as people write it."""
    if seconds >= 1:
        return f"{seconds:.2g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
