"""Stages that make images of one size: `random_resized_crop`, `center_crop`, `resize`.

Each chooses a region of the image, decodes it no larger than needed, and resizes it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError, ChainError, check_choice, check_int
from loaderx.frozen import Frozen
from loaderx.hints import advised
from loaderx.image.decoding import open_window
from loaderx.image.regions import (
    DRAWS,
    Region,
    Size,
    Span,
    central_region,
    random_region,
    whole,
    window_for,
)
from loaderx.image.resizing import METHODS, opencv_module
from loaderx.rng import BatchGenerator
from loaderx.sources.images import Window, pillow_module
from loaderx.tree import Tree

RegionOf: TypeAlias = Callable[[int, int], Region]
"""The region of an image of (height, width)."""


@advised
def random_resized_crop(
    size: int | tuple[int, int],
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    key: str | None = "image",
    channels: int = 3,
    method: str = "bilinear",
) -> RandomResizedCrop:
    """A random part of each image, resized to ``size``: for `Dataset.random_map`.

    The part is drawn as torchvision's ``RandomResizedCrop`` does it, from the record's own random
    numbers; it does not depend on what decodes the image.

    >>> import numpy as np, loaderx as lx
    >>> ds = lx.Dataset.from_source([{"image": np.zeros((48, 64, 3), np.uint8)}])
    >>> ds.random_map(lx.image.random_resized_crop(32), seed=0)[0]["image"].shape
    (32, 32, 3)

    Args:
        size: the side of a square, or (height, width).
        scale: the smallest and largest share of the image's area.
        ratio: the smallest and largest width / height of the part, before it is resized.
        key: the leaf that holds the image; None if records are images themselves.
        channels: 1, 3 or 4: gray, RGB (gray images get three channels, alpha is dropped) or RGBA.
        method: how it is resized, with antialiasing: ``"bilinear"`` by Pillow, or ``"area"``, means
            of areas, by OpenCV (``pip install 'loaderx-jax[opencv]'``), which takes a third of the
            time.
    """
    area = _span("scale", scale)
    if area[1] > 1:
        raise ArgumentError(f"`scale` is a share of the area and at most 1, got {scale!r}.")
    return RandomResizedCrop(
        *_checked(size, key, channels, method), area=area, ratio=_span("ratio", ratio)
    )


@advised
def center_crop(
    size: int | tuple[int, int],
    *,
    shorter_side: int,
    key: str | None = "image",
    channels: int = 3,
    method: str = "bilinear",
) -> CenterCrop:
    """The middle of each image, as it is evaluated on ImageNet: for `Dataset.map`.

    The image is resized so that its shorter side has ``shorter_side`` pixels, and ``size`` is cut
    from its middle: torchvision's ``Resize(256)`` and ``CenterCrop(224)`` are
    ``center_crop(224, shorter_side=256)``.

    >>> import numpy as np, loaderx as lx
    >>> ds = lx.Dataset.from_source([{"image": np.zeros((48, 64, 3), np.uint8)}])
    >>> ds.map(lx.image.center_crop(32, shorter_side=36))[0]["image"].shape
    (32, 32, 3)

    Args:
        size: the side of a square, or (height, width).
        shorter_side: of the image before it is cut; equal to ``size``, as much of it as a square
            can have is kept.
        key: the leaf that holds the image; None if records are images themselves.
        channels: 1, 3 or 4: gray, RGB (gray images get three channels, alpha is dropped) or RGBA.
        method: how it is resized, with antialiasing: ``"bilinear"`` by Pillow, or ``"area"``, means
            of areas, by OpenCV (``pip install 'loaderx-jax[opencv]'``), which takes a third of the
            time.
    """
    checked = _checked(size, key, channels, method)
    least = min(checked[0])
    if check_int("shorter_side", shorter_side) < least:
        raise ArgumentError(
            f"`shorter_side` must be at least the size that is cut from it, {least}, got "
            f"{shorter_side}."
        )
    return CenterCrop(*checked, shorter_side=int(shorter_side))


@advised
def resize(
    size: int | tuple[int, int],
    *,
    key: str | None = "image",
    channels: int = 3,
    method: str = "bilinear",
) -> Resize:
    """Each image as a whole, resized to ``size``, whatever its shape was: for `Dataset.map`.

    >>> import numpy as np, loaderx as lx
    >>> ds = lx.Dataset.from_source([{"image": np.zeros((48, 64), np.uint8)}])
    >>> ds.map(lx.image.resize((24, 32)))[0]["image"].shape
    (24, 32, 3)

    Args:
        size: the side of a square, or (height, width).  To keep the shape of what is shown, use
            `center_crop`.
        key: the leaf that holds the image; None if records are images themselves.
        channels: 1, 3 or 4: gray, RGB (gray images get three channels, alpha is dropped) or RGBA.
        method: how it is resized, with antialiasing: ``"bilinear"`` by Pillow, or ``"area"``, means
            of areas, by OpenCV (``pip install 'loaderx-jax[opencv]'``), which takes a third of the
            time.
    """
    return Resize(*_checked(size, key, channels, method))


class Fitted(Frozen):
    """The base of the three stages."""

    size: Size
    key: str | None
    channels: int
    method: str

    __name__: ClassVar[str]  # as a chain shows it

    def _fitted(self, record: Tree, region_of: RegionOf) -> object:
        """The record with a region of its image in place of the image."""

        def window_of(height: int, width: int, reducible: bool) -> Window:
            return window_for(region_of(height, width), self.size, (height, width), reducible)

        part = open_window(_leaf(record, self.key), self.channels, window_of)
        pixels = METHODS[self.method](part, self.size, self.channels)
        return pixels if self.key is None else {**record, self.key: pixels}

    def __repr__(self) -> str:
        height, width = self.size
        return f"{self.__name__}({height if height == width else self.size})"


class RandomResizedCrop(Fitted):
    """The stage that `random_resized_crop` returns."""

    area: Span
    ratio: Span

    __name__ = "random_resized_crop"

    def random_map(self, record: object, rng: np.random.Generator | BatchGenerator) -> object:
        """The record with a random part of its image."""
        if isinstance(rng, BatchGenerator):
            raise ChainError(f"{self!r} works on records: put it before .batch(...).")
        # All draws are made before the image is looked at, so that they do not depend on it.
        draws = rng.random(DRAWS).tolist()
        region_of = functools.partial(random_region, draws, area=self.area, ratio=self.ratio)
        return self._fitted(record, region_of)


class CenterCrop(Fitted):
    """The stage that `center_crop` returns."""

    shorter_side: int

    __name__ = "center_crop"

    def map(self, record: object) -> object:
        """The record with the middle of its image."""
        region_of = functools.partial(
            central_region, size=self.size, shorter_side=self.shorter_side
        )
        return self._fitted(record, region_of)


class Resize(Fitted):
    """The stage that `resize` returns."""

    __name__ = "resize"

    def map(self, record: object) -> object:
        """The record with its image in the new size."""
        return self._fitted(record, whole)


def _leaf(record: object, key: str | None) -> object:
    if key is None:
        return record
    if not isinstance(record, dict):
        raise ArgumentTypeError(
            f"records must be dicts with a leaf {key!r}, this one is {type(record).__name__}. Make "
            "a dict of it in .map() first, or write key=None if it is the image itself."
        )
    if key not in record:
        have = ", ".join(map(repr, record))
        raise ArgumentError(f"the record has no leaf {key!r} but {have}: choose one with key=.")
    return record[key]


# Arguments --------------------------------------------------------------------------------------


def _checked(
    size: int | tuple[int, int], key: str | None, channels: int, method: str
) -> tuple[Size, str | None, int, str]:
    pillow_module()  # not at the first record: it may be missing
    if check_choice("method", method, tuple(METHODS)) == "area":
        opencv_module()
    return _size(size), _key(key), _channels(channels), method


def _size(size: int | tuple[int, int]) -> Size:
    if isinstance(size, (tuple, list)):
        if len(size) != 2:
            raise ArgumentError(f"`size` must be a number or (height, width), got {size!r}.")
        return check_int("size", size[0], least=1), check_int("size", size[1], least=1)
    side = check_int("size", size, least=1)
    return side, side


def _key(key: str | None) -> str | None:
    if key is not None and not isinstance(key, str):
        raise ArgumentTypeError(
            f"`key` must be the name of a leaf, or None, got {key!r} ({type(key).__name__})."
        )
    return key


def _channels(channels: int) -> int:
    if channels not in (1, 3, 4) or isinstance(channels, bool):
        raise ArgumentError(f"`channels` must be 1, 3 or 4, got {channels!r}.")
    return channels


def _span(name: str, span: Span) -> Span:
    try:
        low, high = map(float, span)
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"`{name}` must be two numbers, the smallest and the largest, got {span!r}."
        ) from None
    if not (0 < low <= high < math.inf):
        raise ArgumentError(
            f"`{name}` must be two numbers above 0, the smallest first, got {span!r}."
        )
    return low, high
