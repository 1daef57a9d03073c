"""Finds the engine by measuring, while the stream goes on.

It starts inline and measures W, the time to make a batch, and P, the time between two batches that
are handed out (so P - W is what the consumer does in between).  It stays inline if W is under 150
µs or under 3 % of P: nothing could be won.  Otherwise it tries threads, one, two, four and so on.
The best that n workers could do is a batch every max(P - W, W / n); they are tried if that would
shorten P by 3 %, and kept if at least half of it came true.  If far more than that came true, the
consumer was still warming up: inline is measured again.  A trial that is clearly losing is cut
short.  Since a batch depends on its step alone, changing engines between two steps changes nothing
in the data, and what a trial has begun is delivered, not thrown away.

Worker processes are for what threads cannot do: Python that holds the GIL, and sources that are not
known to be thread-safe.  They are considered only where W is over 2 ms, a fifth of the period could
be won, and the stream has seconds to go.  While they start, the stream goes on as it was.

A pipeline that stays inline is measured again after a while, since the first batches may not be
typical: the consumer compiles its step, caches are cold, a neighbour was busy during a trial.  What
has won is remembered for the loader's next iterator, and what has not, too: short epochs go on with
the search where the one before ended, and do not try again and again what loses.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

from loaderx.errors import LoaderxError
from loaderx.memory import COUNTS_REFERENCES, Lend, Pool

if TYPE_CHECKING:
    from loaderx.engines.auto import AutoWorkshop, Found

FAST_S = 150e-6  # handing a batch between threads costs about as much
SLOW_S = 2e-3  # from here on worker processes may be worth their start
SMALL_SHARE = 0.03
LARGE_SHARE = 0.2
START_S = 3.0  # worker processes are not worth their start for a stream that is shorter
TOO_SHORT = "the stream is too short for worker processes"
ENOUGH = 4  # batches per measurement, at least; three times as many for a small difference
ENOUGH_S = 0.03
SHORT_S = 0.002  # a trial that has won nothing by now is cut short
LONG_S = 0.2  # slow batches show sooner what they cost
DOUBTS = 3  # doubtful trials after which inline is measured again at once
CHECK_AGAIN_S = 5.0  # until the next trial after one that was lost
CHECK_AGAIN = 256  # batches until the second look; eight times as many until the third, ...


class Search:
    """How far a loader's iterators have come with it."""

    def __init__(self) -> None:
        self.seconds = 0.0  # that iterators have run: the loader will go on for as long, perhaps
        self.measured: tuple[float, float] | None = None  # W and P, where a trial was cut short
        self.tried: set[Found] = set()  # engines that have lost
        self.lost = 0  # searches that found nothing better
        self.period_s = 0.0  # of the last of them
        self.rests_until = 0.0

    def rest(self, period_s: float) -> None:
        """Nothing is better: the next search begins after 5 s, 20 s, 80 s, ..."""
        self.tried.clear()
        self.period_s = period_s
        self.rests_until = perf_counter() + CHECK_AGAIN_S * 4**self.lost
        self.lost += 1

    def batches_to_rest(self) -> int:
        left_s = self.rests_until - perf_counter()
        return max(16, int(left_s / self.period_s)) if left_s > 0 else 0


