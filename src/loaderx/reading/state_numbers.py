"""Numbers of a saved position, which may come from a damaged file: each is checked before use."""

from __future__ import annotations

import reprlib
from typing import Any

from loaderx.chain.base import LIMIT
from loaderx.errors import StateError


def entries(state: Any, names: tuple[str, ...]) -> list[Any]:
    """The entries of a position, of which there must be one for each name."""
    if not isinstance(state, (list, tuple)) or len(state) != len(names):
        raise StateError(
            f"the state does not fit this chain: it has {shown(state)} where "
            f"[{', '.join(names)}] is expected."
        )
    return list(state)


def whole(value: Any, name: str, most: int = LIMIT) -> int:
    """``value`` as a number from 0 to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise StateError(f"the state has {shown(value)} where a whole number is expected ({name}).")
    if value > most:
        raise StateError(
            f"the state has {shown(value)} for {name}, and {most} is the most that this chain can "
            "have: the state is damaged, or the data or the chain have changed."
        )
    return value


def shown(value: Any) -> str:
    """A few characters of any value, however large, deep or odd it is."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    try:
        text = reprlib.repr(value)
    except Exception:  # a number of 5,000 digits, an object whose repr fails
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
