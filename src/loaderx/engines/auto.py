"""Finds the engine by measuring, while the stream goes on.

It starts inline and measures W, the time to make a batch, and P, the time between two batches that
are handed out (so P - W is what the consumer does in between).  It stays inline if W is under 150
µs or under 3 % of P: nothing could be won.  Otherwise it tries threads, one, two, four and so on.
The best that n threads could do is a batch every max(P - W, W / n); they are tried if that would
shorten P by 3 %, and kept if at least half of it came true.  A trial that is clearly losing is cut
short.  Since a batch depends on its step alone, changing engines between two steps changes nothing
in the data, and what a trial has begun is delivered, not thrown away.

A pipeline that stays inline is measured again after a while, since the first batches may not be
typical: the consumer compiles its step, caches are cold, a neighbour was busy during a trial.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from time import perf_counter
from typing import Any

from loaderx.engines.base import BareWorkshop, Work, cores
from loaderx.engines.threads import Threads, ThreadsRun
from loaderx.errors import check_int
from loaderx.frozen import Frozen
from loaderx.memory import Lend, Pool

FAST_S = 150e-6  # handing a batch between threads costs about as much
SMALL_SHARE = 0.03
ENOUGH = 4  # batches per measurement, at least; three times as many for a small difference
ENOUGH_S = 0.03
SHORT_S = 0.002  # a trial that has won nothing by now is cut short
LONG_S = 0.2  # slow batches show sooner what they cost
CHECK_AGAIN_S = 5.0  # until the next trial after one that was lost
CHECK_AGAIN = 256  # batches until the second look; eight times as many until the third, ...


class Auto(Frozen):
    """Inline or threads, whichever is measured to be faster; ``max_workers`` bounds the threads."""

    max_workers: int | None = None
    prefetch: int | None = None

    def __post_init__(self) -> None:
        if self.max_workers is not None:
            check_int("max_workers", self.max_workers, least=1)
        if self.prefetch is not None:
            check_int("prefetch", self.prefetch, least=0)

    def workshop(self, work: Work) -> BareWorkshop:
        most, prefetch = self.max_workers or cores(), self.prefetch
        return BareWorkshop(lambda steps: AutoRun(work, steps, most, prefetch))


class _Choice:
    """What was chosen, and why: told by `loader.stats()`."""

    __slots__ = ("engine", "reason", "run")

    def __init__(self) -> None:
        self.run: ThreadsRun | None = None
        self.engine = "inline"
        self.reason = "nothing has been measured yet"


class AutoRun:
    def __init__(self, work: Work, steps: range, max_workers: int, prefetch: int | None) -> None:
        self._choice = _Choice()
        self._elements = _Chooser(self._choice, work, steps, max_workers, prefetch).elements()
        self.next = self._elements.__next__

    def close(self) -> None:
        with contextlib.suppress(ValueError):  # another thread is in the middle of `next`
            self._elements.close()
        if self._choice.run is not None:
            self._choice.run.close()

    def describe(self) -> tuple[str, str]:
        return self._choice.engine, self._choice.reason


class _Chooser:
    """One stream of elements, made by one engine after the other."""

    def __init__(
        self, choice: _Choice, work: Work, steps: range, max_workers: int, prefetch: int | None
    ) -> None:
        self.choice = choice
        self.work = work
        self.position, self.stop = steps.start, steps.stop
        self.max_workers = max_workers
        self.prefetch = prefetch
        self.made_s = 0.0
        self.period_s = 0.0

    def elements(self) -> Any:
        lend = Pool().lend
        again = CHECK_AGAIN
        while self.position < self.stop:
            yield from self._measure_inline(lend)
            if not self._inline_is_best():
                run = yield from self._try_threads()
                if run is not None:
                    yield from self._follow(run)
                    return
                again = max(
                    16, int(CHECK_AGAIN_S / self.period_s)
                )  # a trial costs more than a look
            steps = range(self.position, min(self.position + again, self.stop))
            yield from self.work.stream(steps, lend)
            self.position = steps.stop
            again *= 8

    def _measure_inline(self, lend: Lend) -> Iterator[Any]:
        made: list[float] = []
        periods: list[float] = []
        last = 0.0
        while self.position < self.stop:
            begun = perf_counter()
            element = self.work(self.position, lend)
            now = perf_counter()
            self.position += 1
            made.append(now - begun)
            if last:
                periods.append(now - last)
            last = now
            yield element
            del element
            if len(periods) >= ENOUGH or (len(periods) > 1 and sum(made) >= LONG_S):
                self.made_s, self.period_s = median(made), median(periods)
                enough = sum(periods) >= ENOUGH_S
                if enough or (len(periods) >= 4 * ENOUGH and self.made_s < FAST_S):
                    return

    def _inline_is_best(self) -> bool:
        made, period = self.made_s, self.period_s
        if not self.work.thread_safe:
            why = "the source is not known to be thread-safe"
        elif made < FAST_S:
            why = f"making a batch takes {_say(made)}, less than handing it over would"
        elif made < SMALL_SHARE * period:
            why = f"making a batch takes {_say(made)} of every {_say(period)}"
        else:
            return False
        self.choice.reason = why
        return True

    def _try_threads(self) -> Any:
        """Yields elements while it tries; returns the run to follow, None to stay inline."""
        inline_s, consumer_s = self.period_s, max(0.0, self.period_s - self.made_s)
        best, best_s = 0, inline_s
        current: tuple[int, ThreadsRun] | None = None
        for workers in self._counts():
            possible = best_s - max(consumer_s, self.made_s / workers)
            twice = best_s - max(consumer_s, self.made_s / (2 * workers))
            more_is_better = possible < twice / 2 and workers < self.max_workers
            if possible < SMALL_SHARE * best_s or more_is_better:
                continue
            if current is not None:
                yield from self._drain(current[1])
            current = (workers, self._threads(workers))
            enough = ENOUGH if possible > 0.2 * best_s else 3 * ENOUGH
            period = yield from self._measure_run(current[1], best_s, enough, workers)
            if best_s - period >= possible / 2:
                best, best_s = workers, period
        self._explain(best, best_s, inline_s)
        if current is not None and current[0] == best:
            return current[1]
        if current is not None:
            yield from self._drain(current[1])
        return self._threads(best) if best else None

    def _explain(self, best: int, best_s: float, inline_s: float) -> None:
        self.choice.engine = f"threads({best})" if best else "inline"
        if best:
            why = f"a batch is handed out every {_say(best_s)}, inline every {_say(inline_s)}"
        else:
            why = f"threads did not shorten the {_say(inline_s)} from one batch to the next"
        self.choice.reason = why

    def _counts(self) -> list[int]:
        """One thread, two, four, ... and the most allowed."""
        counts = [1]
        while counts[-1] * 2 < self.max_workers:
            counts.append(counts[-1] * 2)
        return counts if self.max_workers == 1 else [*counts, self.max_workers]

    def _threads(self, workers: int) -> ThreadsRun:
        run = Threads(workers, self.prefetch).open(self.work, range(self.position, self.stop))
        self.choice.run = run
        return run

    def _take(self, run: ThreadsRun) -> Any:
        element = run.next()
        self.position += 1
        return element

    def _follow(self, run: ThreadsRun) -> Iterator[Any]:
        try:
            while True:
                try:
                    element = self._take(run)
                except StopIteration:
                    return
                yield element
                del element
        finally:
            run.dismiss()  # nothing may be waited for here: this may be a finaliser

    def _drain(self, run: ThreadsRun) -> Iterator[Any]:
        run.drain()
        yield from self._follow(run)

    def _measure_run(self, run: ThreadsRun, best_s: float, enough: int, workers: int) -> Any:
        """Yields elements and returns the period between them; infinity if the stream ended."""
        times: list[float] = []
        keep_open = False
        try:
            while True:
                try:
                    element = self._take(run)
                except StopIteration:
                    return float("inf")
                times.append(perf_counter())
                yield element
                del element
                count = len(times) - 2  # the first one had to wait for the crew to start
                if count < 1:
                    continue
                taken = times[-1] - times[1]
                period = taken / count
                few = (
                    2 if best_s < 0.005 else ENOUGH
                )  # a slow batch weighs more than a wrong choice
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
