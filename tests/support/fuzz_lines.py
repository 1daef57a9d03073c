"""Damaged JSON, CSV and text files.  A target of `fuzz.py`.

A case writes a file, damages it (or not), and reads every record alone, all in order, and some in
any order, with msgspec, as if it were not installed, and from a copy: all must agree.  A record
that cannot be read must be a `RecordError` that names the file; a file that cannot be opened a
`FileError` that names it.  What was not damaged must be what was written.
"""

from __future__ import annotations

import csv
import io
import json
import random
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np

from fuzz_files import damaged
from loaderx import ArgumentError, Dataset, FileError, LoaderxError, RecordError
from loaderx.sources.formats.lines.json_parsing import fast_parser
from loaderx.sources.native import copies as native_copies

TEXTS = (
    "",
    "plain",
    'a "quoted", one',
    "two\nlines",
    "naïve \u2028",
    "\U0001f600",
    "NA",
    "12",
    "[",
)
ENDS = ("\n", "\r\n", "\n\n", " \n")


def check(seed: int) -> str:
    """Runs a case in the current directory, and leaves nothing in it."""
    draw = random.Random(seed)
    place = Path(f"case{seed}")
    place.mkdir()
    try:
        return _check(draw, place)
    finally:
        shutil.rmtree(place)


def _check(draw: random.Random, place: Path) -> str:
    name, content, expected = draw.choice([_jsonl, _jsonl, _array, _csv, _csv, _text])(draw)
    content, is_whole = damaged(draw, content)
    path = place / name
    path.write_bytes(content)
    order = np.random.default_rng(draw.randrange(99)).permutation(len(expected) or 1)
    fast = _outcome(path, order)
    with patch.dict(sys.modules, {"msgspec": None}):
        fast_parser.cache_clear()
        slow = _outcome(path, order)
    fast_parser.cache_clear()
    assert repr(fast) == repr(slow), f"with msgspec {fast}, without {slow}"
    with patch.object(native_copies, "LEAST_BYTES", 0):
        copied = _outcome(path, order, cache=place / "cache")
    assert repr(fast) == repr(copied), f"parsed {fast}, copied {copied}"
    if is_whole:
        assert isinstance(fast, list), fast
        assert repr([_plain(one) for one in fast]) == repr([_plain(one) for one in expected])
    return "data" if isinstance(fast, list) else "refused"


# Files ------------------------------------------------------------------------------------------


def _rows(draw: random.Random) -> list[dict]:
    kinds = [draw.choice(["i", "f", "t", "l", "x"]) for _ in range(draw.randint(1, 4))]
    makers = {
        "i": lambda: draw.choice([0, -5, 77, 2**31 - 1]),
        "f": lambda: draw.choice([0.5, -1e-7, 1e300, 3.0]),
        "t": lambda: draw.choice(TEXTS),
        "l": lambda: [draw.randrange(99) for _ in range(draw.randrange(4))],
        "x": lambda: draw.choice([{"a": [1, {"b": None}]}, {}, {"a": "x"}]),
    }
    return [
        {f"{kind}{number}": makers[kind]() for number, kind in enumerate(kinds)}
        for _ in range(draw.randint(1, 12))
    ]


def _jsonl(draw: random.Random) -> tuple[str, bytes, list[dict]]:
    rows, is_ascii = _rows(draw), draw.random() < 0.5
    text = "".join(json.dumps(row, ensure_ascii=is_ascii) + draw.choice(ENDS) for row in rows)
    return "x.jsonl", text.encode(), rows


def _array(draw: random.Random) -> tuple[str, bytes, list[dict]]:
    rows = _rows(draw)
    return "x.json", json.dumps(rows, indent=draw.choice([None, 1])).encode(), rows


def _csv(draw: random.Random) -> tuple[str, bytes, list[dict]]:
    rows = [
        {"n": draw.randrange(-9, 999), "x": draw.choice([0.5, 1e-9]), "t": draw.choice(TEXTS[1:6])}
        for _ in range(draw.randint(1, 12))
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=draw.choice(ENDS[:3]))
    writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    return "x.csv", out.getvalue().encode(), rows


def _text(draw: random.Random) -> tuple[str, bytes, list[dict]]:
    lines = [draw.choice(["", "a", "é\u2028", "tab\t"]) for _ in range(draw.randint(1, 12))]
    return (
        "x.txt",
        "".join(f"{line}\n" for line in lines).encode(),
        [{"text": one} for one in lines],
    )


# Reading ----------------------------------------------------------------------------------------


def _outcome(path: Path, order: np.ndarray, cache: Path | bool = False) -> list[dict] | str:
    """All records; or what was said of the file, or of the first record that cannot be read."""
    opened = _opened(path, cache)
    if isinstance(opened, LoaderxError):
        assert path.name in str(opened), f"the message does not name the file: {opened}"
        return str(opened)
    alone = [_read(opened, index) for index in range(len(opened))]
    for one in alone:
        if isinstance(one, RecordError):
            assert isinstance(one.__cause__, FileError), repr(one.__cause__)
            assert path.name in str(one), f"the message does not name the file: {one}"
    for chosen in (np.arange(len(opened)), order[order < len(opened)]):
        if len(chosen):
            _check_together(opened, chosen.tolist(), alone)
    wrong = [str(one.__cause__) for one in alone if isinstance(one, RecordError)]
    _check_batches(opened, wrong)
    return wrong[0] if wrong else alone


def _opened(path: Path, cache: Path | bool) -> Dataset | LoaderxError:
    try:
        return Dataset.open(path, cache=cache)
    except (ArgumentError, FileError) as error:
        return error


def _read(dataset: Dataset, index: int) -> dict | RecordError:
    try:
        return dataset[index]
    except RecordError as error:
        return error


def _check_together(dataset: Dataset, chosen: list[int], alone: list[dict | RecordError]) -> None:
    """Records that are read together are those that are read alone, or the first bad one fails."""
    rows = [alone[index] for index in chosen]
    bad = [one for one in rows if isinstance(one, RecordError)]
    try:
        found = next(iter(dataset[np.array(chosen)].batch(len(chosen), collate_fn=list)))
    except RecordError as error:
        found = error
    if bad:
        assert str(bad[0].__cause__) in str(found), f"{found!r} is not {bad[0]!r}"
    else:
        assert repr(found) == repr(rows)


def _check_batches(dataset: Dataset, wrong: list[str]) -> None:
    """Batches are made, or refused for a record, or because records do not fit together."""
    try:
        for _ in dataset.batch(4):
            pass
    except LoaderxError:
        return
    assert not wrong


def _plain(record: dict) -> dict:
    return {
        name: value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        for name, value in record.items()
    }
