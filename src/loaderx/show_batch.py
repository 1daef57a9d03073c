"""`show`: a batch as a person sees it: images in a grid, with labels, and all leaves in a table."""

from __future__ import annotations

import base64
import html
import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError, MissingPackageError, check_int
from loaderx.tree import Array, flatten

if TYPE_CHECKING:
    from PIL.Image import Image

Classes = Mapping[str, Sequence[str]]

_LEAST_SIDE, _MOST_SIDE = 72, 224  # of an image in the grid
_GAP, _LINE = 8, 15
_CHANNELS = (1, 3, 4)
_DARK = 64  # bytes without any brighter than this (digits up to 16, masks) are brightened
_MOST_TEXT = 60


def show(batch: object, *, classes: Classes | None = None, most: int = 36) -> Shown:
    """Shows a batch: in a notebook as a picture and a table, elsewhere as text.

    >>> import numpy as np
    >>> show({"x": np.arange(6.0).reshape(2, 3), "label": np.array([0, 1])})
    x      float64[2,3]  from 0 to 5
    label  int64[2]      0, 1

    ``show(batch).save("batch.png")`` writes the picture.

    Args:
        batch: a batch or a record; images are leaves of shape (rows, height, width) with or without
            1, 3 or 4 channels, of bytes or floats.
        classes: names of labels, as `Dataset.classes` has them.
        most: images to show.
    """
    return Shown(batch, classes or {}, check_int("most", most, least=1))