class Chooser:
    """One stream of elements, made by one engine after the other."""

    def __init__(self, workshop: AutoWorkshop, steps: range) -> None:
        self.run: Any = None  # what makes the elements now; None: this thread
        self._workshop = workshop
        self._search = workshop.search
        self._work = workshop.work
        self._max_workers = workshop.max_workers
        self._position, self._stop = steps.start, steps.stop
        self._lend = Pool().lend
        self._made_s = 0.0
        self._period_s = 0.0
        self._open: Found | None = None  # what `run` is
        self._best: Found | None = None
        self._best_s = 0.0
        self._doubtful = 0  # trials that won what they cannot have won

    def elements(self) -> Generator[Any, None, None]:
        if self._workshop.found is not None and self._can_start():  # an earlier run has found it
            self._switch(self._workshop.found)
            yield from self._follow()
            return
        again = self._search.batches_to_rest()
        look_again = CHECK_AGAIN
        while self._position < self._stop:
            if not again:
                yield from self._measure()
                if self._inline_is_best():
                    again, look_again = look_again, 8 * look_again
                else:
                    yield from self._try_others()
                    if self._best is not None:
                        yield from self._follow()
                        return
                    again = self._search.batches_to_rest() or 4 * ENOUGH
            steps = range(self._position, min(self._position + again, self._stop))
            yield from self._work.stream(steps, self._lend)
            self._position = steps.stop
            again = 0

    def _measure(self) -> Iterator[Any]:
        if self._search.measured is None:
            yield from self._measure_inline(self._lend)
        else:
            self._made_s, self._period_s = self._search.measured
            self._search.measured = None

    def _measure_inline(self, lend: Lend) -> Iterator[Any]:
        made: list[float] = []
        periods: list[float] = []
        last = 0.0
        while self._position < self._stop:
            begun = perf_counter()
            element = self._work(self._position, lend)
            now = perf_counter()
            self._position += 1
            made.append(now - begun)
            if last:
                periods.append(now - last)
            last = now
            yield element
            del element
            if len(periods) >= ENOUGH or (len(periods) > 1 and sum(made) >= LONG_S):
                self._made_s, self._period_s = median(made), median(periods)
                enough = sum(periods) >= ENOUGH_S
                if enough or (len(periods) >= 4 * ENOUGH and self._made_s < FAST_S):
                    return

    def _inline_is_best(self) -> bool:
        made, period = self._made_s, self._period_s
        if not period:
            why = "the stream ended before it was measured"
        elif made < FAST_S:
            why = f"making a batch takes {_say(made)}, less than handing it over would"
        elif made < SMALL_SHARE * period:
            why = f"making a batch takes {_say(made)} of every {_say(period)}"
        elif not self._work.thread_safe and made < SLOW_S:
            why = (
                "the source is not known to be thread-safe, and making a batch takes "
                f"{_say(made)}, too little for worker processes"
            )
        else:
            return False
        self._workshop.reason = why
        return True

    # Trials.

    def _try_others(self) -> Iterator[Any]:
        """Yields elements while it tries; afterwards `run` is the best, or None for inline."""
        self._start_over()
        if self._work.thread_safe:
            yield from self._try_threads()
            why = f"threads did not shorten the {_say(self._period_s)} from one batch to the next"
        else:
            why = "the source is not known to be thread-safe"
        problem = self._why_no_processes()
        if problem is None:
            yield from self._try_processes()
            problem = self._workshop.no_processes or "worker processes did not help"
        if self._open != self._best:
            yield from self._drain()
            self._switch(self._best)
        self._workshop.found = self._best
        if self._best is None:
            self._workshop.reason = f"{why}; {problem}" if problem else why
            self._put_off(is_too_short=problem == TOO_SHORT)
        else:
            self._workshop.reason = (
                f"a batch is handed out every {_say(self._best_s)}, "
                f"inline every {_say(self._period_s)}"
            )

    def _put_off(self, *, is_too_short: bool) -> None:
        """When, and where, the search goes on."""
        if self._position >= self._stop:
            self._search.measured = (self._made_s, self._period_s)
        elif not (is_too_short or 0 < self._doubtful <= DOUBTS):
            self._search.rest(self._period_s)

    def _start_over(self) -> None:
        self._best, self._best_s = None, self._period_s

    def _possible(self, workers: int) -> float:
        """By how much so many workers could shorten the period."""
        consumer_s = max(0.0, self._period_s - self._made_s)
        return self._best_s - max(consumer_s, self._made_s / workers)

    def _try_threads(self) -> Iterator[Any]:
        for workers in self._counts():
            if ("threads", workers) in self._search.tried:
                continue
            possible = self._possible(workers)
            more_is_better = (
                possible < self._possible(2 * workers) / 2 and workers < self._max_workers
            )
            if possible < SMALL_SHARE * self._best_s or more_is_better:
                continue
            yield from self._try(("threads", workers), possible)

    def _counts(self) -> list[int]:
        """One thread, two, four, ... and the most allowed."""
        counts = [1]
        while counts[-1] * 2 < self._max_workers:
            counts.append(counts[-1] * 2)
        return counts if self._max_workers == 1 else [*counts, self._max_workers]

    def _why_no_processes(self) -> str | None:
        """None if worker processes are worth a trial, else why not (empty: no need to say)."""
        if self._made_s < SLOW_S or (not COUNTS_REFERENCES and self._work.thread_safe):
            return ""  # without a GIL threads do it all
        if self._possible(self._needed()) < LARGE_SHARE * self._best_s:
            return ""
        if self._workshop.no_processes:
            return self._workshop.no_processes
        left_s = (self._stop - self._position) * self._best_s
        if max(left_s, self._search.seconds) < START_S:
            return TOO_SHORT
        return None

    def _needed(self) -> int:
        """As many workers as keep up with the consumer, a quarter more to be safe."""
        consumer_s = max(1e-6, self._period_s - self._made_s)
        return max(1, min(self._max_workers, math.ceil(1.25 * self._made_s / consumer_s)))

    def _try_processes(self) -> Iterator[Any]:
        workers = self._needed()
        workshop = self._workshop.processes(workers)
        while True:
            is_ready = self._prepare(workshop)
            if is_ready is None:
                return
            if is_ready:
                break
            if self._position >= self._stop:
                return
            yield from self._one_more()  # they start while the stream goes on as it was
        yield from self._try(("processes", workers), self._possible(workers))
        if self._best != ("processes", workers) and self._position < self._stop:
            yield from self._drain()
            workshop.close()

    def _prepare(self, workshop: Any) -> bool | None:
        """Are the worker processes ready?  None if they cannot be had."""
        try:
            ready: bool = workshop.prepare()
        except (LoaderxError, OSError, MemoryError) as error:
            self._workshop.no_processes = f"{error}" or type(error).__name__
            workshop.close()
            return None
        return ready

    def _can_start(self) -> bool:
        """Can what an earlier run has found still be had?"""
        assert self._workshop.found is not None
        kind, workers = self._workshop.found
        if kind == "processes" and self._prepare(self._workshop.processes(workers)) is None:
            self._workshop.found = None
        return self._workshop.found is not None

    def _one_more(self) -> Iterator[Any]:
        """One element, as they are made now."""
        if self.run is None:
            element = self._work(self._position, self._lend)
            self._position += 1
            yield element
            return
        try:
            element = self._take()
        except StopIteration:
            return
        yield element

    def _try(self, engine: Found, possible: float) -> Iterator[Any]:
        yield from self._drain()
        self._switch(engine)
        enough = ENOUGH if possible > 0.2 * self._best_s else 3 * ENOUGH
        period = yield from self._measure_run(self._best_s, enough, engine[1])
        won = self._best_s - period
        if possible < LARGE_SHARE * self._best_s and won > 2 * possible:
            self._doubtful += 1  # the consumer became faster, and not by our doing
        elif won >= possible / 2:
            self._best, self._best_s = engine, period
        elif not math.isinf(period):  # it is, if the stream ended
            self._search.tried.add(engine)

    def _switch(self, engine: Found | None) -> None:
        steps = range(self._position, self._stop)
        self.run = None if engine is None else self._workshop.open_found(engine, steps)
        self._open = engine

    def _take(self) -> Any:
        element = self.run.next()
        self._position += 1
        return element

    def _follow(self) -> Iterator[Any]:
        run = self.run
        try:
            while True:
                try:
                    element = self._take()
                except StopIteration:
                    return
                yield element
                del element
        finally:
            run.dismiss()  # nothing may be waited for here: this may be a finaliser

    def _drain(self) -> Iterator[Any]:
        """What has been begun is delivered; then this thread makes the elements."""
        if self.run is not None:
            self.run.drain()
            yield from self._follow()
            self.run = self._open = None

    def _measure_run(self, best_s: float, enough: int, workers: int) -> Any:
        """Yields elements and returns the period between them; infinity if the stream ended."""
        run = self.run
        times: list[float] = []
        keep_open = False
        try:
            while True:
                try:
                    element = self._take()
                except StopIteration:
                    self.run = self._open = None
                    return float("inf")
                times.append(perf_counter())
                yield element
                del element
                count = len(times) - 2  # the first one had to wait for the crew to start
                if count < 1:
                    continue
                taken = times[-1] - times[1]
                period = taken / count
                # A slow batch weighs more than a wrong choice.
                few = 2 if best_s < 0.005 else ENOUGH
                losing = count >= few and taken > SHORT_S and period > best_s
                if losing or (count >= enough and taken >= ENOUGH_S):
                    keep_open = True
                    # One thread delivers evenly, several in bursts: there only the mean says much.
                    return (
                        median([b - a for a, b in pairwise(times[1:])]) if workers == 1 else period
                    )
        finally:
            if not keep_open:  # the end, an error, or the consumer went away
                run.dismiss()


def median(values: list[float]) -> float:
    """The middle value (the `statistics` module would double the time to import loaderx)."""
    return sorted(values)[len(values) // 2]


def _say(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
