"""What the benchmark scripts share: bars, rows, two sides in one process, fresh processes.

Speed is a ratio within one process: a round runs our side and the baseline one after the other
(whoever was second goes first in the next round), and the result is the median of the rounds'
ratios.  So a machine that is slow, or gets slower meanwhile, slows both sides.  A ratio above 1
means that ours is faster.

A script reports and never fails: a figure that misses its bar is "short", one that cannot run
is "skipped", and one that raised is "error".
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import loaderx
from loaderx import DataLoader, Dataset

SOURCES = Path(loaderx.__file__).parents[1]

Batches = Iterable[Any]
Side = Callable[[], Batches]
"""Makes a new stream of batches; making it is timed as well."""


# What is reported ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure should reach."""

    sign: str
    limit: float
    unit: str = "x"

    def met(self, value: float) -> bool:
        if self.sign == ">=":
            return value >= self.limit
        return value <= self.limit if self.sign == "<=" else value < self.limit

    def say(self, value: float) -> str:
        if self.unit == "x":
            return f"{value:.3f}x"
        return f"{value:.0f} B" if self.unit == "B" else f"{value:.3g} {self.unit}"

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}{'' if self.unit == 'x' else ' '}{self.unit}"


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    bar: str
    verdict: str
    note: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    measured: str = "-"
    spread: str = "-"


def row(name: str, bar: Bar, value: float, samples: list[float], note: str = "") -> Row:
    low, high = min(samples), max(samples)
    return Row(
        name=name,
        bar=str(bar),
        verdict="pass" if bar.met(value) else "short",
        note=note,
        value=value,
        low=low,
        high=high,
        unit=bar.unit,
        measured=bar.say(value),
        spread=f"{bar.say(low)} .. {bar.say(high)}",
    )


def skipped(name: str, bar: Bar, missing: ImportError) -> Row:
    return Row(name, str(bar), "skipped", f"{missing.name or missing} cannot be imported")


def table(rows: list[Row]) -> str:
    header = ("name", "bar", "measured", "spread (min .. max)", "verdict", "note")
    lines = [header] + [(r.name, r.bar, r.measured, r.spread, r.verdict, r.note) for r in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


# Two sides in one process -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ratios of the rounds (baseline's time by ours), and the median seconds of each side."""

    ratios: list[float]
    ours_s: float
    baseline_s: float

    def row(self, name: str, bar: Bar, records: int, note: str = "") -> Row:
        rates = f"{records / self.ours_s:,.0f} records/s, baseline {records / self.baseline_s:,.0f}"
        note = f"{rates}; {note}" if note else rates
        return row(name, bar, median(self.ratios), self.ratios, note)


def compare(ours: Side, baseline: Side, rounds: int) -> Comparison:
    """Runs both sides in turn.  One untimed round shows that they hand out the same."""
    expected, got = outline(baseline()), outline(ours())
    if got != expected:
        raise RuntimeError(f"the sides do not do the same work: {got} and {expected}")
    times: dict[Side, list[float]] = {ours: [], baseline: []}
    for number in range(rounds):
        for side in (ours, baseline) if number % 2 == 0 else (baseline, ours):
            times[side].append(seconds(side))
    ratios = [theirs / own for own, theirs in zip(times[ours], times[baseline], strict=True)]
    return Comparison(ratios, median(times[ours]), median(times[baseline]))


def seconds(side: Side) -> float:
    """The time to make a stream and to take all of it, one batch at a time."""
    gc.collect()
    begun = perf_counter()
    for batch in side():  # noqa: B007 (a consumer holds its batch until it has the next one)
        pass
    return perf_counter() - begun


def outline(batches: Batches) -> tuple[int, dict[str, tuple[int, str, tuple[int, ...]]]]:
    """Batches, and for each leaf the records, the dtype and the shape of a record."""
    count = 0
    leaves: dict[str, tuple[int, str, tuple[int, ...]]] = {}
    for batch in batches:
        count += 1
        for name, leaf in (batch if isinstance(batch, dict) else {"": batch}).items():
            rows = leaves[name][0] if name in leaves else 0
            leaves[name] = (rows + len(leaf), str(leaf.dtype), leaf.shape[1:])
    return count, leaves


def passes_for(target_s: float, one_pass: Side) -> int:
    """How many passes take about this long."""
    return max(1, round(target_s / seconds(one_pass)))


class Ours:
    """A side that makes a new loader of a chain, and knows afterwards which engines ran."""

    def __init__(self, dataset: Dataset[Any], **options: Any) -> None:
        self.dataset, self.options = dataset, options
        self.loaders: list[DataLoader[Any]] = []

    def __call__(self) -> Batches:
        loader: DataLoader[Any] = DataLoader(self.dataset, **self.options)
        self.loaders.append(loader)
        return loader

    def engines(self) -> str:
        ran = [loader.stats().engine for loader in self.loaders]
        if len(set(ran)) == 1:
            return f"engine {ran[0]}"
        counts = (f"{name} in {ran.count(name)} of {len(ran)} runs" for name in dict.fromkeys(ran))
        return f"engine {', '.join(counts)}"


# In fresh processes ------------------------------------------------------------------------------


def run_python(code: str, compiled: str | None = None) -> float:
    """The number that the code prints, in a process of its own.

    Where ``compiled`` is given, that folder keeps the bytecode of all that is imported.
    """
    environment = dict(os.environ)
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(SOURCES), *([inherited] if inherited else [])])
    # Users' interpreters keep bytecode; without it, compiling is most of what would be measured.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if compiled is not None:
        environment["PYTHONPYCACHEPREFIX"] = compiled
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"a fresh process failed: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout)


