"""The engine that is chosen by measuring; how it chooses is told in `loaderx.engines.trials`."""

from __future__ import annotations

import functools
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from loaderx.engines.base import (
    Work,
    close_generator,
    cores,
    interrupt,
    warn_if_in_order,
    what_to_say,
)
from loaderx.engines.price import Price, estimate
from loaderx.engines.processes import why_not
from loaderx.engines.threads import Threads
from loaderx.engines.trials import Chooser, Search
from loaderx.errors import check_int, warn_user
from loaderx.frozen import Frozen

if TYPE_CHECKING:
    from loaderx.engines.processes.run import ProcessesWorkshop

STUCK_S = 60.0
FREE_SHARE = 0.25  # of the free memory, which data may take to be shared unasked

Found: TypeAlias = tuple[Literal["threads", "processes"], int]


class Auto(Frozen):
    """Inline, threads or processes, whichever is measured to be faster.

    ``max_workers`` bounds the workers.
    """

    max_workers: int | None = None
    prefetch: int | None = None

    def __post_init__(self) -> None:
        if self.max_workers is not None:
            check_int("max_workers", self.max_workers, least=1)
        if self.prefetch is not None:
            check_int("prefetch", self.prefetch, least=0)

    def workshop(self, work: Work) -> AutoWorkshop:
        if self.max_workers is not None:
            warn_if_in_order(work, f"num_workers={self.max_workers}")
        return AutoWorkshop(
            work, self.max_workers or cores(), self.prefetch, asked=self.max_workers is not None
        )


class AutoWorkshop:
    """Remembers what was found to be best, and keeps the worker processes once they are."""

    def __init__(
        self, work: Work, max_workers: int, prefetch: int | None, *, asked: bool = False
    ) -> None:
        self.work = work
        self.max_workers = max_workers
        self.cores = cores()
        self.found: Found | None = None  # None: inline, or nothing has been measured yet
        self.search = Search()
        self.reason = "there was too little to measure yet"
        self.no_processes = why_not()
        self.is_unsendable = False  # is it the work for which there are none?
        self._wants_warning = asked  # whoever asks for workers is told, once, why there are none
        self._prefetch = prefetch
        self._processes: ProcessesWorkshop | None = None

    def open(self, steps: range) -> AutoRun:
        return AutoRun(self, steps)

    @functools.cached_property
    def price(self) -> Price:
        """Of a worker process.  To estimate it takes some milliseconds."""
        return estimate(self.work)

    def warn_of_workers(self, *, is_unsafe: bool) -> None:
        """Workers are worth it, and cannot be had: whoever asked for them can do something."""
        if self.is_unsendable:
            self._warn(self.no_processes)
        elif is_unsafe and self.work.unsure:  # threads may do what processes cannot
            self._warn(f"{self.reason}. {what_to_say(self.work.unsure)}")

    def _warn(self, why: str) -> None:
        if self._wants_warning:
            self._wants_warning = False
            warn_user(
                f"num_workers={self.max_workers} was asked for, and batches are made in the "
                f"caller's thread: {why}"
            )

    def open_found(self, found: Found, steps: range) -> Any:
        """A run on one of the engines to choose from."""
        kind, workers = found
        if kind == "threads":
            return Threads(workers, self._prefetch).open(self.work, steps)
        return self.processes(workers).open(steps)

    def processes(self, workers: int) -> ProcessesWorkshop:
        if self._processes is None or self._processes.workers != workers:
            from loaderx.engines.processes.run import ProcessesWorkshop  # late: brings cloudpickle

            self.close()
            prefetch = max(2, workers) if self._prefetch is None else self._prefetch
            self._processes = ProcessesWorkshop(
                self.work, workers, prefetch, timeout_s=STUCK_S, free_share=FREE_SHARE
            )
        return self._processes

    def close(self) -> None:
        if self._processes is not None:
            self._processes.close()


class AutoRun:
    def __init__(self, workshop: AutoWorkshop, steps: range) -> None:
        self._workshop = workshop
        self._chooser = Chooser(workshop, steps)
        self._elements = self._chooser.elements()
        self._since = perf_counter()
        self.next = self._elements.__next__

    def ready(self) -> bool:
        run = self._chooser.run
        return run is None or bool(run.ready())

    def close(self) -> None:
        since, self._since = self._since, perf_counter()
        self._workshop.search.seconds += self._since - since
        close_generator(self._elements)
        if self._chooser.run is not None:
            self._chooser.run.close()

    def interrupt(self) -> bool:
        return interrupt(self._chooser.run)

    def describe(self) -> tuple[str, str]:
        found = self._workshop.found
        return "inline" if found is None else "{}({})".format(*found), self._workshop.reason