class Shown:
    """The result of `show`."""

    def __init__(self, batch: object, classes: Classes, most: int) -> None:
        leaves, structure = flatten(batch)
        paths = [path or "batch" for path in structure.paths()]
        self._leaves = dict(zip(paths, map(_as_array, leaves), strict=True))
        if not self._leaves:
            raise ArgumentTypeError(f"there is nothing to show in {batch!r}.")
        self._classes, self._most = classes, most

    def __repr__(self) -> str:
        rows = [_row(path, leaf, self._classes.get(path)) for path, leaf in self._leaves.items()]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(
            f"{path:<{widths[0]}}  {spec:<{widths[1]}}  {values}" for path, spec, values in rows
        )

    def _repr_png_(self) -> bytes | None:
        return self.png if self._images() else None

    def _repr_html_(self) -> str:
        picture = ""
        if self._images():
            data = base64.b64encode(self.png).decode()
            picture = f'<img src="data:image/png;base64,{data}"/>'
        rows = [_row(path, leaf, self._classes.get(path)) for path, leaf in self._leaves.items()]
        cells = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
        return f"{picture}<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    @property
    def png(self) -> bytes:
        """The images in a grid, as a PNG file."""
        found = self._images()
        if not found:
            raise ArgumentError(
                "there are no images in this batch: no leaf of shape (rows, height, width) or "
                f"(rows, height, width, channels). It has\n{self!r}"
            )
        out = io.BytesIO()
        _grid(found, self._captions(len(found))).save(out, "PNG")
        return out.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture."""
        data = self.png  # before the file is there
        with open(path, "wb") as file:
            file.write(data)

    def _images(self) -> list[Array]:
        for leaf in self._leaves.values():
            found = _images_in(leaf)
            if found:
                return found[: self._most]
        return []

    def _captions(self, count: int) -> list[list[str]]:
        """The lines below each image: its other leaves, where they are short."""
        captions: list[list[str]] = [[] for _ in range(count)]
        for path, leaf in self._leaves.items():
            if leaf.ndim == 0 or (leaf.ndim == 1 and len(leaf) >= count and not _images_in(leaf)):
                for row, lines in zip(np.atleast_1d(leaf), captions, strict=False):
                    lines.append(f"{path} {_text(row, self._classes.get(path))}")
        return captions


def _as_array(leaf: object) -> Array:
    if isinstance(leaf, list):  # images of several sizes
        made = np.empty(len(leaf), object)
        made[:] = leaf
        return made
    return np.asarray(leaf)


# The table ------------------------------------------------------------------------------------


def _row(path: str, leaf: Array, classes: Sequence[str] | None) -> tuple[str, str, str]:
    spec = f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
    return path, spec, _values(leaf, classes)


def _values(leaf: Array, classes: Sequence[str] | None) -> str:
    """A few values, or the range of many."""
    if leaf.ndim <= 1 and (classes or leaf.dtype.kind in "OSU" or leaf.size <= 8):
        some = [_text(value, classes) for value in leaf.ravel()[:8]]
        return ", ".join(some) + (", ..." if leaf.size > 8 else "")
    if leaf.dtype.kind not in "buif" or not leaf.size:
        return ""
    return f"from {_text(leaf.min())} to {_text(leaf.max())}"


def _text(value: object, classes: Sequence[str] | None = None) -> str:
    if classes is not None and isinstance(value, (int, np.integer)) and 0 <= value < len(classes):
        return str(classes[int(value)])
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    text = f"{value:.4g}" if isinstance(value, (float, np.floating)) else str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 3]}..."


# The picture ----------------------------------------------------------------------------------


def _images_in(leaf: Array) -> list[Array]:
    """The images of a leaf; none if it does not hold images."""
    if leaf.dtype == object and leaf.ndim == 1:
        several = [image for one in leaf for image in _images_in(np.asarray(one)[None])]
        return several if len(several) == len(leaf) else []
    if leaf.dtype.kind not in "buif" or leaf.ndim not in (3, 4):
        return []
    if leaf.ndim == 4 and leaf.shape[-1] not in _CHANNELS:
        return []
    if leaf.ndim == 3 and leaf.shape[-1] in _CHANNELS:
        leaf = leaf[None]  # one image with channels
    if min(leaf.shape) == 0 or min(leaf.shape[1:3]) < 4:
        return []
    return list(_as_bytes(leaf))


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


def _grid(images: Sequence[Array], captions: Sequence[Sequence[str]]) -> Image:
    pillow = _pillow()
    tiles = [_tile(pillow.Image.fromarray(_with_channels(image))) for image in images]
    lines = max(map(len, captions))
    widths = [tile.width for tile in tiles]
    width = max([*widths, _LEAST_SIDE])
    height = max(tile.height for tile in tiles)
    columns = math.ceil(math.sqrt(len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    cell = (width + _GAP, height + _LINE * lines + _GAP)
    sheet: Image = pillow.Image.new(
        "RGB", (columns * cell[0] + _GAP, rows * cell[1] + _GAP), "white"
    )
    draw, font = pillow.ImageDraw.Draw(sheet), pillow.ImageFont.load_default(size=11)
    for (left, top), tile, caption in zip(_places(columns, cell), tiles, captions, strict=False):
        sheet.paste(tile, (left, top))
        for number, line in enumerate(caption):
            while line and draw.textlength(line, font=font) > width:
                line = line[:-1]
            draw.text((left, top + height + number * _LINE + 1), line, "black", font=font)
    return sheet


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


def _places(columns: int, cell: tuple[int, int]) -> Iterator[tuple[int, int]]:
    number = 0
    while True:
        row, column = divmod(number, columns)
        yield column * cell[0] + _GAP, row * cell[1] + _GAP
        number += 1


def _with_channels(image: Array) -> Array:
    return np.ascontiguousarray(image[..., 0] if image.shape[2:] == (1,) else image)


def _tile(image: Image) -> Image:
    """The image in a size that can be seen."""
    longest = max(image.size)
    if longest > _MOST_SIDE:
        image.thumbnail((_MOST_SIDE, _MOST_SIDE))
    elif longest < _LEAST_SIDE:
        factor = math.ceil(_LEAST_SIDE / longest)
        image = image.resize(
            (image.width * factor, image.height * factor), resample=0
        )  # pixels stay squares
    return image
