"""A digest of a few records of each source, by which a state recognises its data.

It covers only sources that loaderx reads by itself (arrays, ranges, lists, files): a user's object
may draw random numbers, be slow, or not be meant to be read from here.  Nothing is fetched for it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
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
_SOURCES = 32  # at most this many are read, spread over all of them
_READING = ("loaderx.reading", "loaderx.sources", "loaderx.engines", "loaderx.memory")


class DataDigest:
    """What the states of a loader say about its data; computed once, on first use."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._found: list[tuple[str, str | None]] | None = None

    def sources(self) -> list[tuple[str, str | None]]:
        """The name and the digest of each source; none while records are being read."""
        if self._found is None:
            if _is_reading():
                return []
            self._found = _digests(self._node)
        return self._found

    def in_state(self) -> dict[str, list[str | None]]:
        found = [digest for _, digest in self.sources()]
        return {"data": found} if any(found) else {}

    def others(self, state: Mapping[str, object]) -> list[str]:
        """The sources whose records differ from those that a state was saved with."""
        saved = state.get("data")
        if not isinstance(saved, (list, tuple)):
            return []
        here = self.sources()
        if len(saved) != len(here):
            return []
        pairs = enumerate(zip(saved, here, strict=True))
        return [
            f"{name} (source {number})" if len(here) > 1 else name
            for number, (old, (name, new)) in pairs
            if new and isinstance(old, str) and old != new
        ]


def _digests(node: Node) -> list[tuple[str, str | None]]:
    """The name and digest of each source; None where records cannot or must not be read."""
    sources = [below for below in node.below() if isinstance(below, FromSource)]
    count = min(len(sources), _SOURCES)
    sources = [sources[number * len(sources) // count] for number in range(count)]
    made = {id(source): _digest(source) for source in sources}  # one may be in several branches
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
    except Exception:  # the loader will report it when it reads that record
        return None
    return str(digest(text.encode()))


def _values(record: object) -> list[tuple[str, object]]:
    leaves, structure = flatten(record)
    return sorted(zip(structure.paths(), leaves, strict=True), key=lambda pair: pair[0])


def _is_reading() -> bool:
    """True inside a signal handler or a function of the dataset that runs during a read.

    Then a lock that reading needs may be held.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_READING):
            return True
        frame = frame.f_back
    return False
