"""How much memory a process may still use."""

from __future__ import annotations

MEMORY = "/proc/meminfo"
CONTAINER_LIMIT = "/sys/fs/cgroup/memory.max"


def free_memory(memory: str = MEMORY, container_limit: str = CONTAINER_LIMIT) -> int | None:
    """Bytes that are free or can be freed at once, at most the limit of a container.

    None if the system does not say.
    """
    free, limit = _available(memory), _limit(container_limit)
    return free if limit is None or free is None else min(free, limit)


def _available(path: str) -> int | None:
    try:
        with open(path) as file:
            lines = (line for line in file if line.startswith("MemAvailable:"))
            return int(next(lines).split()[1]) * 1024
    except (OSError, StopIteration):
        return None


def _limit(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):  # there is none, or it is "max"
        return None
