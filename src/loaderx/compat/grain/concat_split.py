"""`ConcatThenSplitIterDataset`: records laid end to end, and cut into rows of one length.

A row takes records until one does not fit.  That one is split: its first part ends the row, the
rest (the *remainder*) begins the next row.  With ``split_full_length_features=False`` a record that
fills a row by itself becomes a row of its own, behind the row that is being filled.

A state is taken where nothing but a remainder is held: the parent's state before the
record that the remainder belongs to, the remainder's slices, and the number of rows since.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Collection, Mapping

from loaderx.compat.grain.concat_rows import (
    WHOLE,
    BOSHandling,
    OpenRow,
    Piece,
    Row,
    Settings,
    length_of,
    pack,
)
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.protocols import Element, State
from loaderx.errors import StackError, StateError

__all__ = ["BOSHandling", "ConcatThenSplitDatasetIterator", "ConcatThenSplitIterDataset"]


class ConcatThenSplitDatasetIterator(DatasetIterator[Row]):
    """Hands out one row after the other."""

    def __init__(self, parent: DatasetIterator[Element], settings: Settings) -> None:
        super().__init__(parent)
        self._settings = settings
        self._rows: deque[Row] = deque()
        self._remainder: Piece | None = None
        self._ended = False
        self._mark()

    def _mark(self) -> None:
        """Notes a state to continue from: rows are all handed out."""
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


class ConcatThenSplitIterDataset(IterDataset[Row]):
    """Lays records end to end and cuts them into rows of one length.

    Args:
        parent: records are dicts of arrays and numbers; the first dimension is the sequence.
        length_struct: the length of a row, for each feature.
        meta_features: features that are never cut, and have no segments and positions.
        split_full_length_features: whether a record that fills a row is cut like the others;
            otherwise it becomes a row of its own.
        bos_handling: what happens to first tokens.
        bos_features: the features to which that applies.
        bos_token_id: the token for the beginning of a sequence.
    """

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
        self._settings = Settings(
            lengths=length_struct,
            meta=meta_features,
            split_full=split_full_length_features,
            bos_handling=bos_handling,
            bos_features=bos_features,
            bos_token_id=bos_token_id,
        )

    def __iter__(self) -> DatasetIterator[Row]:
        return ConcatThenSplitDatasetIterator(self._parent.__iter__(), self._settings)
