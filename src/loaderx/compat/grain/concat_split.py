"""`ConcatThenSplitIterDataset`: records laid end to end, and cut into rows of one length.

A row takes records until one does not fit.  That record is split: its first part ends the row, the
rest (the *remainder*) begins the next row.  With ``split_full_length_features=False`` a record that
fills a row by itself becomes a separate row after the row that is being filled.

A state refers to the last point at which only a remainder was held.  It consists of the parent's
state before the record of that remainder, the remainder's slices, and the number of rows since.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from loaderx import ArgumentError, StackError, StateError
from loaderx.compat.grain.iter_dataset import IterDataset, IterNode
from loaderx.compat.grain.iterator import NodeIterator
from loaderx.compat.grain.packing_bins import Span, length_of, segments_of
from loaderx.compat.grain.protocols import Element, State

Features = Mapping[str, object]
Slices = dict[str, tuple[int, int]]
Row = dict[str, NDArray[np.generic]]

WHOLE = (-1, -1)  # the slice of a feature that was not cut
_log = logging.getLogger(__name__)


class BOSHandling(Enum):
    """How the first token of each record, or part of a record, in a row is treated."""

    DO_NOTHING = auto()
    REPLACE_FIRST_TOKEN_WITH_BOS = auto()


@dataclass(frozen=True, slots=True)
class Piece:
    """A record, or the rest of one.

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

    settings: ConcatThenSplitIterDataset
    pieces: list[Piece] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)

    def add(self, piece: Piece) -> Piece | None:
        """Adds the part that fits, and returns the rest."""
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
                # Grain uses the length of the part here, not its end.  So does this, for the same
                # rows where a record with several features is cut twice.
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


def pack(pieces: list[Piece], settings: ConcatThenSplitIterDataset) -> Row:
    row: Row = {}
    for name, length in settings.lengths.items():
        first = np.asarray(pieces[0].features[name])
        values: NDArray[np.generic] = np.zeros((length, *first.shape[1:]), first.dtype)
        spans = _copy(pieces, name, values, settings)
        row[name] = values
        if name not in settings.meta:
            row[f"{name}_segment_ids"], row[f"{name}_positions"] = segments_of(spans, length)
    return row


def _copy(
    pieces: list[Piece],
    name: str,
    values: NDArray[np.generic],
    settings: ConcatThenSplitIterDataset,
) -> list[Span]:
    """Copies the pieces into a row one after the other, and returns their places."""
    spans = []
    end = 0
    for number, piece in enumerate(pieces, 1):
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
        spans.append((start, end - start, number))
    return spans


