"""Stages that change an image alone: `color_jitter`, `rand_augment`, `random_erasing`.

`color_jitter` makes planes of float32 of the channels, changes these, and rounds once in the end:
for 224 x 224 pixels they fit into the cache of a core.  `rand_augment` is Pillow's operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.errors import ArgumentError, check_int
from loaderx.hints import advised
from loaderx.image.arguments import NUMBER, Numbers, area_of, numbers_of, share_of, span_of
from loaderx.image.decoding import array_of, colours_of, described
from loaderx.image.leaves import Changed, Leaves
from loaderx.image.regions import DRAWS, Span, fitting_region
from loaderx.image.stages import RandomStage
from loaderx.sources.images import image_of, pillow_module
from loaderx.tree import Array

if TYPE_CHECKING:
    from PIL.Image import Image

_GRAY = np.array([0.299, 0.587, 0.114], np.float32)
_BRIGHTEST = 10  # of floats from 0 to 1, after strong augmentation
_TINY = np.float32(1e-12)

Planes = npt.NDArray[np.float32]
"""float32[channels, pixels]"""


@advised
def color_jitter(
    brightness: float | Span = 0.0,
    contrast: float | Span = 0.0,
    saturation: float | Span = 0.0,
    hue: float | Span = 0.0,
    *,
    key: str | None = "image",
) -> RandomStage:
    """Random brightness, contrast, saturation and hue, in random order: for `Dataset.random_map`.

    The same as torchvision's ``ColorJitter``, of images that are decoded: bytes, uint16, or floats
    from 0 to 1, gray or RGB.

    >>> import numpy as np, loaderx as lx
    >>> ds = lx.Dataset.from_arrays(image=np.full((4, 32, 32, 3), 99, np.uint8))
    >>> jitter = lx.image.color_jitter(0.4, 0.4, 0.4, 0.1)
    >>> ds.random_map(jitter, seed=0)[0]["image"].dtype
    dtype('uint8')

    Args:
        brightness: 0.4 draws a factor from 0.6 to 1.4; two numbers are its smallest and largest.
        contrast: likewise: of the distance from the mean brightness of the image.
        saturation: likewise: of the distance from gray.
        hue: 0.1 draws a turn from -0.1 to 0.1 of the circle of colours; at most 0.5.
        key: the leaf that holds the image; None if records are images themselves.
    """
    given = zip(_CHANGES, (brightness, contrast, saturation, hue), strict=True)
    spans = {name: _span(name, value) for name, value in given}
    shown = ", ".join(f"{name}={span}" for name, span in spans.items())
    return RandomStage("color_jitter", shown, Leaves(key), partial(_jittered, spans=spans))


def _jittered(value: object, rng: np.random.Generator, *, spans: dict[str, Span]) -> Changed:
    order, places = rng.random((2, len(spans)))
    pixels, channels = colours_of(value, ("u1", "u2", "f2", "f4", "f8"))
    if pixels.dtype.kind == "f" and pixels.max() > _BRIGHTEST:
        raise ArgumentError(
            f"`color_jitter` takes floats from 0 to 1, and a pixel is {pixels.max():.6g}: divide "
            "them by 255 before, or put it before the stage that makes floats of bytes."
        )
    white = np.float32(1 if pixels.dtype.kind == "f" else np.iinfo(pixels.dtype).max)
    planes = np.empty((channels, pixels.size // channels), np.float32)
    planes[...] = pixels.reshape(-1, channels).T
    changes = [(*span, *each) for span, each in zip(spans.values(), _CHANGES.values(), strict=True)]
    for number in np.argsort(order, kind="stable").tolist():
        low, high, neutral, change = changes[number]
        if not low == high == neutral:
            change(planes, np.float32(low + (high - low) * places[number]))
            np.clip(planes, 0, white, out=planes)
    if pixels.dtype.kind == "u":
        np.rint(planes, out=planes)
    made = np.empty(pixels.shape, pixels.dtype)
    for plane, channel in zip(planes, made.reshape(-1, channels).T, strict=True):
        channel[...] = plane  # one by one takes a third of the time
    return made, None


def _brighten(planes: Planes, factor: np.float32) -> None:
    planes *= factor


def _contrast(planes: Planes, factor: np.float32) -> None:
    mean = _gray(planes).mean()
    planes *= factor
    planes += (1 - factor) * mean


def _saturate(planes: Planes, factor: np.float32) -> None:
    if len(planes) == 3:
        gray = _gray(planes) * (1 - factor)
        planes *= factor
        planes += gray


def _gray(planes: Planes) -> Planes:
    return _GRAY @ planes if len(planes) == 3 else planes[0]


def _turn_hue(planes: Planes, turn: np.float32) -> None:
    """Turns the hue as a number from 0 to 6, which is where a colour lies on a hexagon."""
    if len(planes) == 1:
        return
    red, green, blue = planes
    brightest = planes.max(0)
    spread = brightest - planes.min(0)
    scale = 1 / np.maximum(spread, _TINY)
    is_red, is_green = brightest == red, brightest == green
    hue = (red - green) * scale + np.float32(4)
    np.copyto(hue, (blue - red) * scale + np.float32(2), where=is_green)
    np.copyto(hue, (green - blue) * scale, where=is_red)
    for plane, corner in zip(planes, (5, 3, 1), strict=True):
        place = hue + np.float32(corner + 6 * turn)
        place -= np.float32(6) * np.floor(place * np.float32(1 / 6))
        np.minimum(place, np.float32(4) - place, out=place)
        np.clip(place, 0, 1, out=place)
        np.subtract(brightest, np.multiply(spread, place, out=place), out=plane)


_CHANGES: dict[str, tuple[float, Callable[[Planes, np.float32], None]]] = {
    "brightness": (1, _brighten),
    "contrast": (1, _contrast),
    "saturation": (1, _saturate),
    "hue": (0, _turn_hue),
}
"""What each argument does, and the factor or turn that changes nothing."""


def _span(name: str, value: float | Span) -> Span:
    """The range of a draw; a number stands for so much on both sides of what changes nothing."""
    neutral, _ = _CHANGES[name]
    if not neutral:
        span = (-value, value) if isinstance(value, NUMBER) else value
        return span_of(name, span, "from -0.5 to 0.5", -0.5, 0.5)
    span = (max(1 - value, 0), 1 + value) if isinstance(value, NUMBER) else value
    return span_of(name, span, "from 0 on", 0)


# RandAugment --------------------------------------------------------------------------------------


@advised
def rand_augment(num_ops: int = 2, magnitude: int = 9, *, key: str | None = "image") -> RandomStage:
    """Some random operations on each image, as RandAugment has them: for `Dataset.random_map`.

    Operations and their strengths are those of torchvision's ``RandAugment``: identity, shearing,
    translation, rotation, brightness, colour, contrast, sharpness, posterizing, solarizing,
    automatic contrast and equalizing.  Pixels that come from outside of the image are black.  Masks
    and boxes would have to move along, and cannot.

    >>> import numpy as np, loaderx as lx
    >>> ds = lx.Dataset.from_arrays(image=np.full((4, 32, 32, 3), 99, np.uint8))
    >>> ds.random_map(lx.image.rand_augment(), seed=0)[0]["image"].shape
    (32, 32, 3)

    Args:
        num_ops: operations for each image, one after the other; one may come twice.
        magnitude: their strength, from 0 to 30.
        key: the leaf that holds the image, uint8, gray or RGB; None if records are images
            themselves.
    """
    pillow_module()  # not at the first record: it may be missing
    count = check_int("num_ops", num_ops, least=0)
    if check_int("magnitude", magnitude, least=0) > _STRONGEST:
        raise ArgumentError(f"`magnitude` must be at most {_STRONGEST}, got {magnitude}.")
    change = partial(_augmented, count=count, strength=magnitude / _STRONGEST)
    return RandomStage("rand_augment", f"{num_ops}, {magnitude}", Leaves(key), change)


def _augmented(value: object, rng: np.random.Generator, *, count: int, strength: float) -> Changed:
    draws = rng.random((count, 2)).tolist()
    pixels, channels = colours_of(value, ("u1",))
    image = image_of(pixels.reshape(*pixels.shape[:2], channels), channels)
    for which, side in draws:
        operation = operations()[int(which * len(operations()))]
        image = operation(image, strength if side < 0.5 else -strength)
    return np.array(image).reshape(pixels.shape), None


Operation: TypeAlias = "Callable[[Image, float], Image]"
"""``f(image, strength)``, from -1 to 1; what has no sign takes its absolute value."""


def _affine(image: Image, *numbers: float) -> Image:
    pillow = pillow_module()
    return image.transform(image.size, pillow.Transform.AFFINE, numbers, pillow.Resampling.NEAREST)


_STRONGEST = 30  # magnitude
_FARTHEST = 150 / 331  # of the side: RandAugment's 150 pixels of 331


@cache
def operations() -> tuple[Operation, ...]:
    """The fourteen, in torchvision's order."""
    from PIL import ImageEnhance, ImageOps

    return (
        lambda image, by: image,
        lambda image, by: _affine(image, 1, 0.3 * by, 0, 0, 1, 0),
        lambda image, by: _affine(image, 1, 0, 0, 0.3 * by, 1, 0),
        lambda image, by: _affine(image, 1, 0, -int(_FARTHEST * image.width * by), 0, 1, 0),
        lambda image, by: _affine(image, 1, 0, 0, 0, 1, -int(_FARTHEST * image.height * by)),
        lambda image, by: image.rotate(30 * by),
        lambda image, by: ImageEnhance.Brightness(image).enhance(1 + 0.9 * by),
        lambda image, by: ImageEnhance.Color(image).enhance(1 + 0.9 * by),
        lambda image, by: ImageEnhance.Contrast(image).enhance(1 + 0.9 * by),
        lambda image, by: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * by),
        lambda image, by: ImageOps.posterize(image, 8 - round(4 * abs(by))),
        lambda image, by: ImageOps.solarize(image, 255 * (1 - abs(by))),
        lambda image, by: ImageOps.autocontrast(image),
        lambda image, by: ImageOps.equalize(image),
    )


