"""Who makes a file or folder: a mark in its name tells later whether that process still lives.

A mark is ``<pid>-<machine>``.  Numbers of processes mean something within one machine, one start of
it and one container alone; so the machine is a hash of these.  Of a process elsewhere nothing is
known: only time tells.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re

ABANDONED_S = 86_400.0  # without a write: whoever made it must have died
_MARK = re.compile(r"(\d{1,10})-([0-9a-f]{8})")


def own_mark() -> str:
    """The mark of this process."""
    return f"{os.getpid()}-{_machine()}"


def is_dead(mark: str) -> bool:
    """Is it known that the process of this mark has ended?"""
    found = _MARK.fullmatch(mark)
    if found is None or found[2] != _machine() or os.name == "nt":  # where `kill` would kill
        return False
    try:
        os.kill(int(found[1]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # of another user
        return False
    return False


@functools.cache
def _machine() -> str:
    from loaderx.sources.remote.pieces import boot_id  # late: few have to ask

    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    host = os.uname().nodename if hasattr(os, "uname") else ""
    told = repr((host, boot_id(), space))
    return hashlib.sha256(told.encode()).hexdigest()[:8]
