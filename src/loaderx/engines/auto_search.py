"""Finds the engine by measuring, while the stream goes on.

What is measured is how long the consumer waits for a batch (W, while batches are made inline) and
what it does itself until it asks for the next one (C).  A program of JAX's compiles its step when
it has the first batch, and often again when it has the second: so C is the lower quartile of the
last times, and longer ones are left out.  Batches may take microseconds, and a unit of a stream
minutes, so time is what ends a measurement, never a number of batches alone.  A unit that took half
a second is enough by itself.

It stays inline if W is under 150 us, or under 3 % of W + C: nothing could be won.  Otherwise it
tries as many threads as W and C ask for.  The best that n workers could do is a batch every
max(C, W / n); they are kept if at least half of that came true, or a tenth of the time was won.  If
batches take 2 ms or more, a trial begins with a single task, and while the consumer waits for it,
it takes short naps: a thread that holds the GIL lets nobody wake in time.  Then worker processes
are started instead, beside the stream, if they are worth their price (`auto_decision`); so they are
where threads were tried in vain, or must not read the source.  Since a batch depends on its step
alone, changing engines between two steps changes nothing in the data.

What was decided is looked at every second while the consumer waits for a fifth of its time or more.
What was tried and lost is tried again after 5 s, 20 s, 80 s, ...  It all goes on over the loader's
iterators, however short they are.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Literal, TypeAlias

from loaderx.engines.auto_decision import (
    FAST_S,
    LARGE_SHARE,
    SLOW_S,
    SMALL_SHARE,
    START_S,
    TOO_SHORT,
    Facts,
    say,
    why_inline,
    why_no_processes,
)
from loaderx.engines.base import Pending, TryAgainError
from loaderx.errors import LoaderxError
from loaderx.memory import COUNTS_REFERENCES
from loaderx.reading.lookahead import FillAgainError

if TYPE_CHECKING:
    from loaderx.engines.auto import AutoSession

KEPT = 16  # times that are remembered
ENOUGH_S = 0.03  # for a look at what is made inline
TRIAL_S = 0.1
LONG_S = 0.5  # an element that takes so long is enough by itself
LONG_OWN_S = 0.25  # beyond what is usual: then the consumer did something else, such as compiling
NAP_S = 0.5e-3
PROBE_S = 0.1  # of naps
HELD = 0.6  # of this time somebody held the GIL: nearly all of it, since naps are part of it
POLL_NAPS = 20  # from one look at workers that start to the next
LOOK_S = 1.0  # until the next look, while the consumer waits
REST_S = 2.0  # the same if it does not; twice as long each time
MOST_REST_S = 60.0
RESTING = 64  # elements that are made without measuring; twice as many each time
CHUNK_S = 0.25  # that these may take
CHECK_AGAIN_S = 5.0  # until the next trial after one that was lost
FAR = 1 << 48  # tasks to go: no stream that ends is so long

Found: TypeAlias = tuple[Literal["threads", "processes"], int]


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
        if not self.count:
            return False
        if self.is_probing:  # it is not needed if nobody waits
            return self.count > 3 and self.waited_s < LARGE_SHARE * self.count * self._made_s
        return self.count % self.engine[1] == 0 and self.seconds >= TRIAL_S

    def probe(self, took_s: float) -> bool | None:
        """A nap took so long.  Says whether the GIL is held; None: it is not known yet."""
        self._nap_s += took_s
        self._late_s += took_s - NAP_S
        return None if self._nap_s < PROBE_S else self._late_s > HELD * self._nap_s


class Search:
    """Says which engine to use, from one element to the next.

    It does not keep the session alive: so a loader that is dropped is gone at once.
    """

    def __init__(self, session: AutoSession, clock: Clock) -> None:
        self._session_ref = weakref.ref(session)
        self._work, self._clock = session.work, clock
        self._noun = session.work.noun
        self._busy = threading.Lock()  # consumers in several threads: one of them is enough
        self.reason = "there was too little to measure yet"
        self._left: int | None = None  # tasks
        self._ran_s = 0.0  # that the loader's iterators have run
        self._last = 0.0  # when an element was handed out
        self._owns: deque[float] = deque(maxlen=KEPT)  # what the consumer did in between
        self._tried: set[str] = set()  # kinds of workers that have lost
        self._lost = 0  # searches that found nothing better
        self._again_at = self._rest_s = self._rest_begun = 0.0
        self._holds_gil = False
        self._start_s = START_S
        self._failed: Found | None = None  # worker processes that were given up
        self._start_over()

    def _start_over(self) -> None:
        """Measures what is made inline."""
        self.found: Found | None = None  # the best by now; None: the caller's thread
        self.trial: Trial | None = None
        self._starting = 0  # worker processes
        self._meanwhile: Found | None = None  # in use while they start
        self._best_s = self._look_at = 0.0
        self._measure_again()

    def _measure_again(self) -> None:
        self.resting = 0  # elements that may be made in the caller's thread without being reported
        self._chunk = RESTING
        self._waits: deque[float] = deque(maxlen=KEPT)  # for what is made inline
        self._stretch = Stretch()

    @property
    def _session(self) -> AutoSession:
        session = self._session_ref()
        assert session is not None
        return session

    @property
    def engine(self) -> Found | None:
        """For the tasks that are submitted now; None: the caller's thread."""
        return self._meanwhile or self.found if self.trial is None else self.trial.engine

    @property
    def is_careful(self) -> bool:
        """Is one task at a time enough, since its engine may not be the right one?"""
        return self._meanwhile is not None or (self.trial is not None and self.trial.is_probing)

    # What happens.

    def begin(self, tasks: int | None) -> None:
        """An iterator begins: what passed since the last element says nothing."""
        self._last, self._left = 0.0, tasks
        found = self.found
        if found is not None and found[0] == "processes" and self.prepare(found[1]) is None:
            self._start_over()

    def delivered(self, engine: Found | None, wait_s: float, count: int = 1) -> None:
        """So many elements were handed out, for which the consumer waited."""
        now = self._clock.now()
        own_s = max(0.0, now - wait_s - self._last) if self._last else None
        self._last = now
        if not self._busy.acquire(blocking=False):
            return
        try:
            self._count(count, wait_s, own_s)
            self._note(engine, wait_s / count, None if own_s is None else own_s / count)
        except BaseException:
            self._start_over()
            raise
        finally:
            self._busy.release()

    def _count(self, elements: int, wait_s: float, own_s: float | None) -> None:
        if own_s is not None:
            self._owns.append(own_s / elements)
            if len(self._owns) > 1:  # the first may be anything
                self._ran_s += min(own_s, elements * most_own(self._owns))
        self._ran_s += wait_s
        if self._left is not None:
            self._left = max(0, self._left - elements)

    def _note(self, engine: Found | None, wait_s: float, own_s: float | None) -> None:
        if self._starting:
            self._poll_start()
        trial = self.trial
        if trial is not None:
            if engine == trial.engine:
                trial.note(wait_s, own_s, most_own(self._owns))
                if trial.is_over:
                    self._judge(trial)
        elif engine == self.found and not self._starting:
            self._stretch.add(wait_s, own_s)
            if engine is None:
                self._waits.append(wait_s)
            if self._clock.now() >= self._look_at and self._is_enough():
                self._look()

    def _is_enough(self) -> bool:
        if self.found is not None:
            return self._stretch.count >= self.found[1]
        count, made_s = len(self._waits), self._made_s
        if made_s < FAST_S:
            return count == KEPT or self._stretch.seconds > ENOUGH_S
        # A batch that is the first also opens files; a unit has many batches.
        is_long = count > 1 or self._work.makes_units
        if is_long and self._waits[-1] >= LONG_S and not self._work.only_gathers:
            return True
        return self._is_own_known and self._stretch.seconds >= ENOUGH_S

    def watch(self, engine: Found | None, pending: Pending | None) -> None:
        """Looks around while the consumer waits for a task; a `FillAgainError` asks for more."""
        naps = 0
        while self._is_watched(engine) and (pending is None or not pending.done()):
            begun = self._clock.now()
            self._clock.nap(NAP_S)
            naps += 1
            if self._busy.acquire(blocking=False):
                try:
                    has_changed = self._look_around(engine, self._clock.now() - begun, naps)
                finally:
                    self._busy.release()
                if has_changed:
                    raise FillAgainError

    def _is_watched(self, engine: Found | None) -> bool:
        if self._starting:
            return engine is not None or self._made_s >= LONG_S
        trial = self.trial
        return trial is not None and trial.is_probing and engine == trial.engine

    def _look_around(self, engine: Found | None, took_s: float, naps: int) -> bool:
        if self._starting:
            return naps % POLL_NAPS == 0 and self._poll_start()
        trial = self.trial
        if trial is None or engine != trial.engine:
            return False
        is_held = trial.probe(took_s)
        if is_held is None:
            return False
        trial.is_probing = False
        if is_held:
            self._holds_gil, self.trial = True, None
            self._try_others(meanwhile=trial.engine)
        else:
            trial.restart()
        return True

    def rested(self, count: int) -> None:
        """So many elements were made in the caller's thread, without being reported."""
        now = self._clock.now()
        took_s = now - self._rest_begun
        self._count(count, took_s, None)
        is_slower = took_s > 4 * count * self._best_s
        self._last, self._rest_begun = 0.0, now
        self._rest(took_s / count)
        if now >= self._look_at or is_slower or not self.resting:
            self._look_at = 0.0
            self._measure_again()

    def _rest(self, period_s: float) -> None:
        count = int(CHUNK_S / max(1e-6, period_s))
        self.resting = min(self._chunk, count) if count > 3 else 0
        self._chunk *= 2

    def is_failed_trial(self, engine: Found | None, error: Exception) -> bool:
        """Did a task fail in a worker process that is being tried, which may be why it failed?"""
        if engine is None or engine[0] != "processes" or error.__cause__ is None:
            return False  # without a cause, it is not the user's code: workers died of it, say
        if engine == self._failed:
            return True  # it was begun before the first that failed was known
        if self.trial is None or engine != self.trial.engine:
            return False
        if not self._busy.acquire(blocking=False):
            return False
        try:
            self._failed, self.trial = engine, None
            self._session.no_processes = f"in a worker process, {error}"
            self._try_others()
        finally:
            self._busy.release()
        return True

    # What is known.

    @property
    def _made_s(self) -> float:
        if self._work.only_gathers:
            return usual(self._waits)  # they all take the same, but for what others do meanwhile
        waits = sorted(self._waits)
        return waits[len(waits) // 2] if waits else 0.0

    @property
    def _is_own_known(self) -> bool:
        """Is it known what the consumer does?  It may have compiled once or twice by now."""
        return len(self._owns) > (2 if usual(self._owns) > LONG_S else 1)

    @property
    def _own_s(self) -> float:
        return usual(self._owns) if self._is_own_known else 0.0

    def _facts(self) -> Facts:
        session, left, made_s, own_s = self._session, self._left, self._made_s, self._own_s
        best_s = self._best_s if self.found is not None else made_s + own_s
        return Facts(
            made_s=made_s,
            own_s=own_s,
            best_s=best_s,
            max_workers=session.max_workers,
            cores=session.cores,
            thread_safe=self._work.thread_safe,
            only_gathers=self._work.only_gathers,
            left_s=None if left is None or left > FAR else left * best_s,
            ran_s=self._ran_s,
            start_s=self._start_s,
            no_processes=session.no_processes,
            is_unsure=bool(self._work.unsure),
            holds_gil=self._holds_gil,
            noun=self._noun,
        )

    # Decisions.

    def _look(self) -> None:
        stretch, found = self._stretch, self.found
        if found is None:
            why = why_inline(self._facts())
            if why:
                self.reason = why
                self._rest_s = min(MOST_REST_S, 2 * self._rest_s or REST_S)
                self._look_later(self._rest_s)
            else:
                self._try_others()
            return
        self._stretch, self._best_s = Stretch(), stretch.period_s
        facts = self._facts()
        if stretch.waited_s < LARGE_SHARE * stretch.seconds:
            self._look_later(LOOK_S)
        elif self._is_outdated(facts):
            self._start_over()
        else:
            self._try_others()

    def _is_outdated(self, facts: Facts) -> bool:
        """Is inline clearly better by now, or are there few processes, for a slower consumer?"""
        kind, workers = self.found or ("threads", 0)
        inline_s = facts.made_s + facts.own_s
        is_slower = facts.best_s > (1 + LARGE_SHARE) * inline_s
        return is_slower or (kind == "processes" and facts.needed() >= 2 * workers)

    def _try_others(self, meanwhile: Found | None = None) -> None:
        """Begins a trial that is worth it, or goes on with the best that was found."""
        self._meanwhile = None
        if self._tried and self._clock.now() >= self._again_at:
            self._tried.clear()
            self._lost, self._holds_gil = self._lost + 1, False
        facts, found = self._facts(), self.found
        threads = 0 if "threads" in self._tried else facts.threads()
        if threads and (found is None or found[0] == "threads") and threads > (found or (0, 0))[1]:
            self.trial = Trial(("threads", threads), facts.made_s, probes=self._probes(threads))
            return
        problem = self._why_no_processes(facts)
        if problem is None:
            self._starting = facts.needed()
            self._meanwhile = None if found else meanwhile
            self._poll_start()
        else:
            self._settle(problem)

    def _probes(self, workers: int) -> bool:
        may_hold = COUNTS_REFERENCES and not self._work.only_gathers and not self._holds_gil
        return workers > 1 and may_hold and self._made_s >= SLOW_S

    def _judge(self, trial: Trial) -> None:
        self.trial = None
        facts, period_s = self._facts(), trial.period_s
        # A consumer that became faster meanwhile did so by itself.
        own_s = min(facts.own_s, usual(trial.owns)) if trial.owns else facts.own_s
        base_s = min(facts.best_s, facts.made_s + own_s)
        possible_s = base_s - max(own_s, facts.made_s / trial.engine[1])
        least_s = max(SMALL_SHARE / 2 * base_s, min(possible_s, LARGE_SHARE * base_s) / 2)
        if base_s - period_s >= least_s:
            self.found, self._best_s = trial.engine, period_s
        elif facts.needed() <= trial.engine[1] or self._holds_gil:  # else it has too few workers
            self._tried.add(trial.engine[0])
            self._again_at = self._clock.now() + CHECK_AGAIN_S * 4 ** min(self._lost, 6)
        self._try_others()

    def _settle(self, problem: str) -> None:
        """Goes on with the best that was found."""
        session, facts, found = self._session, self._facts(), self.found
        session.keep_only(found)
        self._stretch, self._rest_s = Stretch(), 0.0
        is_over = self._tried and not problem.startswith(TOO_SHORT)
        wait_s = self._again_at - self._clock.now() if is_over else LOOK_S
        if found is None:
            self.reason = f"{self._why_no_threads(facts)}; {problem}".removesuffix("; ")
            if problem and problem == session.no_processes:  # workers would be worth it
                session.warn_of_workers(is_unsafe=not facts.thread_safe)
        else:
            inline_s = facts.made_s + facts.own_s
            self.reason = (
                f"a {self._noun} is handed out every {say(self._best_s)}, "
                f"inline every {say(inline_s)}"
            )
            if problem and problem == session.no_processes:
                self.reason += f"; {problem}"
        self._look_later(wait_s)

    def _why_no_threads(self, facts: Facts) -> str:
        if not facts.thread_safe:
            return facts.unsafe
        if self._holds_gil:
            return f"making a {self._noun} holds the GIL, so threads would wait for each other"
        period = say(facts.made_s + facts.own_s)
        return f"threads did not shorten the {period} from one {self._noun} to the next"

    def _look_later(self, seconds: float) -> None:
        self._rest_begun = now = self._clock.now()
        self._look_at = now + seconds
        if self.found is None:
            self._best_s = self._made_s + self._own_s
            self._rest(self._best_s)
            if not (self.resting or self._tried):  # measuring what is slow costs nothing
                self._look_at = min(self._look_at, now + LOOK_S / 10)

    # Worker processes.

    def _why_no_processes(self, facts: Facts) -> str | None:
        """None if worker processes are worth a trial."""
        session = self._session
        if self.found is not None and self.found[0] == "processes":
            return ""
        if "processes" in self._tried:
            return "worker processes did not help"
        problem = why_no_processes(facts)
        if problem is None and session.not_for_processes:
            problem = session.no_processes = session.not_for_processes
        return problem

    def _poll_start(self) -> bool:
        """Looks after workers that start; False if they are still at it, and worth it."""
        workers = self._starting
        is_ready = self.prepare(workers)
        if is_ready is None:
            return self._stop_starting(self._session.no_processes)
        start_s = self._session.processes(workers).start_s
        self._start_s = start_s if is_ready else max(start_s, self._start_s)
        problem = self._why_no_processes(self._facts())
        if problem is not None:
            # At least; it is not tried before that would pay.
            self._start_s = start_s if is_ready else max(START_S, 2 * start_s)
            return self._stop_starting(problem)
        if is_ready:
            self._starting, self._meanwhile = 0, None
            self.trial = Trial(("processes", workers), self._made_s, probes=False)
        return is_ready

    def _stop_starting(self, problem: str) -> bool:
        self._starting, self._meanwhile = 0, None
        self._settle(problem)
        return True

    def prepare(self, workers: int) -> bool | None:
        """Have the worker processes started?  None if they cannot be had."""
        session = self._session
        processes = session.processes(workers)
        try:
            return processes.prepare(workers)
        except TryAgainError:
            return False  # the loader was closed meanwhile
        except (LoaderxError, OSError, MemoryError) as error:
            session.no_processes = f"{error}" or type(error).__name__
            session.is_unsendable = isinstance(error, TypeError)  # as a PicklingError is
            processes.close()
            return None


def usual(owns: Iterable[float]) -> float:
    """What the consumer does between two elements, without what happens once: a lower quartile."""
    times = sorted(owns)
    return times[(len(times) - 1) // 4] if times else 0.0


def most_own(owns: Iterable[float]) -> float:
    """From here on a time is left out: nobody's step takes that much longer than the others."""
    return 4 * usual(owns) + LONG_OWN_S
