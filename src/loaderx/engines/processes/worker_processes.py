"""The worker processes, and the pipes and the file that they share with the consumer."""

from __future__ import annotations

import atexit
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from pathlib import Path

from loaderx.engines.base import cores
from loaderx.engines.processes import protocol
from loaderx.engines.processes.pickling import SharedPayload
from loaderx.engines.processes.slot_pool import SlotPool
from loaderx.engines.processes.slots import ElementLayout
from loaderx.engines.processes.ulimits import above_standard, explained
from loaderx.engines.signals import SignalsDeferred
from loaderx.sources.adapt.kept_chunks import CHUNK_BYTES, chunk_budget

_MAIN = Path(__file__).with_name("worker_main.py")
_THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
_STACK_PATIENCE_S = 1.0
_KILL_PATIENCE_S = 10.0


class WorkerProcess:
    """A worker process as the consumer sees it.  Its number stays when it is replaced."""

    __slots__ = ("is_ready", "layouts", "lifeline", "number", "process", "start_s", "started_at")

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.lifeline: socket.socket | None = None
        self.layouts: dict[int, ElementLayout] = {}
        self.is_ready = False
        self.started_at = 0.0
        self.start_s = 0.0  # CPU seconds that it took to start

    @property
    def name(self) -> str:
        return f"worker {self.number} (pid {self.pid})"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


