"""Stages that make images of one size: `random_resized_crop`, `center_crop`, `resize`.

Each chooses a region of the image, decodes it no larger than needed, and resizes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from loaderx.errors import ArgumentError, check_choice, check_int
from loaderx.hints import advised
from loaderx.image.arguments import area_of, channels_of, size_of, span_of
from loaderx.image.decoding import open_window
from loaderx.image.leaves import Changed, Leaves, Placement, nearest
from loaderx.image.regions import (
    DRAWS,
    Region,
    Size,
    Span,
    central_region,
    in_file,
    random_region,
    whole,
    window_for,
)
from loaderx.image.resizing import METHODS, opencv_module
from loaderx.image.stages import FixedStage, RandomStage
from loaderx.sources.images import Window, pillow_module

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
    masks: str | Sequence[str] = (),
    boxes: str | None = None,
    keypoints: str | None = None,
    per_box: str | Sequence[str] = (),
    min_area: float = 0.0,
) -> RandomStage:
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
        masks: leaves that are cut and resized alike, to the nearest pixel, so that no class is
            invented: arrays, or bytes of files, of which a palette's indices and 16 bits are kept.
        boxes: a leaf ``[boxes, 4]`` of x0, y0, x1, y1 in pixels of the image: they are moved, and
            cut at the edges.
        keypoints: a leaf ``[..., 2]`` of x, y, or ``[..., 3]`` with a visibility, which becomes 0
            outside of the result.
        per_box: leaves with an entry for each box, such as its class, dropped along with it.
        min_area: the share of a box's area that must be left; boxes with less, or with nothing
            left, are dropped.
    """
    leaves = Leaves(key, masks, boxes, keypoints, per_box, min_area, cuts=True)
    fit = _fit(size, channels, method)
    change = partial(_random_part, fit=fit, area=area_of(scale), ratio=span_of("ratio", ratio))
    return RandomStage("random_resized_crop", f"{size}", leaves, change)


@advised
def center_crop(
    size: int | tuple[int, int],
    *,
    shorter_side: int,
    key: str | None = "image",
    channels: int = 3,
    method: str = "bilinear",
    masks: str | Sequence[str] = (),
    boxes: str | None = None,
    keypoints: str | None = None,
    per_box: str | Sequence[str] = (),
    min_area: float = 0.0,
) -> FixedStage:
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
        masks: leaves that are cut and resized alike, to the nearest pixel, so that no class is
            invented: arrays, or bytes of files, of which a palette's indices and 16 bits are kept.
        boxes: a leaf ``[boxes, 4]`` of x0, y0, x1, y1 in pixels of the image: they are moved, and
            cut at the edges.
        keypoints: a leaf ``[..., 2]`` of x, y, or ``[..., 3]`` with a visibility, which becomes 0
            outside of the result.
        per_box: leaves with an entry for each box, such as its class, dropped along with it.
        min_area: the share of a box's area that must be left; boxes with less, or with nothing
            left, are dropped.
    """
    leaves = Leaves(key, masks, boxes, keypoints, per_box, min_area, cuts=True)
    sides = size_of(size)
    least = min(sides)
    if check_int("shorter_side", shorter_side) < least:
        raise ArgumentError(
            f"`shorter_side` must be at least the size that is cut from it, {least}, got "
            f"{shorter_side}."
        )
    region_of = partial(central_region, size=sides, shorter_side=int(shorter_side))
    change = partial(_fit(size, channels, method), region_of=region_of)
    return FixedStage("center_crop", f"{size}", leaves, change)


@advised
def resize(
    size: int | tuple[int, int],
    *,
    key: str | None = "image",
    channels: int = 3,
    method: str = "bilinear",
    masks: str | Sequence[str] = (),
    boxes: str | None = None,
    keypoints: str | None = None,
) -> FixedStage:
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
        masks: leaves that are resized alike, to the nearest pixel, so that no class is invented.
        boxes: a leaf ``[boxes, 4]`` of x0, y0, x1, y1 in pixels of the image, which are moved.
        keypoints: a leaf ``[..., 2]`` of x, y, or ``[..., 3]`` with a visibility.
    """
    leaves = Leaves(key, masks, boxes, keypoints)
    change = partial(_fit(size, channels, method), region_of=whole)
    return FixedStage("resize", f"{size}", leaves, change)


def _fit(size: int | tuple[int, int], channels: int, method: str) -> partial[Changed]:
    pillow_module()  # not at the first record: it may be missing
    if check_choice("method", method, tuple(METHODS)) == "area":
        opencv_module()
    return partial(_fitted, size=size_of(size), channels=channels_of(channels), method=method)


def _fitted(value: object, region_of: RegionOf, size: Size, channels: int, method: str) -> Changed:
    """A region of an image, and where it lies: a decoded part begins and ends with whole pixels."""
    image: Size = (0, 0)
    window = Window(1, 0, 0, 0, 0)

    def window_of(height: int, width: int, reducible: bool) -> Window:
        nonlocal image, window
        image = height, width
        window = window_for(region_of(height, width), size, image, reducible)
        return window

    pixels = METHODS[method](open_window(value, channels, window_of), size, channels)
    part = in_file(window, image)
    return pixels, Placement(image, part, size, partial(nearest, part=part, size=size))


def _random_part(
    value: object,
    rng: np.random.Generator,
    *,
    fit: partial[Changed],
    area: Span,
    ratio: Span,
) -> Changed:
    # All draws are made before the image is looked at, so that they do not depend on it.
    draws = rng.random(DRAWS).tolist()
    return fit(value, partial(random_region, draws, area=area, ratio=ratio))
