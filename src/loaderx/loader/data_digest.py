"""A digest of a few records of each source, by which a state recognises its data.

It covers only sources that loaderx reads by itself (arrays, ranges, lists, files): a user's object
may draw random numbers, be slow, or not be meant to be read from here.  Nothing is fetched for it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np

from loaderx.chain.encoding import digest, encode
from loaderx.chain.node import Node
from loaderx.errors import StateError
from loaderx.memory import Pool
from loaderx.reading.context import ReadContext
from loaderx.reading.operators import Request
from loaderx.reading.saved_position import shown
from loaderx.rng import ROOT
from loaderx.sources.adapt.objects import ObjectSource
from loaderx.sources.base import OwnSource
from loaderx.stages.inputs import FromSource
from loaderx.tree import flatten

if TYPE_CHECKING:
    from loaderx.order.removed import Removed

_RECORDS = 8
_SOURCES = 32  # at most this many are read, spread over all of them
_READING = ("loaderx.reading", "loaderx.sources", "loaderx.engines", "loaderx.memory")


class DataDigest:
    """What the states of a loader say about its data; computed once, on first use."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._removed = _removed(node, "/")
        self._found: list[tuple[str, str | None]] | None = None

    def sources(self) -> list[tuple[str, str | None]]:
        """The name and the digest of each source; none while records are being read."""
        if self._found is None:
            if _is_reading():
                return []
            self._found = _digests(self._node)
        return self._found

    def in_state(self) -> dict[str, object]:
        found = [digest for _, digest in self.sources()]
        return {**({"data": found} if any(found) else {}), **self._removed_in_state}

    @cached_property
    def _removed_in_state(self) -> dict[str, object]:
        texts = {path: removed.text(len(removed.ids)) for path, removed in self._removed.items()}
        return {"removed": texts} if texts else {}

    def removed_since(self, state: Mapping[str, object]) -> tuple[int, str | None]:
        """How many records were removed since; a problem text if others had been removed."""
        saved = state.get("removed", {})
        if not isinstance(saved, dict) or not all(isinstance(each, str) for each in saved.values()):
            raise StateError(f"the state's `removed` must be a dict of texts, got {shown(saved)}.")
        since = sum(len(removed.ids) for removed in self._removed.values())
        for path, text in saved.items():
            here = self._removed.get(path)
            known = here.count_in(text) if here else 0
            if not known:
                now = here.text(len(here.ids)) if here else "none"
                return 0, (
                    f"its removed records (fill, number, digest) were {shown(text)}, and are "
                    f"{shown(now)} now. More can be removed, at the end of the list; the others "
                    "must stay."
                )
            since -= known
        return since, None

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


def _removed(node: Node, path: str) -> dict[str, Removed]:
    """What is removed from each joined dataset, by the numbers of the datasets."""
    found = {}
    while node.is_stage:
        if node.removed is not None:
            found[path] = node.removed
        node = node.inputs[0]
    for number, below in enumerate(node.inputs):
        found.update(_removed(below, f"{path}{number}/"))
    return found


def _digests(node: Node) -> list[tuple[str, str | None]]:
    """The name and digest of each source; None where records cannot or must not be read."""
    sources = [below for below in node.below() if isinstance(below, FromSource)]
    count = min(len(sources), _SOURCES)
    sources = [sources[number * len(sources) // count] for number in range(count)]
    made = {id(source): _digest(source) for source in sources}  # one may be in several branches
    for below in node.below():
        if below.removed is not None:  # they must not be read
            made.update(dict.fromkeys(map(id, below.below())))
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
