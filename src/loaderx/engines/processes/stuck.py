"""Reports jobs that take long: the worker is stuck, was stopped, or has not started yet."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping

from loaderx.engines.processes import exceptions
from loaderx.engines.processes.jobs import Job, TaskNames
from loaderx.engines.processes.worker_processes import WorkerProcess, WorkerProcesses

START_PATIENCE_S = 30.0


class StuckCheck:
    """Checks the jobs that a thread waits for."""

    def __init__(
        self,
        processes: WorkerProcesses,
        names: TaskNames,
        sent: Mapping[int, Job],
        warnings: deque[str],
        timeout_s: float | None,
        replace_stuck: bool,
    ) -> None:
        self._processes = processes
        self._names = names
        self._sent = sent
        self._warnings = warnings
        self._timeout_s = timeout_s
        self._replace_stuck = replace_stuck
        self._warned_s = 0.0

    def check(self, job: Job) -> None:
        """Warns of a stuck worker, and kills it if that was asked for."""
        if self._timeout_s is None or job.number not in self._sent:
            return
        busy = list(self._busy())
        if not busy:
            self._check_unclaimed(job, self._timeout_s)
        # No worker may have this job yet, because another job keeps all of them busy.
        for worker, held, seconds in [one for one in busy if one[1] is job] or busy:
            self._check_worker(worker, held, seconds, self._timeout_s)

    def _busy(self) -> Iterator[tuple[WorkerProcess, Job, float]]:
        """The workers that have a job, and for how long."""
        for worker in self._processes.workers:
            number, seconds = self._processes.claims.claimed(worker.number)
            job = self._sent.get(number)
            if job is not None and worker.is_ready:
                yield worker, job, seconds

    def _check_worker(
        self, worker: WorkerProcess, job: Job, seconds: float, timeout_s: float
    ) -> None:
        if seconds < job.warned_s + timeout_s * self._names.work.steps(job.task):
            return
        job.warned_s = seconds * 2
        said = (
            f"{self._names.full_name(job.task)} has kept {worker.name} busy for {seconds:.2g} s; "
            "it may be stuck."
        )
        stack = exceptions.shown_stacks(self._processes.stack(worker))
        if self._replace_stuck:
            self._warnings.append(f"{said} It is stopped. It was here:\n{stack}")
            job.fate = f"stuck for {seconds:.2g} s"
            job.warned_s = 0.0
            os.kill(worker.pid, signal.SIGKILL)
        else:
            self._warnings.append(
                f"{said} It is here:\n{stack}\n(Processes(timeout_s=...) sets the time; with "
                "replace_stuck=True such a worker is replaced.)"
            )

    def _check_unclaimed(self, job: Job, timeout_s: float) -> None:
        """Warns of a job that no worker has: none has started yet, or one was stopped."""
        workers = self._processes.workers
        is_starting = not any(worker.is_ready for worker in workers)
        since = max(worker.started_at for worker in workers) if is_starting else job.sent_at
        seconds = time.monotonic() - since
        if seconds < self._warned_s + (START_PATIENCE_S if is_starting else timeout_s):
            return
        self._warned_s = seconds * 2
        if is_starting:
            self._warnings.append(
                f"worker processes have been starting for {seconds:.2g} s. They import what your "
                "functions need; is one of these imports waiting for something?"
            )
        else:
            self._warnings.append(
                f"{self._names.name(job.task)} has waited for a worker process for {seconds:.2g} "
                "s. Has one been stopped (by a debugger, or SIGSTOP)?"
            )
