"""Running a dataset: engines behind it, an iterator that knows its position, statistics."""

from loaderx.loader.iterator import LoaderIterator
from loaderx.loader.loader import DataLoader

__all__ = ["DataLoader", "LoaderIterator"]
