"""Names what got slower, or takes more CPU time, between two runs of `run.py`.

    python benchmarks/compare.py [OLD.json] NEW.json [--release REF] [--all] [--relative]

Without OLD.json, the results of the last release are taken from git: those of the newest tag, or
of HEAD if there is no tag; ``--release`` names another commit.

A row counts as slower when the median of either run lies outside the other run's spread, lowest
to highest round; CPU time per record is judged in the same way, where both runs have measured it
with the same method.  A row that worked and works no more counts too, and one that is new and
fails.  The exit code is 1 if there is any, and 2 if a file cannot be read.  What only one of the
runs has is named, and does not count.  Only loaderx's rows are judged, unless ``--all`` is given.
``--relative`` divides every figure by that of NumPy by hand in its own run, for runs on different
machines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Key = tuple[str, str, str]
OURS, BY_HAND = "loaderx_", "numpy_by_hand"
ENOUGH = 5  # rounds; fewer have no spread to speak of
NEEDED = ("workload", "contender", "variant", "title", "status", "reason")
MEASURED = ("value", "low", "high", "unit")
RESULTS = "benchmarks/results/results.json"
UNKNOWN_SPREAD = 0.1  # of CPU time in results that have only its median
WORSE = ("slower", "more CPU", "broken")


@dataclass(frozen=True, slots=True)
class Figure:
    """A median with its spread; ``less`` is whether less is better."""

    value: float
    low: float
    high: float
    unit: str
    less: bool

    def apart(self, other: Figure) -> bool:
        """Is either median outside of the other's spread?"""
        within = other.low <= self.value <= other.high
        return not (within or self.low <= other.value <= self.high)

    def worse(self, old: Figure) -> bool:
        return (self.value > old.value) == self.less


class UnreadableError(Exception):
    """Why a file is no result of `run.py`."""


def of_release(reference: str | None) -> dict[str, Any]:
    """The results of a commit: the newest tag, or HEAD, if none is named."""
    reference = reference or git("describe", "--tags", "--abbrev=0") or "HEAD"
    text = git("show", f"{reference}:{RESULTS}")
    if text is None:
        raise UnreadableError(f"{reference}: git has no {RESULTS} there")
    print(f"note: the old run is that of {reference}")
    return parsed(text, f"{reference}:{RESULTS}")


