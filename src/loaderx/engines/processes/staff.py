"""The worker processes themselves: launched, stopped, and what they share with the consumer."""

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
from loaderx.engines.processes import wire
from loaderx.engines.processes.limits import above_standard, explained
from loaderx.engines.processes.ship import Shipment
from loaderx.engines.processes.slots import Form, Slot
from loaderx.engines.signals import SignalsDeferred

_START = Path(__file__).with_name("start.py")
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


class Worker:
    """A worker process as the consumer sees it.  Its number stays when it is replaced."""

    __slots__ = ("forms", "is_ready", "lifeline", "number", "process", "start_s")

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.lifeline: socket.socket | None = None
        self.forms: dict[int, Form] = {}
        self.is_ready = False
        self.start_s = 0.0  # CPU seconds that it took to start

    @property
    def name(self) -> str:
        return f"worker {self.number} (pid {self.pid})"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


class Staff:
    """Processes, pipes and shared memory of a crew.  Knows nothing of what they work on."""

    def __init__(self, shipment: Shipment, workers: int) -> None:
        self.owner = os.getpid()
        self._shipment: Shipment | None = shipment
        self._slots: list[Slot] = []
        self._made_slots = 0
        self.are_gone = False
        self._is_releasing = False
        self._descriptors: list[int] = []
        self.workers = [Worker(number) for number in range(workers)]
        self.by_lifeline: dict[int, Worker] = {}
        try:
            with explained("worker processes need pipes and shared memory"):
                self._set_up(workers)
        except BaseException:
            self._close_all()
            raise
        held = min(
            wire.pipe_holds(self.tasks_in, wire.TASK.size),
            wire.pipe_holds(self.reports_out, wire.REPORT.size),
        )
        self.capacity = max(1, held // 2 - workers)  # tasks that can be under way
        self.waiting = select.poll()
        self.waiting.register(self.reports_out, select.POLLIN)
        _staffs.add(self)

    def _set_up(self, workers: int) -> None:
        self.tasks_out, self.tasks_in = self._pipe()
        self.reports_out, self._reports_in = self._pipe()
        self._stacks_out, self._stacks_in = self._pipe()
        os.set_blocking(self._stacks_in, False)  # a worker must not wait while it shows them
        self.ring = self._keep(wire.shared_file("loaderx-batches"))
        self._lock = self._keep(wire.shared_file("loaderx-lock"))
        os.ftruncate(self.ring, wire.SLOTS_AT)
        self.board = wire.Board(self.ring, self._lock, workers)

    def _pipe(self) -> tuple[int, int]:
        with above_standard():
            out, into = os.pipe()
        self._descriptors += [out, into]
        os.set_blocking(out, False)
        return out, into

    def _keep(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return descriptor

    def _close_all(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def new_slot(self) -> Slot:
        slot = Slot(self.ring, self._made_slots)
        end = slot.start + wire.STRIDE
        with explained(f"worker processes need a sparse file of {end} bytes in memory"):
            os.ftruncate(self.ring, end)  # a hole in a file costs nothing
        self._made_slots += 1
        self._slots.append(slot)
        return slot

    def retire(self, slot: Slot) -> Slot:
        """Another slot in place of one that a worker still looks at."""
        self._slots.remove(slot)
        return self.new_slot()

    def launch(self, worker: Worker) -> None:
        """Starts a process for a worker, also in place of one that died."""
        self._disconnect(worker)
        worker.forms, worker.is_ready = {}, False
        # Ctrl-C must not come between the start of a process and the knowledge of it.
        with (
            SignalsDeferred(),
            explained(f"worker process {worker.number + 1} of {len(self.workers)} cannot start"),
            above_standard() as closed,
        ):
            self._launch(worker, closed)

    def _launch(self, worker: Worker, closed: list[int]) -> None:
        assert self._shipment is not None
        ours, theirs = socket.socketpair()
        descriptors = (
            self._shipment.descriptor,
            self.ring,
            self.tasks_out,
            self._reports_in,
            self._stacks_in,
            theirs.fileno(),
            self._lock,
        )
        name = f"loaderx-{worker.number}"
        try:
            worker.process = subprocess.Popen(
                [
                    sys.executable,
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    *_start_command(),
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
        """Each worker's libraries use its share of the cores, and no accelerator."""
        share = str(max(1, cores() // len(self.workers)))
        limits = {name: share for name in _THREAD_LIMITS if name not in os.environ}
        return {**os.environ, **limits, "JAX_PLATFORMS": "cpu"}

    def _disconnect(self, worker: Worker) -> None:
        if worker.lifeline is not None:
            self.waiting.unregister(worker.lifeline)
            del self.by_lifeline[worker.lifeline.fileno()]
            worker.lifeline.close()
            worker.lifeline = None

    def start_s(self, worker: Worker) -> float:
        """CPU seconds that a worker took to start, or has taken so far if the system tells."""
        if worker.is_ready or worker.process is None:
            return worker.start_s
        try:
            with open(f"/proc/{worker.pid}/stat", "rb") as file:
                used = file.read().rpartition(b")")[2].split()[11:13]
        except OSError:
            return 0.0
        return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")

    def stack(self, worker: Worker) -> str:
        """Where a worker is: the stacks of its threads."""
        self._read_stacks()  # what an earlier question left behind
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
        """Ends all processes and gives everything back.  A finaliser may call it."""
        if self._is_releasing or os.getpid() != self.owner:
            return
        with SignalsDeferred():  # a second Ctrl-C must not end this halfway
            self._is_releasing = True
            self._descriptors.remove(self.tasks_in)
            os.close(self.tasks_in)  # a worker that waits for a task ends now
            self._wait(grace_s)
            for worker in self.workers:
                if worker.process is not None and worker.process.poll() is None:
                    worker.process.kill()
            self._wait(_KILL_PATIENCE_S)
            for worker in self.workers:
                self._disconnect(worker)
            self.are_gone = True
            for slot in self._slots:
                slot.give_back()
            self.board.close()
            self._close_all()
            self._shipment = None

    def _wait(self, patience_s: float) -> None:
        until = time.monotonic() + patience_s
        for worker in self.workers:
            while worker.process is not None and worker.process.poll() is None:
                if time.monotonic() >= until:
                    return
                time.sleep(0.001)


def _start_command() -> list[str]:
    """What the interpreter of a worker is to run; ``start.py`` is in it, so that it can be told."""
    if _START.exists():
        return [str(_START)]
    # loaderx lies in a zip file, where the interpreter finds no script: it is given the text.
    text = pkgutil.get_data(__package__, _START.name)
    assert text is not None
    return ["-c", text.decode(), str(_START)]


_staffs: weakref.WeakSet[Staff] = weakref.WeakSet()


@atexit.register
def _close_up() -> None:
    for staff in list(_staffs):
        staff.release()