# Erasing ------------------------------------------------------------------------------------------


@advised
def random_erasing(
    *,
    probability: float = 0.5,
    scale: tuple[float, float] = (0.02, 0.33),
    ratio: tuple[float, float] = (0.3, 3.3),
    value: npt.ArrayLike = 0,
    key: str | None = "image",
) -> RandomStage:
    """A rectangle of random size, shape and place, filled: for `Dataset.random_map`.

    Drawn as torchvision's ``RandomErasing`` does it.  Masks and boxes stay as they are.

    >>> import numpy as np, loaderx as lx
    >>> white = lx.Dataset.from_arrays(image=np.full((8, 32, 32, 3), 255, np.uint8))
    >>> holed = white.random_map(lx.image.random_erasing(probability=1), seed=0)[0]["image"]
    >>> bool(0.02 <= (holed == 0).mean() <= 0.33)
    True

    Args:
        probability: of an erased part.
        scale: the smallest and largest share of the image's area.
        ratio: the smallest and largest width / height.
        value: of its pixels: a number, one for each channel, or ``"random"``, noise: uniform from
            0 to 255 in bytes, normal in floats.
        key: the leaf that holds the image; None if records are images themselves.
    """
    is_noise = isinstance(value, str) and value == "random"
    change = partial(
        _erased,
        probability=share_of("probability", probability),
        area=area_of(scale),
        ratio=span_of("ratio", ratio),
        fill=None if is_noise else numbers_of("value", value),
    )
    return RandomStage("random_erasing", f"probability={probability}", Leaves(key), change)


