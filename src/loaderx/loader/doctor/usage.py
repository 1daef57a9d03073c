"""What the system tells of threads and processes: CPU time, waiting for a CPU, reading of disks.

Only Linux tells it all.  What cannot be had is named, and never taken for zero.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterable
from statistics import median
from time import perf_counter, sleep
from typing import NamedTuple

_PID = re.compile(r"worker \d+ \(pid (\d+)\)")  # as worker processes of this machine are named


class Times(NamedTuple):
    """Seconds of some threads."""

    cpu: float = 0.0
    delayed: float = 0.0  # ready to run, without a CPU

    def __add__(self, other: Times) -> Times:  # type: ignore[override]
        return Times(self.cpu + other.cpu, self.delayed + other.delayed)

    def __sub__(self, other: Times) -> Times:
        return Times(self.cpu - other.cpu, self.delayed - other.delayed)


class ThreadClock:
    """The times of the thread that made it, quickly; zeros where the system does not tell them."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1

    def __call__(self) -> Times:
        if self._file < 0:
            return Times()
        cpu, delayed, _ = os.pread(self._file, 100, 0).split()
        return Times(int(cpu) / 1e9, int(delayed) / 1e9)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class Turns:
    """How long one more thread waits until Python lets it run: not at all, if nobody holds it."""

    EVERY_S = 0.02

    def __init__(self) -> None:
        self._waits, self._is_over = [0.0], False
        self._thread = threading.Thread(target=self._run, daemon=True, name="loaderx-turns")
        self._thread.start()

    def _run(self) -> None:
        clock = ThreadClock()
        while not self._is_over:
            before, began = clock(), perf_counter()
            sleep(self.EVERY_S)
            late = perf_counter() - began - self.EVERY_S
            self._waits.append(late - (clock() - before).delayed)

    def ended(self) -> float:
        """The usual seconds."""
        self._is_over = True
        self._thread.join()
        return max(0.0, median(self._waits))


class Usage:
    """The counters of this process and its workers, at one time."""

    def __init__(self, lanes: Iterable[str]) -> None:
        own = os.getpid()
        threads = {thread.name: thread.native_id for thread in threading.enumerate()}
        self.missing: set[str] = set()
        self.loop = self._times(own, threading.get_native_id())
        self.process = self._times(own)
        self.workers: dict[str, Times] = {}
        self.disk_bytes = self._disk_bytes(own)
        for lane in lanes:
            found = _PID.fullmatch(lane)
            if found:
                self.workers[lane] = self._times(int(found[1]))
                self.disk_bytes += self._disk_bytes(int(found[1]))
            elif (number := threads.get(lane)) is not None:
                self.workers[lane] = self._times(own, number)

    def _times(self, process: int, thread: int | None = None) -> Times:
        """Of a thread, or of all threads of a process."""
        folder, total, has_any = f"/proc/{process}/task", Times(), False
        with contextlib.suppress(OSError):
            for name in os.listdir(folder) if thread is None else [str(thread)]:
                with (
                    contextlib.suppress(OSError, ValueError),
                    open(f"{folder}/{name}/schedstat", encoding="ascii") as file,
                ):
                    cpu, delayed, _ = file.read().split()
                    total, has_any = total + Times(int(cpu) / 1e9, int(delayed) / 1e9), True
        if not has_any:
            self.missing.add("CPU time of threads (/proc/PID/task/TID/schedstat)")
        return total

    def _disk_bytes(self, process: int) -> int:
        with (
            contextlib.suppress(OSError, ValueError),
            open(f"/proc/{process}/io", encoding="ascii") as file,
        ):
            for line in file:
                name, _, value = line.partition(":")
                if name == "read_bytes":
                    return int(value)
        self.missing.add("reads of disks (/proc/PID/io)")
        return 0


class Used(NamedTuple):
    """What was used between two times."""

    loop: Times  # the thread of the loop
    in_next: Times  # the same, inside `next`
    process: Times
    workers: Times
    disk_bytes: int
    missing: frozenset[str]


def used_between(before: Usage, after: Usage, in_next: Times) -> Used:
    """The difference of two counts.  Workers that are not in both are left out."""
    workers, missing = Times(), before.missing | after.missing
    for lane, times in before.workers.items():
        now = after.workers.get(lane, Times())
        if now.cpu < times.cpu:
            missing.add("CPU time of workers that ended meanwhile")
        elif lane in after.workers:
            workers = workers + (now - times)
    return Used(
        after.loop - before.loop,
        in_next,
        after.process - before.process,
        workers,
        max(0, after.disk_bytes - before.disk_bytes),
        frozenset(missing),
    )
