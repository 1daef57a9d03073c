"""Engines whose costs are known, on a clock that is moved by hand."""

from __future__ import annotations

from loaderx.engines.price import Price

from loaderx.engines import trials


class TimedWorkshop:
    """Stands for engines whose costs are known, on a clock that is moved by hand."""

    found = no_processes = None
    reason = unsure = ""
    max_workers, cores = 1, 2
    only_gathers = False
    takes_s = 0.0  # for a worker process to start
    start_s = ship_s = 0.0

    def __init__(self, made_s: float, handed_s: float, by_processes_s: float = 1.0) -> None:
        self.price, self.prepared = Price(0.25, 0.0), []
        self.now, self.made_s, self.work = 0.0, made_s, self
        self.handed_s = {"threads": handed_s, "processes": by_processes_s}
        self.thread_safe, self.tried, self.started, self.search = True, 0, 0, trials.Search()

    def __call__(self, step, lend):
        self.now += self.made_s
        return step

    def stream(self, steps, lend):
        for step in steps:
            yield self(step, lend)

    def open_found(self, found, steps):
        self.tried += 1
        return TimedRun(self, iter(steps), self.handed_s[found[0]])

    def processes(self, workers):
        return self

    def prepare(self, count):
        """Each worker takes a while to start, and all of that on a core."""
        if count > len(self.prepared):
            self.prepared += [self.now] * (count - len(self.prepared))
            self.started += count == 1
        self.start_s = min(self.takes_s, self.now - self.prepared[0])
        return self.now - self.prepared[-1] >= self.takes_s

    @property
    def running(self):
        return len(self.prepared)

    def close(self):
        self.prepared = []

    def warn_of_workers(self, is_unsafe):
        """Nobody has asked for workers."""


class TimedRun:
    """Workers that hand out an element after so long."""

    def __init__(self, workshop, steps, handed_s):
        self.workshop, self.steps, self.handed_s = workshop, steps, handed_s

    def next(self):
        assert self.steps is not None, "it has been dismissed"
        self.workshop.now += self.handed_s
        return next(self.steps)

    def drain(self):
        self.steps = self.steps and iter(())

    def dismiss(self):
        self.steps = None

    close = dismiss
