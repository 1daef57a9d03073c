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
be won, and that would pay for their start twice (`loaderx.engines.auto_decision`).  While they
start, the stream goes on as it was.  One starts first: what that took is the price of the others,
and if it takes longer than they could save, it is stopped.

A pipeline that stays inline is measured again after a while, since the first batches may not be
typical: the consumer compiles its step, caches are cold, a neighbour was busy during a trial.  What
has won is remembered for the loader's next iterator, and what has not, too: short epochs go on with
the search where the one before ended, and do not try again and again what loses.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from loaderx.engines.auto_decision import (
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
from loaderx.engines.base import TryAgainError
from loaderx.errors import LoaderxError

if TYPE_CHECKING:
    from loaderx.engines.auto import AutoSession

ENOUGH = 4  # batches per measurement, at least; three times as many for a small difference
ENOUGH_S = 0.03
SHORT_S = 0.002  # a trial that has won nothing by now is cut short
LONG_S = 0.2  # slow batches show sooner what they cost
DOUBTS = 3  # doubtful trials after which inline is measured again at once
CHECK_AGAIN_S = 5.0  # until the next trial after one that was lost
FAR = 1 << 48  # tasks to go: no stream that ends is so long
CHECK_AGAIN = 256  # batches until the second look; eight times as many until the third, ...

Found: TypeAlias = tuple[Literal["threads", "processes"], int]


class Delivered(NamedTuple):
    """An element that was handed out."""

    engine: Found | None  # that made it
    made_s: float  # to make it, or to wait for it
    period_s: float | None  # since the one before; None if it is the first of a series


Course: TypeAlias = Generator[None, Delivered, Any]
"""Part of a search: each ``yield`` waits until one more element is handed out."""


class TrialFailedError(Exception):
    """A task failed in a worker process that was being tried."""


class Search:
    """Says which engine to use, from one element to the next."""

    def __init__(self, session: AutoSession) -> None:
        self.trials = Trials(session)
        self._last = 0.0  # when an element was handed out
        self._failed: Found | None = None  # worker processes that were given up
        self._busy = threading.Lock()  # consumers in several threads: one of them is enough
        self._course: Course | None = None
        self.start(self.trials.search())

    def start(self, course: Course) -> None:
        """Begins a search."""
        next(course)
        self._course = course

    def _start_over(self) -> None:
        trials = self.trials
        trials.engine, trials.resting, trials.is_trying = None, 0, False
        self.start(trials.search())

    @property
    def engine(self) -> Found | None:
        """For the tasks that are submitted now; None: the caller's thread."""
        return self.trials.engine

    @property
    def found(self) -> Found | None:
        """What was found to be best; None: the caller's thread, or nothing has been found yet."""
        return self.trials.found

    @property
    def reason(self) -> str:
        return self.trials.reason

    def begin(self, tasks: int | None) -> None:
        """An iterator begins: what passed since the last element says nothing."""
        self._last, self.trials.left = 0.0, tasks
        if not self.trials.can_start():
            self.trials.found = None
            self._start_over()

    def delivered(self, engine: Found | None, made_s: float) -> None:
        """An element was handed out."""
        period_s = self._count(1)
        if self._course is not None and self._busy.acquire(blocking=False):
            try:
                self._course.send(Delivered(engine, made_s, period_s))
            except StopIteration:
                self._course = None
            except BaseException:
                self._start_over()
                raise
            finally:
                self._busy.release()

    @property
    def resting(self) -> int:
        """Elements that may be made in the caller's thread without being reported."""
        return self.trials.resting if self.trials.engine is None else 0

    def rested(self, count: int) -> None:
        """So many elements were made in the caller's thread, without being reported."""
        self._count(count)
        self.trials.resting -= count

    def _count(self, elements: int) -> float | None:
        """Counts elements, and gives the time since the last."""
        trials, now = self.trials, perf_counter()
        period_s = now - self._last if self._last else None
        self._last = now
        trials.ran_s += period_s or 0.0
        if trials.left is not None:
            trials.left = max(0, trials.left - elements)
        return period_s

    def is_failed_trial(self, engine: Found | None, error: Exception) -> bool:
        """Did a task fail in a worker process that is being tried, which may be why it failed?"""
        trials = self.trials
        if engine is None or engine[0] != "processes" or error.__cause__ is None:
            return False  # without a cause, it is not the user's code: workers died of it, say
        if engine == self._failed:
            return True  # it was begun before the first that failed was known
        if not trials.is_trying or engine != trials.engine:
            return False
        if self._course is None or not self._busy.acquire(blocking=False):
            return False
        self._failed = engine
        try:
            self._course.throw(TrialFailedError(f"in a worker process, {error}"))
        except StopIteration:
            self._course = None
        finally:
            self._busy.release()
        return True


class Trials:
    """What is measured and tried.  It does not know the generator that runs it, nor keeps the
    session alive: so a loader that is dropped is gone at once."""

    def __init__(self, session: AutoSession) -> None:
        self._session_ref = weakref.ref(session)
        self._work = session.work
        self._noun: str = getattr(session.work, "noun", "batch")
        self.engine: Found | None = None  # in use
        self.found: Found | None = None
        self.reason = "there was too little to measure yet"
        self.resting = 0  # elements until the next look
        self.left: int | None = None  # tasks
        self.ran_s = 0.0  # that the loader's iterators have run
        self.is_trying = False
        self._made_s = self._period_s = 0.0
        self._best: Found | None = None
        self._best_s = 0.0
        self._doubtful = 0  # trials that won what they cannot have won
        self._tried: set[Found] = set()  # engines that have lost
        self._lost = 0  # searches that found nothing better
        self._rests_until = 0.0

    @property
    def _session(self) -> AutoSession:
        session = self._session_ref()
        assert session is not None
        return session

    def search(self) -> Course:
        look_again = CHECK_AGAIN
        while True:
            yield from self._measure_inline()
            if self._inline_is_best():
                yield from self._rest(look_again)
                look_again *= 8
                continue
            is_too_short = yield from self._try_others()
            if self._best is not None:
                if is_too_short:
                    yield from self._try_processes_later()
                return
            yield from self._rest(4 * ENOUGH)
            while (count := self._batches_to_rest()) > 0:
                yield from self._rest(count)

    def _rest(self, count: int) -> Course:
        self.resting = count
        while self.resting > 0:
            yield
            self.resting -= 1
        self.resting = 0

    def _batches_to_rest(self) -> int:
        left_s = self._rests_until - perf_counter()
        return max(16, int(left_s / self._period_s)) if left_s > 0 else 0

    def _measure_inline(self) -> Course:
        made: list[float] = []
        periods: list[float] = []
        was_inline = False
        while True:
            one = yield
            if one.engine is not None:  # begun before, by workers
                was_inline = False
                continue
            made.append(one.made_s)
            if one.period_s is not None and was_inline:
                periods.append(one.period_s)
            was_inline = True
            if len(periods) >= ENOUGH or (len(periods) > 1 and sum(made) >= LONG_S):
                self._made_s, self._period_s = median(made), median(periods)
                enough = sum(periods) >= ENOUGH_S
                if enough or (len(periods) >= 4 * ENOUGH and self._made_s < FAST_S):
                    return

    def _facts(self) -> Facts:
        """What is known by now, but for the price of worker processes."""
        session, left = self._session, self.left
        return Facts(
            made_s=self._made_s,
            period_s=self._period_s,
            best_s=self._best_s,
            max_workers=session.max_workers,
            cores=session.cores,
            thread_safe=self._work.thread_safe,
            only_gathers=self._work.only_gathers,
            left_s=None if left is None or left > FAR else left * self._best_s,
            ran_s=self.ran_s,
            no_processes=session.no_processes,
            is_unsure=bool(self._work.unsure),
            noun=self._noun,
        )

    def _inline_is_best(self) -> bool:
        self._start_over()
        why = why_inline(self._facts())
        if why:
            self.reason = why
        return bool(why)

    def _start_over(self) -> None:
        self._best, self._best_s = None, self._period_s

    # Trials.

    def _try_others(self) -> Course:
        """Tries engines, and returns whether it is too soon for worker processes."""
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
        self._settle()
        is_too_short = problem.startswith(TOO_SHORT)
        if self._best is None:
            self.reason = f"{why}; {problem}" if problem else why
            if not (is_too_short or 0 < self._doubtful <= DOUBTS):
                self._put_off()
            if problem and problem == self._session.no_processes:  # workers would be worth it
                self._session.warn_of_workers(is_unsafe=not self._work.thread_safe)
        elif problem and problem == self._session.no_processes:
            self.reason += f"; {problem}"
        return is_too_short

    def _try_processes_later(self) -> Course:
        """Threads have won in a stream that was too young for worker processes: it may go on."""
        while True:
            problem = self._why_no_processes()
            if problem is None:
                problem = yield from self._try_processes()
                self._settle()
            if not problem.startswith(TOO_SHORT):
                return
            for _ in range(4 * ENOUGH):
                yield

    def _settle(self) -> None:
        """Goes on with the best that was found."""
        self.engine = self.found = self._best
        self._session.keep_only(self._best)
        if self._best is not None:
            self.reason = (
                f"a {self._noun} is handed out every {say(self._best_s)}, "
                f"inline every {say(self._period_s)}"
            )

    def _put_off(self) -> None:
        """Nothing is better: the next search begins after 5 s, 20 s, 80 s, ..."""
        self._tried.clear()
        self._rests_until = perf_counter() + CHECK_AGAIN_S * 4**self._lost
        self._lost += 1

    def _try_threads(self) -> Course:
        most = self._session.max_workers
        for workers in thread_counts(most):
            if ("threads", workers) in self._tried:
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
        session, problem = self._session, why_no_processes(facts)
        if problem is None and session.not_for_processes:
            problem = session.no_processes = session.not_for_processes
        if problem is None:  # they would be, if they cost nothing
            price = session.price
            start_s = max(start_s, price.start_s)
            problem = why_no_processes(facts.replace(start_s=start_s, share_s=price.share_s))
        return problem

    def _try_processes(self) -> Generator[None, Delivered, str]:
        """Returns what was wrong with worker processes."""
        workers = self._facts().needed()
        self.engine = self._best  # goes on meanwhile
        for count in (1, workers):
            problem = yield from self._start_workers(workers, count)
            if problem is not None:
                return problem
        engine: Found = ("processes", workers)
        try:
            yield from self._try(engine, self._facts().possible(workers))
        except TrialFailedError as error:
            self.is_trying = False
            self._session.no_processes = f"{error}"
            self.engine = self._best
            return self._session.no_processes
        return "worker processes did not help"

    def _start_workers(self, workers: int, count: int) -> Generator[None, Delivered, str | None]:
        """Returns why so many of the workers do not start; None if they have."""
        price = self._session.price
        while True:
            is_ready = self._prepare(workers, count)
            if is_ready is None:
                return self._session.no_processes
            processes = self._session.processes(workers)
            start_s = processes.start_s
            if is_ready:
                price.start_s, price.share_s = start_s, processes.share_s
            problem = None
            if count == 1 and start_s >= price.start_s:  # by now it is dearer than was thought
                problem = self._why_no_processes(start_s)
            if problem:
                if not is_ready:
                    price.start_s = 2 * start_s  # at least; it is not tried before that would pay
                processes.close()
                return problem
            if is_ready:
                return None
            yield  # they start while the stream goes on as it was

    def _prepare(self, workers: int, count: int) -> bool | None:
        """Have so many of the worker processes started?  None if they cannot be had."""
        session = self._session
        processes = session.processes(workers)
        try:
            return processes.prepare(count)
        except TryAgainError:
            return False  # the loader was closed meanwhile
        except (LoaderxError, OSError, MemoryError) as error:
            session.no_processes = f"{error}" or type(error).__name__
            session.is_unsendable = isinstance(error, TypeError)  # as a PicklingError is
            processes.close()
            return None

    def can_start(self) -> bool:
        """Can what was found to be best still be had?"""
        if self.found is None or self.found[0] != "processes":
            return True
        return self.can_have(self.found[1], self.found[1])

    def can_have(self, workers: int, count: int) -> bool:
        """Can so many of the worker processes be had?  They need not have started yet."""
        return self._prepare(workers, count) is not None

    def _try(self, engine: Found, possible: float) -> Course:
        self.engine = engine
        self.is_trying = True
        enough = ENOUGH if possible > 0.2 * self._best_s else 3 * ENOUGH
        period = yield from self._measure_engine(self._best_s, enough)
        self.is_trying = False
        won = self._best_s - period
        if possible < LARGE_SHARE * self._best_s and won > 2 * possible:
            self._doubtful += 1  # the consumer became faster, and not by our doing
        elif won >= possible / 2:
            self._best, self._best_s = engine, period
        else:
            self._tried.add(engine)

    def _measure_engine(self, best_s: float, enough: int) -> Generator[None, Delivered, float]:
        """Returns the period between elements of the engine in use."""
        assert self.engine is not None
        workers = self.engine[1]
        seen = 0
        periods: list[float] = []
        while True:
            one = yield
            if one.engine != self.engine:
                continue
            seen += 1
            if seen <= 2 or one.period_s is None:  # the first had to wait for the workers to start
                continue
            periods.append(one.period_s)
            count, taken = len(periods), sum(periods)
            period = taken / count
            # A slow batch weighs more than a wrong choice.
            few = 2 if best_s < 0.005 else ENOUGH
            losing = count >= few and taken > SHORT_S and period > best_s
            if losing or (count >= enough and taken >= ENOUGH_S):
                # One thread delivers evenly, several in bursts: there only the mean says much.
                return median(periods) if workers == 1 else period


def median(values: list[float]) -> float:
    """The middle value (the `statistics` module would double the time to import loaderx)."""
    return sorted(values)[len(values) // 2]
