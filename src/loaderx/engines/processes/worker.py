"""A worker process: takes tasks, makes elements in their slots, reports.

It ends when the task pipe closes, and at once when the consumer dies in any way: then the
consumer's end of the lifeline closes, and the kernel kills the holder of the other end.  Where the
kernel cannot, or a fork of the consumer keeps the lifeline open, a thread checks twice a second.
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
from typing import Any

from loaderx.chain.global_generators import GlobalDraws
from loaderx.engines.base import Measured, Task, Work, worker_error
from loaderx.engines.processes import exceptions, pickling, protocol
from loaderx.engines.processes.protocol import ClaimTable, Report, TakenTask
from loaderx.engines.processes.slots import ElementLayout, SlotWriter
from loaderx.errors import RecordError, one_line

CHECK_S = 0.5  # how often a worker checks whether the consumer is alive


def main(name: str, number: int, workers: int, parent: int, descriptors: list[int]) -> None:
    """Runs a worker; called by `worker_main.py`."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # not passed on to programs that a function runs
    data, slots, tasks, reports, stacks, lifeline, lock = descriptors
    _watch_consumer(lifeline, parent)
    _set_process_name(name)
    faulthandler.enable()  # a crash in a library shows its stack
    faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
    claims = ClaimTable(slots, lock, workers)
    with contextlib.suppress(BrokenPipeError):  # the consumer reads no more reports
        flags = protocol.INIT
        try:
            init = pickling.load_init(data)
            if init is not None:
                init(number, workers)
            flags = 0
            work: Work = pickling.load_work(data)
        except BaseException as error:
            claims.write_error(number, exceptions.pack(error, protocol.ERROR_BYTES))
            os.write(reports, Report(0, number, protocol.NOT_STARTED, flags=flags).pack())
            return
        took_ns = time.process_time_ns()
        os.write(reports, Report(0, number, protocol.READY, took_ns=took_ns).pack())
        _Worker(number, work, claims, slots, tasks, reports).run()


class _Worker:
    def __init__(
        self,
        number: int,
        work: Work,
        claims: ClaimTable,
        slots: int,
        tasks: int,
        reports: int,
    ) -> None:
        self._number = number
        self._work = work
        self._claims = claims
        self._writer = SlotWriter(slots)
        self._tasks = tasks
        self._reports = reports
        self._layouts: dict[tuple[object, ...], int] = {}
        self._described = 0  # layouts described so far
        self._draws, self._modules = GlobalDraws(), len(sys.modules)

    def run(self) -> None:
        waiting = select.poll()
        waiting.register(self._tasks, select.POLLIN)
        while (taken := self._take(waiting)) is not None:
            report = self._make(taken)
            with contextlib.suppress(AttributeError, ValueError, OSError):
                sys.stdout.flush()  # a worker may be killed at any time
            os.write(self._reports, report.pack())

    def _take(self, waiting: select.poll) -> TakenTask | None:
        """The next task; None when there will be no more."""
        while True:
            with self._claims.locked():
                try:
                    data = os.read(self._tasks, protocol.TASK_BYTES)
                except BlockingIOError:
                    data = None
                if data:
                    taken = protocol.unpack_task(data)
                    self._claims.claim(self._number, taken.job)
                    return taken
            if data is not None:
                return None
            waiting.poll()

    def _make(self, taken: TakenTask) -> Report:
        """Makes an element in the slot."""
        began_ns = time.perf_counter_ns()
        self._writer.begin(taken.slot)
        report = self._make_element(taken)
        flags = report.flags | (protocol.KEPT if self._writer.keeps_slot() else 0)
        took_ns = time.perf_counter_ns() - began_ns
        return report._replace(flags=flags, began_ns=began_ns, took_ns=took_ns)

    def _make_element(self, taken: TakenTask) -> Report:
        job, task = taken.job, taken.task
        try:
            element = self._work(task, self._writer.lend)
            measured = None
            if type(element) is Measured:
                measured = element.failures, element.times, element.read
                element = element.value
            layout, others = self._writer.write(element)
            del element
            return self._report(job, task, layout, others, measured)
        except BaseException as error:
            tail = exceptions.pack(worker_error(error, task))
            self._writer.clear()
            start = self._writer.write_bytes(tail)
            return Report(job, self._number, protocol.FAILED, 0, protocol.TAIL, start, len(tail))

    def _report(
        self,
        job: int,
        task: Task,
        layout: ElementLayout,
        others: list[Any],
        measured: tuple[Any, ...] | None,
    ) -> Report:
        key = (layout.structure, layout.places)
        known = self._layouts.get(key)
        number = known or self._described + 1
        tail, start, flags = b"", 0, 0
        warning = self._notice_draws()
        if known is None or others or measured or warning:
            try:
                described = b"" if known else pickling.dumps(layout)
                pickled = others and pickling.dumps(others)
                tail = pickling.dumps((described, pickled, measured, warning))
            except Exception as error:
                raise RecordError(
                    "the element cannot be sent from a worker process: "
                    f"{one_line(error)}. Make arrays, numbers or text of it in "
                    ".map(), or use engine='threads'.",
                    step=task[0] if len(task) == 1 else None,
                ) from error
            start, flags = self._writer.write_bytes(tail), protocol.TAIL
        if known is None:
            self._layouts[key] = self._described = number
            if len(self._layouts) > protocol.LAYOUTS_KEPT:
                del self._layouts[next(iter(self._layouts))]
        return Report(job, self._number, protocol.DONE, number, flags, start, len(tail))

    def _notice_draws(self) -> str | None:
        """A warning, if functions draw from the global generators.  Importing may draw as well."""
        if len(sys.modules) > self._modules:  # the import may have drawn: check from here on
            self._draws, self._modules = GlobalDraws(), len(sys.modules)
        return self._draws.notice()


def _watch_consumer(lifeline: int, parent: int) -> None:
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    threading.Thread(
        target=_exit_with_consumer, args=(lifeline, parent), daemon=True, name="lifeline"
    ).start()


def _exit_with_consumer(lifeline: int, parent: int) -> None:
    waiting = select.poll()
    waiting.register(lifeline, select.POLLHUP)
    while os.getppid() == parent and not waiting.poll(CHECK_S * 1000):
        pass
    os._exit(1)


def _set_process_name(name: str) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)
