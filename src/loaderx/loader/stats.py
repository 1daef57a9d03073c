"""What a loader has done, for people who ask."""

from __future__ import annotations

from typing import Any

from loaderx.frozen import Frozen
from loaderx.loader.failures import Failure, FailureLog
from loaderx.tree import flatten


class Counters:
    """Counted while the stream runs; almost all of it only on the steps that are timed anyway."""

    def __init__(self) -> None:
        self.batches = 0
        self.records = 0
        self.failures = FailureLog()
        self.waited = 0.0
        self.seconds = 0.0
        self.sampled = 0
        self.sampled_bytes = 0
        self.stages: dict[str, float] = {}
        self.is_cold: bool | None = None
        self.engine, self.reason = "none yet", "no batch has been asked for"

    def note(self, element: Any, hosts: int, times: dict[str, float] | None) -> None:
        if times is None:
            return
        if self.is_cold:  # the first step of all: better than none, but not typical
            self.sampled, self.sampled_bytes, self.stages = 0, 0, {}
        self.is_cold = self.is_cold is None
        self.sampled += 1
        self.sampled_bytes += nbytes(element, hosts)
        for stage, seconds in times.items():
            self.stages[stage] = self.stages.get(stage, 0.0) + seconds


def nbytes(element: Any, hosts: int) -> int:
    """The bytes of an element's arrays; of a global array, those that this host has loaded."""
    total = 0
    for leaf in flatten(element)[0]:
        own = getattr(leaf, "is_fully_addressable", True)
        total += getattr(leaf, "nbytes", 0) // (1 if own else hosts)
    return total


class Stats(Frozen):
    """What `DataLoader.stats` returns.  Times are in seconds.

    Attributes:
        batches: elements handed out, over all iterators of the loader.
        records: records in them; on several hosts, those that this one has loaded.
        bytes: bytes of these records, from one batch in 64.
        seconds: time from the first ``next`` to the last, iterator by iterator.
        waited_s: time that the consumer spent in ``next``.
        replaced: records that `on_error` replaced, or left out of a stream.
        failures: the first 1,000 of them: index, stage, error, step (see `Failure`).
        stage_s: time spent per stage, all workers together, from one batch in 64.
        engine: the engine that ran last.
        reason: why that one.
    """

    batches: int
    records: int
    bytes: int
    seconds: float
    waited_s: float
    replaced: int
    failures: tuple[Failure, ...]
    stage_s: dict[str, float]
    engine: str
    reason: str

    def __str__(self) -> str:
        share = self.waited_s / self.seconds if self.seconds else 0.0
        lines = [
            f"{self.batches:,} batches, {self.records:,} records, {self.bytes / 1e6:,.1f} MB "
            f"in {self.seconds:.3f} s",
            f"waited for data: {self.waited_s:.3f} s ({share:.1%})",
            f"engine: {self.engine} ({self.reason})",
        ]
        if self.replaced:
            lines.append(f"records replaced or left out after errors: {self.replaced:,}")
            lines.append(f"  the first: {self.failures[0]}")
        lines += [f"  {seconds:9.3f} s  {stage}" for stage, seconds in self.stage_s.items()]
        return "\n".join(lines)


def summary(counters: Counters, order_seconds: float) -> Stats:
    """The counters as a person wants them."""
    scale = counters.batches / counters.sampled if counters.sampled else 0.0
    stages = {stage: seconds * scale for stage, seconds in counters.stages.items()}
    if order_seconds:
        stages = {"order": order_seconds, **stages}
    return Stats(
        batches=counters.batches,
        records=counters.records,
        bytes=round(counters.sampled_bytes * scale),
        seconds=counters.seconds,
        waited_s=counters.waited,
        replaced=counters.failures.count,
        failures=tuple(counters.failures.kept),
        stage_s=dict(sorted(stages.items(), key=lambda item: -item[1])),
        engine=counters.engine,
        reason=counters.reason,
    )
