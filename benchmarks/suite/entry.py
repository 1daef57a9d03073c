"""One row: a contender in one of its variants on one workload, and what was measured of it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from suite import report
from suite.environments import without_places
from suite.workloads import METHOD, Workload

MOST_LINES = 30  # of what a process that failed has written
ALLOWED = 0.05  # by which a row may seem to use more cores than there are
CORES = len(os.sched_getaffinity(0))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass
class Entry:
    """A contender in one of its variants, on one workload."""

    contender: Any
    workload: Workload
    variant: str
    how: str
    python: Path | None = None
    status: str = "ok"
    reason: str = ""
    size: int = 0
    epochs: int = 1
    epoch_sum: int = 0
    note: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    peak_mb: float | None = None
    state_bytes: int | None = None
    import_s: float = 0.0
    rates: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)
    """CPU seconds, of a record or of going on."""

    @property
    def key(self) -> str:
        return str(self.contender.__name__.rpartition(".")[2])

    @property
    def own_decoder(self) -> bool:
        """Does it decode images in its own way, so that pixels differ a little?"""
        ways = getattr(self.contender, "OWN_DECODER", {})
        return self.variant in ways.get(self.workload.does, ())

    @property
    def seconds(self) -> float:
        """About how long a measurement takes; a contender that explores may ask for more."""
        longer = getattr(self.contender, "SECONDS", {}).get(self.workload.does, {})
        return float(longer.get(self.variant, self.workload.seconds))

    @property
    def records_in_one(self) -> int:
        """How many records are one of what the row counts."""
        return self.workload.batch_size if self.workload.unit == "steps/s" else 1

    def fail(self, status: str, reason: str, errors: str = "") -> None:
        """``errors`` is what the process wrote: shown here, and not part of the results."""
        self.status, self.reason = status, without_places(" ".join(reason.split()))
        if status in ("error", "invalid"):
            say(f"!! {self.label()}: {self.reason}")
            for line in errors.splitlines()[-MOST_LINES:]:
                say(f"   | {line}")

    def judge(self) -> None:
        """No process computes on more cores than there are: then the estimate is wrong."""
        if self.workload.unit == "s" or not self.cpus:
            return
        rate, cpu = median(self.rates), median(self.cpus)
        if rate * cpu > CORES * (1 + ALLOWED):
            found = f"{report.number(rate)} records/s at {report.microseconds(cpu * 1e6)} of CPU"
            self.fail(
                "invalid",
                f"IMPOSSIBLE: {found} would take {rate * cpu:.2f} cores, and there are {CORES}",
            )

    def label(self) -> str:
        return f"{self.workload.name}: {self.contender.TITLE} ({self.variant})"

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "workload": self.workload.name,
            "contender": self.key,
            "title": self.contender.TITLE,
            "variant": self.variant,
            "how": self.how,
            "status": self.status,
            "reason": self.reason,
        }
        if self.status != "ok":
            return row
        rounds = [rate / self.records_in_one for rate in self.rates]
        return row | {
            "unit": self.workload.unit,
            "value": median(rounds),
            "low": min(rounds),
            "high": max(rounds),
            "rounds": rounds,
            "first_batch_s": median(self.firsts),
            **self.cpu_row(),
            "peak_mb": self.peak_mb,
            "state_bytes": self.state_bytes,
            "import_s": self.import_s,
            "records": self.size,
            "epochs": self.epochs,
            "note": self.note,
            "method": METHOD,
        }

    def cpu_row(self) -> dict[str, float | list[float] | None]:
        """CPU time beside wall time: of a record, or of going on; and that of each round."""
        cpu = median(self.cpus) if self.cpus else None
        if self.workload.unit == "s":
            return {"cpu_s": cpu, "cpu_rounds": self.cpus}
        cores = cpu and median(a * b for a, b in zip(self.rates, self.cpus, strict=True))
        return {
            "cpu_us_per_record": cpu and cpu * 1e6,
            "cpu_rounds": [used * 1e6 for used in self.cpus],
            "cores_used": cores,
        }
