"""Decides which engine to use, element by element; `loaderx.engines.auto` explains the method."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from loaderx.engines.auto.decision import FAST_S, START_S, TOO_SHORT, Facts
from loaderx.engines.auto.timing import KEPT, NAP_S, Clock, Found, Stretch, Trial, most_own, usual
from loaderx.engines.base import Pending, TryAgainError
from loaderx.errors import LoaderxError
from loaderx.reading.lookahead import FillAgainError

if TYPE_CHECKING:
    from loaderx.engines.auto.session import AutoSession

ENOUGH_S = 0.03  # inline work to measure before deciding
LONG_S = 0.5  # one element that takes this long is measurement enough
POLL_NAPS = 20  # naps between two checks of workers that are starting
LOOK_S = 1.0  # between two reviews of the decision
RESTING = 64  # elements made without measuring; doubled each time
CHUNK_S = 0.25  # the longest that they may take
CHECK_AGAIN_S = 5.0  # until the next trial after a lost one
FAR = 1 << 48  # stands for an endless stream: no finite one has this many tasks left


class Search:
    """Decides which engine to use, element by element.

    It does not keep the session alive, so that a dropped loader is freed at once.
    """

    def __init__(self, session: AutoSession, clock: Clock) -> None:
        self._session: AutoSession = weakref.proxy(session)
        self._work, self._clock = session.work, clock
        self._busy = threading.Lock()  # of several consumer threads, one measures
        self.reason = "there was too little to measure yet"
        self._left: int | None = None  # tasks
        self._ran_s = 0.0  # how long the loader's iterators have run
        self._last = 0.0  # when the last element was handed out
        self._owns: deque[float] = deque(maxlen=KEPT)  # the consumer's own times
        self._tried: set[str] = set()  # kinds of workers that lost a trial
        self._lost = 0  # searches that found nothing better
        self._again_at = self._rest_begun = 0.0
        self._holds_gil = False
        self._start_s = START_S
        self._start_over()

    def _start_over(self) -> None:
        """Goes back to inline, and measures it."""
        self.found: Found | None = None  # the best so far; None: the caller's thread
        self.trial: Trial | None = None
        self._starting = 0  # worker processes
        self._best_s = self._look_at = 0.0
        self._measure_again()

    def _measure_again(self) -> None:
        self.resting = 0  # elements to make in the caller's thread without reporting them
        self._chunk = RESTING
        self._waits: deque[float] = deque(maxlen=KEPT)  # for elements made inline
        self._stretch = Stretch()

    @property
    def engine(self) -> Found | None:
        """The engine for tasks submitted now; None: the caller's thread."""
        return self.found if self.trial is None else self.trial.engine

    @property
    def is_careful(self) -> bool:
        """True if tasks go one at a time, because the engine may not be the right one."""
        return self.trial is not None and self.trial.is_probing

    # Events.

    def begin(self, tasks: int | None) -> None:
        """An iterator begins: the time since the last element is not the consumer's own."""
        self._last, self._left = 0.0, tasks
        found = self.found
        if found is not None and found[0] == "processes" and self.prepare(found[1]) is None:
            self._start_over()

    def delivered(self, engine: Found | None, wait_s: float, count: int = 1) -> None:
        """Notes that ``count`` elements were handed out after a wait."""
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
            if len(self._owns) > 1:  # the first is not representative
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
        # Making the first batch also opens files.  A unit has many batches.
        is_long = count > 1 or self._work.makes_units
        if is_long and self._waits[-1] >= LONG_S and not self._work.only_gathers:
            return True
        return self._is_own_known and self._stretch.seconds >= ENOUGH_S

    def watch(self, engine: Found | None, pending: Pending | None) -> None:
        """Watches workers while the consumer waits; a `FillAgainError` asks for more tasks."""
        naps = 0
        while self._is_watched(engine, naps) and (pending is None or not pending.done()):
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

    def _is_watched(self, engine: Found | None, naps: int) -> bool:
        if self._starting:
            # A slow element is left to the workers if they start before it could be made here.
            return engine is not None or naps * NAP_S < self._made_s >= LONG_S / 2
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
            self._try_others()
        else:
            trial.restart()
        return True

    def rested(self, count: int) -> None:
        """Notes that ``count`` elements were made in the caller's thread without being reported."""
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
        """True if a task failed in a worker process on trial, which may be the cause."""
        if engine is None or engine[0] != "processes" or error.__cause__ is None:
            return False  # no cause, so not the user's code: workers died, for example
        if self._session.no_processes:
            return True  # submitted before the first failure was known
        is_tried = self.trial is not None and engine == self.trial.engine
        if not is_tried or not self._busy.acquire(blocking=False):
            return False
        try:
            self.trial = None
            self._session.no_processes = f"in a worker process, {error}"
            self._try_others()
        finally:
            self._busy.release()
        return True

    # Measurements.

    @property
    def _made_s(self) -> float:
        if self._work.only_gathers:
            return usual(self._waits)  # all take equally long, apart from interference
        waits = sorted(self._waits)
        return waits[len(waits) // 2] if waits else 0.0

    @property
    def _is_own_known(self) -> bool:
        """True if the consumer's own time is known: the first one or two may include compiling."""
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
            work=self._work,
            left_s=None if left is None or left > FAR else left * best_s,
            ran_s=self._ran_s,
            start_s=self._start_s,
            no_processes=session.no_processes,
            holds_gil=self._holds_gil,
        )

    # Decisions.

    def _look(self) -> None:
        stretch, found = self._stretch, self.found
        if found is None:
            why = self._facts().why_inline()
            if why:
                self.reason = why
                self._look_later(LOOK_S)
            else:
                self._try_others()
            return
        self._stretch, self._best_s = Stretch(), stretch.period_s
        if not stretch.is_waiting:
            self._look_later(LOOK_S)
        elif self._facts().is_outdated(*found):
            self._start_over()
        else:
            self._try_others()

    def _try_others(self) -> None:
        """Begins a worthwhile trial, or settles on the best engine found."""
        if self._tried and self._clock.now() >= self._again_at:
            self._tried.clear()
            self._lost, self._holds_gil = self._lost + 1, False
        facts, found = self._facts(), self.found
        threads = 0 if "threads" in self._tried else facts.threads()
        if threads and (found is None or found[0] == "threads") and threads > (found or (0, 0))[1]:
            self.trial = Trial(("threads", threads), facts.made_s, probes=facts.probes(threads))
            return
        problem = self._why_no_processes(facts)
        if problem is None:
            self._starting = facts.needed()
            self._poll_start()
        else:
            self._settle(problem)

    def _judge(self, trial: Trial) -> None:
        self.trial = None
        facts, (kind, workers) = self._facts(), trial.engine
        # If the consumer became faster meanwhile, that is not the trial's merit.
        own_s = min(facts.own_s, usual(trial.owns)) if trial.owns else facts.own_s
        if facts.is_better(trial.period_s, own_s, workers):
            self.found, self._best_s = trial.engine, trial.period_s
        elif facts.needed() <= workers or self._holds_gil:  # else it had too few workers
            self._tried.add(kind)
            self._again_at = self._clock.now() + CHECK_AGAIN_S * 4 ** min(self._lost, 6)
        self._try_others()

    def _settle(self, problem: str) -> None:
        """Uses the best engine found until the next review."""
        session, facts, found = self._session, self._facts(), self.found
        session.keep_only(found)
        self._stretch = Stretch()
        is_over = self._tried and not problem.startswith(TOO_SHORT)
        is_missed = problem != "" and problem == session.no_processes  # else worth a trial
        self.reason = facts.why_no_threads() if found is None else facts.gain()
        if problem and (found is None or is_missed):
            self.reason += f"; {problem}"
        if found is None and is_missed:
            session.warn_of_workers(is_unsafe=not self._work.thread_safe)
        self._look_later(self._again_at - self._clock.now() if is_over else LOOK_S)

    def _look_later(self, seconds: float) -> None:
        self._rest_begun = now = self._clock.now()
        self._look_at = now + seconds
        if self.found is None:
            self._best_s = self._made_s + self._own_s
            self._rest(self._best_s)
            if not (self.resting or self._tried):  # measuring slow elements costs nothing
                self._look_at = min(self._look_at, now + LOOK_S / 10)

    # Worker processes.

    def _why_no_processes(self, facts: Facts) -> str | None:
        """Why worker processes are not tried; None if they are worth a trial."""
        session = self._session
        if self.found is not None and self.found[0] == "processes":
            return ""
        if "processes" in self._tried:
            return "worker processes did not help"
        problem = facts.why_no_processes()
        if problem is None and session.not_for_processes:
            problem = session.no_processes = session.not_for_processes
        return problem

    def _poll_start(self) -> bool:
        """Checks workers that are starting; False if they still are, and are still worth it."""
        workers = self._starting
        is_ready = self.prepare(workers)
        if is_ready is None:
            problem: str | None = self._session.no_processes
        else:
            start_s = self._session.processes(workers).start_s
            self._start_s = start_s if is_ready else max(start_s, self._start_s)
            problem = self._why_no_processes(self._facts())
            if problem is not None and not is_ready:
                self._start_s = max(START_S, 2 * start_s)  # retried once that would pay
        if problem is not None:
            self._starting = 0
            self._settle(problem)
        elif is_ready:
            self._starting = 0
            self.trial = Trial(("processes", workers), self._made_s, probes=False)
        return not self._starting

    def prepare(self, workers: int) -> bool | None:
        """True if the worker processes have started; None if they cannot start."""
        processes = self._session.processes(workers)
        try:
            return processes.prepare(workers)
        except TryAgainError:
            return False  # the loader was closed meanwhile
        except (LoaderxError, OSError, MemoryError) as error:
            self._session.no_processes = f"{error}" or type(error).__name__
            self._session.is_unsendable = isinstance(error, TypeError)  # as a PicklingError is
            processes.close()
            return None
