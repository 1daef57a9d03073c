"""``loaderx verify PATH``: reads and checks every record, and lists the bad ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from loaderx.commands.opened import Opened
from loaderx.errors import LoaderxError, one_line
from loaderx.sources import Source
from loaderx.sources.base import FileSource, Problem
from loaderx.sources.progress import progress


def verify(path: str, format: str | None = None, cache: str | None = None, most: int = 100) -> bool:
    """Prints the records that cannot be read; False if there are any."""
    opened = Opened(path, format, cache)
    checked = bad = 0
    for name, found in opened.splits():
        where = f"{name}: " if name else ""
        if isinstance(found, LoaderxError):
            bad += 1
            _say(f"{where}{found}")
            continue
        with progress("verifying", len(found), unit="records") as shown:
            for problem in _problems(found):
                checked += 1
                shown.add(1)
                if problem is None:
                    continue
                bad += 1
                if bad <= most:
                    _say(f"{where}{problem.where}: {problem.reason}")
    if bad > most:
        _say(f"... and {bad - most:,} more (--most {bad} lists them all)")
    _say(f"{checked:,} records checked, {bad:,} bad" if bad else f"{checked:,} records, all good")
    return not bad


def _problems(source: Source) -> Iterator[Problem | None]:
    if isinstance(source, FileSource):
        yield from source.problems()
        return
    for index in range(len(source)):
        try:
            source.records(np.array([index]))
        except Exception as error:
            yield Problem(index, f"record {index}", one_line(error))
        else:
            yield None


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
