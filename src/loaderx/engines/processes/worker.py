"""The life of a worker process: takes tasks, makes elements in their slots, reports.

It ends when the pipe of tasks does, and at once when the consumer is gone, however that went: its
end of the lifeline closes then, and the kernel kills whoever holds the other end.  Where the kernel
cannot, and where a fork of the consumer keeps the lifeline open, a thread looks every second.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import select
import signal
import sys
import threading
import time
import traceback
from typing import Any

from loaderx.engines.base import Noted, Work
from loaderx.engines.processes import failures, ship, wire
from loaderx.engines.processes.slots import Bench, Form
from loaderx.errors import RecordError, one_line
from loaderx.stages.global_generators import GlobalDraws

LOOK_S = 0.5


def main(name: str, number: int, workers: int, parent: int, descriptors: list[int]) -> None:
    """Runs a worker; called by `start.py`."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # not for programs that a function may run
    data, ring, tasks, reports, stacks, lifeline, lock = descriptors
    _watch(lifeline, parent)
    _show_name(name)
    faulthandler.enable()  # a crash in somebody's library says where
    faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
    board = wire.Board(ring, lock, workers)
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more
        try:
            work: Work = ship.unpack(data)
        except BaseException as error:
            said = " ".join(one_line(error).split())  # first: the end of a long note is cut off
            board.write_note(number, f"{said}\n{traceback.format_exc()}")
            os.write(reports, wire.REPORT.pack(0, number, wire.UNFIT, 0, 0, 0, 0))
            return
        took_us = int(time.process_time() * 1e6)
        os.write(reports, wire.REPORT.pack(0, number, wire.READY, 0, 0, 0, took_us))
        _Worker(number, work, board, Bench(ring), tasks, reports).run()


class _Worker:
    def __init__(
        self, number: int, work: Work, board: wire.Board, bench: Bench, tasks: int, reports: int
    ) -> None:
        self._number = number
        self._work = work
        self._board = board
        self._bench = bench
        self._tasks = tasks
        self._reports = reports
        self._forms: dict[tuple[Any, ...], int] = {}
        self._described = 0
        self._draws, self._modules = GlobalDraws(), len(sys.modules)

    def run(self) -> None:
        waiting = select.poll()
        waiting.register(self._tasks, select.POLLIN)
        while (task := self._take(waiting)) is not None:
            number, step, slot = task
            self._bench.lay_out(slot)
            report = self._make(number, step)
            if self._bench.is_kept():
                report = (*report[:4], report[4] | wire.KEPT, *report[5:])
            with contextlib.suppress(AttributeError, ValueError, OSError):
                sys.stdout.flush()  # a worker may be killed at any time; what it printed is out
            os.write(self._reports, wire.REPORT.pack(*report))

    def _take(self, waiting: Any) -> tuple[int, int, int] | None:
        """The next task, or None when there will be no more."""
        while True:
            with self._board.locked():
                try:
                    raw = os.read(self._tasks, wire.TASK.size)
                except BlockingIOError:
                    raw = None
                if raw:
                    number, step, slot = wire.TASK.unpack(raw)
                    self._board.claim(self._number, number)
                    return number, step, slot
            if raw is not None:
                return None
            waiting.poll()

    def _make(self, task: int, step: int) -> tuple[int, ...]:
        try:
            element = self._work(step, self._bench.lend)
            notes = None
            if type(element) is Noted:
                notes = element.failures, element.times
                element = element.value
            form, others = self._bench.place(element)
            del element
            return self._done(task, step, form, others, notes)
        except BaseException as error:
            tail = failures.pack(error)
            self._bench.clear()
            start = self._bench.write_tail(tail)
            return task, self._number, wire.FAILED, 0, wire.TAIL, start, len(tail)

    def _notice_draws(self) -> str | None:
        """A warning, if functions draw from the global generators.  Importing may draw as well."""
        if len(sys.modules) > self._modules:  # no telling who it was: look from here on
            self._draws, self._modules = GlobalDraws(), len(sys.modules)
        return self._draws.notice()

    def _done(
        self, task: int, step: int, form: Form, others: list[Any], notes: Any
    ) -> tuple[int, ...]:
        key = (form.structure, form.places)
        known = self._forms.get(key)
        number = known or self._described + 1
        tail, start, flags = b"", 0, 0
        warning = self._notice_draws()
        if known is None or others or notes or warning:
            try:
                described = b"" if known else ship.dumps(form)
                tail = ship.dumps((described, others and ship.dumps(others), notes, warning))
            except Exception as error:
                raise RecordError(
                    "the element cannot be sent from a worker process: "
                    f"{one_line(error)}. Make arrays, numbers or text of it in "
                    ".map(), or use engine='threads'.",
                    step=step,
                ) from error
            start, flags = self._bench.write_tail(tail), wire.TAIL
        if known is None:
            self._forms[key] = self._described = number
            if len(self._forms) > wire.FORMS_KEPT:
                del self._forms[next(iter(self._forms))]
        return task, self._number, wire.DONE, number, flags, start, len(tail)


def _watch(lifeline: int, parent: int) -> None:
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    thread = threading.Thread(target=_look, args=(lifeline, parent), daemon=True, name="lifeline")
    thread.start()


def _look(lifeline: int, parent: int) -> None:
    waiting = select.poll()
    waiting.register(lifeline, select.POLLHUP)
    while os.getppid() == parent and not waiting.poll(LOOK_S * 1000):
        pass
    os._exit(1)


def _show_name(name: str) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)
