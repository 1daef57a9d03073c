"""``split="train[:80%]+test"``: which records of which split, in the grammar of TFDS.

A split is a name, with an optional range in brackets: of records (``[10:20]``), of hundredths
(``[:80%]``) or of shards (``[1shard:]``).  Negative numbers count from the end.  Several are joined
with a plus.  A dataset without splits takes a range alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError
from loaderx.sources.files.paths import is_data, natural_order, plain_name
from loaderx.sources.format import Folder

# The split of a file follows from its name, as on the Hugging Face hub.
#
# ``train-00000-of-00004.parquet``, ``data/test.jsonl`` and ``validation/0001.tar`` name one; a
# folder in which no file names a split has none.

_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLIT_OF = {word: split for split, words in _WORDS.items() for word in words}
_WORD = re.compile(r"[A-Za-z]+")
_DEEPEST = 4  # folders below the one that was given


def canonical_split(name: str) -> str:
    """The split that a name stands for; a name that stands for none is its own split.

    >>> canonical_split("val"), canonical_split("Training"), canonical_split("train2017")
    ('validation', 'train', 'train2017')
    """
    return _SPLIT_OF.get(name.lower(), name)


def folder_split(name: str) -> str:
    """The split that the name of a folder stands for as a whole; "" if it stands for none.

    >>> folder_split("val"), folder_split("train2017"), folder_split("test_tubes")
    ('validation', 'train', '')
    """
    return _SPLIT_OF.get(name.lower().rstrip("0123456789").rstrip("-_"), "")


def group_splits(names: Collection[str], columns: Sequence[str] | None) -> dict[str, str]:
    """The group of each split, where all arrays of a file are in groups named after splits.

    Empty if ``columns`` are named with their groups.
    """
    groups = list(dict.fromkeys(name.rpartition("/")[0].partition("/")[0] for name in names))
    if len(groups) < 2 or set(names).intersection(columns or ()):
        return {}
    return {split: f"{group}/" for split, group in splits_of(groups).items()}


def in_order(splits: Iterable[str]) -> list[str]:
    """Names of splits in the order in which they are listed: train, validation, test, others."""
    given = list(splits)
    return [name for name in dict.fromkeys([*_WORDS, *given]) if name in given]


def splits_of(names: Collection[str]) -> dict[str, str]:
    """Names of folders by the splits that they stand for, in order; empty if they are classes.

    >>> splits_of(["test", "train2017"]), splits_of(["train", "car"]), splits_of(["val", "valid"])
    ({'train': 'train2017', 'test': 'test'}, {}, {})
    """
    found = {folder_split(name): name for name in names}
    if "" in found or len(found) < len(names):
        return {}
    return {split: found[split] for split in in_order(found)}


def split_files(folder: Folder, suffixes: tuple[str, ...]) -> dict[str, list[str]]:
    """The files of a folder with one of these suffixes, by split, in natural order."""
    found: dict[str, list[str]] = {}
    files = sorted(_files(folder, "", suffixes, _DEEPEST), key=natural_order)
    for name in files:
        found.setdefault(split_of(name), []).append(folder.join(name))
    if "" in found and len(found) > 1:  # only some files name a split: then none is trusted
        return {"": [folder.join(name) for name in files]}
    return {name: found[name] for name in in_order(found)}


def _files(folder: Folder, inside: str, suffixes: tuple[str, ...], deepest: int) -> list[str]:
    found = [
        inside + name
        for name in folder.files
        if is_data(name) and plain_name(name).lower().endswith(suffixes)
    ]
    if deepest:
        for below in folder.folders:
            if is_data(below.name):
                found += _files(below, f"{inside}{below.name}/", suffixes, deepest - 1)
    return found


def split_of(name: str) -> str:
    """The split that a relative path names, in its file name or else in a folder; "" if none.

    >>> split_of("data/train-00000-of-00002.parquet"), split_of("dev/a.jsonl"), split_of("a.jsonl")
    ('train', 'validation', '')
    """
    for piece in reversed(name.split("/")):
        stem = piece.split(".")[0]
        for word in _WORD.findall(stem.lower()):
            if word in _SPLIT_OF:
                return _SPLIT_OF[word]
    return ""


_PART = re.compile(r"\s*([\w.-]*)\s*(?:\[\s*([^\[\]:]*?)\s*:\s*([^\[\]:]*?)\s*\])?\s*")
_BOUND = re.compile(r"(-?\d+(?:_\d+)*)\s*(%|shards?|)")


class SplitSize(NamedTuple):
    """The number of records of a split, and of each of its shards (None if it has no shards)."""

    records: int
    shards: Sequence[int] | None = None


class SplitRange(NamedTuple):
    """Records ``start`` to ``stop - 1`` of a split."""

    name: str
    start: int
    stop: int


class _Asked(NamedTuple):
    name: str
    start: str
    stop: str
    text: str


def names_in(split: str) -> list[str]:
    """The names of the requested splits, each once."""
    return list(dict.fromkeys(asked.name for asked in _parse(split)))


def resolve_split(split: str, sizes: Mapping[str, SplitSize]) -> list[SplitRange]:
    """The ranges of records that a text stands for."""
    found = []
    for asked in _parse(split):
        size = sizes[asked.name]
        start = _bound(asked.start, 0, size, asked)
        stop = _bound(asked.stop, size.records, size, asked)
        found.append(SplitRange(asked.name, start, max(start, stop)))
    if not any(one.stop > one.start for one in found):
        raise ArgumentError(f"split={split!r} has no records.")
    return [one for one in found if one.stop > one.start]


def _parse(split: str) -> list[_Asked]:
    if not isinstance(split, str):
        raise ArgumentTypeError(f"`split` must be text such as 'train[:80%]', got {split!r}.")
    found = []
    for text in split.split("+"):
        match = _PART.fullmatch(text)
        if match is None or not text.strip():
            raise ArgumentError(
                f"split={split!r} is not understood at {text!r}. Write 'train', 'train[:80%]', "
                "'train[10:20]', 'train[1shard:]', or several of them joined with '+'."
            )
        found.append(_Asked(match[1], match[2] or "", match[3] or "", text.strip()))
    return found


def _bound(text: str, default: int, size: SplitSize, asked: _Asked) -> int:
    if not text:
        return default
    match = _BOUND.fullmatch(text)
    if match is None:
        raise ArgumentError(
            f"{text!r} in split {asked.text!r} is neither a number of records (10), nor of percent "
            "(80%), nor of shards (1shard)."
        )
    number, unit = int(match[1]), match[2]
    if unit == "%":
        if not -100 <= number <= 100:
            raise ArgumentError(f"{text!r} in split {asked.text!r} is beyond 100%.")
        found = round(size.records * number / 100)  # as TFDS rounds
    elif unit:
        found = _shard_start(number, size, asked)
    else:
        found = number
    if number < 0:
        found += size.records
    return min(max(found, 0), size.records)


def _shard_start(number: int, size: SplitSize, asked: _Asked) -> int:
    """Where a shard begins; for a negative number, the distance from the end."""
    if size.shards is None:
        raise ArgumentError(f"split {asked.text!r} counts shards, and this data has none.")
    starts = np.concatenate([[0], np.cumsum(size.shards)])
    count = len(size.shards)
    if abs(number) > count:
        raise ArgumentError(f"split {asked.text!r}: there are {count} shards.")
    return int(starts[number]) if number >= 0 else int(starts[count + number]) - size.records
