"""Arguments of the stages: checked when a stage is made, not at the first record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.errors import ArgumentError, ArgumentTypeError, check_int
from loaderx.image.regions import Size, Span

Numbers: TypeAlias = npt.NDArray[np.float64]

NUMBER = (int, float, np.integer, np.floating)
_LEAST = math.ulp(0.0)  # the smallest number above 0


def size_of(size: int | tuple[int, int], name: str = "size", least: int = 1) -> Size:
    sides = size if isinstance(size, (tuple, list)) else (size, size)
    if len(sides) != 2:
        raise ArgumentError(f"`{name}` must be a number or (height, width), got {size!r}.")
    return check_int(name, sides[0], least=least), check_int(name, sides[1], least=least)


def names_of(argument: str, names: str | Sequence[str]) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else names
    if not isinstance(found, (tuple, list)) or not all(isinstance(one, str) for one in found):
        raise ArgumentTypeError(
            f"`{argument}` must be the name of a leaf, or several, got {names!r}."
        )
    return tuple(found)


def numbers_of(name: str, value: npt.ArrayLike) -> Numbers:
    """A number, or one for each channel."""
    try:
        numbers = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        numbers = np.array(np.nan)
    if numbers.ndim > 1 or not numbers.size or not np.isfinite(numbers).all():
        raise ArgumentError(f"`{name}` must be a number, or one for each channel, got {value!r}.")
    return numbers


def channels_of(channels: int) -> int:
    if channels not in (1, 3, 4) or isinstance(channels, bool):
        raise ArgumentError(f"`channels` must be 1, 3 or 4, got {channels!r}.")
    return channels


def span_of(
    name: str, span: Span, limits: str = "above 0", least: float = _LEAST, most: float = math.inf
) -> Span:
    try:
        low, high = map(float, span)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (least <= low <= high <= most and high < math.inf):
        raise ArgumentError(
            f"`{name}` must be two numbers {limits}, the smallest first, got {span!r}."
        )
    return low, high


def area_of(scale: Span) -> Span:
    return span_of("scale", scale, "above 0 and at most 1, shares of the area", most=1)


def share_of(name: str, share: float) -> float:
    if isinstance(share, bool) or not isinstance(share, NUMBER) or not 0 <= share <= 1:
        raise ArgumentError(f"`{name}` must be a number from 0 to 1, got {share!r}.")
    return float(share)
