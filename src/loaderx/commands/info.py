"""Show the format, splits, columns and sizes of files.

Types, missing values, ranges, lengths and classes are those of a sample: up to
1,024 records, or as many as --sample says, spread over the first split, and
about 64 MB of them. No copy of the data is made, unless files are compressed
as a whole. If a record of the sample cannot be read, it is named, and the exit
code is 1.

examples:
  loaderx info train.jsonl
  loaderx info photos --split validation
  loaderx info "shards/*.tar" --sample 10000 --json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from loaderx.commands.head import at_least_one
from loaderx.commands.opening import Look, Opening, add_opening, look, open_call
from loaderx.commands.terminal import bold, cut, faint, red, say, say_table, terminal_width
from loaderx.commands.words import in_options
from loaderx.display.values import plain_text, size_text, value_text
from loaderx.errors import FileError, LoaderxError
from loaderx.sources.base import FileSource
from loaderx.sources.cache.entries import folder_bytes
from loaderx.sources.files.paths import find
from loaderx.sources.open.opening import Opened
from loaderx.sources.remote.urls import is_url
from loaderx.tree import Array, as_array

_SAMPLE, _LEAST_SAMPLE, _SAMPLE_BYTES = 1024, 16, 1 << 26
_RUNS = 64  # of consecutive records that a sample consists of
_CHUNKS = 8  # that are decoded for it, where records are stored in chunks
_MOST_CLASSES = 8
_MOST_COLUMNS = 60
_MOST_PROBLEMS = 3


def add(command: argparse.ArgumentParser) -> None:
    add_opening(command)
    sample = command.add_argument("--sample", type=at_least_one, default=_SAMPLE, metavar="N")
    sample.help = "records to look at"
    command.add_argument("--json", action="store_true", help="all of it as one JSON object")


def run(options: argparse.Namespace) -> bool:
    """Shows the facts about a path; False if something in it cannot be read."""
    opening = Opening(options)
    facts = _facts(opening, options)
    if options.json:
        say(json.dumps(facts, indent=2))
    else:
        _show(facts, options)
    return not (facts["problems"] or any("problem" in one for one in facts["splits"]))


# The facts, as `--json` shows them --------------------------------------------------------------


def _facts(opening: Opening, options: argparse.Namespace) -> dict[str, Any]:
    format, splits = opening.splits()
    facts: dict[str, Any] = {"path": options.path, "format": format}
    facts["bytes"] = _disk_bytes(options.path, opening)
    facts.update(splits=[], sample=None, columns=[], fill=[], problems=[])
    for name, open_parts in splits.items():
        most = options.sample if facts["sample"] is None else 0  # the first split has the columns
        try:
            found = look(opening, open_parts, partial(_sample, most=most))
        except FileError as error:
            facts["splits"].append({"name": name, "problem": in_options(str(error), vars(options))})
            continue
        shards = [one.shard_counts for one, *_ in found.parts if isinstance(one, FileSource)]
        split = {"name": name, "records": found.total}
        facts["splits"].append({**split, "shards": sum(len(one or ()) for one in shards)})
        if most:
            facts.update(_columns_of(name, found, options))
    used = {kind: sum(map(folder_bytes, {*some})) for kind, some in opening.cache.used.items()}
    return {**facts, "cache": used, "cache_folder": opening.cache.folder}


def _disk_bytes(path: str, opening: Opening) -> int | None:
    """The size of the files; None where it is not known without asking a server."""
    if is_url(path):
        return None
    found = find(path, opening.cache.files)
    if found.folder is not None:
        return folder_bytes(found.folder)
    return sum(os.path.getsize(file) for file in found.files if not is_url(file))


def _sample(parts: Sequence[Opened], most: int) -> list[int]:
    """Numbers of records, in runs that are spread over all of them."""
    source, first, stop = parts[0]
    count = sum(one.stop - one.start for one in parts)
    begin = range(min(_LEAST_SAMPLE, count, most))
    with contextlib.suppress(Exception):  # a record that cannot be read is found again
        records = source.records(np.arange(first, min(first + len(begin), stop)))
        row = sum(map(_nbytes, records)) // len(records) or 1
        most = max(len(begin), min(most, _SAMPLE_BYTES // row))
    if most >= count or not most:
        return list(range(min(most, count)))
    runs = _RUNS if source.chunks() is None else _CHUNKS
    length = -(-most // runs)
    starts = np.linspace(0, count - length, -(-most // length)).astype(np.int64)
    return sorted({int(start) + place for start in starts for place in range(length)})[:most]


def _nbytes(record: object) -> int:
    values = record.values() if isinstance(record, Mapping) else [record]
    return sum(
        len(one) if isinstance(one, (str, bytes)) else np.asarray(one).nbytes for one in values
    )


def _columns_of(name: str, found: Look, options: argparse.Namespace) -> dict[str, Any]:
    values: dict[str, list[object]] = {}
    for record in found.records.values():
        for path, value in record.items():
            values.setdefault(path, []).append(value)
    return {
        "sample": {"split": name, "records": len(found.records) + len(found.problems)},
        "columns": [_column(found, path, some) for path, some in values.items()],
        "fill": found.filled,
        "problems": [
            {"split": name, "record": number, "reason": in_options(reason, vars(options))}
            for number, reason in found.problems.items()
        ],
    }


def _column(found: Look, path: str, given: Sequence[object]) -> dict[str, Any]:
    values = [one for one in given if one is not None]
    arrays = [_array(one) for one in values]
    column: dict[str, Any] = {"name": path, "type": _type(arrays)}
    column["missing"] = len(found.records) - len(values)
    lengths = [len(one) for one in values if isinstance(one, (str, bytes))]
    if len({one.shape for one in arrays}) > 1:
        lengths += [len(one) for one in arrays if one.ndim]
    if lengths:
        column["length"] = [min(lengths), max(lengths)]
    numbers = [one for one in arrays if one.dtype.kind in "biuf"]
    finite = [one[np.isfinite(one)] for one in numbers]
    not_finite = sum(one.size for one in numbers) - sum(one.size for one in finite)
    if not_finite:
        column["not_finite"] = not_finite
    ends = [(one.min(), one.max()) for one in finite if one.size]
    if ends:
        least, most = zip(*ends, strict=True)
        column["range"] = [min(least).item(), max(most).item()]
    classes = found.parts[0].source.classes.get(path, ())
    if classes:
        seen = Counter(value_text(one, classes) for one in values)
        column["classes"] = {one: seen[plain_text(one)] for one in classes}
    return column


def _array(value: object) -> Array:
    try:
        return as_array(value)
    except (LoaderxError, ValueError):  # a number of many digits, lists of several lengths
        return np.array(value, object)


def _type(arrays: Sequence[Array]) -> str:
    """The type in users' words; axes that differ between records are "?"."""
    empty = [one.shape for one in arrays if not one.size]
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for array in arrays:
        if array.size or len(empty) == len(arrays):  # an empty list has no dtype of its own
            shapes.setdefault(_dtype(array), []).append(array.shape)
    told = [f"{name}{_axes([*some, *empty])}" for name, some in shapes.items()]
    return " or ".join(told) or "null"


