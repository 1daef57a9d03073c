"""A digest of a few records of each source, by which a state knows its data again.

Only what loaderx reads by itself is looked at (arrays, ranges, lists, files): an object of the
user's may draw random numbers, be slow, or not be meant to be read from here.  Nothing is fetched
for it.
"""

from __future__ import annotations

import sys
from types import FrameType

import numpy as np

from loaderx.chain.encoding import digest, encode
from loaderx.chain.node import Node
from loaderx.memory import Pool
from loaderx.reading.context import ReadContext
from loaderx.reading.operators import Request
from loaderx.rng import ROOT
from loaderx.sources.adapt.objects import ObjectSource
from loaderx.sources.base import OwnSource
from loaderx.stages.inputs import FromSource
from loaderx.tree import flatten

_RECORDS = 8
_SOURCES = 32  # at most so many are looked at, spread over all of them
_READING = ("loaderx.reading", "loaderx.sources", "loaderx.engines", "loaderx.memory")


def digests(node: Node) -> list[tuple[str, str | None]]:
    """The name of each source, and its digest; None where records cannot be read, or must not."""
    sources = [below for below in node.below() if isinstance(below, FromSource)]
    count = min(len(sources), _SOURCES)
    sources = [sources[number * len(sources) // count] for number in range(count)]
    made = {id(source): _digest(source) for source in sources}  # one may stand in several branches
    return [(source.stage, made[id(source)]) for source in sources]


def _digest(node: FromSource) -> str | None:
    source, length = node.source, node.length
    if not isinstance(source, OwnSource) or not source.thread_safe or source.fetches:
        return None
    if isinstance(source, ObjectSource) and not source.is_plain:
        return None
    positions = np.arange(min(length, _RECORDS))
    if source.random_access and length:
        positions = positions * length // len(positions)
    try:
        operator = node.record_operator(Request(0, stacked=False))
        rows = ReadContext(Pool().lend).read(operator, operator.resolve(ROOT, positions))
        text = encode([_values(record) for record in rows.records()])
    except Exception:  # whoever reads that record is told
        return None
    return str(digest(text.encode()))


def _values(record: object) -> list[tuple[str, object]]:
    leaves, structure = flatten(record)
    return sorted(zip(structure.paths(), leaves, strict=True), key=lambda pair: pair[0])


def is_reading() -> bool:
    """Is a record read meanwhile: is this a signal handler, or a function of the dataset?

    Then a lock may be held that reading needs.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_READING):
            return True
        frame = frame.f_back
    return False