def git(*arguments: str) -> str | None:
    """What git answers, or None if it refuses."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode else done.stdout.strip()


def read(path: Path) -> dict[str, Any]:
    try:
        return parsed(path.read_text(), str(path))
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from None


def parsed(text: str, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(text)
        about, rows = dict(found["about"]), list(found["rows"])
        for row in rows:
            lacking = {*NEEDED, *(MEASURED if row["status"] == "ok" else ())} - set(row)
            if lacking:
                raise ValueError(f"a row has no {min(lacking)}")
    except (ValueError, TypeError, KeyError) as error:
        raise UnreadableError(f"{name}: no results of run.py ({error})") from None
    return {"about": about, "rows": rows}


def rows_of(result: dict[str, Any], relative: bool) -> dict[Key, Row]:
    rows = {(row["workload"], row["contender"], row["variant"]): row for row in result["rows"]}
    if not relative:
        return rows
    units = {key[0]: row for key, row in rows.items() if is_unit(row)}
    return {key: scaled(row, units.get(key[0])) for key, row in rows.items()}


def is_unit(row: Row) -> bool:
    return bool(
        row["contender"] == BY_HAND and row["variant"] == "by hand" and row["status"] == "ok"
    )


def scaled(row: Row, unit: Row | None) -> Row:
    """A row as a multiple of NumPy by hand."""
    if row["status"] != "ok":
        return row
    if not unit:
        return {**row, "status": "without NumPy by hand", "reason": "nothing to divide by"}
    return {**row, "by_hand": unit}


def speed(row: Row) -> Figure:
    less = row["unit"] == "s"
    figures = [row[name] for name in ("value", "low", "high")]
    if "by_hand" not in row:
        return Figure(*figures, row["unit"], less)
    return Figure(*(figure / row["by_hand"]["value"] for figure in figures), "by hand", less)


def cpu(row: Row) -> Figure | None:
    """CPU time of a record, or of going on; None where it was not measured."""
    field, unit = ("cpu_s", "s") if row["unit"] == "s" else ("cpu_us_per_record", "µs")
    value, rounds = row.get(field), row.get("cpu_rounds")
    if value is None:
        return None
    margin = UNKNOWN_SPREAD * value
    low, high = (min(rounds), max(rounds)) if rounds else (value - margin, value + margin)
    if "by_hand" not in row:
        return Figure(value, low, high, f"{unit} of CPU", True)
    divisor = row["by_hand"].get(field)
    if not divisor:
        return None
    return Figure(value / divisor, low / divisor, high / divisor, "CPU by hand", True)


def judged(old: Row, new: Row) -> list[tuple[str, str]]:
    """(verdict, text) for speed and for CPU time, if they differ beyond the spread."""
    pairs = [(speed(old), speed(new), ("slower", "faster"))]
    before, after = cpu(old), cpu(new)
    if before and after and same_method(old, new):
        pairs.append((before, after, ("more CPU", "less CPU")))
    return [
        (words[0] if now.worse(was) else words[1], change(was, now))
        for was, now, words in pairs
        if now.apart(was)
    ]


def same_method(old: Row, new: Row) -> bool:
    return bool(old.get("method") == new.get("method"))


def compare(old: dict[Key, Row], new: dict[Key, Row], every: bool) -> list[tuple[str, str]]:
    """(verdict, line) of whatever differs."""
    workloads = {key[0] for key in new}
    gone = dict.fromkeys(key[0] for key in old if key[0] not in workloads)
    found = [("missing", f"{name}: not in the new run") for name in gone]
    for key in dict.fromkeys((*old, *new)):
        if key[0] in gone:
            continue
        before, after = old.get(key), new.get(key)
        row = before or after
        if row is None or not (every or row["contender"] == OURS):
            continue
        for verdict, text in difference(before, after):
            found.append((verdict, f"{key[0]}: {row['title']} ({key[2]}): {text}"))
    return found


def difference(old: Row | None, new: Row | None) -> list[tuple[str, str]]:
    """What became of a row."""
    was, now = (row["status"] if row else None for row in (old, new))
    if old and new and was == now == "ok":
        return judged(old, new)
    if "without NumPy by hand" in (was, now):
        return [("missing", "NumPy by hand is not in both runs")]
    if was == "ok" and new is None:
        return [("missing", "not in the new run")]
    if new and (was == "ok" or (now == "error" and was != "error")):
        before = "worked" if was == "ok" else f"was {was or 'not there'}"
        return [("broken", f"{before}, now {now}: {new['reason']}")]
    return [("new", f"was {was or 'not there'}")] if now == "ok" else []


def change(old: Figure, new: Figure) -> str:
    percent = (new.value / old.value - 1) * 100
    return (
        f"{old.value:,.4g} -> {new.value:,.4g} {old.unit} ({percent:+.0f} %); "
        f"spread {old.low:,.4g} to {old.high:,.4g}, now {new.low:,.4g} to {new.high:,.4g}"
    )


def notes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What makes two runs hard to compare."""
    old, new = before["about"], after["about"]
    found = [
        f"{name} {old.get(name)} -> {new.get(name)}"
        for name in ("cores", "python", "quick")
        if old.get(name) != new.get(name)
    ]
    for which, about in (("old", old), ("new", new)):
        if about.get("rounds", ENOUGH) < ENOUGH:
            rounds = about["rounds"]
            found.append(f"the {which} run has {rounds} rounds: too few to know its spread")
    others = ", ".join(other_methods(rows_of(before, False), rows_of(after, False)))
    if others:
        found.append(f"measured in another way, so that CPU time is not compared: {others}")
    return found


def other_methods(old: dict[Key, Row], new: dict[Key, Row]) -> list[str]:
    """The workloads whose rows of loaderx were measured with different methods."""
    both = [key for key in old if key in new and key[1] == OURS]
    done = [key for key in both if old[key]["status"] == new[key]["status"] == "ok"]
    return list(dict.fromkeys(key[0] for key in done if not same_method(old[key], new[key])))


def main() -> int:
    parser = argparse.ArgumentParser(
        usage="%(prog)s [OLD.json] NEW.json [--release REF] [--all] [--relative]",
        description="Names what got slower, or takes more CPU time, between two runs.",
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.json")
    parser.add_argument("--release", metavar="REF", help="instead of OLD.json: the last release")
    parser.add_argument("--all", action="store_true", help="judge the peers' rows as well")
    parser.add_argument("--relative", action="store_true", help="relative to NumPy by hand")
    options = parser.parse_args()
    if len(options.files) > 2 or (options.release and len(options.files) == 2):
        parser.error("give OLD.json and NEW.json, or NEW.json alone")
    try:
        two = len(options.files) == 2
        before = read(options.files[0]) if two else of_release(options.release)
        after = read(options.files[-1])
    except UnreadableError as error:
        print(error, file=sys.stderr)
        return 2
    for note in notes(before, after):
        print(f"note: {note}")
    found = compare(
        rows_of(before, options.relative), rows_of(after, options.relative), options.all
    )
    for verdict, line in sorted(found):
        print(f"{verdict}: {line}")
    bad = sum(verdict in WORSE for verdict, _ in found)
    print(f"{bad} regressions" if bad != 1 else "1 regression")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
