"""Rows of `ConcatThenSplitIterDataset`: records, parts of records, and how they lie in a row."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from loaderx.compat.grain.protocols import State
from loaderx.errors import ArgumentError, StackError

Features = Mapping[str, object]
Slices = dict[str, tuple[int, int]]
Row = dict[str, NDArray[np.generic]]

WHOLE = (-1, -1)  # the slice of a feature that was not cut
_log = logging.getLogger(__name__)


class BOSHandling(Enum):
    """What happens to the first token of each record, or part of a record, in a row."""

    DO_NOTHING = auto()
    REPLACE_FIRST_TOKEN_WITH_BOS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    lengths: Mapping[str, int]
    meta: Collection[str]
    split_full: bool
    bos_handling: BOSHandling
    bos_features: Collection[str]
    bos_token_id: int | None

    def __post_init__(self) -> None:
        does_nothing = self.bos_handling is BOSHandling.DO_NOTHING
        if does_nothing and (self.bos_token_id is not None or self.bos_features):
            raise ArgumentError(
                "`bos_token_id` and `bos_features` have no effect with BOSHandling.DO_NOTHING: "
                "leave them out, or choose another `bos_handling`."
            )
        if not does_nothing and self.bos_token_id is None:
            raise ArgumentError(f"`bos_token_id` must be set with {self.bos_handling}.")
        if both := set(self.meta) & set(self.bos_features):
            raise ArgumentError(
                f"{sorted(both)} stand in `meta_features` and in `bos_features`: meta features "
                "have no first token."
            )

    def whole(self) -> Slices:
        return {name: WHOLE for name in self.lengths if name not in self.meta}


def length_of(value: object) -> int:
    return 1 if np.ndim(value) == 0 else len(value)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Piece:
    """A record, or what is left of one.

    Attributes:
        state: the parent's state before the record was read.
        slices: start and stop for each feature that can be cut.
    """

    state: State
    features: Features
    slices: Slices

    def value(self, name: str) -> object:
        value = self.features[name]
        cut = self.slices.get(name, WHOLE)
        if cut == WHOLE or np.ndim(value) == 0:  # type: ignore[arg-type]
            return value
        return value[cut[0] : cut[1]]  # type: ignore[index]

    def split(self, points: Mapping[str, int]) -> tuple[Piece | None, Piece]:
        if not any(points.values()):
            return None, self
        left, right = {}, {}
        for name, point in points.items():
            start, stop = self.slices[name]
            if (start, stop) == WHOLE:
                start, stop = 0, length_of(self.features[name])
            left[name] = (start, point)
            right[name] = (point, stop)
        return Piece(self.state, self.features, left), Piece(self.state, self.features, right)


@dataclass(slots=True)
class OpenRow:
    """The row that is being filled."""

    settings: Settings
    pieces: list[Piece] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)

    def add(self, piece: Piece) -> Piece | None:
        """Adds what fits, and returns what does not."""
        points: dict[str, int] = {}
        taken: dict[str, int] = {}
        splits = False
        for name, length in self.settings.lengths.items():
            size = length_of(piece.value(name))
            room = length - self.used.get(name, 0)
            if name in self.settings.meta:
                if size > room:
                    _log.error(_META_TOO_LONG, name, size, room, length)
                    return piece
            elif size > room:
                splits = True
                points[name] = max(piece.slices[name][0], 0) + room
                size = room
            else:
                # The length of the part, not where the part ends: this is what Grain does, and a
                # record with several features that is cut twice comes out as it does there.
                points[name] = size
            taken[name] = size
        added, left = piece.split(points) if splits else (piece, None)
        if added is not None:
            self.pieces.append(added)
        for name, size in taken.items():
            self.used[name] = self.used.get(name, 0) + size
        return left


_META_TOO_LONG = (
    "The meta feature %r ends a row early: it has %d entries, and there is room for %d of %d. "
    "Give it a larger length in `length_struct`, or rows will have more padding than needed."
)


def pack(pieces: list[Piece], settings: Settings) -> Row:
    row: Row = {}
    for name, length in settings.lengths.items():
        first = np.asarray(pieces[0].features[name])
        values: NDArray[np.generic] = np.zeros((length, *first.shape[1:]), first.dtype)
        sizes = _copy(pieces, name, values, settings)
        row[name] = values
        if name not in settings.meta:
            row[f"{name}_segment_ids"], row[f"{name}_positions"] = _segments(sizes, length)
    return row


def _copy(
    pieces: list[Piece], name: str, values: NDArray[np.generic], settings: Settings
) -> list[int]:
    """Copies the pieces into a row one after the other, and returns their sizes."""
    sizes = []
    end = 0
    for piece in pieces:
        value = piece.value(name)
        start, end = end, end + length_of(value)
        if end > len(values):
            raise StackError(
                f"cannot pack {name!r}: records of several features were cut so that {end} "
                f"entries would lie in a row of {len(values)}. Give each feature the same length, "
                "or pack it on its own."
            )
        values[start:end] = value  # type: ignore[assignment]
        if name in settings.bos_features and start < len(values):
            values[start] = settings.bos_token_id  # type: ignore[assignment]
        sizes.append(end - start)
    return sizes


def _segments(sizes: list[int], length: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    segment_ids = np.zeros(length, np.int32)
    positions = np.zeros(length, np.int32)
    end = 0
    for number, size in enumerate(sizes, 1):
        start, end = end, end + size
        segment_ids[start:end] = number
        positions[start:end] = np.arange(size, dtype=np.int32)
    return segment_ids, positions
