"""Names what got slower between two runs of `run.py`.

    python benchmarks/compare.py OLD.json NEW.json [--all] [--relative]

A row counts as slower when the median of either run lies outside the other run's spread, lowest
to highest round.  A row that worked and works no more counts too, and one that is new and fails.
The exit code is 1 if there is any, and 2 if a file cannot be read.  What only one of the runs has
is named, and does not count.  Only loaderx's rows are judged, unless ``--all`` is given.
``--relative`` divides every figure by that of NumPy by hand in its own run, for runs on different
machines.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Key = tuple[str, str, str]
OURS, BY_HAND = "loaderx_", "numpy_by_hand"
ENOUGH = 5  # rounds; fewer have no spread to speak of
NEEDED = ("workload", "contender", "variant", "title", "status", "reason")
MEASURED = ("value", "low", "high", "unit")


class UnreadableError(Exception):
    """Why a file is no result of `run.py`."""


def read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        about, rows = dict(found["about"]), list(found["rows"])
        for row in rows:
            lacking = {*NEEDED, *(MEASURED if row["status"] == "ok" else ())} - set(row)
            if lacking:
                raise ValueError(f"a row has no {min(lacking)}")
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise UnreadableError(f"{path}: no results of run.py ({error})") from None
    return {"about": about, "rows": rows}


def rows_of(result: dict[str, Any], relative: bool) -> dict[Key, Row]:
    rows = {(row["workload"], row["contender"], row["variant"]): row for row in result["rows"]}
    if not relative:
        return rows
    units = {key[0]: row["value"] for key, row in rows.items() if is_unit(row)}
    return {key: scaled(row, units.get(key[0])) for key, row in rows.items()}


def is_unit(row: Row) -> bool:
    return bool(
        row["contender"] == BY_HAND and row["variant"] == "by hand" and row["status"] == "ok"
    )


def scaled(row: Row, unit: float | None) -> Row:
    """A row as a multiple of NumPy by hand."""
    if row["status"] != "ok":
        return row
    if not unit:
        return {**row, "status": "without NumPy by hand", "reason": "nothing to divide by"}
    made = {name: row[name] / unit for name in ("value", "low", "high")}
    return {**row, **made, "lower": row["unit"] == "s", "unit": "by hand"}


def judge(old: Row, new: Row) -> str | None:
    """``"slower"``, ``"faster"``, or None within the spread."""
    apart = not (old["low"] <= new["value"] <= old["high"]) and not (
        new["low"] <= old["value"] <= new["high"]
    )
    if not apart:
        return None
    more = new["value"] > old["value"]
    return "slower" if more == old.get("lower", old["unit"] == "s") else "faster"


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
        said = difference(before, after)
        if said:
            found.append((said[0], f"{key[0]}: {row['title']} ({key[2]}): {said[1]}"))
    return found


def difference(old: Row | None, new: Row | None) -> tuple[str, str] | None:
    """What became of a row."""
    was, now = (row["status"] if row else None for row in (old, new))
    if old and new and was == now == "ok":
        verdict = judge(old, new)
        return (verdict, change(old, new)) if verdict else None
    if "without NumPy by hand" in (was, now):
        return "missing", "NumPy by hand is not in both runs"
    if was == "ok" and new is None:
        return "missing", "not in the new run"
    if new and (was == "ok" or (now == "error" and was != "error")):
        before = "worked" if was == "ok" else f"was {was or 'not there'}"
        return "broken", f"{before}, now {now}: {new['reason']}"
    return ("new", f"was {was or 'not there'}") if now == "ok" else None


def change(old: Row, new: Row) -> str:
    percent = (new["value"] / old["value"] - 1) * 100
    return (
        f"{old['value']:,.4g} -> {new['value']:,.4g} {old['unit']} ({percent:+.0f} %); "
        f"spread {old['low']:,.4g} to {old['high']:,.4g}, "
        f"now {new['low']:,.4g} to {new['high']:,.4g}"
    )


def notes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What makes two runs hard to compare."""
    found = [
        f"{name} {before.get(name)} -> {after.get(name)}"
        for name in ("cores", "python", "quick")
        if before.get(name) != after.get(name)
    ]
    for which, about in (("old", before), ("new", after)):
        if about.get("rounds", ENOUGH) < ENOUGH:
            rounds = about["rounds"]
            found.append(f"the {which} run has {rounds} rounds: too few to know its spread")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Names what got slower between two runs.")
    parser.add_argument("old", type=Path, metavar="OLD.json")
    parser.add_argument("new", type=Path, metavar="NEW.json")
    parser.add_argument("--all", action="store_true", help="judge the peers' rows as well")
    parser.add_argument("--relative", action="store_true", help="relative to NumPy by hand")
    options = parser.parse_args()
    try:
        before, after = read(options.old), read(options.new)
    except UnreadableError as error:
        print(error, file=sys.stderr)
        return 2
    for note in notes(before["about"], after["about"]):
        print(f"note: {note}")
    found = compare(
        rows_of(before, options.relative), rows_of(after, options.relative), options.all
    )
    for verdict, line in sorted(found):
        print(f"{verdict}: {line}")
    bad = sum(verdict in ("slower", "broken") for verdict, _ in found)
    print(f"{bad} regressions" if bad != 1 else "1 regression")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
