"""Running a dataset: engines behind it, an iterator that knows its position, statistics."""

from loaderx.loader.iterator import LoaderIterator
from loaderx.loader.loader import DataLoader
from loaderx.loader.state import merge_states

__all__ = ["DataLoader", "LoaderIterator", "merge_states"]
