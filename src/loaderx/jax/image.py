"""Random changes of images, in JAX, that dm-pix does not have, and flips.

Functions of one image take ``(height, width)`` or ``(height, width, channels)``, of any dtype, and
keep the dtype: integers are rounded and clipped.  So an image of bytes stays one until `normalize`,
the last function of the chain, which XLA fuses with what comes before.  They work under ``jit`` and
``vmap``, and in `loaderx.jax.augment`, because the shape of the result depends on no draw.

`mixup` and `cutmix` mix the rows of a batch.  On several hosts a stage sees the rows of its own
host alone, so these belong in the training step, which sees the global batch.

RandAugment is in `loaderx.image`, for the host: under ``vmap`` all of its operations, 14 or more,
would be computed for every image, and all but two thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from loaderx.errors import ArgumentError, ArgumentTypeError
from loaderx.image.arguments import share_of, size_of, span_of
from loaderx.image.normalizing import check_brightest, is_for_one, largest_pixel

__all__ = [
    "cutmix",
    "mixup",
    "normalize",
    "random_cutout",
    "random_flip_left_right",
    "random_flip_up_down",
    "random_pad_and_crop",
    "random_resized_crop",
]


def __dir__() -> list[str]:
    return __all__


Key: TypeAlias = jax.Array
Range: TypeAlias = tuple[float, float]
Lengths: TypeAlias = tuple[int, int]

_TABLE = 4097  # points of a distribution
_TRIES = 10  # boxes drawn for a crop; the first that fits into the image is used


def random_resized_crop(
    key: Key,
    image: jax.Array,
    size: int | Lengths,
    *,
    scale: Range = (0.08, 1.0),
    ratio: Range = (3 / 4, 4 / 3),
    method: str = "linear",
    antialias: bool = True,
) -> jax.Array:
    """A part of random area and shape, resized: the crop that ImageNet is trained with.

    >>> import jax, jax.numpy as jnp
    >>> photo = jnp.zeros((80, 120, 3), jnp.uint8)
    >>> jax.jit(lambda key: random_resized_crop(key, photo, 64))(jax.random.key(0)).shape
    (64, 64, 3)

    The box need not begin at whole pixels.  Near its edges the filter also sees pixels outside it.
    Resizing multiplies by two dense matrices, as `jax.image.scale_and_translate` does: cheap for
    small images and on an accelerator.

    Args:
        key: a key of `jax.random`.
        image: one image.
        size: height and width of the result; a number for a square.
        scale: the least and largest area of the box, as shares of the image's area.
        ratio: the least and largest width of the box, as multiples of its height.
        method: a filter of `jax.image.resize`, such as ``"cubic"``.
        antialias: whether to widen the filter where the image is made smaller.
    """
    image, (rows, columns) = _checked(image)
    height, width = size_of(size)
    scale, ratio = span_of("scale", scale), span_of("ratio", ratio)
    corner, box = _random_box(key, rows, columns, scale, ratio)
    zoom = jnp.array([height, width], jnp.float32) / box
    made = jax.image.scale_and_translate(
        _as_float(image),
        (height, width, *image.shape[2:]),
        (0, 1),
        zoom,
        -corner * zoom,
        method,
        antialias,
    )
    return _with_dtype(made, image.dtype)


def random_flip_left_right(key: Key, image: jax.Array, *, probability: float = 0.5) -> jax.Array:
    """The image, or its mirror image.

    >>> import jax, jax.numpy as jnp
    >>> random_flip_left_right(jax.random.key(0), jnp.array([[1, 2]]), probability=1).tolist()
    [[2, 1]]

    Args:
        key: a key of `jax.random`.
        image: one image.
        probability: of a flip.
    """
    return _flipped(key, image, probability, axis=1)


def random_flip_up_down(key: Key, image: jax.Array, *, probability: float = 0.5) -> jax.Array:
    """The image, or the image upside down, as a mirror shows it.

    >>> import jax, jax.numpy as jnp
    >>> random_flip_up_down(jax.random.key(0), jnp.array([[1], [2]]), probability=1).tolist()
    [[2], [1]]

    Args:
        key: a key of `jax.random`.
        image: one image.
        probability: of a flip.
    """
    return _flipped(key, image, probability, axis=0)


def _flipped(key: Key, image: jax.Array, probability: float, axis: int) -> jax.Array:
    image, _ = _checked(image)
    flips = jax.random.bernoulli(key, share_of("probability", probability))
    return jnp.where(flips, jnp.flip(image, axis), image)


def random_pad_and_crop(
    key: Key,
    image: jax.Array,
    padding: int | Lengths,
    *,
    mode: str = "constant",
) -> jax.Array:
    """The image moved by up to ``padding`` pixels: padded on all sides, then cropped at random.

    The augmentation of CIFAR, with ``padding=4``:

    >>> import jax, jax.numpy as jnp
    >>> small = jnp.ones((32, 32, 3), jnp.uint8)
    >>> random_pad_and_crop(jax.random.key(0), small, 4).shape
    (32, 32, 3)

    Args:
        key: a key of `jax.random`.
        image: one image.
        padding: rows above and below, and columns left and right; a number for both.
        mode: what to pad with, as in `jax.numpy.pad`: ``"constant"`` (zeros), ``"reflect"``,
            ``"edge"``, ...
    """
    image, lengths = _checked(image)
    pads = size_of(padding, "padding", least=0)
    corner = _integers(jax.random.uniform(key, (2,)), [2 * pad + 1 for pad in pads])
    others = image.ndim - 2
    padded = jnp.pad(image, [(pad, pad) for pad in pads] + [(0, 0)] * others, mode=mode)
    starts = (*corner, *[0] * others)
    return jax.lax.dynamic_slice(padded, starts, (*lengths, *image.shape[2:]))


def random_cutout(
    key: Key, image: jax.Array, size: int | Lengths, *, value: npt.ArrayLike = 0
) -> jax.Array:
    """The image with a rectangle of one value, whose centre is any of the pixels.

    At the border a part of the rectangle is outside the image.

    >>> import jax, jax.numpy as jnp
    >>> white = jnp.full((32, 32, 3), 255, jnp.uint8)
    >>> holed = random_cutout(jax.random.key(0), white, 8)
    >>> 4 * 4 <= int((holed[..., 0] == 0).sum()) <= 8 * 8
    True

    Args:
        key: a key of `jax.random`.
        image: one image.
        size: height and width of the rectangle; a number for a square.
        value: of its pixels; a number, or one for each channel.
    """
    image, lengths = _checked(image)
    extent = np.array(size_of(size))
    centre = _integers(jax.random.uniform(key, (2,)), lengths)
    paint = jnp.broadcast_to(jnp.asarray(value).astype(image.dtype), image.shape)
    return _with_rectangle(image, centre - extent // 2, extent, paint)


def normalize(
    image: jax.Array,
    mean: npt.ArrayLike = 0.0,
    std: npt.ArrayLike = 1.0,
    *,
    dtype: npt.DTypeLike = jnp.float32,
) -> jax.Array:
    """``(image - mean) / std`` for pixels from 0 to 1: uint8 is divided by 255 first.

    (And uint16 by 65535.)  Floats are taken as they are, so they should be from 0 to 1 already:
    numbers above 10 are refused, unless `mean` or `std` is above 1.  (Inside `jax.jit` numbers
    cannot be looked at.)  Other integers do not say which number is white, and are refused.
    `loaderx.image.normalize` does the same in NumPy.

    >>> import jax.numpy as jnp
    >>> normalize(jnp.array([[[0], [255]]], jnp.uint8), mean=0.5, std=0.5).tolist()
    [[[-1.0], [1.0]]]

    Args:
        image: an image, or a batch of them, with the channels last.
        mean: a number, or one for each channel.
        std: likewise.
        dtype: of the result; ``jnp.bfloat16`` is half the size.
    """
    image = jnp.asarray(image)
    largest = largest_pixel(image.dtype)
    _check_mean(mean, image)
    _check_floats(image, mean, std)
    middle, spread = jnp.asarray(mean, jnp.float32), jnp.asarray(std, jnp.float32)
    return (_as_float(image) * (1 / (largest * spread)) - middle / spread).astype(dtype)


def mixup(
    key: Key, image: jax.Array, label: jax.Array, *, alpha: float = 0.2
) -> tuple[jax.Array, jax.Array]:
    """Every image and label of a batch mixed with those of the row before it.

    Each row has a weight of its own, drawn from Beta(alpha, alpha).  Batches are shuffled, so the
    row before is a random one, and on several devices only one row goes from each to the next.

    >>> import jax, jax.numpy as jnp
    >>> images = jnp.arange(4, dtype=jnp.float32).reshape(4, 1, 1, 1)
    >>> labels = jax.nn.one_hot(jnp.arange(4), 4)
    >>> mixed, target = jax.jit(mixup)(jax.random.key(0), images, labels)
    >>> bool(jnp.allclose(target.sum(-1), 1)), target.shape
    (True, (4, 4))

    Train with ``optax.softmax_cross_entropy(logits, target)``, and a new key in each step, such as
    ``jax.random.fold_in(key, step)``.

    Args:
        key: a key of `jax.random`.
        image: a batch, rows first.
        label: a row of probabilities for each image, as `jax.nn.one_hot` makes them of integers.
        alpha: small numbers mix little; at 1 all weights are equally likely.
    """
    image, label = _checked_batch("mixup", image, label, alpha)
    weight = _symmetric_beta(jax.random.uniform(key, (len(image),)), alpha)
    mixed = _mixed(weight, _as_float(image))
    return _with_dtype(mixed, image.dtype), _mixed(weight, label)


def cutmix(
    key: Key, image: jax.Array, label: jax.Array, *, alpha: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """A rectangle of every image replaced by that of the row before it, and the labels mixed.

    The rectangle has a share of the area drawn from Beta(alpha, alpha), and any pixel as its
    centre.  A label's weight is the share of the image that is left of it.

    >>> import jax, jax.numpy as jnp
    >>> images = jnp.zeros((4, 8, 8, 3), jnp.uint8).at[::2].set(255)
    >>> labels = jax.nn.one_hot(jnp.arange(4) % 2, 2)
    >>> mixed, target = jax.jit(cutmix)(jax.random.key(0), images, labels)
    >>> mixed.dtype.name, bool(jnp.allclose(target[0, 0], (mixed[0, ..., 0] == 255).mean()))
    ('uint8', True)

    Args:
        key: a key of `jax.random`.
        image: a batch, rows first.
        label: a row of probabilities for each image, as `jax.nn.one_hot` makes them of integers.
        alpha: at 1 all shares are equally likely.
    """
    image, label = _checked_batch("cutmix", image, label, alpha)
    lengths = image.shape[1:3]
    draws = jax.random.uniform(key, (len(image), 3))
    cut = jnp.sqrt(1 - _symmetric_beta(draws[:, 0], alpha))
    extent = jnp.round(cut[:, None] * np.array(lengths, np.float32)).astype(jnp.int32)
    centre = _integers(draws[:, 1:], lengths)
    corner = centre - extent // 2
    mixed = jax.vmap(_with_rectangle)(image, corner, extent, jnp.roll(image, 1, axis=0))
    within = jnp.minimum(corner + extent, np.array(lengths)) - jnp.maximum(corner, 0)
    kept = 1 - within.prod(-1) / math.prod(lengths)
    return mixed, _mixed(kept, label)


def _random_box(
    key: Key, rows: int, columns: int, scale: Range, ratio: Range
) -> tuple[jax.Array, jax.Array]:
    """The corner of a box, and its height and width, in pixels."""
    draws = jax.random.uniform(key, (2 * _TRIES + 2,))  # one call: each is slow to compile
    area = rows * columns * (scale[0] + (scale[1] - scale[0]) * draws[:_TRIES])
    least, most = math.log(ratio[0]), math.log(ratio[1])
    shape = jnp.exp(least + (most - least) * draws[_TRIES:-2])
    boxes = jnp.sqrt(jnp.stack([area / shape, area * shape], -1))
    whole = jnp.array([rows, columns], jnp.float32)
    first = jnp.argmax((boxes <= whole).all(-1))  # 0 if none fits: that one is cut off
    box = jnp.minimum(boxes[first], whole)
    return draws[-2:] * (whole - box), box


def _integers(draws: jax.Array, stops: Sequence[int]) -> jax.Array:
    """Whole numbers from 0 up to the stops, from numbers in [0, 1)."""
    return (draws * np.array(stops, np.float32)).astype(jnp.int32)


def _symmetric_beta(draws: jax.Array, alpha: float) -> jax.Array:
    """The quantiles of Beta(alpha, alpha) at numbers in [0, 1).

    `jax.random.beta` takes seconds to compile.  In terms of s = x^alpha the density has no
    singularity at 0, so a table of the distribution over s gives quantiles to six digits.
    """
    steps, power = np.linspace(0, 1, _TABLE), max(1.0, 1 / alpha)
    x, s = 0.5 * steps**power, 0.5**alpha * steps ** (alpha * power)
    height = (1 - x) ** (alpha - 1)
    shares = np.append(0, np.cumsum(np.diff(s) * (height[1:] + height[:-1])))
    below_half = jnp.minimum(draws, 1 - draws)
    less = jnp.interp(below_half, shares / (2 * shares[-1]), s) ** (1 / alpha)
    return jnp.where(draws < 0.5, less, 1 - less)


def _with_rectangle(
    image: jax.Array, corner: jax.Array, extent: jax.Array, other: jax.Array
) -> jax.Array:
    """The image with a rectangle of another."""
    # Rows of numbers, not of pixels: XLA then compares eight or more at a time.
    rows, columns, *rest = image.shape
    numbers = math.prod(rest)
    (top, left), (height, width) = corner, extent
    row, number = jnp.arange(rows)[:, None], jnp.arange(columns * numbers)
    is_inside = (row >= top) & (row < top + height)
    is_inside &= (number >= left * numbers) & (number < (left + width) * numbers)
    flat = rows, columns * numbers
    return jnp.where(is_inside, other.reshape(flat), image.reshape(flat)).reshape(image.shape)


def _mixed(weight: jax.Array, values: jax.Array) -> jax.Array:
    weight = weight.reshape(-1, *[1] * (values.ndim - 1))
    return weight * values + (1 - weight) * jnp.roll(values, 1, axis=0)


def _is_integer(image: jax.Array) -> bool:
    return bool(jnp.issubdtype(image.dtype, jnp.integer))


def _as_float(image: jax.Array) -> jax.Array:
    return image.astype(jnp.promote_types(image.dtype, jnp.float32))


def _with_dtype(made: jax.Array, dtype: npt.DTypeLike) -> jax.Array:
    if not jnp.issubdtype(dtype, jnp.integer):
        return made.astype(dtype)
    limits = jnp.iinfo(dtype)
    return jnp.clip(jnp.round(made), limits.min, limits.max).astype(dtype)


def _checked(image: jax.Array) -> tuple[jax.Array, Lengths]:
    """One image, and its height and width."""
    image = jnp.asarray(image)
    if image.ndim not in (2, 3):
        raise ArgumentError(
            "`image` must be one image, (height, width) or (height, width, channels), got shape "
            f"{image.shape}. For a batch, write jax.vmap, or `loaderx.jax.augment`."
        )
    rows, columns = image.shape[:2]
    return image, (rows, columns)


def _check_mean(mean: npt.ArrayLike, image: jax.Array) -> None:
    if isinstance(mean, jax.core.Tracer) or not _is_integer(image):
        return
    if np.max(np.abs(mean)) > 1:
        raise ArgumentError(
            f"`normalize` divides {image.dtype} by {jnp.iinfo(image.dtype).max} first, so `mean` "
            f"and `std` must be those of pixels from 0 to 1, got mean={mean!r}. Divide both by it."
        )


def _check_floats(image: jax.Array, mean: npt.ArrayLike, std: npt.ArrayLike) -> None:
    known = not any(isinstance(each, jax.core.Tracer) for each in (image, mean, std))
    if known and image.size and not _is_integer(image) and is_for_one(mean, std):
        check_brightest(image.dtype, float(image.max()))


def _checked_batch(
    name: str, image: jax.Array, label: jax.Array, alpha: float
) -> tuple[jax.Array, jax.Array]:
    image, label = jnp.asarray(image), jnp.asarray(label)
    if not jnp.issubdtype(label.dtype, jnp.floating):
        raise ArgumentTypeError(
            f"`{name}` mixes labels, so it takes a row of probabilities for each image, got "
            f"{label.dtype}. Write jax.nn.one_hot(label, classes)."
        )
    if len(image) != len(label):
        raise ArgumentError(
            f"`{name}` takes a batch, with one label for each image, got {len(image)} images and "
            f"{len(label)} labels."
        )
    if not alpha > 0:
        raise ArgumentError(f"`alpha` must be above 0, got {alpha!r}.")
    return image, label
