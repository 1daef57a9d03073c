"""Rows of a stream on their way into a batch: runs of them, cut and joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderx.memory import Layout, Lend
from loaderx.reading.records import Run, Stacked, as_records
from loaderx.reading.units import Loose
from loaderx.rng import Keys
from loaderx.stages.stacking import NO_PADDING, Padding, stack, unpadded
from loaderx.tree import Array, Structure, Tree, flatten


class Piece:
    """A run of rows: stacked leaves, or single records (with names, for messages).

    Of the leaves all rows are meant, or those that ``chosen`` says; they may be padded already.
    ``indices`` are those of the records in their sources, where somebody may want to know.
    """

    __slots__ = (
        "chosen", "count", "indices", "keys", "leaves", "names", "padding", "records", "structure",
    )  # fmt: skip

    def __init__(
        self,
        count: int,
        keys: Keys | None,
        leaves: list[Array] | None,
        structure: Structure | None,
        records: list[Any] | None = None,
        names: list[str] | None = None,
        chosen: npt.NDArray[np.int64] | None = None,
        padding: Padding = NO_PADDING,
        indices: list[int | None] | None = None,
    ) -> None:
        self.count, self.indices = count, indices
        self.keys, self.chosen = keys, chosen
        self.padding = padding
        self.leaves, self.structure = leaves, structure
        self.records, self.names = records, names

    @classmethod
    def of(cls, output: Any, padding: Padding = NO_PADDING) -> Piece:
        """The rows of a unit's output."""
        if isinstance(output, Loose):
            records = output.records
            names, indices = output.names, output.indices
            return cls(len(records), output.keys, None, None, records, names, indices=indices)
        leaves, structure = flatten(output["rows"])
        chosen = output["chosen"]
        count = len(leaves[0]) if chosen is None else len(chosen)
        return cls(count, output["keys"], leaves, structure, chosen=chosen, padding=padding)

    def cut(self, start: int, stop: int) -> Piece:
        if start == 0 and stop == self.count:
            return self
        keys = None if self.keys is None else self.keys[start:stop]
        if self.chosen is not None:
            chosen = self.chosen[start:stop]
            return Piece(stop - start, keys, self.leaves, self.structure, chosen=chosen)
        if self.leaves is not None:
            leaves = [leaf[start:stop] for leaf in self.leaves]
            return Piece(stop - start, keys, leaves, self.structure, padding=self.padding)
        assert self.records is not None
        names = None if self.names is None else self.names[start:stop]
        indices = None if self.indices is None else self.indices[start:stop]
        records = self.records[start:stop]
        return Piece(stop - start, keys, None, None, records, names, indices=indices)

    def as_records(self) -> list[Any]:
        """The rows one by one, as they were before any padding."""
        records = as_records(self.as_run())
        if self.padding.lengths:
            return [unpadded(record, self.padding) for record in records]
        return records

    def as_run(self) -> Run:
        """The rows as stages take them."""
        if self.records is not None:
            return self.records
        assert self.structure is not None
        assert self.leaves is not None
        leaves = self.leaves
        if self.chosen is not None:
            leaves = [leaf[self.chosen] for leaf in leaves]
        return Stacked(self.structure.build(leaves), self.count)

    def write(self, targets: Sequence[Array], start: int) -> None:
        """Copies the rows into arrays, from a row on."""
        assert self.leaves is not None
        stop, chosen = start + self.count, self.chosen
        for target, leaf in zip(targets, self.leaves, strict=True):
            if chosen is None:
                target[start:stop] = leaf
            else:
                leaf.take(chosen, 0, target[start:stop], "clip")

    def name(self, number: int) -> str:
        return f"row {number} of its unit" if self.names is None else self.names[number]


def joined_keys(pieces: Sequence[Piece]) -> Keys | None:
    """The keys of all rows; None where nobody draws."""
    if not pieces or pieces[0].keys is None:
        return None
    if len(pieces) == 1:
        return pieces[0].keys
    return np.concatenate([piece.keys for piece in pieces if piece.keys is not None])


def fit_together(pieces: Sequence[Piece]) -> bool:
    """Can the leaves be joined as they are?"""
    first = pieces[0]
    if first.leaves is None:
        return False
    if len(pieces) == 1:
        return True
    looks = [(leaf.dtype, leaf.shape[1:]) for leaf in first.leaves]
    return all(
        piece.leaves is not None
        and piece.structure is first.structure
        and [(leaf.dtype, leaf.shape[1:]) for leaf in piece.leaves] == looks
        for piece in pieces[1:]
    )


def as_batch(pieces: Sequence[Piece], lend: Lend, padding: Padding = NO_PADDING) -> Tree:
    """All rows as one batch, in arrays that the caller owns."""
    if not fit_together(pieces):
        records = [record for piece in pieces for record in piece.as_records()]
        names: list[str] = []
        for piece in pieces:
            names += piece.names or [
                f"row {len(names) + number} of the batch" for number in range(piece.count)
            ]
        return stack(records, lend, names.__getitem__, padding)
    first = pieces[0]
    assert first.leaves is not None
    assert first.structure is not None
    count = sum(piece.count for piece in pieces)
    targets = lend(Layout.of(*[((count, *leaf.shape[1:]), leaf.dtype) for leaf in first.leaves]))
    start = 0
    for piece in pieces:
        piece.write(targets, start)
        start += piece.count
    return first.structure.build(targets)


def interleaved(parts: Sequence[tuple[int, npt.NDArray[np.intp], Piece]], count: int) -> Piece:
    """Rows of several components, each at the places that it was given."""
    pieces = [piece for _, _, piece in parts]
    keys = joined_keys(pieces)
    if keys is not None:
        placed = np.empty_like(keys)
        placed[np.concatenate([places for _, places, _ in parts])] = keys
        keys = placed
    if fit_together(pieces):
        first = pieces[0]
        assert first.leaves is not None
        leaves = [np.empty((count, *leaf.shape[1:]), leaf.dtype) for leaf in first.leaves]
        for _, places, piece in parts:
            for target, leaf in zip(leaves, piece.leaves or [], strict=True):
                target[places] = leaf if piece.chosen is None else leaf[piece.chosen]
        return Piece(count, keys, leaves, first.structure, padding=first.padding)
    records: list[Any] = [None] * count
    names = [""] * count
    indices: list[int | None] = [None] * count
    for component, places, piece in parts:
        own = piece.names or ["a row"] * piece.count
        known = piece.indices or [None] * piece.count
        rows = zip(places.tolist(), piece.as_records(), own, known, strict=True)
        for place, record, name, index in rows:
            records[place], names[place] = record, f"{name} of dataset {component}"
            indices[place] = index
    return Piece(count, keys, None, None, records, names, indices=indices)
