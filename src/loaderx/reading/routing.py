"""Which component of a join a position belongs to, and where in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from loaderx.order.epochs import wrap
from loaderx.order.mixing import Phase, Schedule
from loaderx.rng import Keys

Positions = npt.NDArray[np.int64]


class Router:
    """Which component a position belongs to, and where in it."""

    def route(
        self, epochs: Keys, positions: Positions
    ) -> tuple[npt.NDArray[np.intp], Keys, Positions]:
        raise NotImplementedError


class ByOffset(Router):
    """One component after the other."""

    def __init__(self, lengths: Sequence[int | None]) -> None:
        ends = np.cumsum([length or 0 for length in lengths[:-1]], dtype=np.int64)
        self.starts = np.concatenate([np.zeros(1, np.int64), ends])

    def route(
        self, epochs: Keys, positions: Positions
    ) -> tuple[npt.NDArray[np.intp], Keys, Positions]:
        which = np.searchsorted(self.starts, positions, side="right") - 1
        return which, epochs, positions - self.starts[which]


class ByPhases(Router):
    """Mixed until all have ended: each phase has a schedule of the components that are left."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        self.phases = phases
        self.starts = np.array([phase.start for phase in phases], np.int64)

    def route(
        self, epochs: Keys, positions: Positions
    ) -> tuple[npt.NDArray[np.intp], Keys, Positions]:
        numbers = np.searchsorted(self.starts, positions, side="right") - 1
        which, inside = np.empty(len(positions), np.intp), np.empty_like(positions)
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            which[mine], inside[mine] = self.phases[number].locate(positions[mine])
        return which, epochs, inside


class ByTickets(Router):
    """Mixed; with ``wrap``, components that end start again as new epochs."""

    def __init__(self, schedule: Schedule, lengths: Sequence[int | None], ordinal: int | None):
        self.schedule, self.lengths, self.ordinal = schedule, lengths, ordinal

    def route(
        self, epochs: Keys, positions: Positions
    ) -> tuple[npt.NDArray[np.intp], Keys, Positions]:
        which, inside = self.schedule.locate(positions)
        if self.ordinal is None:
            return which, epochs, inside
        epochs = np.broadcast_to(epochs, inside.shape).copy()
        for component, length in enumerate(self.lengths):
            mine = np.flatnonzero(which == component)
            if length is not None and mine.size:
                epochs[mine], inside[mine] = wrap(epochs[mine], inside[mine], length, self.ordinal)
        return which, epochs, inside
