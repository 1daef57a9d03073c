"""The worker processes themselves: launched, stopped, and what they share with the consumer."""

from __future__ import annotations

import atexit
import os
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
from loaderx.engines.processes.ship import Shipment
from loaderx.engines.processes.slots import Form, Slot

_START = str(Path(__file__).with_name("start.py"))
_THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
_STACK_PATIENCE_S = 1.0


class Worker:
    """A worker process as the consumer sees it.  Its number stays when it is replaced."""

    __slots__ = ("forms", "is_ready", "lifeline", "number", "process")

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes]
        self.lifeline: socket.socket | None = None
        self.forms: dict[int, Form] = {}
        self.is_ready = False

    @property
    def name(self) -> str:
        return f"worker {self.number} (pid {self.process.pid})"


class Staff:
    """Processes, pipes and shared memory of a crew.  Knows nothing of what they work on."""

    def __init__(self, shipment: Shipment, workers: int) -> None:
        self.owner = os.getpid()
        self._shipment: Shipment | None = shipment
        self._slots: list[Slot] = []
        self._are_gone = False
        self.workers = [Worker(number) for number in range(workers)]
        self.by_lifeline: dict[int, Worker] = {}
        self.tasks_out, self.tasks_in = os.pipe()
        self.reports_out, self._reports_in = os.pipe()
        self._stacks_out, self._stacks_in = os.pipe()
        for descriptor in (self.tasks_out, self.reports_out, self._stacks_out):
            os.set_blocking(descriptor, False)
        self.ring = wire.shared_file("loaderx-batches")
        os.ftruncate(self.ring, wire.SLOTS_AT)
        self.board = wire.Board(self.ring, workers)
        self.waiting = select.poll()
        self.waiting.register(self.reports_out, select.POLLIN)
        _staffs.add(self)

    def new_slot(self) -> Slot:
        slot = Slot(self.ring, len(self._slots))
        self._slots.append(slot)
        os.ftruncate(self.ring, slot.start + wire.STRIDE)  # a hole in the file costs nothing
        return slot

    def launch(self, worker: Worker) -> None:
        """Starts a process for a worker, also in place of one that died."""
        assert self._shipment is not None
        self._disconnect(worker)
        worker.forms, worker.is_ready = {}, False
        ours, theirs = socket.socketpair()
        descriptors = (
            self._shipment.descriptor,
            self.ring,
            self.tasks_out,
            self._reports_in,
            self._stacks_in,
            theirs.fileno(),
        )
        name = f"loaderx-{worker.number}"
        try:
            worker.process = subprocess.Popen(
                [
                    sys.executable,
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    _START,
                    name,
                    str(worker.number),
                    str(len(self.workers)),
                    ",".join(map(str, descriptors)),
                ],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
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

    def stack(self, worker: Worker) -> str:
        """Where a worker is: the stacks of its threads."""
        self._read_stacks()  # what an earlier question left behind
        os.kill(worker.process.pid, signal.SIGUSR2)
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
        if self._are_gone or os.getpid() != self.owner:
            return
        self._are_gone = True
        os.close(self.tasks_in)  # a worker that waits for a task ends now
        processes = [worker.process for worker in self.workers if hasattr(worker, "process")]
        until = time.monotonic() + grace_s
        for process in processes:
            while grace_s and process.poll() is None and time.monotonic() < until:
                time.sleep(0.001)
        for process in processes:
            if process.poll() is None:
                process.kill()
        for process in processes:
            process.wait()
        for worker in self.workers:
            self._disconnect(worker)
        for descriptor in (
            self.tasks_out,
            self.reports_out,
            self._reports_in,
            self._stacks_out,
            self._stacks_in,
        ):
            os.close(descriptor)
        self.board.close()
        for slot in self._slots:
            slot.give_back()
        os.close(self.ring)
        self._shipment = None


_staffs: weakref.WeakSet[Staff] = weakref.WeakSet()


@atexit.register
def _close_up() -> None:
    for staff in list(_staffs):
        staff.release()
