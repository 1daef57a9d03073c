"""Read and check every record of files, and list the bad ones.

If one is bad, or if files cannot be opened, the exit code is 1.

examples:
  loaderx verify photos
  loaderx verify "shards/*.tar" --workers 8
  loaderx verify train.jsonl --json | jq '.problems[].record'
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from loaderx import DataLoader, Dataset
from loaderx.commands.head import at_least_one
from loaderx.commands.opening import Opening, add_opening
from loaderx.commands.terminal import faint, red, say
from loaderx.commands.words import in_options
from loaderx.display.values import plain_text
from loaderx.errors import FileError, LoaderxWarning, MissingPackageError, one_line
from loaderx.frozen import Frozen
from loaderx.sources import Source
from loaderx.sources.base import FileSource, Problem
from loaderx.sources.open.opening import Opened
from loaderx.sources.progress import progress

_Found: TypeAlias = "list[Problem | MissingPackageError]"
_TASKS, _MOST_AT_ONCE = 64, 1024  # tasks to have at least, and records of one at most


def add(command: argparse.ArgumentParser) -> None:
    add_opening(command)
    most = command.add_argument("-n", "--most", type=int, default=100, metavar="N")
    most.help = "bad records to list, by default 100"
    command.add_argument(
        "--workers", "--num-workers", type=at_least_one, metavar="N", help="processes that check"
    )
    command.add_argument("--json", action="store_true", help="all of it as one JSON object")


def run(options: argparse.Namespace) -> bool:
    """Lists the records that cannot be read; False if there are any."""
    opening = Opening(options)
    checked, bad, unopened = 0, list[dict[str, Any]](), list[dict[str, str]]()

    def note(split: str, where: str, reason: str) -> str:
        """The reason in the words of the command line; it is listed, if not too many are."""
        told = in_options(reason, vars(options))
        if len(bad) < options.most and not options.json:
            say(f"{split}{': ' if split else ''}{red(plain_text(f'{where}{told}'))}")
        return told

    for name, open_parts in opening.splits()[1].items():
        try:
            parts = open_parts(opening.fill)
        except FileError as error:
            unopened.append({"split": name, "reason": note(name, "", str(error))})
            continue
        checked += sum(stop - start for _, start, stop in parts)
        for one in _problems(parts, options.workers):
            reason = note(name, f"{one.where}: ", one.reason)
            bad.append({"split": name, "record": one.record, "where": one.where, "reason": reason})
    if options.json:
        say(json.dumps({"checked": checked, "problems": bad, "unopened": unopened}, indent=2))
    else:
        _say_end(checked, len(bad), len(unopened), options)
    return not (bad or unopened)


def _say_end(checked: int, bad: int, unopened: int, options: argparse.Namespace) -> None:
    if bad > options.most:
        say(f"... and {bad - options.most:,} more (--most {bad} lists them all)")
    if not checked:
        say("no record was checked: the files cannot be opened")
    elif bad or unopened:
        others = f"; {unopened} of the splits cannot be opened" if unopened else ""
        say(f"{checked:,} records checked, {bad:,} bad{others}")
    else:
        say(f"{checked:,} records, all good")
    if bad:
        say(faint('leave them out: loaderx convert SRC DST --skip-bad, or .on_error("skip")'))


def _problems(parts: Sequence[Opened], workers: int | None) -> Iterator[Problem]:
    """The bad records of a split, in order; workers check some hundred at a time."""
    for source, start, stop in parts:
        step = max(1, min(_MOST_AT_ONCE, (stop - start) // _TASKS))
        check = _Check(source, start, stop, step)
        tasks = Dataset.range(-(-(stop - start) // step)).map(check)
        with progress("verifying", stop - start, unit="records") as shown:
            for found in tasks if workers is None else _by_workers(tasks, workers):
                for problem in found:
                    if isinstance(problem, MissingPackageError):
                        raise problem
                    yield problem
                shown.add(step)


def _by_workers(tasks: Dataset[_Found], workers: int) -> Iterator[_Found]:
    with (
        DataLoader(tasks, engine="processes", num_workers=workers) as loader,
        warnings.catch_warnings(),
    ):
        # Waiting for the workers is all that is done here.
        warnings.filterwarnings("ignore", "the loop has waited", LoaderxWarning)
        yield from loader


class _Check(Frozen):
    """Checks one run of consecutive records."""

    source: Source
    start: int
    stop: int
    step: int

    def __call__(self, task: int) -> _Found:
        first = self.start + int(task) * self.step
        try:
            return list(_problems_of(self.source, first, min(first + self.step, self.stop)))
        except MissingPackageError as error:  # not a problem of the record
            return [error]


def _problems_of(source: Source, first: int, stop: int) -> Iterator[Problem]:
    if isinstance(source, FileSource):
        yield from filter(None, source.problems(first, stop))
        return
    for index in range(first, stop):
        try:
            source.records(np.array([index]))
        except Exception as error:
            yield Problem(index, f"record {index}", one_line(error))
