"""Where `Dataset.save` comes in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from loaderx.tree import Tree

if TYPE_CHECKING:
    from loaderx.dataset import Dataset
    from loaderx.engines import Engine


def start_saving(
    dataset: Dataset[Tree],
    folder: str | os.PathLike[str],
    part_bytes: int,
    images: Sequence[str],
    engine: object,
    num_workers: int | None,
) -> None:
    """Saves a dataset."""
    from loaderx.loader.saving import save  # late: most programs save nothing

    save(dataset, folder, part_bytes, images, cast("str | Engine", engine), num_workers)
