"""The statistics that `DataLoader.stats` returns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderx.engines.base import Timing, WorkerStats, workers_of
from loaderx.frozen import Frozen
from loaderx.loader.failures import Failure, FailureLog
from loaderx.loader.sampling import Estimate
from loaderx.loader.waiting import Waiting
from loaderx.reading.single_records import UNCHANGED
from loaderx.tree import Tree, flatten

if TYPE_CHECKING:
    from loaderx.loader.trace import Recording

_LEAVES = {np.ndarray, *UNCHANGED}  # types that need no look inside

KEPT_EPOCHS = 16
SHOWN_EPOCHS = 4
SHOWN_PARTS = 12
SHOWN_WORKERS = 16
LITTLE, MUCH = 0.03, 0.10  # shares of the time that a loop waits


class Listening:
    """Whether a loader's events are wanted; its iterators look here at every step."""

    __slots__ = ("__weakref__", "trace")

    def __init__(self) -> None:
        self.trace: Recording | None = None

    def __reduce__(self) -> tuple[type[Listening], tuple[()]]:
        """Copies of a loader, also those in other processes, are not traced."""
        return Listening, ()

    def stop(self) -> None:
        """Ends a trace, if there is one."""
        trace, self.trace = self.trace, None
        if trace is not None:
            trace.stop()


class EpochCounters:
    """What one iterator has read of one epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.clear()

    def clear(self) -> None:
        self.batches = self.records = 0
        self.seconds = self.waited = 0.0


class Counters:
    """Counters of a running stream, updated mostly at steps that are timed anyway."""

    def __init__(self) -> None:
        self.batches = 0
        self.records = 0
        self.failures = FailureLog()
        self.waited = 0.0
        self.seconds = 0.0
        self.worked_at_most = 0.0  # upper bound of the seconds that all workers together worked
        self.stages = Estimate()
        self.bytes = 0  # of timed batches, each times the batches that it stands for
        self.bytes_of = 0  # the number of these batches
        self.order_before = 0.0  # seconds of ordering before the last `clear`
        self.before = (0.0, 0.0, 0.0)  # the `totals` before the last `clear`
        self.epochs: deque[EpochCounters] = deque(maxlen=KEPT_EPOCHS)
        self.parts: dict[str, int] = {}  # rows by the part of a mix
        self.engine, self.reason = "none yet", "no batch has been requested"
        self.waiting: Waiting | None = None  # only for `auto`
        self.listening = Listening()

    @property
    def totals(self) -> tuple[float, float, float]:
        """The batches, the seconds and the seconds waited, which no `clear` makes smaller."""
        batches, seconds, waited = self.before
        return batches + self.batches, seconds + self.seconds, waited + self.waited

    def clear(self, order_seconds: float) -> None:
        """Counts from 0 again.  Keeps the engine, its reason and the totals."""
        before = {"order_before": order_seconds, "before": self.totals}
        fresh = {**Counters().__dict__, **before}
        self.failures.clear()
        kept = {"engine": self.engine, "reason": self.reason, "failures": self.failures}
        kept |= {"waiting": self.waiting, "listening": self.listening}
        self.__dict__.update({**fresh, **kept})

    def add_timing(self, element: Tree, hosts: int, times: Timing | None) -> None:
        """Adds the times and bytes of an element that was timed."""
        if times is not None:
            self.stages.add(times)
            stands_for = times.weight or 1
            self.bytes += nbytes(element, hosts) * stands_for
            self.bytes_of += stands_for

    def add(
        self, epoch: EpochCounters, batches: int, records: int, seconds: float, waited: float
    ) -> None:
        """Adds what an iterator has done since it was last counted."""
        self.seconds += seconds
        self.waited += waited
        self.batches += batches
        self.records += records
        # An upper bound: the caller works inside `next`, the workers all the time.
        self.worked_at_most += waited + (seconds * workers_of(self.engine) if seconds else 0.0)
        if epoch not in self.epochs:
            if not batches:
                return
            epoch.clear()  # new, or counted before `clear`
            self.epochs.append(epoch)
        epoch.seconds += seconds
        epoch.waited += waited
        epoch.batches += batches
        epoch.records += records


def nbytes(element: Tree, hosts: int) -> int:
    """The bytes of an element's arrays; of a global array, those that this host loaded."""
    total = 0
    is_flat = type(element) is dict and _LEAVES.issuperset(map(type, element.values()))
    for leaf in element.values() if is_flat else flatten(element)[0]:
        own = getattr(leaf, "is_fully_addressable", True)
        total += getattr(leaf, "nbytes", 0) // (1 if own else hosts)
    return total


