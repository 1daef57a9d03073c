"""Runs a dataset: `DataLoader`, iterators that know their position, statistics."""

from loaderx.dataset import save_with
from loaderx.loader.iterator import LoaderIterator
from loaderx.loader.loader import DataLoader
from loaderx.loader.save import start_filling, start_saving
from loaderx.loader.state import merge_states

__all__ = ["DataLoader", "LoaderIterator", "merge_states"]

save_with(start_saving, start_filling)  # `dataset` is below this package, and cannot import it
