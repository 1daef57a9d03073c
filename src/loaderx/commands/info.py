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
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from loaderx.commands.head import at_least_one
from loaderx.commands.opening import Opening, add_opening, open_call
from loaderx.commands.terminal import bold, cut, faint, red, say, say_table, terminal_width
from loaderx.commands.words import in_options
from loaderx.display.values import plain_text, size_text
from loaderx.errors import FileError
from loaderx.sources.base import FileSource
from loaderx.sources.cache.entries import folder_bytes
from loaderx.sources.files.paths import find
from loaderx.sources.remote.urls import is_url
from loaderx.survey.columns import columns_of, spread, values_text
from loaderx.survey.look import Look, look

_SAMPLE = 1024
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
            found = look(open_parts, partial(spread, most=most), opening.fill)
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


def _columns_of(name: str, found: Look, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "sample": {"split": name, "records": len(found.records) + len(found.problems)},
        "columns": [column.facts() for column in columns_of(found)],
        "fill": found.filled,
        "problems": [
            {"split": name, "record": number, "reason": in_options(reason, vars(options))}
            for number, reason in found.problems.items()
        ],
    }


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
    rows = [
        [plain_text(one["name"]) or "(record)", one["type"], values_text(one)] for one in columns
    ]
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


def _row(title: str, text: str, style: Callable[[str], str] = str) -> None:
    say(f"{bold(f'{title:9}')}{style(plain_text(text))}")
