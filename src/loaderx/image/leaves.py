"""The leaves of a record that follow its image: masks, boxes and keypoints.

A stage that moves pixels says where they went, as a `Placement`, and the other leaves are moved
alike: one draw for all of them.  Boxes and floating point keypoints are positions in pixels: the
first pixel of a row reaches from 0 to 1.  Keypoints of an integer dtype name pixels, so it is the
middle of the pixel that is moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError, check_name
from loaderx.frozen import Frozen
from loaderx.image.arguments import names_of, share_of
from loaderx.image.decoding import described, mask_of
from loaderx.image.regions import Region, Size
from loaderx.tree import Array, DType, Tree, as_array, narrowed


class Placement(NamedTuple):
    """A part of an image, and what became of it."""

    image: Size  # the height and width of the whole image
    part: Region  # in its pixels; it may reach beyond it
    size: Size
    of_mask: Callable[[Array], Array]  # the same of a mask
    flipped: int | None = None  # the axis that was reversed in the end

    def points(self, points: Array) -> Array:
        """Where positions (x, y) of the whole image are in the result."""
        corner = self.part.left, self.part.top
        zoom = self.size[1] / self.part.width, self.size[0] / self.part.height
        moved: Array = (points - corner) * zoom
        if self.flipped is not None:
            moved[..., 1 - self.flipped] = self.size[self.flipped] - moved[..., 1 - self.flipped]
        return moved


def nearest(mask: Array, part: Region, size: Size) -> Array:
    """A part resized without new values: each pixel is the one that its middle lies in.

    Args:
        mask: an array [height, width, ...].
        part: of whole pixels.
        size: of the result.
    """
    rows, columns = (
        int(start) + (2 * np.arange(count) + 1) * int(length) // (2 * count)
        for start, length, count in zip(part[:2], part[2:], size, strict=True)
    )
    picked: Array = mask.take(rows, 0).take(columns, 1)
    return picked


Changed: TypeAlias = tuple[Array, Placement | None]
"""The new pixels of an image, and where the old ones are in them; None: where they were."""


class Leaves(Frozen):
    """The names of the image and of what follows it."""

    key: str | None
    masks: str | Sequence[str] = ()
    boxes: str | None = None
    keypoints: str | None = None
    per_box: str | Sequence[str] = ()
    min_area: float = 0.0
    cuts: bool = False  # whether boxes may lie outside of the result, and are dropped then

    def __post_init__(self) -> None:
        share_of("min_area", self.min_area)
        for argument in ("masks", "per_box"):
            self.__dict__[argument] = names_of(argument, getattr(self, argument))
        for argument in ("key", "boxes", "keypoints"):
            if getattr(self, argument) is not None:
                check_name(argument, getattr(self, argument))
        if self.key is None and self.names:
            raise ArgumentError(
                "masks, boxes and keypoints are leaves of a record beside its image: name the "
                "image, too, with key=."
            )
        if self.boxes is None and (self.per_box or self.min_area):
            raise ArgumentError("`per_box` and `min_area` are about boxes: name them with boxes=.")
        if len(set(self.names)) < len(self.names):
            raise ArgumentError(f"each leaf moves once; of {self.names} one is named twice.")

    @property
    def names(self) -> list[str]:
        """The leaves that one record cannot lose."""
        return [name for name in (self.key, *self.masks, self.boxes, self.keypoints) if name]

    def changed(self, record: Tree, change: Callable[[object], Changed]) -> Tree:
        """The record with its image changed, and what follows it."""
        if self.key is None:
            return change(record)[0]
        pixels, place = change(self.leaf(record, self.key))
        made = {**record, self.key: pixels}
        if place is not None:
            self._follow(made, place)
        return made

    def leaf(self, record: Tree, name: str) -> Any:
        """A leaf that an argument names."""
        if not isinstance(record, dict):
            raise ArgumentTypeError(
                f"records must be dicts with a leaf {name!r}, this one is {type(record).__name__}. "
                "Make a dict of it in .map() first, or write key=None if it is the image itself."
            )
        if name not in record:
            have = ", ".join(map(repr, record))
            how = "key=" if name == self.key else "masks=, boxes=, per_box= or keypoints="
            raise ArgumentError(
                f"the record has no leaf {name!r} but {have}: choose one with {how}."
            )
        return record[name]

    def _follow(self, made: dict[str, object], place: Placement) -> None:
        for name in self.masks:
            mask = mask_of(name, self.leaf(made, name))
            if mask.shape[:2] != place.image:
                sizes = " x ".join(map(str, mask.shape[:2])), " x ".join(map(str, place.image))
                raise ArgumentError(
                    f"the mask {name!r} is {sizes[0]} and the image {self.key!r} {sizes[1]} "
                    "(height x width): a mask has a pixel for each one of its image. Put this "
                    "stage before what resizes one of them, or resize both."
                )
            made[name] = place.of_mask(mask)
        if self.keypoints is not None:
            self._move_keypoints(made, self.keypoints, place)
        if self.boxes is not None:
            self._move_boxes(made, self.boxes, place)

    def _move_keypoints(self, made: dict[str, object], name: str, place: Placement) -> None:
        keypoints = _numbers(self.leaf(made, name))
        kind = keypoints.dtype.kind
        if keypoints.ndim == 0 or keypoints.shape[-1] not in (2, 3) or kind not in "iuf":
            raise ArgumentError(
                f"keypoints are [..., 2], x and y in pixels, or [..., 3] with their visibility, "
                f"got {described(keypoints)} in {name!r}."
            )
        names_pixels = kind in "iu"
        moved = place.points(keypoints[..., :2].astype(np.float64) + 0.5 * names_pixels)
        ends = np.array(place.size[::-1])
        inside = (moved >= 0) & ((moved < ends) if names_pixels else (moved <= ends))
        seen = keypoints[..., 2:]  # none, or one number for each
        if self.cuts:
            seen = seen * inside.all(-1, keepdims=True)
        places = _stored(name, np.floor(moved) if names_pixels else moved, keypoints.dtype)
        made[name] = np.concatenate([places, seen], -1, dtype=keypoints.dtype)

    def _move_boxes(self, made: dict[str, object], name: str, place: Placement) -> None:
        """Moves boxes; where an image is cut, cuts them too, and drops those that are lost."""
        given = _boxes_in(name, self.leaf(made, name))
        corners = np.sort(place.points(given.reshape(-1, 2, 2).astype(np.float64)), axis=1)
        inside = np.clip(corners, 0, place.size[::-1]) if self.cuts else corners
        rounded = np.rint(inside) if given.dtype.kind in "iu" else inside
        is_kept = np.full(len(given), not self.cuts)
        if self.cuts:
            is_kept = _areas(inside) >= self.min_area * _areas(corners)
            is_kept &= _areas(rounded) > 0
        made[name] = _stored(name, rounded.reshape(-1, 4)[is_kept], given.dtype)
        for other in self.per_box:
            values = as_array(self.leaf(made, other))
            if len(values) != len(given):
                raise ArgumentError(
                    f"there are {len(given)} boxes in {name!r} and {len(values)} entries in "
                    f"{other!r} of per_box=: it needs one entry for each box."
                )
            made[other] = values[is_kept]


def _numbers(value: object) -> Array:
    """Positions; lists of Python's numbers become what `batch` makes of them."""
    array = np.asarray(value)
    is_python = isinstance(value, list) and array.dtype.kind in "if"
    return narrowed(array, array) if is_python else array


