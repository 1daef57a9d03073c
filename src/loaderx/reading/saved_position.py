"""Numbers of a saved position, which may come from a damaged file: each is checked before use."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import TypeAlias

from loaderx.errors import StateError
from loaderx.frozen import Frozen
from loaderx.order.epochs import LIMIT

LanePosition: TypeAlias = object
"""The position of a reader in a saved state: small nested lists, checked before they are used."""


class OtherWeights(Frozen):
    """The first position of a mix at which its weights are others than in a state."""

    since: int
    position_of: Callable[[int], int | None]
    """Makes of the number of records that were read by index that of elements of the mix."""

    def check(self, path: tuple[int, ...], position: int | None) -> None:
        """Raises if so many elements of the mix were used, or whole epochs, that weights differ."""
        if any(path) or position is None or position > self.since:
            text = other_weights(self.since, None if any(path) else position)
            raise StateError(
                f"the state belongs to another chain: {text} Pass strict=False to continue at the "
                "same rows anyway."
            )


class Changed(Frozen):
    """How a chain differs from the one that a state was saved with; by default it does not."""

    schedule: bool = False  # a mix has other weights: its schedule starts again
    rows: bool = False  # units give other rows: one that was begun is read again from its start
    datasets: tuple[int, ...] = ()  # those of a mix whose units give other rows
    weights: OtherWeights | None = None  # a mix has other weights from some position on
    removed: bool = False  # records were removed: a unit that was begun may have fewer rows
    read_ahead: int = 0  # rows of a mix, after its position, that a window holds already

    def of(self, number: int) -> Changed:
        """The changes for one dataset of a mix."""
        rows = self.rows or number in self.datasets
        return Changed(self.schedule, rows, removed=self.removed)


UNCHANGED = Changed()


def other_weights(since: int, position: int | None, step: str = "") -> str:
    """Says that the weights of a mix have changed in the past."""
    place = "has passed that" if position is None else f"is at position {position}"
    return (
        f"the weights of the mix differ from {step}position {since} of its elements on, "
        f"and the state {place}. Weights can be changed from a position on that is still to come."
    )


def entries(state: object, names: tuple[str, ...]) -> list[LanePosition]:
    """The entries of a position, of which there must be one for each name."""
    if not isinstance(state, (list, tuple)) or len(state) != len(names):
        raise StateError(
            f"the state does not fit this chain: it has {shown(state)} where "
            f"[{', '.join(names)}] is expected."
        )
    return list(state)


def first_entry(position: LanePosition) -> int:
    """The first number of a position that was checked."""
    assert isinstance(position, (list, tuple))
    return int(position[0])


def whole(value: object, name: str, most: int = LIMIT) -> int:
    """``value`` as a number from 0 to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise StateError(f"the state has {shown(value)} where a whole number is expected ({name}).")
    if value > most:
        raise StateError(
            f"the state has {shown(value)} for {name}, and {most} is the most that this chain can "
            "have: the state is damaged, or the data or the chain have changed."
        )
    return value


def shown(value: object) -> str:
    """A few characters of any value, however large, deep or odd it is."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    try:
        text = reprlib.repr(value)
    except Exception:  # a number of 5,000 digits, an object whose repr fails
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
