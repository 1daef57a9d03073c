"""Names what got slower between two runs of `run.py`.

    python benchmarks/compare.py OLD.json NEW.json [--all] [--relative]

A row counts as slower when the median of either run lies outside the other run's spread, lowest
to highest round.  A row that worked and works no more counts too.  The exit code is 1 if there is
any.  Only loaderx's rows are judged, unless ``--all`` is given.  ``--relative`` divides every
figure by that of NumPy by hand in its own run, for runs on different machines.
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


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def rows_of(result: dict[str, Any], relative: bool) -> dict[Key, Row]:
    rows = {(row["workload"], row["contender"], row["variant"]): row for row in result["rows"]}
    if not relative:
        return rows
    units = {key[0]: row["value"] for key, row in rows.items() if is_unit(row)}
    return {
        key: scaled(row, units[key[0]]) if row["status"] == "ok" else row
        for key, row in rows.items()
        if key[0] in units
    }


def is_unit(row: Row) -> bool:
    return bool(
        row["contender"] == BY_HAND and row["variant"] == "by hand" and row["status"] == "ok"
    )


def scaled(row: Row, unit: float) -> Row:
    return {**row, **{name: row[name] / unit for name in ("value", "low", "high")}}


def judge(old: Row, new: Row) -> str | None:
    """``"slower"``, ``"faster"``, or None within the spread."""
    apart = not (old["low"] <= new["value"] <= old["high"]) and not (
        new["low"] <= old["value"] <= new["high"]
    )
    if not apart:
        return None
    more = new["value"] > old["value"]
    return "slower" if more == (old["unit"] == "s") else "faster"


def compare(old: dict[Key, Row], new: dict[Key, Row], every: bool) -> list[tuple[str, str]]:
    """(verdict, line) of whatever differs."""
    found = []
    for key, before in old.items():
        if not every and before["contender"] != OURS:
            continue
        name = f"{key[0]}: {before['title']} ({key[2]})"
        after = new.get(key)
        if before["status"] != "ok":
            continue
        if after is None:
            found.append(("missing", f"{name}: not in the new run"))
        elif after["status"] != "ok":
            found.append(("broken", f"{name}: worked, now {after['status']}: {after['reason']}"))
        else:
            verdict = judge(before, after)
            if verdict:
                found.append((verdict, f"{name}: {change(before, after)}"))
    return found


def change(old: Row, new: Row) -> str:
    percent = (new["value"] / old["value"] - 1) * 100
    return (
        f"{old['value']:,.4g} -> {new['value']:,.4g} {old['unit']} ({percent:+.0f} %); "
        f"spread {old['low']:,.4g} to {old['high']:,.4g}, "
        f"now {new['low']:,.4g} to {new['high']:,.4g}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Names what got slower between two runs.")
    parser.add_argument("old", type=Path, metavar="OLD.json")
    parser.add_argument("new", type=Path, metavar="NEW.json")
    parser.add_argument("--all", action="store_true", help="judge the peers' rows as well")
    parser.add_argument("--relative", action="store_true", help="relative to NumPy by hand")
    options = parser.parse_args()
    before, after = read(options.old), read(options.new)
    for name in ("cores", "python", "quick"):
        if before["about"][name] != after["about"][name]:
            print(f"note: {name} {before['about'][name]} -> {after['about'][name]}")
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
