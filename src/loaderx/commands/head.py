"""Show the first records of files.

Without --split, those of the first split. A record that cannot be read is
named, and the exit code is 1. With --json, each record is a line: arrays of
more than 1,000 numbers are replaced by their dtype and shape, bytes by their
number, and missing values are null. Fields of objects have names such as
box.x.

examples:
  loaderx head train.jsonl
  loaderx head photos --split train -n 3
  loaderx head table.parquet --columns id,text --json | jq .text
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from loaderx.commands.opening import Opening, add_opening
from loaderx.commands.terminal import bold, cut, faint, say, say_table, terminal_width
from loaderx.commands.words import in_options
from loaderx.display.values import array_text, plain_text, value_text
from loaderx.sources.open.opening import Opened
from loaderx.survey.look import Look, look

_MOST_JSON = 1000  # numbers of an array


def add(command: argparse.ArgumentParser) -> None:
    add_opening(command)
    command.add_argument("-n", type=at_least_one, default=5, help="records to show, by default 5")
    command.add_argument("--json", action="store_true", help="one JSON object for each record")


def at_least_one(text: str) -> int:
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a number of at least 1, got {text!r}")


def run(options: argparse.Namespace) -> bool:
    """Shows the records; False if one of them cannot be read."""
    opening = Opening(options)

    def first(parts: Sequence[Opened]) -> list[int]:
        return list(range(min(options.n, sum(stop - start for _, start, stop in parts))))

    (name, open_parts), *others = opening.splits()[1].items()
    found = look(open_parts, first, opening.fill)
    if options.json:
        for record in found.records.values():
            say(json.dumps({path: json_value(one) for path, one in record.items()}))
    else:
        _show(found, name, [other for other, _ in others])
    for number, reason in found.problems.items():
        told = in_options(reason, vars(options))
        sys.stderr.write(f"record {number} cannot be read: {plain_text(told)}\n")
    return not found.problems


def json_value(value: object) -> object:
    """A leaf as JSON has it."""
    if isinstance(value, (bytes, np.bytes_)):
        return {"bytes": len(value)}
    if isinstance(value, dict):
        return {str(name): json_value(one) for name, one in value.items()}
    if isinstance(value, list) and not all(isinstance(one, (int, float)) for one in value):
        return [json_value(one) for one in value]
    array: Any = np.asarray(value)
    if array.size > _MOST_JSON:
        return {"array": array_text(array)}
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        array = np.where(np.isfinite(array), array.astype(object), np.array(None))
    if array.dtype.kind == "O":
        return [json_value(one) for one in array] if array.ndim else _plain(array[()])
    return array.tolist() if array.dtype.kind in "biufU" else str(value)


def _plain(value: object) -> object:
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def _show(found: Look, name: str, others: Sequence[str]) -> None:
    classes = found.parts[0].source.classes
    paths = list(dict.fromkeys(path for record in found.records.values() for path in record))
    titles = [plain_text(path) or "(record)" for path in paths]
    rows = []
    for number, record in found.records.items():
        values = [value_text(record.get(path), classes.get(path)) for path in paths]
        rows.append([str(number), *values])
    if rows and not say_table(["", *titles], rows):
        for row, *cells in rows:
            say(bold(f"record {row}"))
            for title, cell in zip(titles, cells, strict=True):
                say(cut(f"  {title}: {cell}", terminal_width()))
    told = f"{len(rows):,} of {found.total:,} records{f' of {name}' if name else ''}"
    if others:
        told += f"; other splits: {', '.join(others)} (--split {others[0]})"
    say(faint(told))
