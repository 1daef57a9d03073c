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
be won, and that would pay for their start twice (`loaderx.engines.decision`).  While they start,
the stream goes on as it was.  One starts first: what that took is the price of the others, and if
it takes longer than they could save, it is stopped.

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

from loaderx.engines.decision import (
    FAST_S,
    LARGE_SHARE,
    SMALL_SHARE,
    TOO_SHORT,
    Facts,
    say,
    thread_counts,
    why_inline,
    why_no_processes,
)
from loaderx.errors import LoaderxError, RecordError
from loaderx.memory import Lend, Pool

if TYPE_CHECKING:
    from loaderx.engines.auto import AutoWorkshop, Found

ENOUGH = 4  # batches per measurement, at least; three times as many for a small difference
ENOUGH_S = 0.03
SHORT_S = 0.002  # a trial that has won nothing by now is cut short
LONG_S = 0.2  # slow batches show sooner what they cost
DOUBTS = 3  # doubtful trials after which inline is measured again at once
CHECK_AGAIN_S = 5.0  # until the next trial after one that was lost
CHECK_AGAIN = 256  # batches until the second look; eight times as many until the third, ...
FAR = 1 << 48  # steps to go: no stream that ends is so long


class Search:
    """How far a loader's iterators have come with it."""

    def __init__(self) -> None:
        self.seconds = 0.0  # that iterators have run: the loader will go on for as long, perhaps
        self.measured: tuple[float, float] | None = None  # W and P, where a trial was cut short
        self.tried: set[Found] = set()  # engines that have lost
        self.lost = 0  # searches that found nothing better
        self.period_s = 0.0  # of the last of them
        self.rests_until = 0.0
        # W, P and the period with threads, if the stream was too young for worker processes.
        self.too_soon: tuple[float, float, float] | None = None

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
        self._noun: str = getattr(workshop.work, "noun", "batch")
        self._begun = perf_counter()
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
            if self._search.too_soon is not None:
                self._best = self._workshop.found
                self._made_s, self._period_s, self._best_s = self._search.too_soon
                yield from self._try_processes_later()
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
                        if self._search.too_soon is not None:
                            yield from self._try_processes_later()
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

    def _facts(self) -> Facts:
        """What is known by now, but for the price of worker processes."""
        workshop, left = self._workshop, self._stop - self._position
        return Facts(
            made_s=self._made_s,
            period_s=self._period_s,
            best_s=self._best_s,
            max_workers=workshop.max_workers,
            cores=workshop.cores,
            thread_safe=self._work.thread_safe,
            only_gathers=self._work.only_gathers,
            left_s=None if left > FAR else left * self._best_s,
            ran_s=self._search.seconds + perf_counter() - self._begun,
            no_processes=workshop.no_processes,
            is_unsure=bool(self._work.unsure),
            noun=self._noun,
        )

    def _inline_is_best(self) -> bool:
        self._start_over()
        why = why_inline(self._facts())
        if not why:
            return False
        self._workshop.reason = why
        return True

    # Trials.

    def _try_others(self) -> Iterator[Any]:
        """Yields elements while it tries; afterwards `run` is the best, or None for inline."""
        self._start_over()
        if self._work.thread_safe:
            yield from self._try_threads()
            period = say(self._period_s)
            why = f"threads did not shorten the {period} from one {self._noun} to the next"
        else:
            why = self._facts().unsafe
        problem = self._why_no_processes()
        if problem is None:
            problem = yield from self._try_processes()
        yield from self._settle()
        if self._best is None:
            self._workshop.reason = f"{why}; {problem}" if problem else why
            self._put_off(is_too_short=problem.startswith(TOO_SHORT))
            if problem and problem == self._workshop.no_processes:  # workers would be worth it
                self._workshop.warn_of_workers(is_unsafe=not self._work.thread_safe)
        elif problem.startswith(TOO_SHORT):
            self._search.too_soon = (self._made_s, self._period_s, self._best_s)

    def _try_processes_later(self) -> Iterator[Any]:
        """Threads have won in a stream that was too young for worker processes: it may go on."""
        while self._position < self._stop:
            problem = self._why_no_processes()
            if problem is None:
                problem = yield from self._try_processes()
                yield from self._settle()
            if not problem.startswith(TOO_SHORT) and self._position < self._stop:
                self._search.too_soon = None  # they have had their trial
                return
            for _ in range(4 * ENOUGH):
                yield from self._one_more()

    def _settle(self) -> Iterator[Any]:
        """Goes on with the best that was found."""
        if self._open != self._best:
            yield from self._drain()
            self._switch(self._best)
        self._workshop.found = self._best
        if self._best is not None:
            self._workshop.reason = (
                f"a {self._noun} is handed out every {say(self._best_s)}, "
                f"inline every {say(self._period_s)}"
            )

    def _put_off(self, *, is_too_short: bool) -> None:
        """When, and where, the search goes on."""
        if self._position >= self._stop:
            self._search.measured = (self._made_s, self._period_s)
        elif not (is_too_short or 0 < self._doubtful <= DOUBTS):
            self._search.rest(self._period_s)

    def _start_over(self) -> None:
        self._best, self._best_s = None, self._period_s

    def _try_threads(self) -> Iterator[Any]:
        most = self._workshop.max_workers
        for workers in thread_counts(most):
            if ("threads", workers) in self._search.tried:
                continue
            facts = self._facts()
            possible = facts.possible(workers)
            more_is_better = possible < facts.possible(2 * workers) / 2 and workers < most
            if possible < SMALL_SHARE * self._best_s or more_is_better:
                continue
            yield from self._try(("threads", workers), possible)

    def _why_no_processes(self, start_s: float = 0.0) -> str | None:
        """None if worker processes are worth a trial; each takes ``start_s`` or more to start."""
        facts = self._facts()
        problem = why_no_processes(facts)
        if problem is None:  # they would be, if they cost nothing
            price = self._workshop.price
            start_s = max(start_s, price.start_s)
            problem = why_no_processes(facts.replace(start_s=start_s, ship_s=price.ship_s))
        return problem

    def _try_processes(self) -> Generator[Any, None, str]:
        """Yields elements while it tries, and returns what was wrong with worker processes."""
        workers = self._facts().needed()
        workshop = self._workshop.processes(workers)
        for count in (1, workers):
            problem = yield from self._start_workers(workshop, count)
            if problem is not None:
                return problem
        engine: Found = ("processes", workers)
        try:
            yield from self._try(engine, self._facts().possible(workers))
        except RecordError as error:
            if error.__cause__ is None:
                raise  # not the user's code: a step that kills its workers, say
            # It is made again in this thread.  If it fails here as well, that is the error.
            self._workshop.no_processes = f"in a worker process, {error}"
            self.run = self._open = None
            workshop.close()
            return self._workshop.no_processes
        if self._best != engine and self._position < self._stop:
            yield from self._drain()
            workshop.close()
        return "worker processes did not help"

    def _start_workers(self, workshop: Any, count: int) -> Generator[Any, None, str | None]:
        """Yields elements while so many start.  Returns why they do not; None if they have."""
        price = self._workshop.price
        while True:
            is_ready = self._prepare(workshop, count)
            if is_ready is None:
                return self._workshop.no_processes
            start_s = workshop.start_s
            if is_ready:
                price.start_s, price.ship_s = start_s, workshop.ship_s
            problem = None
            if count == 1 and start_s >= price.start_s:  # by now it is dearer than was thought
                problem = self._why_no_processes(start_s)
            if problem:
                if not is_ready:
                    price.start_s = 2 * start_s  # at least; it is not tried before that would pay
                workshop.close()
                return problem
            if is_ready:
                return None
            if self._position >= self._stop:
                return ""  # the next iterator finds them
            yield from self._one_more()  # they start while the stream goes on as it was

    def _prepare(self, workshop: Any, count: int) -> bool | None:
        """Have so many worker processes started?  None if they cannot be had."""
        try:
            ready: bool = workshop.prepare(count)
        except (LoaderxError, OSError, MemoryError) as error:
            self._workshop.no_processes = f"{error}" or type(error).__name__
            self._workshop.is_unsendable = isinstance(error, TypeError)  # as a ShippingError is
            workshop.close()
            return None
        return ready

    def _can_start(self) -> bool:
        """Can what an earlier run has found still be had?"""
        assert self._workshop.found is not None
        kind, workers = self._workshop.found
        if kind == "processes":
            workshop = self._workshop.processes(workers)
            if self._prepare(workshop, workers) is None:
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
