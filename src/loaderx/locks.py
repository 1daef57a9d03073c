"""Locks that are free in a forked process, where the threads that held them do not exist."""

from __future__ import annotations

import os
import threading
import weakref

_all: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def new_lock() -> threading.Lock:
    """A lock for memory that worker threads use, and that a forked process may go on using."""
    lock = threading.Lock()
    _all.add(lock)
    return lock


def _free_all() -> None:
    for lock in _all:
        # As the standard library does.  `release` refuses a lock whose new holder had not woken up.
        lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
