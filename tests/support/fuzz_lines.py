"""Damaged JSON, CSV and text files.  A target of `fuzz.py`.

A case writes a file, damages it (or not), and reads every record alone, all in order, and some in
any order, with msgspec and as if it were not installed: all must agree.  A record that cannot be
read must be a `RecordError` that names the file; a file that cannot be opened a `FileError` that
names it.  What was not damaged must be what was written.
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
from loaderx.sources.formats.csv_columns import fast_numbers
from loaderx.sources.formats.json_parsing import fast_parser

TEXTS = (
    "",
    "plain",
    'a "quoted", one',
    "two\nlines",
    "naïve \u2028",
    "\ud83d\ude00",
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
        _forget_parsers()
        slow = _outcome(path, order)
    _forget_parsers()
    assert repr(fast) == repr(slow), f"with msgspec {fast}, without {slow}"
    if is_whole:
        assert isinstance(fast, list), fast
        assert repr([_plain(one) for one in fast]) == repr([_plain(one) for one in expected])
    return "data" if isinstance(fast, list) else "refused"


def _forget_parsers() -> None:
    fast_parser.cache_clear()
    fast_numbers.cache_clear()


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
    return "x.jsonl", text.encode("utf-8", "surrogatepass"), rows


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


def _outcome(path: Path, order: np.ndarray) -> list[dict] | str:
    """All records; or what was said of the file, or of the first record that cannot be read."""
    try:
        dataset = Dataset.open(path, cache=False)
    except (ArgumentError, FileError) as error:
        assert path.name in str(error), f"the message does not name the file: {error}"
        return str(error)
    alone = [_one(dataset, index, path) for index in range(len(dataset))]
    wrong = [one for one in alone if isinstance(one, str)]
    order = order[order < len(dataset)]
    for chosen in (np.arange(len(dataset)), order):
        try:
            found = list(dataset[chosen].map(lambda record: record)) if len(chosen) else []
        except RecordError as error:
            assert any(alone[index] in str(error) for index in chosen.tolist())
        else:
            assert repr(found) == repr([alone[index] for index in chosen.tolist()])
    _check_batches(dataset, wrong)
    return wrong[0] if wrong else alone


def _one(dataset: Dataset, index: int, path: Path) -> dict | str:
    try:
        return dataset[index]
    except RecordError as error:
        assert path.name in str(error.__cause__), f"the message does not name the file: {error}"
        assert isinstance(error.__cause__, FileError), repr(error.__cause__)
        return str(error.__cause__)


def _check_batches(dataset: Dataset, wrong: list[str]) -> None:
    """Batches are made, or refused for a record, or because records do not fit together."""
    try:
        count = sum(len(next(iter(batch.values()))) for batch in dataset.batch(4))
    except LoaderxError:
        return
    except StopIteration:  # records without a key
        return
    assert not wrong
    assert count == len(dataset)


def _plain(record: dict) -> dict:
    return {
        name: value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        for name, value in record.items()
    }
