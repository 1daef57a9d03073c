"""Explains a system error of worker processes as the limit that was hit, and what to do.

Processes, pipes and shared memory all have limits (`ulimit`), and an ``[Errno 24]`` does not say
which one was hit.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from loaderx.errors import LoaderxError


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns an OSError into a `LoaderxError` that says what failed and which limit was hit."""
    try:
        yield
    except OSError as error:
        raise LoaderxError(f"{what}: {_why(error)}") from error


def _why(error: OSError) -> str:
    other = "or use engine='threads'."
    match error.errno:
        case errno.EMFILE:
            return (
                f"this process has as many files open as it may{_limit('n')}. Raise the limit, use "
                f"fewer workers, {other}"
            )
        case errno.ENFILE:
            return f"this machine has as many files open as it can. Use fewer workers, {other}"
        case errno.EFBIG:
            return (
                f"files must not become that large here{_limit('f')}, and memory that processes "
                f"share counts as a file. Raise the limit (ulimit -f unlimited), {other}"
            )
        case errno.EAGAIN:
            return (
                f"no more processes may be started{_limit('u')}. Raise the limit, use fewer "
                f"workers, {other}"
            )
        case errno.ENOMEM:
            return (
                f"there is no memory, or no address space, left{_limit('v')}. Raise the limit, use "
                f"fewer workers or smaller batches, {other}"
            )
        case errno.ENOSPC:
            return f"there is no memory left to share. Use smaller batches, {other}"
    return f"{error}. Use engine='threads'."


_UNITS = {"f": ("RLIMIT_FSIZE", 1024), "n": ("RLIMIT_NOFILE", 1), "u": ("RLIMIT_NPROC", 1),
          "v": ("RLIMIT_AS", 1024)}  # fmt: skip


def _limit(letter: str) -> str:
    value = _value(letter)
    return "" if value is None else f" (ulimit -{letter} is {value})"


def _value(letter: str) -> int | None:
    """A limit as the shell shows it; None if there is none."""
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    name, unit = _UNITS[letter]
    soft = resource.getrlimit(getattr(resource, name))[0]
    return None if soft == resource.RLIM_INFINITY else int(soft) // unit


def tight_limits() -> str:
    """Limits that can keep a process from starting, for a message; empty if there are none."""
    found = [f"ulimit -{letter} is {value}" for letter in "v" if (value := _value(letter))]
    return f" These limits are set here: {', '.join(found)}." if found else ""


def closed_standard_descriptors() -> list[int]:
    """Which of standard input, output and error are closed (``python script <&-``)."""
    closed = []
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            closed.append(descriptor)
    return closed


@contextlib.contextmanager
def above_standard() -> Iterator[list[int]]:
    """Keeps new descriptors from becoming standard input, output or error.

    If one of those is closed, the system gives its number to the next pipe, and then ``print``
    writes into that.  Yields those that are closed.
    """
    closed = closed_standard_descriptors()
    taken: list[int] = []
    try:
        while len(taken) < len(closed):
            taken.append(os.open(os.devnull, os.O_RDWR))
        yield closed
    finally:
        for descriptor in taken:
            os.close(descriptor)
