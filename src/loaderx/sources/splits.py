"""``split="train[:80%]+test"``: which records of which split, in the grammar of TFDS.

A split is a name, with an optional range in brackets: of records (``[10:20]``), of hundredths
(``[:80%]``) or of shards (``[1shard:]``).  Negative numbers count from the end.  Several are joined
with a plus.  A dataset without splits takes a range alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError

_PART = re.compile(r"\s*([\w.-]*)\s*(?:\[\s*([^\[\]:]*?)\s*:\s*([^\[\]:]*?)\s*\])?\s*")
_BOUND = re.compile(r"(-?\d+(?:_\d+)*)\s*(%|shards?|)")


class SplitSize(NamedTuple):
    """How many records a split has, and how many each of its shards (None: it has no shards)."""

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
    """The names of the splits that are asked for, each once."""
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
    """Where a shard begins; of a negative number, how far that is from the end."""
    if size.shards is None:
        raise ArgumentError(f"split {asked.text!r} counts shards, and this data has none.")
    starts = np.concatenate([[0], np.cumsum(size.shards)])
    count = len(size.shards)
    if abs(number) > count:
        raise ArgumentError(f"split {asked.text!r}: there are {count} shards.")
    return int(starts[number]) if number >= 0 else int(starts[count + number]) - size.records
