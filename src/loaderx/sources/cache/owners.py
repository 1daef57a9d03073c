"""Marks in names of files and folders, which tell later whether their maker is still alive.

A mark is ``<pid>-<machine>``.  A process id is only meaningful within one boot of one machine and
one container, so the machine part is a hash of these.  Nothing is known about processes elsewhere:
their files are judged by age.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re

ABANDONED_S = 86_400.0  # without a write for so long, the maker must have died
_MARK = re.compile(r"(\d{1,10})-([0-9a-f]{8})")


def own_mark() -> str:
    """The mark of this process."""
    return f"{os.getpid()}-{_machine()}"


def is_dead(mark: str) -> bool:
    """True if the process of this mark is known to have ended."""
    found = _MARK.fullmatch(mark)
    if found is None or found[2] != _machine() or os.name == "nt":  # on Windows `kill` would kill
        return False
    try:
        os.kill(int(found[1]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # alive, another user's
        return False
    return False


@functools.cache
def _machine() -> str:
    from loaderx.sources.remote.pieces import boot_id  # late: rarely needed

    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    host = os.uname().nodename if hasattr(os, "uname") else ""
    told = repr((host, boot_id(), space))
    return hashlib.sha256(told.encode()).hexdigest()[:8]