def _stored(name: str, places: Array, dtype: DType) -> Array:
    """Places in the dtype that they had, which a larger image or a crop may go beyond."""
    if dtype.kind in "iu" and places.size:
        limits, ends = np.iinfo(dtype), (places.min(), places.max())
        if ends[0] < limits.min or ends[1] > limits.max:
            raise ArgumentError(
                f"{name!r} is {dtype}, and its places are now from {ends[0]:.0f} to {ends[1]:.0f}: "
                "make it int32 in a .map() before, .astype('int32')."
            )
    return places.astype(dtype)


def _areas(corners: Array) -> Array:
    areas: Array = np.prod(corners[:, 1] - corners[:, 0], axis=1)
    return areas


def _boxes_in(name: str, value: object) -> Array:
    boxes = _numbers(value)
    if not boxes.size:
        return boxes.reshape(0, 4)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or boxes.dtype.kind not in "iuf":
        raise ArgumentError(
            f"boxes are [boxes, 4], each x0, y0, x1, y1 in pixels, got {described(boxes)} in "
            f"{name!r}."
        )
    if (boxes[:, 2:] < boxes[:, :2]).any():
        (row, *_) = np.flatnonzero((boxes[:, 2:] < boxes[:, :2]).any(1))
        raise ArgumentError(
            f"boxes are x0, y0, x1, y1, and box {row} of {name!r}, {boxes[row].tolist()}, ends "
            "before it begins. If they are x, y, width, height, add the first two to the last two "
            "in a .map() before: boxes[:, 2:] += boxes[:, :2]."
        )
    return boxes
