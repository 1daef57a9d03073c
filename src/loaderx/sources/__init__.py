"""Where records come from: arrays, files of arrays, and any object with a length and an index.

A dataset reads through one small interface, `Source`.  `adapt` makes one of whatever a user has.
"""

from loaderx.sources.arrays import ArraySource
from loaderx.sources.base import Source
from loaderx.sources.objects import ObjectSource, adapt
from loaderx.sources.ranges import RangeSource
from loaderx.sources.tokens import Tokens

__all__ = [
    "ArraySource",
    "ObjectSource",
    "RangeSource",
    "Source",
    "Tokens",
    "adapt",
]
