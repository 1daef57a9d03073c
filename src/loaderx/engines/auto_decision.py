"""What to choose, given what was measured.  Nothing here measures, waits or starts anything.

W is the time to make a batch, P the time from one batch to the next; so P - W is what the consumer
does in between.  The best that n workers could do is a batch every max(P - W, W / n).

Worker processes have a price: starting Python, importing what the user's functions and sources
need, and sharing the data.  They are worth a trial if they could save twice their price over the
time that the stream is expected to go on.  That is what is left of it; or, where it is endless or
the loader's epochs are short, as long again as the loader has run by now.  So never more is spent
on a trial than a fraction of the time that has passed or will pass for sure.
"""

from __future__ import annotations

import math

from loaderx.frozen import Frozen
from loaderx.memory import COUNTS_REFERENCES

FAST_S = 150e-6  # handing a batch between threads costs about as much
SLOW_S = 2e-3  # from here on worker processes may be worth their start
SMALL_SHARE = 0.03
LARGE_SHARE = 0.2
PAYS_BACK = 2.0  # times their price must be what worker processes could save
TOO_SHORT = "the stream is too short for worker processes"


class Facts(Frozen):
    """What is known when an engine is to be chosen.  Times are in seconds."""

    made_s: float  # W, inline
    period_s: float  # P, inline
    best_s: float  # the period of the best engine found so far
    max_workers: int
    cores: int
    thread_safe: bool
    only_gathers: bool  # nothing to do but gather rows of arrays: the GIL is free meanwhile
    left_s: float | None  # of the stream at its present pace; None: endless
    ran_s: float  # that the loader's iterators have run
    start_s: float = 0.0  # for one worker process to start
    share_s: float = 0.0  # to share the work with all of them
    no_processes: str = ""  # why there can be none
    is_unsure: bool = False  # is it not known whether threads may read the source?
    noun: str = "batch"  # what is made: a batch, or part of a stream

    @property
    def unsafe(self) -> str:
        """Why threads are not tried, if the source is not thread-safe."""
        known = "known to be " if self.is_unsure else ""
        return f"the source is not {known}thread-safe"

    def possible(self, workers: int) -> float:
        """By how much so many workers could shorten the best period."""
        consumer_s = max(0.0, self.period_s - self.made_s)
        return self.best_s - max(consumer_s, self.made_s / workers)

    def needed(self) -> int:
        """As many workers as keep up with the consumer, a quarter more to be safe."""
        consumer_s = max(1e-6, self.period_s - self.made_s)
        return max(1, min(self.max_workers, math.ceil(1.25 * self.made_s / consumer_s)))

    def price_s(self) -> float:
        """What it takes to start as many worker processes as are needed."""
        return self.share_s + self.start_s * max(1.0, self.needed() / self.cores)

    def could_save_s(self) -> float:
        """What they could save over the time that the stream is expected to go on."""
        expected_s = self.ran_s if self.left_s is None else max(self.left_s, self.ran_s)
        return expected_s * self.possible(self.needed()) / self.best_s


def why_inline(facts: Facts) -> str:
    """Why nothing else is worth a trial; empty if something is."""
    made, period, making = facts.made_s, facts.period_s, f"making a {facts.noun} takes"
    if not period:
        return "the stream ended before it was measured"
    if made < FAST_S:
        return f"{making} {say(made)}, less than handing it over would"
    if made < SMALL_SHARE * period:
        return f"{making} {say(made)} of every {say(period)}"
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


def thread_counts(most: int) -> list[int]:
    """One thread, two, four, ... and the most allowed."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return counts if most == 1 else [*counts, most]


def say(seconds: float) -> str:
    """A time as people write it."""
    if seconds >= 1:
        return f"{seconds:.2g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
