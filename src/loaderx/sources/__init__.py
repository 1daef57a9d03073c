"""Where records come from: arrays, files of arrays, and any object with a length and an index.

A dataset reads through one small interface, `Source`, which is also the base class for sources of
your own.  `adapt` makes one from any object that a user has.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from loaderx.memory import Lend
from loaderx.sources.adapt.arrays import ArraySource
from loaderx.sources.adapt.objects import ObjectSource, adapt
from loaderx.sources.adapt.ranges import RangeSource
from loaderx.sources.base import ForWorkers, Indices, Source

if TYPE_CHECKING:
    from loaderx.sources.adapt.chunked import ChunkSource
    from loaderx.sources.adapt.tokens import Tokens
    from loaderx.sources.format import FileFormat, OpenOptions
    from loaderx.sources.formats.array_files import mapped_arrays
    from loaderx.sources.formats.arrow.objects import HuggingFace
    from loaderx.sources.formats.csv.csv import Csv
    from loaderx.sources.formats.format_table import register
    from loaderx.sources.formats.idx import open_idx
    from loaderx.sources.formats.image_folder import ImageFolder
    from loaderx.sources.formats.lines.jsonl import Jsonl
    from loaderx.sources.formats.tar.webdataset import WebDataset
    from loaderx.sources.formats.tf.example import parse_example
    from loaderx.sources.formats.tf.tfrecord import TFRecord

__all__ = [
    "ArraySource",
    "ChunkSource",
    "Csv",
    "FileFormat",
    "ForWorkers",
    "HuggingFace",
    "ImageFolder",
    "Indices",
    "Jsonl",
    "Lend",
    "ObjectSource",
    "OpenOptions",
    "RangeSource",
    "Source",
    "TFRecord",
    "Tokens",
    "WebDataset",
    "adapt",
    "mapped_arrays",
    "open_idx",
    "parse_example",
    "register",
]


def __dir__() -> list[str]:
    return __all__


_LATE = {  # gzip, json, csv and the like are slow to import
    "ChunkSource": "loaderx.sources.adapt.chunked",
    "Csv": "loaderx.sources.formats.csv.csv",
    "FileFormat": "loaderx.sources.format",
    "HuggingFace": "loaderx.sources.formats.arrow.objects",
    "ImageFolder": "loaderx.sources.formats.image_folder",
    "Jsonl": "loaderx.sources.formats.lines.jsonl",
    "OpenOptions": "loaderx.sources.format",
    "TFRecord": "loaderx.sources.formats.tf.tfrecord",
    "Tokens": "loaderx.sources.adapt.tokens",
    "WebDataset": "loaderx.sources.formats.tar.webdataset",
    "mapped_arrays": "loaderx.sources.formats.array_files",
    "open_idx": "loaderx.sources.formats.idx",
    "parse_example": "loaderx.sources.formats.tf.example",
    "register": "loaderx.sources.formats.format_table",
}


def __getattr__(name: str) -> object:
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module 'loaderx.sources' has no attribute {name!r}")