class ConcatThenSplitDatasetIterator(NodeIterator[Row]):
    """Hands out one row after the other."""

    def __init__(self, ds: ConcatThenSplitIterDataset) -> None:
        super().__init__(ds)
        self._settings = ds
        self._rows: deque[Row] = deque()
        self._remainder: Piece | None = None
        self._ended = False
        self._mark()

    def _mark(self) -> None:
        """Records the state to continue from, after all rows were handed out."""
        remainder = self._remainder
        self._state = self._parent.get_state() if remainder is None else remainder.state
        self._slices = self._settings.whole() if remainder is None else remainder.slices
        self._since = 0

    def __next__(self) -> Row:
        if not self._rows:
            if self._ended:
                raise StopIteration
            self._mark()
            self._make_rows()
        if not self._rows:
            self._mark()
            raise StopIteration
        self._since += 1
        return self._rows.popleft()

    def _make_rows(self) -> None:
        row = OpenRow(self._settings)
        if self._remainder is not None:
            self._remainder = row.add(self._remainder)
        while self._remainder is None:
            piece = self._read()
            if piece is None:
                self._ended = True
                break
            if not self._settings.split_full and self._fills_a_row(piece):
                self._rows.append(pack([piece], self._settings))
                continue
            self._remainder = row.add(piece)
        if row.pieces:
            self._rows.appendleft(pack(row.pieces, self._settings))
        elif self._remainder is not None:
            self._refuse(self._remainder)
        if self._ended and self._remainder is not None:
            self._rows.append(pack([self._remainder], self._settings))
            self._remainder = None

    def _read(self) -> Piece | None:
        state = self._parent.get_state()
        try:
            features = next(self._parent)
        except StopIteration:
            return None
        if not isinstance(features, Mapping):
            raise StackError(
                "a record to pack must be a flat dict, with an array or a number for each "
                f"feature; got a {type(features).__name__}. Make it one in .map()."
            )
        if features.keys() != self._settings.lengths.keys():
            raise StackError(
                f"Parent element has structure {sorted(features)}, and `length_struct` has "
                f"{sorted(self._settings.lengths)}: they must be the same."
            )
        return Piece(state, features, self._settings.whole())

    def _fills_a_row(self, piece: Piece) -> bool:
        room = [
            length - length_of(piece.value(name)) for name, length in self._settings.lengths.items()
        ]
        return min(room) == 0

    def _refuse(self, piece: Piece) -> None:
        long = [
            f"{name} has {length_of(piece.value(name))} of {length}"
            for name, length in self._settings.lengths.items()
            if name in self._settings.meta and length_of(piece.value(name)) > length
        ]
        if long:
            raise StackError(
                f"A meta feature is longer than a row and cannot be cut: {', '.join(long)}."
            )

    def get_state(self) -> State:
        return {
            "parent_state": copy.deepcopy(self._state),
            "remainder_slices": dict(self._slices),
            "elements_from_buffer_after_checkpoint": self._since,
        }

    def set_state(self, state: State) -> None:
        parent_state, since = state["parent_state"], state["elements_from_buffer_after_checkpoint"]
        given = state["remainder_slices"]
        if not isinstance(given, Mapping) or not isinstance(since, int):
            raise StateError(f"this is not a state of ConcatThenSplitIterDataset: {state!r}.")
        # JSON makes lists of tuples.
        slices = {name: (int(cut[0]), int(cut[1])) for name, cut in given.items()}
        self._rows.clear()
        self._remainder = None
        self._ended = False
        self._parent.set_state(parent_state)
        if any(cut != WHOLE for cut in slices.values()):
            try:
                self._remainder = Piece(parent_state, next(self._parent), slices)
            except StopIteration:
                raise StateError(
                    "The state has a part of a record that the dataset does not have."
                ) from None
        self._mark()
        for _ in range(since):
            next(self)


class ConcatThenSplitIterDataset(IterNode[Row]):
    """Lays records end to end and cuts them into rows of one length.

    Args:
        parent: records are dicts of arrays and numbers; the first dimension is the sequence.
        length_struct: the length of a row, for each feature.
        meta_features: features that are never cut, and have no segments and positions.
        split_full_length_features: whether a record that fills a row is cut like the others;
            otherwise it becomes a separate row.
        bos_handling: how first tokens are treated.
        bos_features: the features to which `bos_handling` applies.
        bos_token_id: the token for the beginning of a sequence.
    """

    _iterator = ConcatThenSplitDatasetIterator

    def __init__(
        self,
        parent: IterDataset[Element],
        *,
        length_struct: Mapping[str, int],
        meta_features: Collection[str] = (),
        split_full_length_features: bool = True,
        bos_handling: BOSHandling = BOSHandling.DO_NOTHING,
        bos_features: Collection[str] = (),
        bos_token_id: int | None = None,
    ) -> None:
        super().__init__(parent)
        does_nothing = bos_handling is BOSHandling.DO_NOTHING
        if does_nothing and (bos_token_id is not None or bos_features):
            raise ArgumentError(
                "`bos_token_id` and `bos_features` have no effect with BOSHandling.DO_NOTHING: "
                "leave them out, or choose another `bos_handling`."
            )
        if not does_nothing and bos_token_id is None:
            raise ArgumentError(f"`bos_token_id` must be set with {bos_handling}.")
        if both := set(meta_features) & set(bos_features):
            raise ArgumentError(
                f"{sorted(both)} are in both `meta_features` and `bos_features`: meta features "
                "have no first token."
            )
        self.lengths, self.meta = length_struct, meta_features
        self.split_full = split_full_length_features
        self.bos_features, self.bos_token_id = bos_features, bos_token_id

    def whole(self) -> Slices:
        """The slices of a record that was not cut."""
        return {name: WHOLE for name in self.lengths if name not in self.meta}
