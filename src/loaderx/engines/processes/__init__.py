"""Worker processes, for Python that holds the GIL.

`session` starts a pool of workers for a loader, `pool` gives them jobs and replaces those that die,
`worker_processes` starts and ends the processes.  `protocol` defines how consumer and workers talk,
`pickling` how the work reaches them, `slots` how elements come back without being copied,
`exceptions` how errors come back.  `worker` is the code of a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from loaderx.engines.base import Work, check_counts, cores, warn_if_in_order
from loaderx.errors import ArgumentError, ArgumentTypeError
from loaderx.frozen import Frozen

if TYPE_CHECKING:
    from loaderx.engines.processes.session import ProcessesSession

MOST_WORKERS = 1024


class Processes(Frozen):
    """Worker processes, which live as long as their loader.

    >>> from loaderx import DataLoader, Dataset
    >>> squares = Dataset.range(6).map(lambda x: x * x).batch(3)
    >>> with DataLoader(squares, engine=Processes(num_workers=1, timeout_s=30)) as loader:
    ...     [batch.tolist() for batch in loader]
    [[0, 1, 4], [9, 16, 25]]

    Args:
        num_workers: processes; by default one per core.
        prefetch: finished elements to keep ready; by default as many as workers, at least 2.
        timeout_s: report a step that takes longer, with the stack of its worker. None: never.
        replace_stuck: also replace that worker, and make the step again.
        init: called once in each worker, as ``init(index, count)``, before any other user code: to
            keep a library off the accelerator, or to set its threads or seeds.
    """

    num_workers: int | None = None
    prefetch: int | None = None
    timeout_s: float | None = 60.0
    replace_stuck: bool = False
    init: Callable[[int, int], object] | None = None

    def __post_init__(self) -> None:
        check_counts("num_workers", self.num_workers, self.prefetch)
        if self.num_workers is not None and self.num_workers > MOST_WORKERS:
            raise ArgumentError(
                f"`num_workers` must be at most {MOST_WORKERS}, got {self.num_workers}."
            )
        if self.timeout_s is not None:
            if isinstance(self.timeout_s, bool) or not isinstance(self.timeout_s, (int, float)):
                raise ArgumentTypeError(
                    f"`timeout_s` must be a number of seconds or None, got {self.timeout_s!r}."
                )
            if not self.timeout_s > 0:
                raise ArgumentError(f"`timeout_s` must be above 0, got {self.timeout_s}.")
        if self.init is not None and not callable(self.init):
            raise ArgumentTypeError(
                f"`init` must be a function of (index, count), got {self.init!r}."
            )
        missing = why_not()
        if missing:
            raise ArgumentError(
                f"worker processes cannot run here: {missing}. Use engine='threads'."
            )

    def session(self, work: Work) -> ProcessesSession:
        from loaderx.engines.processes.session import ProcessesSession  # late: brings cloudpickle

        warn_if_in_order(work, "engine='processes'")
        workers = cores() if self.num_workers is None else self.num_workers
        prefetch = max(2, workers) if self.prefetch is None else self.prefetch
        return ProcessesSession(
            work, workers, prefetch, self.timeout_s, self.replace_stuck, init=self.init
        )


def why_not() -> str:
    """What this system lacks for worker processes; empty if nothing."""
    import os
    import sys

    if os.name != "posix" or not hasattr(os, "set_blocking"):
        return (
            "they need a POSIX system (Linux, macOS), with pipes and file locks between processes"
        )
    if not sys.executable:
        return "sys.executable is empty, so there is no Python to start them with"
    return ""
