"""A run on a crew of worker processes, and the workshop that keeps the crew between runs."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import weakref
from collections import deque
from typing import Any

from loaderx.engines.base import Work, closed_error
from loaderx.engines.processes.crew import MOST_DEATHS, Crew, Task
from loaderx.engines.processes.ship import Shipment
from loaderx.errors import LoaderxError, RecordError

LOOK_S = 0.25  # how often a waiting consumer looks after its workers, and whether it was closed
START_PATIENCE_S = 30.0
PATIENCE_S = 10.0  # how long closing waits for a consumer in another thread


class ProcessesWorkshop:
    """Keeps the worker processes of a loader: the next epoch finds them ready."""

    def __init__(
        self,
        work: Work,
        workers: int,
        prefetch: int,
        timeout_s: float | None,
        replace_stuck: bool = False,
        free_share: float = 1.0,
    ) -> None:
        self.work = work
        self.workers = workers
        self.timeout_s = timeout_s
        self.replace_stuck = replace_stuck
        self._window = workers + prefetch
        self._free_share = free_share
        self._shipment: Shipment | None = None
        self._idle: list[Crew] = []
        self._closings = 0
        self.ship_s = self.start_s = 0.0  # what it took to share the work, and to start a worker

    def open(self, steps: range) -> ProcessesRun:
        return ProcessesRun(self, steps)

    def crew(self, started: int | None = None) -> Crew:
        """Workers for a run: those that are idle, or new ones.  At least so many are started."""
        started = self.workers if started is None else started
        closings = self._closings
        crew = self._idle_crew()
        if crew is None:
            crew = Crew(self._shared_work(), self.workers, self._window, started)
        else:
            crew.start(started)
        crew.hired = closings
        return crew

    def _shared_work(self) -> Shipment:
        shipment = self._shipment
        if shipment is None:
            begun = time.perf_counter()
            self._shipment = shipment = Shipment(self.work, self._free_share)
            self.ship_s = time.perf_counter() - begun
        return shipment

    def _idle_crew(self) -> Crew | None:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread was faster
                crew = self._idle.pop()
                if crew.is_ours:  # else this is a fork, and they are the parent's
                    return crew
        return None

    def take_back(self, crew: Crew) -> None:
        """A run needs its workers no more."""
        # One crew is enough to keep, and none that was at work when the loader was closed.
        if self._idle or crew.hired != self._closings:
            crew.close(0.0)
        else:
            self._idle.append(crew)

    def prepare(self, count: int) -> bool:
        """Starts so many workers if need be, and says whether they have started."""
        crew = self.crew(count)
        try:
            is_ready = crew.are_ready(count)
            self.start_s = crew.start_s
            return is_ready
        finally:
            self.take_back(crew)

    def close(self) -> None:
        self._closings += 1
        self._shipment = None
        while (crew := self._idle_crew()) is not None:
            crew.close()


class _Shift:
    """What a run holds of its crew, apart from it so that a finaliser can give it back."""

    __slots__ = ("crew", "pending", "workshop")

    def __init__(self, workshop: ProcessesWorkshop, crew: Crew) -> None:
        self.workshop = weakref.ref(workshop)
        self.crew: Crew | None = crew
        self.pending: deque[Task] = deque()

    def end(self) -> None:
        """The crew goes back to the workshop; tasks that are under way are forgotten."""
        crew, self.crew = self.crew, None
        if crew is None or not crew.is_ours:
            return
        workshop = self.workshop()
        try:
            crew.forget(list(self.pending))
        except Exception:
            workshop = None
        self.pending.clear()
        if workshop is None:
            crew.close(0.0)
        else:
            workshop.take_back(crew)

    def abandon(self) -> None:
        """Something was broken off in the middle: these workers are not used again."""
        crew, self.crew = self.crew, None
        self.pending.clear()
        if crew is not None:
            crew.close(0.0)


class ProcessesRun:
    """Elements in order, made by whoever is free."""

    def __init__(self, workshop: ProcessesWorkshop, steps: range) -> None:
        self._workshop = workshop
        self._position, self._stop = steps.start, steps.stop
        self._shift: _Shift | None = None
        self._is_closing = False
        self._lock = threading.RLock()  # two threads may share an iterator

    def next(self) -> Any:
        with self._lock:
            shift = self._shift or self._begin()
            crew, pending = shift.crew, shift.pending
            if self._is_closing:
                raise closed_error()
            if crew is None:
                raise StopIteration
            if not crew.is_ours:
                raise LoaderxError(
                    "this iterator's worker processes belong to the process from which this one "
                    "was forked. Make a new iterator here."
                )
            try:
                self._hand_out(crew, pending)
                if pending:
                    self._wait_for(crew, pending[0])
            except BaseException:
                shift.abandon()
                raise
            if not pending:
                shift.end()
                raise StopIteration
            task = pending.popleft()
            if task.deaths >= MOST_DEATHS:
                crew.give_up(task)
                raise self._deadly(task)
            return crew.element(task)

    def ready(self) -> bool:
        with self._lock:
            shift = self._shift
            if shift is None or shift.crew is None or not shift.crew.is_ours:
                return True
            crew, pending = shift.crew, shift.pending
            if not pending or pending[0].is_done or self._is_closing:
                return True
            try:
                crew.attend(0)
            except Exception:
                return True  # `next` will say what is wrong
            return pending[0].is_done

    def _begin(self) -> _Shift:
        self._shift = shift = _Shift(self._workshop, self._workshop.crew())
        weakref.finalize(self, shift.end).atexit = False
        return shift

    def _hand_out(self, crew: Crew, pending: deque[Task]) -> None:
        """Keeps the window full, as far as there are slots."""
        while len(pending) < crew.window and self._position < self._stop:
            task = crew.hand_out(self._position, must=not pending)
            if task is None:
                break
            self._position += 1
            pending.append(task)

    def _wait_for(self, crew: Crew, task: Task) -> None:
        timeout_s = self._workshop.timeout_s
        look_s = LOOK_S if timeout_s is None else min(LOOK_S, timeout_s / 4)
        while not task.is_done:
            if self._is_closing:
                raise closed_error()
            if not crew.attend(look_s) and timeout_s is not None:
                self._look_after(crew, task, timeout_s)
            if crew.warnings:
                crew.warn()

    def _look_after(self, crew: Crew, task: Task, timeout_s: float) -> None:
        """Nothing has happened for a while: is a worker stuck?"""
        found = crew.holder(task)
        if found is None:
            self._wonder(crew, task, timeout_s)
        if found is None or found[1] < task.warned_s + timeout_s:
            return
        worker, seconds = found
        task.warned_s = seconds * 2
        said = (
            f"step {task.step} ({self._workshop.work.describe(task.step)}) has kept {worker.name} "
            f"busy for {seconds:.2g} s; it may be stuck."
        )
        stack = crew.stack(worker)
        if self._workshop.replace_stuck:
            crew.warnings.append(f"{said} It is stopped. It was here:\n{stack}")
            task.fate = f"stuck for {seconds:.2g} s"
            task.warned_s = 0.0
            os.kill(worker.pid, signal.SIGKILL)
        else:
            crew.warnings.append(
                f"{said} It is here:\n{stack}\n(Processes(timeout_s=...) sets the time; with "
                "replace_stuck=True such a worker is replaced.)"
            )

    def _wonder(self, crew: Crew, task: Task, timeout_s: float) -> None:
        """Nobody has taken the step: because none has started yet, or none can?"""
        starting = crew.is_starting()
        seconds = time.monotonic() - (crew.launched if starting else task.since)
        if seconds < crew.warned_s + (START_PATIENCE_S if starting else timeout_s):
            return
        crew.warned_s = seconds * 2
        if starting:
            crew.warnings.append(
                f"worker processes have been starting for {seconds:.2g} s. They import what your "
                "functions need; is one of these imports waiting for something?"
            )
        else:
            crew.warnings.append(
                f"step {task.step} has waited for a worker process for {seconds:.2g} s. Has one "
                "been stopped (by a debugger, or SIGSTOP)?"
            )

    def _deadly(self, task: Task) -> RecordError:
        self.close()
        return RecordError(
            f"{MOST_DEATHS} worker processes in a row died of this step ({task.fate}). It is made "
            f"of {self._workshop.work.describe(task.step)}. With engine='inline' the same happens "
            "where a debugger can see it.",
            step=task.step,
        )

    def drain(self) -> None:
        """Takes on no new steps: what is under way is still delivered, then the run ends."""
        self._stop = self._position

    def interrupt(self) -> bool:
        self._is_closing = True
        return True

    def dismiss(self) -> None:
        """Ends the run; its workers are left to the workshop."""
        self.drain()
        self._is_closing = True
        if not self._lock.acquire(timeout=PATIENCE_S):
            return  # the consumer in the other thread ends it when it can
        try:
            if self._shift is not None:
                self._shift.end()
        finally:
            self._lock.release()

    def close(self) -> None:
        self.dismiss()

    def describe(self) -> tuple[str, str]:
        return f"processes({self._workshop.workers})", "it was asked for"
