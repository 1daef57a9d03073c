"""`Dataset.save` and `Dataset.cache(path)`: records written as columns, by any engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderx.tree import Tree

if TYPE_CHECKING:
    from loaderx.dataset import Dataset, SaveArguments
    from loaderx.stages.cache import Kept


def start_saving(dataset: Dataset[Tree], given: SaveArguments) -> None:
    """Saves a dataset."""
    from loaderx.loader.save.saving import save  # late: most programs save nothing

    save(dataset, given)


def start_filling(dataset: Dataset[Tree], path: object) -> Kept:
    """The folder of a cache."""
    from loaderx.loader.save.filling import fill  # late: most programs keep nothing

    return fill(dataset, path)
