"""The files of results: where a run's go, how a part takes the place of old rows, the pages."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from suite import report
from suite.entry import Entry, say
from suite.environments import NotInstalledError, environment, last_line
from suite.settings import Settings
from suite.workloads import WORKLOADS

BENCHMARKS = Path(__file__).resolve().parents[1]
FEWEST_ROUNDS = 5  # of a run that becomes the results


def usual_place(options: argparse.Namespace) -> str:
    """Only a run of everything, with all peers, may take the place of the results."""
    if options.quick or options.tiny:
        return "results-quick"
    peers = options.peers is None and not options.contender
    whole = options.update or not options.only
    return "results" if peers and whole and options.rounds >= FEWEST_ROUNDS else "results-part"


def surroundings(settings: Settings) -> dict[str, Any]:
    """What a reader needs to judge the figures; ``load`` is that of others, before we begin."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "memory_gb": round(memory, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "rounds": settings.rounds,
        "quick": settings.quick,
    }


def cannot_update(
    path: Path, settings: Settings, contenders: list[Any], names: list[str]
) -> str | None:
    """Why a new run cannot take the place of some old rows; None if it can.

    Rounds of one workload belong together, so that all its rows are replaced, or none.
    """
    try:
        old = json.loads(path.read_text())
        about, rows = old["about"], old["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path.name} cannot be read: {error}"
    here = surroundings(settings)
    for name in ("cores", "memory_gb", "system", "python", "rounds", "quick"):
        if about.get(name) != here[name]:
            return f"the old run has {name} {about.get(name)}, this one {here[name]}"
    keys = {Entry(one, WORKLOADS[names[0]], "", "").key for one in contenders}
    again = [row for row in rows if row["workload"] in names]
    lost = {row["title"] for row in again if row["contender"] not in keys}
    return f"it would lose {', '.join(sorted(lost))}" if lost else None


def updated(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Old results in which some workloads, with all their rows, are new."""
    fresh = {row["workload"] for row in new["rows"]}
    rows: list[dict[str, Any]] = []
    for name in WORKLOADS:
        source = new if name in fresh else old
        rows += [row for row in source["rows"] if row["workload"] == name]
    about = dict(old["about"])
    about["again"] = about.get("again", {}) | dict.fromkeys(sorted(fresh), _when(new))
    other = {
        title: found
        for title, found in new["about"]["versions"].items()
        if found != about["versions"].get(title)
    }
    others = {k: v for k, v in about.get("other_versions", {}).items() if k not in fresh}
    about["other_versions"] = others | (dict.fromkeys(sorted(fresh), other) if other else {})
    return {"about": about, "rows": rows}


def _when(result: dict[str, Any]) -> str:
    return f"{result['about']['when']}, load {result['about']['load_before']}"


def continued(stopped: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A run that was stopped, with what was measured after that."""
    about = dict(stopped["about"])
    about["took_min"] = round(about["took_min"] + new["about"]["took_min"], 1)
    about["versions"] = {**about["versions"], **new["about"]["versions"]}
    about["continued"] = [*about.get("continued", []), _when(new)]
    found = stopped["rows"] + new["rows"]
    rows = [row for name in WORKLOADS for row in found if row["workload"] == name]
    return {"about": about, "rows": rows}


def keep(result: dict[str, Any], out: Path) -> None:
    """What has been measured so far, beside the results: a run may not come to its end."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "unfinished.json").write_text(json.dumps(result, indent=1) + "\n")


def write_pages(out: Path, result: dict[str, Any]) -> None:
    """The tables; and where these are the results, the pages that quote them."""
    (out / "results.md").write_text(report.page(result))
    if out == (BENCHMARKS / "results").resolve():
        for page, write in report.PAGES.items():
            path = BENCHMARKS.parent / page
            path.write_text(write(path.read_text(), result))


def draw(envs: Path, found: Path, picture: Path) -> None:
    """The plot, in an environment of its own unless Matplotlib is here."""
    try:
        if importlib.util.find_spec("matplotlib"):
            python = Path(sys.executable)
        else:
            python = environment("plot", ["matplotlib"], envs)
        script = BENCHMARKS / "suite" / "plot.py"
        command = [str(python), str(script), str(found), str(picture)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            say(f"no plot: {last_line(done.stderr)}")
    except (NotInstalledError, subprocess.TimeoutExpired) as error:
        say(f"no plot: {error}")
