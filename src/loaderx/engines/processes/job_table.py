"""The jobs of a pool of workers: sent when there is room, reported, and sent again after a death.

A job waits in the consumer's queue until the pipes have room for it and a slot is available; then
it is in the pipe, then with a worker, then reported.  It keeps its slot until its result is taken
or it is cancelled.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from loaderx.engines.base import Made
from loaderx.engines.processes import exceptions, protocol
from loaderx.engines.processes.jobs import Job, TaskNames, step_of
from loaderx.engines.processes.pickling import PicklingError, ResetAttribute
from loaderx.engines.processes.protocol import Report
from loaderx.engines.processes.slots import MOST_LAYOUTS, ElementLayout
from loaderx.engines.processes.ulimits import tight_limits
from loaderx.engines.processes.worker_processes import WorkerProcess, WorkerProcesses, exit_reason
from loaderx.engines.raised_ahead import RaisedAhead
from loaderx.errors import LoaderxError, one_line
from loaderx.memory import COUNTS_REFERENCES, Pool

MOST_DEATHS = 3  # of workers on the same task, or while starting
LOCK_PATIENCE_S = 5.0


class JobTable:
    """All jobs under way.

    `add` and `take` acquire its lock, which no thread holds while waiting.  Callers of the other
    methods hold it.
    """

    def __init__(
        self,
        processes: WorkerProcesses,
        names: TaskNames,
        reset_attributes: list[ResetAttribute],
        warnings: deque[str],
    ) -> None:
        self._processes = processes
        self._names = names
        self._reset_attributes = reset_attributes
        self._warnings = warnings
        self._worker_warnings: set[str] = set()
        self.cancelled: deque[Job] = deque()  # any code may add to it, without a lock
        self.lock = threading.Lock()  # of the jobs and the processes
        self.queue: deque[Job] = deque()  # not sent yet
        self.sent: dict[int, Job] = {}  # sent, not reported yet
        self._under_way = 0  # jobs submitted whose results were not taken yet
        self._numbers = 0
        self._bad_starts = 0
        self._layouts: dict[bytes, ElementLayout] = {}
        self._memory = Pool()

    def add(self, job: Job) -> None:
        """Adds a job, and sends it if there is room."""
        with self.lock:
            if self.cancelled:
                self.drop_cancelled()
            self._under_way += 1
            self._numbers += 1
            job.number = self._numbers
            self.queue.append(job)
            self.send_queued()

    def take(self, job: Job) -> list[Any]:
        """Closes a finished job and returns the leaves in its slot; none if already closed."""
        leaves: list[Any] = []
        with self.lock:
            if job.is_closed:
                return leaves
            layout, slot = job.layout, job.slot
            if layout is not None:
                assert slot is not None
                # With no slot left, copy the leaves out so that this one is free at once.
                is_last = self._processes.slots.is_exhausted() and layout.in_slot
                if is_last or not COUNTS_REFERENCES:
                    leaves = slot.copies(layout, self._memory)
                else:
                    leaves = slot.leaves(layout)
            self._close(job)
            if self.queue:
                self.send_queued()
        return leaves

    def send_queued(self, *, must: bool = False) -> None:
        """Sends as many jobs as the pipes hold, and as there are slots for.

        With ``must``, the first job is sent in any case: a slot is added for it if needed.
        """
        while self.queue and len(self.sent) < self._processes.capacity:
            slot = self._processes.slots.take(self._under_way, must=must)
            if slot is None:
                return
            job, must = self.queue.popleft(), False
            job.slot, job.sent_at = slot, time.monotonic()
            self.sent[job.number] = job
            self._write(job)

    def send_first(self, job: Job) -> None:
        """Sends an awaited job before the others, in an additional slot if needed.

        All slots may hold elements that the user holds, or results that are needed only later.
        """
        is_new = job.slot is None and not (job.is_closed or job.is_done or job.is_cancelled)
        if is_new and len(self.sent) < self._processes.capacity:
            self.queue.remove(job)
            self.queue.appendleft(job)
            self.send_queued(must=True)

    def _write(self, job: Job) -> None:
        assert job.slot is not None
        head = protocol.pack_head(job.number, job.slot.number, len(job.task))
        os.write(self._processes.tasks_in, head + job.words)

    def _close(self, job: Job) -> None:
        """Closes a job: its result was taken, or will never be asked for."""
        job.is_closed = True
        self._under_way -= 1
        slot, job.slot = job.slot, None
        if slot is not None:
            self._processes.slots.put_back(slot)

    def drop_cancelled(self) -> None:
        """Drops cancelled jobs and frees their slots, except for jobs that a worker has started."""
        is_sent = False
        while self.cancelled:
            job = self.cancelled.popleft()
            if job.is_closed:
                continue
            if job.number in self.sent:
                is_sent = True
                continue
            if job.slot is None and not job.is_done:
                self.queue.remove(job)
            self._close(job)
        if is_sent:
            self._recall_cancelled()

    def _recall_cancelled(self) -> None:
        """Takes cancelled jobs out of the pipe.  Those already with a worker run to their end."""
        with self._claims_locked():
            for job in self._read_tasks():
                if job.is_cancelled:
                    del self.sent[job.number]
                    self._close(job)
                else:
                    self._write(job)

    def note(self, report: Report) -> None:
        """Handles a worker's report."""
        worker = self._processes.workers[report.worker]
        self._bad_starts = 0
        if report.kind == protocol.READY:
            worker.is_ready, worker.start_s = True, report.took_ns * 1e-9
            return
        if report.kind == protocol.NOT_STARTED:
            raise self._start_error(worker, is_init=bool(report.flags & protocol.INIT))
        job = self.sent.pop(report.job, None)
        if job is None:
            return
        slot = job.slot
        assert slot is not None
        slot.is_kept = bool(report.flags & protocol.KEPT)
        began = report.began_ns * 1e-9
        job.made = Made(worker.name, began, began + report.took_ns * 1e-9)
        tail = b""
        if report.flags & protocol.TAIL:
            tail = slot.read_bytes(report.tail_start, report.tail_bytes)
        if report.kind == protocol.FAILED:
            job.error = exceptions.unpack(tail, worker.name, step_of(job.task))
            exceptions.note_reset_attributes(job.error, self._reset_attributes)
        else:
            job.layout = worker.layouts.get(report.layout)
            if tail or job.layout is None:
                self._read_tail(job, worker, report.layout, tail)
        if job.is_cancelled:
            self._close(job)
        else:
            job.is_done = True

    def _start_error(self, worker: WorkerProcess, *, is_init: bool) -> LoaderxError:
        packed = self._processes.claims.read_error(worker.number)
        said = exceptions.text_of(packed)
        error = (
            LoaderxError(f"`init` of engines.Processes failed in {worker.name}: {said}")
            if is_init
            else PicklingError(
                "the dataset cannot be sent to worker processes: a worker failed to build it: "
                f"{said}"
            )
        )
        error.__cause__ = exceptions.unpack(packed, worker.name, None)
        return error

    def _read_tail(self, job: Job, worker: WorkerProcess, layout: int, tail: bytes) -> None:
        try:
            if tail:
                described, others, job.measured, warning = pickle.loads(tail)
                if warning and warning not in self._worker_warnings:  # every worker reports it
                    self._worker_warnings.add(warning)
                    self._warnings.append(warning)
                if described:
                    worker.layouts[layout] = self._layout_of(described)
                    worker.layouts.pop(layout - protocol.LAYOUTS_KEPT, None)
                job.others = pickle.loads(others) if others else []
                for other in job.others:
                    if type(other) is RaisedAhead:
                        exceptions.note_reset_attributes(other.error, self._reset_attributes)
            job.layout = worker.layouts[layout]
        except Exception as error:
            job.error = LoaderxError(
                f"{self._names.name(job.task)}: what {worker.name} made could not be read: "
                f"{one_line(error)}"
            )

    def _layout_of(self, described: bytes) -> ElementLayout:
        """One object per layout, whichever worker describes it: slots cache arrays by layout."""
        layout: ElementLayout | None = self._layouts.get(described)
        if layout is None:
            if len(self._layouts) >= MOST_LAYOUTS:  # ragged data: none comes twice
                self._layouts.clear()
            layout = self._layouts[described] = pickle.loads(described)
        return layout

    def replace(self, worker: WorkerProcess) -> None:
        """Replaces a worker that died, and sends the job that it held again."""
        assert worker.process is not None
        how = exit_reason(worker.process.wait())
        has_started, claims = worker.is_ready, self._processes.claims
        with self._claims_locked():
            # Reports are read under the lock: a worker that took another task since has reported.
            for report in protocol.read_reports(self._processes.reports_out):
                self.note(report)
            held, _ = claims.claimed(worker.number)
            claims.claim(worker.number, 0)
            waiting = self._read_tasks()
            found = {job.number for job in waiting}
            found |= {claims.claimed(one.number)[0] for one in self._processes.workers}
            lost = [job for number, job in self.sent.items() if number not in found]
            for job in lost:
                self._send_again(job, how, is_culprit=job.number == held)
            for job in waiting:
                self._write(job)
        if not has_started:
            self._bad_starts += 1
            if self._bad_starts >= MOST_DEATHS:
                raise LoaderxError(
                    f"worker processes die while they start ({how}). What they said is on the "
                    f"standard error of this process.{tight_limits()} Does this machine let a "
                    "process start Python, and has it memory left?"
                )
        self._processes.start(worker)
        culprit = next((job for job in lost if job.number == held), None)
        if culprit is None:
            self._warnings.append(
                f"worker {worker.number} died ({how}) and has been replaced: the stream stays the "
                "same."
            )
        elif not (culprit.is_done or culprit.is_closed):  # else it is reported elsewhere
            self._warnings.append(
                f"worker {worker.number} died ({how}) while it made "
                f"{self._names.name(culprit.task)}. It has been replaced, and the "
                f"{self._names.noun(culprit.task)} is made again: the stream stays the same."
            )

    def _send_again(self, job: Job, how: str, is_culprit: bool) -> None:
        if is_culprit:
            job.deaths += 1
            job.fate = job.fate or how
        if job.is_cancelled:
            del self.sent[job.number]
            self._close(job)
        elif job.deaths >= MOST_DEATHS:
            del self.sent[job.number]
            job.is_done = True
        else:
            self._write(job)

    def _read_tasks(self) -> list[Job]:
        """Takes all tasks out of the pipe.  The caller holds the claim lock."""
        found: list[Job] = []
        while True:
            try:
                data = os.read(self._processes.tasks_out, 64 * protocol.TASK_BYTES)
            except BlockingIOError:
                return found
            found += [self.sent[number] for number in protocol.unpack_jobs(data)]

    @contextlib.contextmanager
    def _claims_locked(self) -> Iterator[None]:
        """Keeps workers from taking tasks."""
        claims = self._processes.claims
        if not claims.try_lock(LOCK_PATIENCE_S):
            raise LoaderxError(
                "a worker process has been stopped (by a debugger, or SIGSTOP) while it took a "
                "task. The loader can be iterated anew."
            )
        try:
            yield
        finally:
            claims.unlock()