class WorkerProcesses:
    """Processes, pipes and shared memory.  Knows nothing about tasks."""

    def __init__(self, payload: SharedPayload, workers: int, window: int) -> None:
        self.owner = os.getpid()
        self._payload: SharedPayload | None = payload
        self._to_release = [True]  # the thread that pops it releases
        self.are_released = False
        self._descriptors: list[int] = []
        self.workers = [WorkerProcess(number) for number in range(workers)]
        self.by_lifeline: dict[int, WorkerProcess] = {}
        try:
            with explained("worker processes need pipes and shared memory"):
                self._open_shared(workers)
        except BaseException:
            self._close_descriptors()
            raise
        # Half of the pipes' capacity, since a pipe may be fragmented; minus one report per worker,
        # sent when it has started.
        held = min(
            protocol.pipe_capacity(self.tasks_in, protocol.TASK_BYTES),
            protocol.pipe_capacity(self.reports_out, protocol.REPORT_BYTES),
        )
        self.capacity = max(1, held // 2 - workers)  # tasks that can be in the pipes
        self.slots = SlotPool(self._file, min(window, self.capacity), self.capacity)
        self.waiting = select.poll()
        self.waiting.register(self.reports_out, select.POLLIN)
        _living.add(self)

    def _open_shared(self, workers: int) -> None:
        self.tasks_out, self.tasks_in = self._pipe()
        self.reports_out, self._reports_in = self._pipe()
        self._stacks_out, self._stacks_in = self._pipe()
        os.set_blocking(self._stacks_in, False)  # a worker must not block while writing them
        self._file = self._keep(protocol.shared_file("loaderx-batches"))
        self.lock = self._keep(protocol.shared_file("loaderx-lock"))
        os.ftruncate(self._file, protocol.SLOTS_AT)
        self.claims = protocol.ClaimTable(self._file, self.lock, workers)

    def _pipe(self) -> tuple[int, int]:
        with above_standard():
            out, into = os.pipe()
        self._descriptors += [out, into]
        os.set_blocking(out, False)
        return out, into

    def _keep(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return descriptor

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def start(self, worker: WorkerProcess) -> None:
        """Starts a process for a worker, also in place of one that died."""
        self._disconnect(worker)
        worker.layouts, worker.is_ready, worker.started_at = {}, False, time.monotonic()
        # Ctrl-C must not strike between the start of a process and its registration.
        with (
            SignalsDeferred(),
            explained(f"worker process {worker.number + 1} of {len(self.workers)} cannot start"),
            above_standard() as closed,
        ):
            self._start(worker, closed)

    def _start(self, worker: WorkerProcess, closed: list[int]) -> None:
        assert self._payload is not None
        ours, theirs = socket.socketpair()
        descriptors = (
            self._payload.descriptor,
            self._file,
            self.tasks_out,
            self._reports_in,
            self._stacks_in,
            theirs.fileno(),
            self.lock,
        )
        name = f"loaderx-{worker.number}"
        try:
            worker.process = subprocess.Popen(
                [
                    sys.executable,
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    *_main_command(),
                    name,
                    str(worker.number),
                    str(len(self.workers)),
                    str(self.owner),
                    ",".join(map(str, descriptors)),
                ],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if 1 in closed else None,
                stderr=subprocess.DEVNULL if 2 in closed else None,
                env=self._environment(),
                process_group=0,  # Ctrl-C in a terminal goes to the consumer alone
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        worker.lifeline = ours
        self.by_lifeline[ours.fileno()] = worker
        self.waiting.register(ours, select.POLLIN)

    def _environment(self) -> dict[str, str]:
        """Gives each worker its share of the cores and of decoded chunks, and no accelerator."""
        share = str(max(1, cores() // len(self.workers)))
        limits = {name: share for name in _THREAD_LIMITS if name not in os.environ}
        chunks = {CHUNK_BYTES: str(max(1, chunk_budget() // len(self.workers)))}
        return {**os.environ, **limits, **chunks, "JAX_PLATFORMS": "cpu"}

    def _disconnect(self, worker: WorkerProcess) -> None:
        if worker.lifeline is not None:
            self.waiting.unregister(worker.lifeline)
            del self.by_lifeline[worker.lifeline.fileno()]
            worker.lifeline.close()
            worker.lifeline = None

    def ended(self) -> list[WorkerProcess]:
        """Started workers whose processes have ended."""
        return [one for one in self.workers if one.process and one.process.poll() is not None]

    def start_s(self, worker: WorkerProcess) -> float:
        """CPU seconds that a worker took to start, or has taken so far where that is known."""
        if worker.is_ready or worker.process is None:
            return worker.start_s
        try:
            with open(f"/proc/{worker.pid}/stat", "rb") as file:
                used = file.read().rpartition(b")")[2].split()[11:13]
        except OSError:
            return 0.0
        return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")

    def stack(self, worker: WorkerProcess) -> str:
        """The stacks of a worker's threads."""
        self._read_stacks()  # left over from an earlier request
        os.kill(worker.pid, signal.SIGUSR2)
        waiting = select.poll()
        waiting.register(self._stacks_out, select.POLLIN)
        if not waiting.poll(_STACK_PATIENCE_S * 1000):
            return "it does not even answer a signal (it may wait for a disk)"
        time.sleep(0.05)  # it writes line by line
        return self._read_stacks().strip()

    def _read_stacks(self) -> str:
        parts = []
        while True:
            try:
                parts.append(os.read(self._stacks_out, 1 << 16))
            except BlockingIOError:
                return b"".join(parts).decode(errors="replace")

    def release(self, grace_s: float = 0.0) -> None:
        """Ends all processes and releases all resources.  A finaliser may call it.

        A worker in the middle of a task gets ``grace_s`` to end by itself, then it is killed.
        """
        if os.getpid() != self.owner:
            return  # in a fork: they belong to the parent
        with SignalsDeferred():  # a second Ctrl-C must not end this halfway
            try:
                self._to_release.pop()  # atomic: two threads may get here at once
            except IndexError:
                return
            self._descriptors.remove(self.tasks_in)
            os.close(self.tasks_in)  # a worker that waits for a task ends now
            self._wait(grace_s)
            for worker in self.workers:
                if worker.process is not None and worker.process.poll() is None:
                    worker.process.kill()
            self._wait(_KILL_PATIENCE_S)
            for worker in self.workers:
                self._disconnect(worker)
            self.slots.free_memory()
            self.claims.close()
            self._close_descriptors()
            self._payload = None
            self.are_released = True

    def _wait(self, patience_s: float) -> None:
        until = time.monotonic() + patience_s
        for worker in self.workers:
            while worker.process is not None and worker.process.poll() is None:
                if time.monotonic() >= until:
                    return
                time.sleep(0.001)


def exit_reason(code: int) -> str:
    """How a process ended, for messages."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; the system does that when memory runs out" if -code == signal.SIGKILL else ""
    return f"killed by {name}{hint}"


def _main_command() -> list[str]:
    """The interpreter arguments of a worker.

    They contain ``worker_main.py``, so that workers can be recognised by their command line.
    """
    if _MAIN.exists():
        return [str(_MAIN)]
    # loaderx is in a zip file, which the interpreter cannot run a script from: pass the text.
    text = pkgutil.get_data(__package__, _MAIN.name)
    assert text is not None
    return ["-c", text.decode(), str(_MAIN)]


_living: weakref.WeakSet[WorkerProcesses] = weakref.WeakSet()


@atexit.register
def _release_all() -> None:
    for processes in list(_living):
        processes.release()
