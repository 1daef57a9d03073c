"""loaderx beside what users would pick instead: one run, one machine.

    python benchmarks/run.py [--quick] [--only WORKLOAD ...] [--peers NAME ...] [--envs DIR]
    python benchmarks/run.py --resume  # what a run that was stopped has not measured

A run of all workloads with all peers goes into `results/`, a quick one into `results-quick/`, and
any other into `results-part/`; git ignores the last two.
Every measurement is a process of its own.  Rounds go through all contenders in turn, so that a
machine that gets slower slows all of them.  `docs/benchmarks.md` explains the method.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from suite import data, report, tree
from suite.entry import Entry, say
from suite.measuring import Suite
from suite.results import (
    FEWEST_ROUNDS,
    cannot_update,
    continued,
    draw,
    keep,
    surroundings,
    updated,
    usual_place,
    write_pages,
)
from suite.workloads import WORKLOADS

HERE = Path(__file__).parent
ROOT = HERE.parent
TIMEOUT_S = 150


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measures loaderx beside its peers.")
    parser.add_argument("--quick", action="store_true", help="small and rough: does it work?")
    parser.add_argument("--tiny", action="store_true", help="smaller still, for the tests")
    parser.add_argument(
        "--only", nargs="+", choices=WORKLOADS, metavar="WORKLOAD", help=", ".join(WORKLOADS)
    )
    parser.add_argument(
        "--peers", nargs="*", metavar="NAME", help="beside NumPy and loaderx; none for them alone"
    )
    parser.add_argument("--contender", nargs="+", type=Path, default=[], metavar="FILE.py")
    parser.add_argument("--rounds", type=int, default=FEWEST_ROUNDS)
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, metavar="S", help="of one measurement"
    )
    parser.add_argument(
        "--seconds", type=float, default=None, metavar="S", help="of a measurement, its start aside"
    )
    parser.add_argument("--envs", default=ROOT / ".venv-bench", metavar="DIR")
    parser.add_argument("--data", default=ROOT / ".bench-data", metavar="DIR")
    parser.add_argument("--out", type=Path, default=None, metavar="DIR")
    parser.add_argument("--no-plot", action="store_true")
    parser.add_argument(
        "--update", action="store_true", help="with --only: measure these again, keep the others"
    )
    parser.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    parser.add_argument(
        "--pages", action="store_true", help="measure nothing, write the pages of old results anew"
    )
    return parser


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    out: Path = (options.out or HERE / usual_place(options)).resolve()

    if options.pages:
        write_pages(out, json.loads((out / "results.json").read_text()))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # children are ended on the way out
    tree.adopt_orphans()
    suite = Suite(options)
    with suite.states:
        names = options.only or list(WORKLOADS)
        old = out / ("unfinished.json" if options.resume else "results.json")
        reason = (options.update or options.resume) and cannot_update(
            old, suite.settings, suite.contenders, names
        )
        if reason:
            parser.error(f"{'--resume' if options.resume else '--update'}: {reason}")
        begun = json.loads(old.read_text()) if options.resume else None
        return measure_all(suite, names, options, out, begun)


def measure_all(
    suite: Suite,
    names: list[str],
    options: argparse.Namespace,
    out: Path,
    stopped: dict[str, Any] | None,
) -> int:
    """``stopped`` is what an earlier run has measured, which this one continues."""
    begun = perf_counter()
    about = surroundings(suite.settings)
    finished = {row["workload"] for row in stopped["rows"]} if stopped else set()
    missing = data.make(suite.settings.data, names, suite.settings.quick)
    entries: list[Entry] = []
    result = stopped
    for name in names:
        if name in finished:
            continue
        say(f"after {(perf_counter() - begun) / 60:.1f} minutes:")
        entries += suite.measure(WORKLOADS[name], missing.get(name))
        about["took_min"] = round((perf_counter() - begun) / 60, 1)
        about["versions"] = {
            entry.contender.TITLE: entry.versions for entry in entries if entry.versions
        }
        result = {"about": about, "rows": [entry.row() for entry in entries]}
        result = result if stopped is None else continued(stopped, result)
        keep(result, out)
    assert result is not None
    out.mkdir(parents=True, exist_ok=True)
    if options.update:
        result = updated(json.loads((out / "results.json").read_text()), result)
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    (out / "unfinished.json").unlink()
    write_pages(out, result)
    if not options.no_plot:
        draw(suite.settings.envs, out / "results.json", out / "results.png")
    print(report.summary(result))
    return 1 if any(entry.status in ("error", "invalid") for entry in entries) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped: all processes are ended; --resume goes on behind the last finished workload")
        sys.exit(130)
