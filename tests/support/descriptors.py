"""A process that may open few more files."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator


def room() -> int:
    """How many more files may be open in `few_descriptors`.

    A `FileSet` takes a quarter of all that a process may have, and others may have many by now.
    """
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 64
    return max(40, used)


@contextlib.contextmanager
def few_descriptors() -> Iterator[None]:
    """Only as many files may be open as there are now, and `room` more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * room()), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
