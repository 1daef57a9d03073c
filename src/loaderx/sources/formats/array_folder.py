"""Folders of ``.npy`` and ``.npz`` files that are a record each, ``class/0001.npy``.

They look like columns or shards in such files, so the format must be named: ``format="arrays"``.
"""

from __future__ import annotations

from functools import partial

from loaderx.sources.format import Folder
from loaderx.sources.formats import image_folder
from loaderx.sources.formats.media import ARRAYS


def is_folder(folder: Folder) -> bool:
    """Never: the format is only opened by its name."""
    return False


folder_splits = partial(image_folder.folder_splits, media=ARRAYS)
