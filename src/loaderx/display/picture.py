"""The pictures of a batch: images, masks, boxes and sound in a grid, with captions."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from loaderx.errors import MissingPackageError
from loaderx.tree import Array

if TYPE_CHECKING:
    from PIL.Image import Image

_LEAST_SIDE, _MOST_SIDE = 72, 224  # of an image in the grid
_GAP, _LINE = 8, 15
_CHANNELS = (1, 3, 4)
_DARK = 64  # bytes without any brighter than this (digits up to 16) are brightened
_WAVE = (64, 200)  # height and width of the picture of a sound
_LEAST_SAMPLES = 256  # of what is taken for sound
_SOUNDS, _MASKS = ("audio", "sound", "wave", "speech"), ("mask", "segmentation")
_COLOURS = np.array(
    [(20, 20, 20), (230, 90, 80), (80, 160, 230), (110, 190, 90), (240, 180, 60), (170, 110, 210),
     (90, 200, 200), (240, 130, 190)], np.uint8
)  # fmt: skip


class Cell(NamedTuple):
    """What the grid shows of a row."""

    images: Sequence[Array]  # beside each other
    boxes: Array  # (left, top, right, bottom) of each, drawn on the first image
    caption: list[str]


def images_of(path: str, leaf: Array) -> list[Array]:
    """The pictures of a leaf, uint8; none if it holds neither images nor masks nor sound."""
    name = path.lower()
    if leaf.dtype == object and leaf.ndim == 1:
        several = [image for one in leaf for image in images_of(path, np.asarray(one)[None])]
        return several if len(several) == len(leaf) else []
    if leaf.dtype.kind not in "buif" or not leaf.size:
        return []
    if any(word in name for word in _SOUNDS) and leaf.ndim > 1 and leaf[0].size >= _LEAST_SAMPLES:
        return [_wave(row) for row in leaf]
    if leaf.ndim == 3 and leaf.shape[-1] in _CHANNELS:
        leaf = leaf[None]  # one image with channels
    if leaf.ndim not in (3, 4) or min(leaf.shape[1:3]) < 4:
        return []
    if leaf.ndim == 4 and leaf.shape[-1] not in _CHANNELS:
        return []
    if leaf.dtype.kind in "iu" and any(word in name for word in _MASKS):
        leaf = leaf if leaf.ndim == 3 else leaf[..., 0]
        return list(_COLOURS[leaf % len(_COLOURS)])
    return list(_as_bytes(leaf))


def boxes_of(path: str, leaf: Array) -> list[Array]:
    """The boxes of each row; none if the leaf is no list of boxes."""
    if "box" not in path.lower() or leaf.ndim == 0:
        return []
    rows = [np.asarray(one) for one in leaf]
    is_right = all(row.ndim == 2 and row.shape[1] == 4 and row.dtype.kind in "uif" for row in rows)
    return rows if is_right else []


def _as_bytes(images: Array) -> Array:
    low, high = float(images.min()), float(images.max())
    if images.dtype == np.uint8 and not 0 < high < _DARK:
        return images
    if images.dtype == np.uint8:
        low = 0.0
    elif images.dtype == bool or (low >= 0 and high <= 1):
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255:
        low, high = 0.0, 255.0
    scaled = (images.astype(np.float64) - low) * (255 / max(high - low, 1e-12))
    return scaled.round().astype(np.uint8)


def _wave(samples: Array) -> Array:
    """A sound as a picture: for each column the range of its samples."""
    height, width = _WAVE
    flat = samples.astype(np.float64).ravel()
    flat /= max(1e-12, float(np.abs(flat).max()))
    starts = np.linspace(0, len(flat), width, endpoint=False).astype(np.int64)
    level = np.linspace(1, -1, height)[:, None]
    inside = (level <= np.maximum.reduceat(flat, starts)) & (
        level >= np.minimum.reduceat(flat, starts) - 2 / height
    )
    return np.where(inside, 70, 235).astype(np.uint8)


def single(cell: Cell) -> bytes:
    """The images of a row, as a PNG file."""
    return _png(_tiles(_pillow(), cell))


def grid(cells: Sequence[Cell]) -> bytes:
    """The cells in a grid, as a PNG file."""
    pillow = _pillow()
    tiles = [_tiles(pillow, cell) for cell in cells]
    lines = max(len(cell.caption) for cell in cells)
    width = max([*(tile.width for tile in tiles), _LEAST_SIDE])
    height = max(tile.height for tile in tiles)
    columns = math.ceil(math.sqrt(len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    step = (width + _GAP, height + _LINE * lines + _GAP)
    size = (columns * step[0] + _GAP, rows * step[1] + _GAP)
    sheet: Image = pillow.Image.new("RGB", size, "white")
    draw, font = pillow.ImageDraw.Draw(sheet), pillow.ImageFont.load_default(size=11)
    for number, (tile, cell) in enumerate(zip(tiles, cells, strict=True)):
        row, column = divmod(number, columns)
        left, top = column * step[0] + _GAP, row * step[1] + _GAP
        sheet.paste(tile, (left, top))
        for place, line in enumerate(cell.caption):
            while line and draw.textlength(line, font=font) > width:
                line = line[:-1]
            draw.text((left, top + height + place * _LINE + 1), line, "black", font=font)
    return _png(sheet)


def _png(image: Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def _tiles(pillow: ModuleType, cell: Cell) -> Image:
    """The images of a row beside each other, with boxes on the first."""
    tiles = []
    for number, image in enumerate(cell.images):
        height, width = image.shape[:2]
        tile = _tile(pillow.Image.fromarray(_with_channels(image))).convert("RGB")
        if number == 0 and cell.boxes.size:
            whole = (width, height) if cell.boxes.max() > 1 else (1, 1)  # else shares of the sides
            scale = np.tile([tile.width / whole[0], tile.height / whole[1]], 2)
            draw = pillow.ImageDraw.Draw(tile)
            for index, box in enumerate(cell.boxes * scale):
                colour = tuple(_COLOURS[1 + index % (len(_COLOURS) - 1)].tolist())
                (x0, x1), (y0, y1) = sorted(box[::2].tolist()), sorted(box[1::2].tolist())
                draw.rectangle((x0, y0, x1, y1), outline=colour, width=2)
        tiles.append(tile)
    if len(tiles) == 1:
        return cast("Image", tiles[0])
    size = sum(tile.width + 2 for tile in tiles) - 2, max(tile.height for tile in tiles)
    row: Image = pillow.Image.new("RGB", size, "white")
    left = 0
    for tile in tiles:
        row.paste(tile, (left, 0))
        left += tile.width + 2
    return row


def _pillow() -> ModuleType:
    try:
        import PIL.Image
        import PIL.ImageDraw
        import PIL.ImageFont
    except ImportError as error:
        raise MissingPackageError(
            "a picture of a batch needs Pillow: pip install 'loaderx-jax[images]'."
        ) from error
    return cast(ModuleType, PIL)


def _with_channels(image: Array) -> Array:
    return np.ascontiguousarray(image[..., 0] if image.shape[2:] == (1,) else image)


def _tile(image: Image) -> Image:
    """The image in a size that can be seen."""
    longest = max(image.size)
    if longest > _MOST_SIDE:
        image.thumbnail((_MOST_SIDE, _MOST_SIDE))
    elif longest < _LEAST_SIDE:
        factor = math.ceil(_LEAST_SIDE / longest)
        size = (image.width * factor, image.height * factor)
        image = image.resize(size, resample=0)  # pixels stay squares
    return image
