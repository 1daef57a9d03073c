"""Detects a loop that mostly waits for its data, and reports what takes the time.

Only for loaders with ``engine="auto"``: a user who chose an engine needs no advice about it.
"""

from __future__ import annotations

from collections import deque

from loaderx.engines.auto.decision import FAST_S
from loaderx.engines.auto.timing import KEPT, most_own
from loaderx.engines.base import cores, workers_of
from loaderx.errors import warn_user

LOOK_S = 10.0
WAITED = 0.9
IN_ORDER = "records are read in order, in the caller's thread"  # why there are no workers


class Waiting:
    """How long a loader's iterators have waited since the last check.  It warns once."""

    def __init__(self, max_workers: int | None) -> None:
        self._max_workers = max_workers
        self._is_over = False
        self._last = (0.0, 0.0, 0)
        self._owns: deque[float] = deque(maxlen=KEPT)
        self._clear()

    def _clear(self) -> None:
        self._waited_s = self._worked_s = 0.0
        self._batches = 0

    def note(self, now: float, waited_s: float, position: int) -> bool:
        """Takes the time, total wait and position at a batch; True if a warning is due."""
        (before, waited_before, start), self._last = self._last, (now, waited_s, position)
        wait_s, count = waited_s - waited_before, position - start
        if self._is_over or count <= 0 or not 0 <= wait_s <= now - before:
            return False  # another iterator, or `stats` reset the counters
        own_s = now - before - wait_s
        self._owns.append(own_s)
        # Compiling makes a step slow once, which says nothing about the others.
        self._worked_s += min(own_s, most_own(self._owns))
        self._waited_s += wait_s
        self._batches += count
        seconds = self._waited_s + self._worked_s
        if seconds < LOOK_S:
            return False
        if self._waited_s >= WAITED * seconds and self._waited_s >= FAST_S * self._batches:
            return True
        self._clear()
        return False

    def warn(self, engine: str, reason: str, stage_s: dict[str, float]) -> None:
        """Warns where the time goes, and what to change."""
        self._is_over = True
        share = self._waited_s / (self._waited_s + self._worked_s)
        stage = max(stage_s, key=lambda name: stage_s[name], default="")
        takes = stage_s[stage] / (sum(stage_s.values()) or 1.0) if stage else 0.0
        said = f" {stage} takes {takes:.0%} of the time that batches take." if stage else ""
        warn_user(
            f"the loop has waited for data for {share:.0%} of the last {LOOK_S:.0f} s. The engine "
            f"is {engine} ({reason}).{said} {self._advice(engine, stage, reason == IN_ORDER)}"
        )

    def _advice(self, engine: str, stage: str, is_in_order: bool) -> str:
        workers, most = workers_of(engine), cores()
        cheaper = f"Make {stage or 'the dataset'} cheaper, or keep what it makes: .cache(path)"
        if workers < most and self._max_workers == workers:
            return f"Write num_workers={most}: this machine has {most} cores."
        if workers:
            return (
                f"If it waits (for a network, a lock), write engine='threads', num_workers=16; if "
                f"it works, {most} cores do no more. {cheaper}."
            )
        if is_in_order:
            return (
                f"{cheaper}; or give the data as something with __len__ and __getitem__ "
                "(Dataset.from_source), which workers can share."
            )
        return (
            f"{cheaper}. If you know that workers can share it, write engine='threads' or "
            "engine='processes'."
        )
