"""The way between elements and the records that they are made of, in both directions.

Down, a `Trail` of addresses goes through the same moves and operators that reading goes through,
and ends at the sources.  Up, the same moves and operators say where `Sought` records come: each has
its inverse beside its forward map.  A repeat has one for each of its epochs: so a search begins at
the top, where the epochs are known, and every stage asks the stage below it for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from loaderx.rng import Keys

if TYPE_CHECKING:
    from loaderx.reading.addresses import Which
    from loaderx.reading.operators import Move

Positions: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


class Trail(NamedTuple):
    """Addresses on their way down to the sources, where positions are indices of records."""

    epochs: Keys  # one entry, or one for each
    positions: Positions
    rounds: Positions  # the number of the epoch of each
    rows: Positions  # its row in the element
    which: Positions  # the number of the element
    order: Positions  # among the records of the row
    path: tuple[int, ...] = ()  # the component of each join on the way

    @staticmethod
    def of(positions: Positions, epochs: Keys) -> Trail:
        nothing = np.zeros(len(positions), np.int64)
        return Trail(epochs, positions, nothing, nothing, np.arange(len(positions)), nothing)

    def through(self, moves: Sequence[Move]) -> Trail:
        """The addresses below the moves, the outermost of which comes first."""
        for move in moves:
            rounds = move.rounds(self.rounds, self.positions)
            epochs, positions = move.steps(self.epochs, self.positions)
            self = self._replace(epochs=epochs, positions=positions, rounds=rounds)
        return self

    def pick(self, places: Which) -> Trail:
        """Some of the addresses."""
        epochs = self.epochs if self.epochs.size == 1 else self.epochs[places]
        positions, rounds, rows = (a[places] for a in (self.positions, self.rounds, self.rows))
        which, order = self.which[places], self.order[places]
        return Trail(epochs, positions, rounds, rows, which, order, self.path)

    def into(self, component: int) -> Trail:
        """The same addresses in a component of a join."""
        return self._replace(path=(*self.path, component))


class Sought(NamedTuple):
    """Records of one source that are looked for, each in one epoch."""

    records: Positions  # the index of each in the source
    epochs: Keys  # one for each
    limits: Positions  # elements from this position on are not wanted
    path: tuple[int, ...]  # to the source, through the components of the joins below

    def within(self, limits: Positions) -> Sought:
        return self._replace(limits=limits)

    def pick(self, which: Which, epochs: Keys, limits: Positions) -> Sought:
        """Some of the records, or the same in several epochs."""
        return Sought(self.records[which], epochs, limits, self.path)


class Found(NamedTuple):
    """Elements that have the records that were looked for."""

    which: Positions  # the number of the record that was looked for
    positions: Positions
    rows: Positions  # of the element

    def pick(self, places: Which) -> Found:
        return Found(self.which[places], self.positions[places], self.rows[places])

    def at(self, positions: Positions, limits: Positions) -> Found:
        """The same at other positions; those that are negative or not wanted are left out."""
        inside = (positions >= 0) & (positions < limits[self.which])
        return self._replace(positions=positions).pick(np.flatnonzero(inside))


Find: TypeAlias = Callable[[Sought], Found]


def find_through(moves: Sequence[Move], sought: Sought, below: Find) -> Found:
    """Looks for records above some moves, the outermost of which comes first."""
    some = np.flatnonzero(sought.limits > 0)
    if not len(some):
        return Found(some, some, some)
    if len(some) < len(sought.limits):
        found = find_through(
            moves, sought.pick(some, sought.epochs[some], sought.limits[some]), below
        )
        return found._replace(which=some[found.which])
    if not moves:
        return below(sought)
    sought = sought.within(np.minimum(sought.limits, moves[0].limit))
    return moves[0].find(sought, lambda inner: find_through(moves[1:], inner, below))


def numbered(counts: Positions) -> tuple[Positions, Positions]:
    """As many numbers from 0 on as each count says, and which count each belongs to."""
    which = np.repeat(np.arange(len(counts)), counts)
    return np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts), which


def found_in_tables(
    found: Found, sought: Sought, table: Callable[[Keys, int], tuple[Positions, Positions]]
) -> Found:
    """Elements of the input at the positions that have them, by a table of each epoch.

    ``table`` gives, for an epoch and a limit, positions and the element of the input at each.
    """
    parts = [found.pick(np.empty(0, np.intp))]
    for epoch in np.unique(sought.epochs[found.which]):
        mine = found.pick(np.flatnonzero(sought.epochs[found.which] == epoch))
        positions, elements = table(np.array([epoch]), int(sought.limits[mine.which].max()))
        order = np.argsort(elements, kind="stable")
        first, stop = (
            np.searchsorted(elements, mine.positions, side, sorter=order) for side in SIDES
        )
        number, which = numbered(stop - first)
        places = positions[order[first[which] + number]]
        parts.append(mine.pick(which).at(places, sought.limits))
    return Found(*map(np.concatenate, zip(*parts, strict=True)))


class Traced:
    """The base of operators: elements and their records, in both directions."""

    stage: str  # in messages
    moves: list[Move]  # outermost first

    def trails(self, trail: Trail) -> Iterator[Trail]:
        """The records of elements, for each source that has some."""
        for operator, inner in self.below(trail.through(self.moves)):
            yield from operator.trails(inner)

    def find(self, sought: Sought) -> Found:
        """The elements that have the records."""
        return find_through(self.moves, sought, self.find_below)

    def below(self, trail: Trail) -> Iterator[tuple[Traced, Trail]]:
        """The operators that elements are made by, and their addresses there.

        ``trail`` is already below the moves.  Nothing is below a source.
        """
        raise NotImplementedError

    def find_below(self, sought: Sought) -> Found:
        """`find` for what is below the moves."""
        raise NotImplementedError