def milliseconds_fresh(setup: str, timed: str, compiled: str | None = None) -> float:
    return run_python(
        "from time import perf_counter\n"
        f"{setup}\nbegun = perf_counter()\n{timed}\nprint((perf_counter() - begun) * 1e3)",
        compiled,
    )


def megabytes_fresh(setup: str, traced: str) -> float:
    """The peak of what is allocated; tracing is slow, so times come from other processes."""
    return run_python(
        f"import tracemalloc\n{setup}\ntracemalloc.start()\n{traced}\n"
        "print(tracemalloc.get_traced_memory()[1] / 1e6)"
    )


# The script ---------------------------------------------------------------------------------------

Figures = dict[str, Callable[[bool], "list[Row]"]]


def measure(figures: Figures, name: str, quick: bool) -> list[Row]:
    """The rows of a figure; its failure is a row too, so that the others are still reported."""
    try:
        return figures[name](quick)
    except Exception as error:
        return [Row(name, "-", "error", f"{type(error).__name__}: {error}")]


def surroundings(quick: bool) -> dict[str, Any]:
    """What a reader needs to judge the figures; ``load`` is that of others, before we begin."""
    return {
        "loaderx": loaderx.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "quick": quick,
    }


def main(figures: Figures, what: str) -> None:
    """Measures the figures that the command line asks for, all by default."""
    parser = argparse.ArgumentParser(description=f"Measures {what} against its bars.")
    parser.add_argument(
        "--quick", action="store_true", help="small and rough: is it still working?"
    )
    parser.add_argument("--only", nargs="+", choices=figures, metavar="NAME", help="these figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON as well")
    options = parser.parse_args()
    report(figures, options.only, options.quick, options.json)


def report(figures: Figures, only: list[str] | None, quick: bool, file: Path | None) -> None:
    """Measures, prints a table, and writes the rows to a file if there is one."""
    about = surroundings(quick)
    rows: list[Row] = []
    for name in only or figures:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        rows += measure(figures, name, quick)
    print(table(rows))
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    if file is not None:
        written = {"about": about, "rows": [asdict(row) for row in rows]}
        file.write_text(json.dumps(written, indent=2) + "\n")
