"""`show`: records or a batch as a person sees them: pictures in a grid, and all leaves in a table.

In a notebook it is HTML without scripts, elsewhere text.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from loaderx.display.html import page, tag
from loaderx.display.picture import Cell, boxes_of, grid, images_of, single
from loaderx.display.values import array_text, plain_text, value_text
from loaderx.errors import ArgumentError, ArgumentTypeError, LoaderxError, check_int
from loaderx.tree import Array, as_array, flatten

Classes = Mapping[str, Sequence[str]]

_MOST_TEXT, _MOST_TEXTS = 60, 8  # characters of a text in a line, and texts below each other
_STRIP = 40  # characters for a packed row


def show(batch: object, *, classes: Classes | None = None, most: int = 36) -> Shown:
    """Shows a batch, a dataset or a loader: in a notebook as pictures and tables, else as text.

    >>> import numpy as np
    >>> show({"x": np.arange(6.0).reshape(2, 3), "label": np.array([0, 1])})
    x      float64[2,3]  from 0 to 5
    label  int64[2]      0, 1

    ``show(batch).save("batch.png")`` writes the picture.  Images have shape (rows, height, width),
    with or without 1, 3 or 4 channels.  Integers in a leaf with "mask" in its name get colours;
    boxes (left, top, right, bottom, in pixels or as shares of the sides) in a leaf with "box" are
    drawn on the image; sound in a leaf with "audio" or "wave" is drawn as its wave.  Of packed
    rows, a line of digits shows which record lies where.

    Args:
        batch: a batch or a record; or a dataset or loader, of which the first are shown.
        classes: names of labels, as `Dataset.classes` has them.
        most: rows to show.
    """
    most = check_int("most", most, least=1)
    if type(batch).__module__.startswith("loaderx.") and hasattr(batch, "show"):
        found: Shown = batch.show(most)  # of a dataset or a loader, which are above this package
        return found if classes is None else Shown(found.leaves, classes, most)
    leaves, structure = flatten(batch)
    paths = [plain_text(path) or "batch" for path in structure.paths()]
    return Shown(dict(zip(paths, map(_as_array, leaves), strict=True)), classes or {}, most)


def show_records(records: Sequence[object], classes: Classes, most: int) -> Shown:
    """Shows single records, whose leaves need not fit together."""
    columns: dict[str, list[object]] = {}
    for record in records:
        leaves, structure = flatten(record)
        for path, leaf in zip(structure.paths(), leaves, strict=True):
            columns.setdefault(plain_text(path) or "record", []).append(leaf)
    return Shown({path: _as_array(values) for path, values in columns.items()}, classes, most)


class Shown:
    """The result of `show`."""

    def __init__(self, leaves: dict[str, Array], classes: Classes, most: int) -> None:
        if not leaves:
            raise ArgumentTypeError("there is nothing to show: there is no leaf in it.")
        self.leaves, self._classes, self._most = leaves, classes, most

    def __repr__(self) -> str:
        rows = [(path, array_text(leaf), *self._values(path)) for path, leaf in self.leaves.items()]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = []
        for path, spec, values, below in rows:
            lines.append(f"{path:<{widths[0]}}  {spec:<{widths[1]}}  {values}".rstrip())
            lines += [f"  {_shortened(line)}" for line in below]
        return "\n".join(lines)

    def _repr_png_(self) -> bytes | None:
        return self.png if self._cells else None

    def _repr_html_(self) -> str:
        return page(self.html())

    def html(self) -> str:
        """The pictures and the table, without the styles of `page`."""
        picture = ""
        if self._cells:
            picture = tag("img", "", src=png_url(self.png))
        rows = []
        for path, leaf in self.leaves.items():
            values, below = self._values(path)
            listed = "".join(tag("pre", line) for line in below)
            cells = tag("th", path), tag("td", array_text(leaf)), tag("td", values, listed)
            rows.append(tag("tr", "", *cells))
        return picture + tag("table", "", *rows)

    def figures(self) -> list[tuple[bytes, list[str]]]:
        """Each image of the grid as a PNG file, and the lines of its caption."""
        return [(single(cell), cell.caption) for cell in self._cells]

    @property
    def png(self) -> bytes:
        """The images in a grid, as a PNG file."""
        if not self._cells:
            raise ArgumentError(
                "there are no images in this batch: no leaf of shape (rows, height, width) or "
                f"(rows, height, width, channels). It has\n{self!r}"
            )
        return grid(self._cells)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture."""
        data = self.png  # before the file is there
        with open(path, "wb") as file:
            file.write(data)

    @cached_property
    def _cells(self) -> list[Cell]:
        found = [images_of(path, leaf) for path, leaf in self.leaves.items()]
        several = [images for images in found if images]
        if not several:
            return []
        beside = [images for images in several if len(images) == len(several[0])]
        count = min(self._most, len(several[0]))
        boxes = next(filter(None, (boxes_of(*pair) for pair in self.leaves.items())), [])
        boxes = [*boxes, *[np.empty((0, 4))] * count]
        rows = zip(zip(*beside, strict=True), boxes, self._captions(count), strict=False)
        return [Cell(images, drawn, caption) for images, drawn, caption in rows]

    def _captions(self, count: int) -> list[list[str]]:
        """The lines below each image: its other leaves, where they are short."""
        captions: list[list[str]] = [[] for _ in range(count)]
        for path, leaf in self.leaves.items():
            is_drawn = images_of(path, leaf) or boxes_of(path, leaf)
            if leaf.ndim == 0 or (leaf.ndim == 1 and len(leaf) >= count and not is_drawn):
                for row, lines in zip(np.atleast_1d(leaf), captions, strict=False):
                    lines.append(f"{path} {_shortened(value_text(row, self._classes.get(path)))}")
        return captions

    def _values(self, path: str) -> tuple[str, list[str]]:
        """A few values of a leaf, or the range of many; and lines to write below."""
        leaf, classes = self.leaves[path], self._classes.get(path)
        segments = self.leaves.get(f"{path}_segment_ids")
        if segments is not None and segments.ndim == 2:
            return "", [_strip(row) for row in segments[: self._most]]
        if leaf.ndim <= 1 and (classes or leaf.dtype.kind in "OSU" or leaf.size <= 8):
            some = [value_text(value, classes) for value in leaf.ravel()[: self._most]]
            if any(len(text) > _MOST_TEXT for text in some):
                return "", some[:_MOST_TEXTS]
            return ", ".join(some[:8]) + (", ..." if leaf.size > 8 else ""), []
        if leaf.dtype.kind not in "buif" or not leaf.size:
            return "", []
        return f"from {value_text(leaf.min())} to {value_text(leaf.max())}", []


def png_url(data: bytes) -> str:
    """A PNG file as the source of an ``img``."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _as_array(leaf: object) -> Array:
    """A leaf of a batch, or its rows in a list; objects if they do not fit together."""
    if not isinstance(leaf, list):
        return np.asarray(leaf)
    with contextlib.suppress(LoaderxError, ValueError):  # various shapes, large numbers
        made = np.stack([as_array(one) for one in leaf])
        if made.dtype.kind in "biuf":
            return made
    made = np.empty(len(leaf), object)
    made[:] = leaf
    return made


def _strip(segments: Array) -> str:
    """A packed row as a line: the last digit of the record that lies there, dots for padding."""
    places = np.linspace(0, len(segments), min(_STRIP, len(segments)), endpoint=False)
    told = "".join(str(one % 10) if one else "." for one in segments[places.astype(int)].tolist())
    padding = int((segments == 0).sum())
    return f"{told}  {segments.max()} records, {padding} of {len(segments)} padding"


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_TEXT + 16 else f"{text[: _MOST_TEXT + 13]}..."
