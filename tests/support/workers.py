"""Worker processes and threads of this process, as the system sees them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path


def loader_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("loaderx")}


def worker_processes() -> list[str]:
    """Worker processes of this one, dying and dead ones that nobody waited for included."""
    try:  # run after every test, and most start no process
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    found = []
    for pid in children_of("self"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
            command = file.read()
            # A process that is dying has no command line.
            if "processes/worker_main.py" in command or not command:
                found.append(f"process {pid}")
    return found


def children_of(process: int | str) -> list[str]:
    """The processes that a process has started, by number; none where there is no /proc."""
    found, tasks = [], f"/proc/{process}/task"
    with contextlib.suppress(OSError):
        for thread in os.listdir(tasks):
            with contextlib.suppress(OSError), open(f"{tasks}/{thread}/children") as file:
                found += file.read().split()  # an error: a thread that has just ended
    return found


def wait_until_no_worker_is_left() -> list[str]:
    """The worker processes that are left after a while: one that was killed takes its time."""
    until = time.monotonic() + 60
    while worker_processes() and time.monotonic() < until:
        time.sleep(0.001)
    return worker_processes()


def pids():
    """Worker processes of this one, by number."""
    return sorted(int(one.split()[1]) for one in worker_processes())


def run_script(text, *, how="-c", timeout=60):
    """A newcomer's script, without a main guard."""
    text = textwrap.dedent(text)
    command = [sys.executable, "-c", text] if how == "-c" else [sys.executable, "-"]
    given = None if how == "-c" else text
    return subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=timeout, check=False
    )


def own_pss(pid):
    """The memory of a worker (PSS, kB) without the data and the slots that all of them share."""
    maps = re.split(
        r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text(), flags=re.M
    )
    own = (one for one in maps if "memfd:loaderx" not in one.partition("\n")[0])
    return sum(int(kb) for one in own for kb in re.findall(r"^Pss:\s+(\d+) kB", one, flags=re.M))


def once(path):
    """Is this the first time that anybody asks?"""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