def _dtype(array: Array) -> str:
    if array.dtype.kind != "O":
        return str(array.dtype)
    return " and ".join(sorted({type(item).__name__ for item in array.flat}))


def _axes(shapes: Sequence[tuple[int, ...]]) -> str:
    if len({len(shape) for shape in shapes}) > 1:
        return "[...]"
    sizes = [{*axis} for axis in zip(*shapes, strict=True)]
    inner = ",".join(str(size.pop()) if len(size) == 1 else "?" for size in sizes)
    return f"[{inner}]" if inner else ""


# As text ----------------------------------------------------------------------------------------


def _show(facts: Mapping[str, Any], options: argparse.Namespace) -> None:
    found = [one for one in facts["splits"] if "problem" not in one]
    if found:  # else the format was only guessed
        _row("format", facts["format"])
        if facts["bytes"] is not None:
            _row("size", size_text(facts["bytes"]))
    for one in facts["splits"]:
        _row("split" if one["name"] else "records" if one in found else "data", _split_text(one))
    if facts["columns"]:
        _say_columns(facts, found[0]["records"])
    for problem in facts["problems"][:_MOST_PROBLEMS]:
        _row("damaged", f"record {problem['record']}: {problem['reason']}", red)
    if len(facts["problems"]) > _MOST_PROBLEMS:
        _row("", f"{len(facts['problems'])} of the sample: loaderx verify lists all", red)
    for kind, nbytes in filter(itemgetter(1), facts["cache"].items()):
        _row(kind, f"{size_text(nbytes)} in {facts['cache_folder']}")
    if found:
        _row("open it", open_call(options, facts["fill"], found[0]["name"]), faint)


def _split_text(one: Mapping[str, Any]) -> str:
    name = f"{one['name']}  " if one["name"] else ""
    if "problem" in one:
        return f"{name}cannot be opened: {one['problem']}"
    told = f"{one['records']:,}" + (" records" if name else "")
    return f"{name}{told}" + (f" in {one['shards']:,} shards" if one["shards"] > 1 else "")


def _say_columns(facts: Mapping[str, Any], count: int) -> None:
    sample, columns = facts["sample"], facts["columns"]
    head = ["name", "type", "values"]
    rows = [[plain_text(one["name"]) or "(record)", one["type"], _values(one)] for one in columns]
    if any(one["missing"] for one in columns):
        head.insert(2, "missing")
        for one, row in zip(columns, rows, strict=True):
            some = one["missing"] or ("not in the sample" if one["name"] in facts["fill"] else "")
            row.insert(2, f"{some}")
    whole = sample["records"] == count
    of = f" of {sample['split']}" if sample["split"] and len(facts["splits"]) > 1 else ""
    of = of if whole else f"{of}, from a sample of {sample['records']:,} records"
    _row("columns", f"{len(columns)}{of}")
    more = len(rows) - _MOST_COLUMNS
    if not say_table(head, rows[:_MOST_COLUMNS], "  "):
        for row in rows[:_MOST_COLUMNS]:
            say(cut("  " + "  ".join(row), terminal_width()))
    if more > 0:
        say(f"  ... {more} more (--json shows all)")


def _values(column: Mapping[str, Any]) -> str:
    """Ranges, lengths and classes in one line."""
    told = []
    if "classes" in column:
        names = list(column["classes"].items())
        shown = ", ".join(f"{plain_text(name)} {seen}" for name, seen in names[:_MOST_CLASSES])
        more = ", ..." if len(names) > _MOST_CLASSES else ""
        told.append(f"{len(names)} class{'es' if len(names) != 1 else ''}: {shown}{more}")
    elif "range" in column:
        least, most = column["range"]
        told.append(
            value_text(least) if least == most else " to ".join(map(_number, (least, most)))
        )
    if "not_finite" in column:
        told.append(f"{column['not_finite']:,} not finite")
    if "length" in column:
        told.append(f"length {' to '.join(f'{one:,}' for one in dict.fromkeys(column['length']))}")
    return ", ".join(told)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else value_text(value)


def _row(title: str, text: str, style: Callable[[str], str] = str) -> None:
    say(f"{bold(f'{title:9}')}{style(plain_text(text))}")
