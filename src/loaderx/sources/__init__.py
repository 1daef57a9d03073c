"""Where records come from: arrays, files of arrays, and any object with a length and an index.

A dataset reads through one small interface, `Source`, which is also the base class for sources of
your own.  `adapt` makes one from any object that a user has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderx.memory import Lend
from loaderx.sources.arrays import ArraySource
from loaderx.sources.base import ForWorkers, Indices, Source
from loaderx.sources.objects import ObjectSource, adapt
from loaderx.sources.ranges import RangeSource
from loaderx.sources.tokens import Tokens

if TYPE_CHECKING:
    from loaderx.sources.formats.image_folder import ImageFolder
    from loaderx.sources.formats.tf.example import parse_example
    from loaderx.sources.formats.tfrecord import TFRecord
    from loaderx.sources.formats.webdataset import WebDataset
    from loaderx.sources.idx import open_idx

__all__ = [
    "ArraySource",
    "ForWorkers",
    "ImageFolder",
    "Indices",
    "Lend",
    "ObjectSource",
    "RangeSource",
    "Source",
    "TFRecord",
    "Tokens",
    "WebDataset",
    "adapt",
    "open_idx",
    "parse_example",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name == "ImageFolder":
        from loaderx.sources.formats.image_folder import ImageFolder

        return ImageFolder
    if name == "WebDataset":
        from loaderx.sources.formats.webdataset import WebDataset

        return WebDataset
    if name == "TFRecord":
        from loaderx.sources.formats.tfrecord import TFRecord

        return TFRecord
    if name == "parse_example":
        from loaderx.sources.formats.tf.example import parse_example

        return parse_example
    if name == "open_idx":  # gzip and pathlib are slow to import
        from loaderx.sources.idx import open_idx

        return open_idx
    raise AttributeError(f"module 'loaderx.sources' has no attribute {name!r}")