class EpochStats(Frozen):
    """What one iterator has read of one epoch: a row of `Stats.epochs`.

    Attributes:
        epoch: its number.
        batches: elements handed out in it.
        records: records in them.
        seconds: time from the end of the epoch before, or the first ``next``, to its last batch.
        waited_s: time that the consumer spent in ``next``.
    """

    epoch: int
    batches: int
    records: int
    seconds: float
    waited_s: float


class Stats(Frozen):
    """What `DataLoader.stats` returns.  Times are in seconds.

    >>> from loaderx import DataLoader, Dataset
    >>> loader = DataLoader(Dataset.range(10).batch(4), engine="inline")
    >>> batches = list(loader)
    >>> loader.stats().records
    10
    >>> [row["batches"] for row in loader.stats().as_dict()["epochs"]]
    [3]

    Attributes:
        batches: elements handed out, over all iterators of the loader.
        records: records in them; on several hosts, those that this host loaded.
        bytes: bytes of these records, estimated from the batches that were timed.
        seconds: time from the first ``next`` to the last, iterator by iterator.
        waited_s: time that the consumer spent in ``next``.
        replaced: records that `on_error` replaced, or left out of a stream.
        failures: the first 1,000 of them: index, stage, error, step (see `Failure`).
        timed: batches that were timed stage by stage: all slow ones, and one in 64 fast ones.
        stage_s: time per stage, all workers together: measured if all batches were timed, else
            estimated.  Never more than the time that passed.
        epochs: the last 16 epochs, each iterator's own.
        engine: the engine that ran last.
        reason: why that engine was chosen.
        parts: for a mix with nothing above it but a batch and stages that keep every element in its
            place, the rows of each dataset in these batches, of all hosts; else empty.
        workers: what each worker has done since it started, for engines whose workers may be on
            other machines (see `WorkerStats`); else empty.
    """

    batches: int
    records: int
    bytes: int
    seconds: float
    waited_s: float
    replaced: int
    failures: tuple[Failure, ...]
    timed: int
    stage_s: dict[str, float]
    epochs: tuple[EpochStats, ...]
    engine: str
    reason: str
    parts: Mapping[str, int] = {}
    workers: tuple[WorkerStats, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Everything as numbers, strings, lists and dicts: for JSON, or a logger of metrics."""
        return {name: _plain(getattr(self, name)) for name in self._fields}

    @property
    def verdict(self) -> str:
        """Whether the loop waits for its data: a phrase that ends with what to do about it."""
        share = self.waited_s / self.seconds if self.seconds else 0.0
        if share < LITTLE:
            return "the data is not the bottleneck"
        if share < MUCH:
            return "the data may be the bottleneck, see loader.doctor()"
        return "the data is the bottleneck, see loader.doctor()"

    def __str__(self) -> str:
        lines = [f"{name}: {text}" if name else text for name, text in self._summary()]
        if self.stage_s:
            lines.append(self._how_timed())
            lines += [f"  {time:>11}  {stage}" for stage, time in self._stage_times()]
        for rows in (self._epoch_rows(), self._worker_rows()):
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines += [
                "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
                for row in rows
            ]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape  # for notebooks only

        parts = [_table(([name or "loaded", text] for name, text in self._summary()), escape)]
        if self.stage_s:
            parts.append(f"<p>{escape(self._how_timed())}</p>")
            times = ([stage, time] for stage, time in self._stage_times())
            parts.append(_table(times, escape))
        tables = (self._epoch_rows(), self._worker_rows())
        parts += [_table(rows, escape, head=True) for rows in tables if rows]
        return "".join(parts)

    def _summary(self) -> list[tuple[str, str]]:
        """Names and values of the one-line facts."""
        about = self._about
        share = self.waited_s / self.seconds if self.seconds else 0.0
        lines = [
            (
                "",
                f"{self.batches:,} batches, {self.records:,} records, "
                f"{about}{self.bytes / 1e6:,.1f} MB in {self.seconds:.3f} s",
            ),
            ("waited for data", f"{self.waited_s:.3f} s ({share:.1%}): {self.verdict}"),
            ("engine", f"{self.engine} ({self.reason})"),
        ]
        if self.parts:
            rows = sum(self.parts.values()) or 1
            first = list(self.parts.items())[:SHOWN_PARTS]
            shares = [f"{name} {count:,} ({count / rows:.2%})" for name, count in first]
            more = [f"{len(self.parts) - len(first)} more"] if len(self.parts) > len(first) else []
            lines.append(("rows of the mix", ", ".join([*shares, *more])))
        if self.replaced:
            lines.append(("records replaced or left out after errors", f"{self.replaced:,}"))
            lines.append(("the first of them", f"{self.failures[0]}"))
        return lines

    @property
    def _about(self) -> str:
        return "~" if self.timed < self.batches else ""

    def _how_timed(self) -> str:
        if self.timed >= self.batches:
            return "time per stage, all workers together:"
        return (
            "time per stage, all workers together (~ estimated, timed on "
            f"{self.timed:,} of {self.batches:,} batches):"
        )

    def _stage_times(self) -> list[tuple[str, str]]:
        # The order of records is computed for many batches at once, and always timed.
        return [
            (stage, f"{'' if stage == 'order' else self._about}{seconds:.3f} s")
            for stage, seconds in self.stage_s.items()
        ]

    def _epoch_rows(self) -> list[list[str]]:
        """A table of the last epochs, with a header row; empty if there was only one."""
        if len(self.epochs) < 2:
            return []
        rows = [["epoch", "batches", "records", "seconds", "waited"]]
        for one in self.epochs[-SHOWN_EPOCHS:]:
            numbers = [f"{one.epoch:,}", f"{one.batches:,}", f"{one.records:,}"]
            rows.append([*numbers, f"{one.seconds:.3f}", f"{one.waited_s:.3f}"])
        return rows

    def _worker_rows(self) -> list[list[str]]:
        """A table of the workers, with a header row; empty if there are none to tell of."""
        rows = [["worker", "way", "tasks", "making", "on the way"]] if self.workers else []
        for one in self.workers[:SHOWN_WORKERS]:
            times = f"{one.making_s:.3f} s", f"{one.travel_s:.3f} s"
            rows.append([one.name or "not started", one.way or "-", f"{one.made:,}", *times])
        if len(self.workers) > SHOWN_WORKERS:
            rows.append([f"{len(self.workers) - SHOWN_WORKERS} more", "", "", "", ""])
        return rows


def _plain(value: object) -> object:
    if isinstance(value, Frozen):
        return {name: _plain(getattr(value, name)) for name in value._fields}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return dict(value) if isinstance(value, dict) else value


def _table(
    rows: Iterable[Sequence[str]], escape: Callable[[str], str], *, head: bool = False
) -> str:
    lines = []
    for number, row in enumerate(rows):
        kind = "th" if head and number == 0 else "td"
        cells = "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def summary(counters: Counters, order_seconds: float, workers: Sequence[WorkerStats] = ()) -> Stats:
    """The counters as `Stats`."""
    order_s = order_seconds - counters.order_before
    timed = counters.stages
    stages = timed.seconds(counters.batches, max(0.0, counters.worked_at_most - order_s))
    if order_s > 0.0:
        stages["order"] = stages.get("order", 0.0) + order_s
    each = counters.bytes / counters.bytes_of if counters.bytes_of else 0.0
    return Stats(
        batches=counters.batches,
        records=counters.records,
        bytes=round(each * counters.batches),
        seconds=counters.seconds,
        waited_s=counters.waited,
        replaced=counters.failures.count,
        failures=tuple(counters.failures.kept),
        timed=min(counters.batches, timed.first + timed.timed),
        stage_s=dict(sorted(stages.items(), key=lambda item: -item[1])),
        epochs=tuple(
            EpochStats(one.epoch, one.batches, one.records, one.seconds, one.waited)
            for one in counters.epochs
        ),
        engine=counters.engine,
        reason=counters.reason,
        parts=dict(counters.parts),
        workers=tuple(workers),
    )