def _erased(
    value: object,
    rng: np.random.Generator,
    *,
    probability: float,
    area: Span,
    ratio: Span,
    fill: Numbers | None,
) -> Changed:
    chance, *draws = rng.random(1 + DRAWS).tolist()
    pixels = array_of(value)
    part = fitting_region(draws, pixels.shape[0], pixels.shape[1], area, ratio)
    if chance >= probability or part is None:
        return pixels, None
    top, left, height, width = map(int, part)
    made = pixels.copy()
    window = made[top : top + height, left : left + width]
    if fill is not None:
        window[...] = _checked_fill(fill, pixels)
    elif pixels.dtype.kind == "f":
        window[...] = rng.standard_normal(window.shape, np.float32)
    else:
        window[...] = rng.integers(np.iinfo(pixels.dtype).max, size=window.shape, endpoint=True)
    return made, None


def _checked_fill(fill: Numbers, pixels: Array) -> Numbers:
    fits = fill.shape in ((), pixels.shape[2:])
    if pixels.dtype.kind in "iu":
        limits = np.iinfo(pixels.dtype)
        fits &= bool((np.clip(np.rint(fill), limits.min, limits.max) == fill).all())
    if not fits:
        raise ArgumentError(
            f"random_erasing has value={fill.tolist()}, and the pixels are {described(pixels)}: it "
            "must be a number of that dtype, or one for each channel."
        )
    return fill
