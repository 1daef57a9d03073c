"""Worker processes and threads of this process, as the system sees them."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path


def loader_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("loaderx")}


def worker_processes() -> list[str]:
    """Worker processes of this one, dying and dead ones that nobody waited for included."""
    found = []
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            for pid in children.read_text().split():
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_text()
                    if "processes/start.py" in command or not command:  # whoever dies has none
                        found.append(f"process {pid}")
    return found


def wait_until_no_worker_is_left() -> list[str]:
    """The worker processes that are left after a while: one that was killed takes its time."""
    until = time.monotonic() + 60
    while worker_processes() and time.monotonic() < until:
        time.sleep(0.001)
    return worker_processes()
