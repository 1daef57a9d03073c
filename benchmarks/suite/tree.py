"""A process with all its descendants: their CPU time, their memory, and their end (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep

PR_SET_CHILD_SUBREAPER = 36
stop = threading.Event()
"""Once it is set, whatever runs is ended, in whichever thread: a signal reaches only the first."""


class StoppedError(Exception):
    """The whole run is about to end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``cpu_s`` counts every process of the tree, from start to end."""

    code: int
    cpu_s: float
    peak_mb: float | None
    took_s: float
    late: bool
    errors: str


def adopt_orphans() -> None:
    """Whoever outlives its parent becomes our child, so that its time can be counted."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(
    command: list[str],
    environment: dict[str, str],
    folder: Path,
    timeout_s: float,
    sample_s: float | None = None,
) -> Outcome:
    """Runs a command to its end.  With ``sample_s``, its memory is looked at so often."""
    log = folder / "errors.txt"
    begun = perf_counter()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    peak, late = 0.0, False
    try:
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if stop.is_set():
                raise StoppedError
            if perf_counter() - begun > timeout_s:
                late = True
                os.killpg(process.pid, signal.SIGKILL)
                _, status, used = os.wait4(process.pid, 0)
                break
            if sample_s is not None:
                peak = max(peak, pss_mb(process.pid))
            sleep(sample_s or 0.01)
    except BaseException:  # Ctrl-C: nothing may go on without us
        clear_up(process.pid)
        raise
    took = perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu = used.ru_utime + used.ru_stime + clear_up(process.pid)
    text = log.read_text(errors="replace")
    return Outcome(process.returncode, cpu, peak or None, took, late, text)


def clear_up(session: int) -> float:
    """Ends what is left of a session.  Returns the CPU time that it had used.

    Not only of a process group: workers may have groups of their own, against Ctrl-C.
    """
    cpu, deadline = 0.0, perf_counter() + 5
    while perf_counter() < deadline:
        left = members(session)
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # somebody else has to collect it
                done, _, used = os.wait4(pid, os.WNOHANG)
                cpu += used.ru_utime + used.ru_stime if done else 0.0
        sleep(0.01)
    return cpu


def members(session: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            *_, own = stat.read_text().rpartition(")")[2].split()[:4]
            if int(own) == session:
                found.append(int(stat.parent.name))
    return found


class CpuClock:
    """CPU seconds, user and system, of this process's session: its workers, and those ended.

    Looking through `/proc` takes milliseconds itself, so that is done outside of the interval.
    """

    def __init__(self) -> None:
        others = _others_cpu_s()
        self._begun = _own_cpu_s() + others

    def elapsed_s(self) -> float:
        own = _own_cpu_s()
        return own + _others_cpu_s() - self._begun


def _own_cpu_s() -> float:
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        total += used.ru_utime + used.ru_stime
    return total


def _others_cpu_s() -> float:
    ticks = 0
    for pid in members(os.getsid(0)):
        if pid != os.getpid():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))  # with those that it has waited for
    return ticks / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):  # it has just ended
            for task in os.listdir(f"/proc/{one}/task"):
                with contextlib.suppress(OSError):
                    children = Path(f"/proc/{one}/task/{task}/children").read_text()
                    found += map(int, children.split())
    return found


def pss_mb(pid: int) -> float:
    """The memory of the tree; what n processes share counts for each of them as 1/n."""
    total = 0
    for one in descendants(pid):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
            total += sum(int(kb) for kb in re.findall(r"^Pss:\s+(\d+) kB", text, re.M))
    return total * 1024 / 1e6
