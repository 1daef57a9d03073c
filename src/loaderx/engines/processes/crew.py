"""The workers of one run, their slots, and what happens when one of them dies.

Nothing here runs by itself: there is no thread.  Tasks lie ready in a pipe, so the workers go on
while the consumer trains, and everything that has to be noticed is noticed when the consumer comes
for its next element.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import time
import weakref
from collections.abc import Iterator
from typing import Any

from loaderx.engines.base import Noted, closed_error
from loaderx.engines.processes import failures, wire
from loaderx.engines.processes.limits import tight_limits
from loaderx.engines.processes.ship import Shipment, ShippingError
from loaderx.engines.processes.slots import Form, Slot
from loaderx.engines.processes.staff import Staff, Worker
from loaderx.engines.signals import SignalsDeferred
from loaderx.errors import LoaderxError, one_line, warn_user
from loaderx.memory import COUNTS_REFERENCES, Pool

HELD_SLOTS = 4  # for elements that the user holds; when more are held, they are copied out
MOST_DEATHS = 3  # of workers with the same task, or while they start
GRACE_S = 0.5  # for a worker to end by itself
LOCK_PATIENCE_S = 5.0


class Task:
    """One step, the slot it is made in, and what came of it."""

    __slots__ = (
        "deaths", "error", "fate", "form", "is_done", "is_forgotten", "notes", "number", "others",
        "since", "slot", "step", "warned_s",
    )  # fmt: skip

    def __init__(self, number: int, step: int, slot: Slot) -> None:
        self.number = number
        self.step = step
        self.slot = slot
        self.deaths = 0
        self.fate = ""  # how its last worker died
        self.since = time.monotonic()
        self.warned_s = 0.0
        self.is_done = False
        self.is_forgotten = False
        self.form: Form | None = None
        self.others: list[Any] = []
        self.notes: Any = None
        self.error: BaseException | None = None


class Crew:
    """Worker processes that can be given tasks."""

    def __init__(self, shipment: Shipment, workers: int, window: int, started: int) -> None:
        self.warnings: list[str] = []  # to be given when it suits
        self._worker_warnings: set[str] = set()
        self.warned_s = 0.0
        self.hired = 0  # how often the loader had been closed when it was given out
        self.launched = time.monotonic()
        self._open: dict[int, Task] = {}  # handed out, not reported yet
        self._numbers = 0
        self._bad_starts = 0
        self._pool = Pool()
        self._set_back = shipment.set_back
        with SignalsDeferred():  # whatever is made here must be known to who gives it back
            self._staff = staff = Staff(shipment, workers)
            # Dropping a crew ends its workers.  At exit `_close_up` does that.
            weakref.finalize(self, staff.release).atexit = False
            self.window = window = min(window, staff.capacity)
            try:
                self._spare = [staff.new_slot() for _ in range(window + HELD_SLOTS)][::-1]
            except BaseException:
                staff.release()
                raise
            self.start(started)

    def start(self, count: int) -> None:
        """Starts the first so many workers, as far as they have not been started."""
        try:
            for worker in self._staff.workers[:count]:
                if worker.process is None:
                    self._staff.launch(worker)
        except BaseException:
            self._staff.release()
            raise

    # Handing out.

    def hand_out(self, step: int, must: bool = False) -> Task | None:
        """Gives a step to whoever is free first; None if there is no slot to make it in.

        If it ``must`` be, a slot is added: all may be taken by tasks that nobody wants any more.
        """
        slot = self._free_slot()
        if slot is None:
            gc.collect(0)  # JAX may let go of an array only then
            slot = self._free_slot()
        if slot is None and must:
            slot = self._staff.new_slot()
        if slot is None:
            return None
        self._numbers += 1
        task = Task(self._numbers, step, slot)
        self._open[task.number] = task
        self._send(task)
        return task

    def _send(self, task: Task) -> None:
        os.write(self._staff.tasks_in, wire.TASK.pack(task.number, task.step, task.slot.start))

    def _free_slot(self) -> Slot | None:
        spare = self._spare
        for number in range(len(spare) - 1, -1, -1):  # the most recently used is warm
            if spare[number].is_free:
                return spare.pop(number)
        return None

    def _put_back(self, slot: Slot) -> None:
        """A slot is not needed any more by its task; the user may still hold it."""
        self._spare.append(self._staff.retire(slot) if slot.is_retired else slot)

    @property
    def is_ours(self) -> bool:
        """False in a fork of the process that started the workers."""
        return self._staff.owner == os.getpid()

    def forget(self, tasks: list[Task]) -> None:
        """Takes back tasks that nobody wants any more.  Those under way are left to end."""
        for task in tasks:
            task.is_forgotten = True
            if task.is_done:
                self._put_back(task.slot)
        if not self._open:
            return
        with self._at_the_board():
            for task in self._waiting():
                if task.is_forgotten:
                    del self._open[task.number]
                    self._put_back(task.slot)
                else:
                    self._send(task)

    # Taking in.

    def are_ready(self, count: int) -> bool:
        """Have the first so many workers started?  Looks, but does not wait."""
        self.attend(0.0)
        return all(worker.is_ready for worker in self._staff.workers[:count])

    @property
    def is_ready(self) -> bool:
        """Has every worker started?"""
        return self.are_ready(len(self._staff.workers))

    @property
    def start_s(self) -> float:
        """CPU seconds that the first worker took to start, or has taken so far."""
        return self._staff.start_s(self._staff.workers[0])

    def element(self, task: Task) -> Any:
        """The element of a task that is done; raises its error."""
        if task.error is not None:
            self._put_back(task.slot)
            raise task.error
        form = task.form
        assert form is not None
        # When there is no slot to go on with, this one is made free at once.
        starved = form.in_slot and not any(slot.is_free for slot in self._spare)
        leaves: list[Any]
        if starved or not COUNTS_REFERENCES:
            leaves = task.slot.copies(form, self._pool)
        else:
            leaves = task.slot.leaves(form)
        self._put_back(task.slot)
        if task.others:
            others = iter(task.others)
            for number, place in enumerate(form.places):
                if place is None:
                    leaves[number] = next(others)
        value = form.structure.build(leaves)
        return value if task.notes is None else Noted(value, *task.notes)

    def attend(self, timeout_s: float) -> bool:
        """Waits for something to happen and deals with it; False if nothing did."""
        staff = self._staff
        if staff.are_gone:
            raise closed_error()
        events = staff.waiting.poll(timeout_s * 1000)
        dead = []
        for descriptor, _ in events:
            if descriptor == staff.reports_out:
                self._read_reports()
            else:
                dead.append(staff.by_lifeline[descriptor])
        if not events and timeout_s:  # a fork of the worker may hold its end of the lifeline
            dead = [one for one in staff.workers if one.process and one.process.poll() is not None]
        for worker in dead:
            self._replace(worker)
        return bool(events or dead)

    def _read_reports(self) -> None:
        most = 64 * wire.REPORT.size
        while True:
            try:
                raw = os.read(self._staff.reports_out, most)
            except BlockingIOError:
                return
            for report in wire.REPORT.iter_unpack(raw):
                self._note(*report)
            if len(raw) < most:
                return

    def _note(
        self, number: int, who: int, kind: int, form: int, flags: int, start: int, length: int
    ) -> None:
        worker = self._staff.workers[who]
        self._bad_starts = 0
        if kind == wire.READY:
            worker.is_ready, worker.start_s = True, length * 1e-6
            return
        if kind == wire.UNFIT:
            said, _, trace = self._staff.board.read_note(who).rstrip().partition("\n")
            error = ShippingError(
                "the dataset cannot be sent to worker processes: a worker failed to build it: "
                f"{said}"
            )
            error.add_note(f"\nIn {worker.name}:\n{trace}")
            raise error
        task = self._open.pop(number, None)
        if task is None:
            return
        task.slot.is_retired = bool(flags & wire.KEPT)
        tail = task.slot.read(start, length) if flags & wire.TAIL else b""
        if kind == wire.FAILED:
            task.error = failures.unpack(tail, worker.name, task.step)
            failures.note_what_is_missing(task.error, self._set_back)
        else:
            self._take_in(task, worker, form, tail)
        task.is_done = True
        if task.is_forgotten:
            self._put_back(task.slot)

    def _take_in(self, task: Task, worker: Worker, form: int, tail: bytes) -> None:
        try:
            if tail:
                described, others, task.notes, warning = pickle.loads(tail)
                if warning and warning not in self._worker_warnings:  # each worker finds it
                    self._worker_warnings.add(warning)
                    self.warnings.append(warning)
                if described:
                    worker.forms[form] = pickle.loads(described)
                    worker.forms.pop(form - wire.FORMS_KEPT, None)
                task.others = pickle.loads(others) if others else []
            task.form = worker.forms[form]
        except Exception as error:
            task.error = LoaderxError(
                f"step {task.step}: what {worker.name} made could not be read: {one_line(error)}"
            )

    # Faults.

    def _replace(self, worker: Worker) -> None:
        """A worker has died: another takes its place, and what it held is made again."""
        assert worker.process is not None
        fate = _fate(worker.process.wait())
        started = worker.is_ready
        with self._at_the_board():
            # Reports are read at the board: whoever has taken another task since has reported.
            self._read_reports()
            held, _ = self._staff.board.claimed(worker.number)
            self._staff.board.claim(worker.number, 0)
            waiting = self._waiting()
            known = {task.number for task in waiting} | self._claims()
            lost = [task for number, task in self._open.items() if number not in known]
            for task in [*lost, *waiting]:
                self._hand_out_again(task, fate, is_culprit=task.number == held)
        culprit = next((task for task in lost if task.number == held), None)
        if not started:
            self._bad_starts += 1
            if self._bad_starts >= MOST_DEATHS:
                raise LoaderxError(
                    f"worker processes die while they start ({fate}). What they said is on the "
                    f"standard error of this process.{tight_limits()} Does this machine let a "
                    "process start Python, and has it memory left?"
                )
        self._staff.launch(worker)
        if culprit is None:
            said = f"worker {worker.number} died ({fate}) and has been replaced"
        elif culprit.is_done:
            return  # three times now, or nobody wants it: that is told another way
        else:
            said = (
                f"worker {worker.number} died ({fate}) while it made step {culprit.step}. It has "
                "been replaced, and the step is made again"
            )
        self.warnings.append(f"{said}: the stream stays the same.")

    def _hand_out_again(self, task: Task, fate: str, is_culprit: bool) -> None:
        if is_culprit:
            task.deaths += 1
            task.fate = task.fate or fate
        if task.is_forgotten or task.deaths >= MOST_DEATHS:
            del self._open[task.number]
            task.is_done = True
            if task.is_forgotten:
                self._put_back(task.slot)
        else:
            self._send(task)

    def _claims(self) -> set[int]:
        return {self._staff.board.claimed(worker.number)[0] for worker in self._staff.workers}

    def _waiting(self) -> list[Task]:
        """Takes all tasks out of the pipe.  Only at the board: nobody else takes any then."""
        found: list[Task] = []
        while True:
            try:
                raw = os.read(self._staff.tasks_out, wire.TASK.size)
            except BlockingIOError:
                return found
            found.append(self._open[wire.TASK.unpack(raw)[0]])

    @contextlib.contextmanager
    def _at_the_board(self) -> Iterator[None]:
        board = self._staff.board
        if not board.try_lock(LOCK_PATIENCE_S):
            raise LoaderxError(
                "a worker process has been stopped (by a debugger, or SIGSTOP) while it took a "
                "step. The loader can be iterated anew."
            )
        try:
            yield
        finally:
            board.unlock()

    def is_starting(self) -> bool:
        """Has no worker been seen at work yet?"""
        return not any(worker.is_ready for worker in self._staff.workers)

    def holder(self, task: Task) -> tuple[Worker, float] | None:
        """The worker that makes a task, and for how long it has been doing that."""
        for worker in self._staff.workers:
            number, seconds = self._staff.board.claimed(worker.number)
            if number == task.number and worker.is_ready:
                return worker, seconds
        return None

    def stack(self, worker: Worker) -> str:
        """Where a worker is."""
        return failures.shown_stacks(self._staff.stack(worker))

    def warn(self) -> None:
        """Gives the warnings that have come up."""
        said, self.warnings = self.warnings, []
        for text in said:
            warn_user(text)

    def give_up(self, task: Task) -> None:
        """Nobody is going to ask for the element of a task."""
        self._put_back(task.slot)

    def close(self, grace_s: float = GRACE_S) -> None:
        """Ends the workers.  One that is in the middle of a step gets a moment, then is killed."""
        self._staff.release(grace_s)


def _fate(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; the system does that when memory runs out" if -code == signal.SIGKILL else ""
    return f"killed by {name}{hint}"
