"""The argument ``decode`` of `Dataset.open`: how images and other encoded values are handed out.

- True: images as `decode_image` makes them, everything else decoded;
- False: bytes;
- ``"upright"``: as True, with images rotated and mirrored as their EXIF orientation says;
- ``"stored"``: as True, with the numbers of the image file: indices of a palette, all 16 bits.

A dict says it for some leaves; all others are decoded as by True.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from loaderx.errors import ArgumentError, ArgumentTypeError, check_bool
from loaderx.frozen import Frozen
from loaderx.sources.images import check_decoder, decode_image, decode_stored, decode_turned
from loaderx.tree import Array

DecodeArgument: TypeAlias = bool | str | Mapping[str, bool | str]

MASK_WORDS = (
    "mask", "masks", "label", "labels", "annotation", "annotations", "segmentation",
    "segmentations", "seg", "target", "targets", "gt", "ground_truth",
)  # fmt: skip
"""Names of leaves and folders whose images have the number of a class in each pixel."""

STORED_WORDS = (*MASK_WORDS, "depth", "depths")
"""Names of leaves and folders whose images are numbers, not colours."""

STORED = "stored"
_UPRIGHT = "upright"


class Decoding(Frozen):
    """How the values of leaves are decoded."""

    way: bool | str  # of leaves that are not named
    leaves: Mapping[str, bool | str]  # by name; fields of structs are "box.image" or "box/image"

    def __bool__(self) -> bool:
        """False if bytes were asked for: what formats test that have no images."""
        return bool(self.way)

    def below(self, name: str) -> Decoding:
        """What counts for a leaf, and for those below it."""
        inside = {
            path[len(name) + 1 :]: way
            for path, way in self.leaves.items()
            if path.startswith((f"{name}.", f"{name}/"))
        }
        return Decoding(self.leaves.get(name, self.way), inside)

    def of_file(self, name: str) -> bool | str:
        """How a leaf of image files is decoded; masks and depth keep their numbers by default."""
        is_stored = self.way and name.lower() in STORED_WORDS
        return self.leaves.get(name, STORED if is_stored else self.way)

    @property
    def text(self) -> str:
        """What fingerprints have of it: nothing where all leaves are as by True or False."""
        named = [
            f"{name}={way}"
            for name, way in sorted(self.leaves.items())
            if way is not True or name.lower() in STORED_WORDS
        ]
        return ", ".join([self.way, *named] if isinstance(self.way, str) else named)


DECODED, ENCODED = Decoding(True, {}), Decoding(False, {})


def check_decode(decode: DecodeArgument | Decoding) -> Decoding:
    """The argument, checked as far as possible before the leaves are known."""
    if isinstance(decode, Decoding):
        return decode
    if not isinstance(decode, Mapping):
        return Decoding(_way("decode", decode), {})
    return Decoding(True, {name: _way(f"decode[{name!r}]", way) for name, way in decode.items()})


def _way(name: str, way: object) -> bool | str:
    if way in (STORED, _UPRIGHT):
        return str(way)
    try:
        return check_bool(name, way)
    except ArgumentTypeError:
        kind = ArgumentError if isinstance(way, str) else ArgumentTypeError
        several = ", or a dict of these by leaf" if name == "decode" else ""
        raise kind(
            f"`{name}` must be True, False, {_UPRIGHT!r} or {STORED!r}{several}; got {way!r}."
        ) from None


def image_decoder(way: bool | str, channels: int | None = None) -> Callable[[bytes], Array]:
    """Makes pixels of the bytes of an image; ``channels`` as in `decode_image`."""
    check_decoder()
    if way == STORED:
        return decode_stored
    return partial(decode_turned if way == _UPRIGHT else decode_image, channels=channels)
