"""Which part of an image is wanted, and how small it may be decoded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from loaderx.sources.images import Window

Size: TypeAlias = tuple[int, int]  # height, width
Span: TypeAlias = tuple[float, float]  # the smallest and the largest value

_TRIES = 10
_LEAST_REDUCED = 8  # pixels; below, several of the decoder's scales give the same size
DRAWS = 2 * _TRIES + 2
"""The number of draws for a region.  It is the same for every image, so that later draws do not
depend on the size of the image."""


class Region(NamedTuple):
    """A part of an image, in its pixels; fractions are allowed."""

    top: float
    left: float
    height: float
    width: float


def random_region(
    draws: Sequence[float], height: int, width: int, area: Span, ratio: Span
) -> Region:
    """A random part: its share of the area, its width / height, then its place are drawn.

    The first of ten tries that fits into the image counts; otherwise it is the largest part in the
    middle that has such a ratio.

    Args:
        draws: `DRAWS` numbers from 0 to 1.
        height: of the image.
        width: of the image.
        area: the range of the share of the area.
        ratio: the range of width / height, of which the logarithm is drawn.
    """
    found = fitting_region(draws, height, width, area, ratio)
    if found is not None:
        return found
    shape = min(max(width / height, ratio[0]), ratio[1])
    return central(height, width, min(height, width / shape), min(width, height * shape))


def fitting_region(
    draws: Sequence[float], height: int, width: int, area: Span, ratio: Span
) -> Region | None:
    """The same; None if none of the tries fits."""
    logarithms = math.log(ratio[0]), math.log(ratio[1])
    for number in range(_TRIES):
        pixels = _between(area, draws[2 * number]) * height * width
        shape = math.exp(_between(logarithms, draws[2 * number + 1]))
        tall, wide = round(math.sqrt(pixels / shape)), round(math.sqrt(pixels * shape))
        if 0 < tall <= height and 0 < wide <= width:
            top, left = int(draws[-2] * (height - tall + 1)), int(draws[-1] * (width - wide + 1))
            return Region(top, left, tall, wide)
    return None


def _between(span: Span, draw: float) -> float:
    return span[0] + (span[1] - span[0]) * draw


def central_region(height: int, width: int, size: Size, shorter_side: int) -> Region:
    """The part that is ``size`` once the image is resized to ``shorter_side``, from the middle.

    If ``size`` is larger than the resized image, it is the largest part of that shape.
    """
    times = min(min(height, width) / shorter_side, height / size[0], width / size[1])
    return central(height, width, size[0] * times, size[1] * times)


def central(height: int, width: int, tall: float, wide: float) -> Region:
    tall, wide = min(tall, height), min(wide, width)  # rounding may exceed it
    return Region((height - tall) / 2, (width - wide) / 2, tall, wide)


def whole(height: int, width: int) -> Region:
    return Region(0, 0, height, width)


def window_for(region: Region, size: Size, image: Size, reducible: bool) -> Window:
    """The pixels of a region that is resized to ``size``: it begins and ends with whole ones.

    Args:
        region: a part of the image.
        size: what it becomes.
        image: the height and width of the file.
        reducible: whether it can be decoded at a fraction of its size.
    """
    times = reduction_for(region, size) if reducible else 1
    top, height = _pixels(region.top, region.height, image[0], times)
    left, width = _pixels(region.left, region.width, image[1], times)
    return Window(times, top, left, height, width)


def in_file(window: Window, image: Size) -> Region:
    """A window in the pixels of the image, before it was reduced."""
    times, top, left, height, width = window
    top, left = top * times, left * times
    return Region(
        top, left, min(height * times, image[0] - top), min(width * times, image[1] - left)
    )


def _pixels(start: float, length: float, have: int, times: int) -> tuple[int, int]:
    """The first pixel and the number of pixels, of ``have`` before the reduction."""
    last = -(-have // times)
    first = min(_rounded(start / times), last - 1)
    return first, max(min(_rounded((start + length) / times), last) - first, 1)


def _rounded(number: float) -> int:
    """Rounds halves up, so that a part that is shifted by a half keeps its length."""
    return math.floor(number + 0.5)


def reduction_for(region: Region, size: Size) -> int:
    """1, 2, 4 or 8: the largest reduction that leaves the region at least as large as ``size``."""
    if max(region.height, region.width) < _LEAST_REDUCED:
        return 1
    for times in (8, 4, 2):
        if region.height >= times * size[0] and region.width >= times * size[1]:
            return times
    return 1
