"""The records of a folder that is being filled, as soon as it has all of them."""

from __future__ import annotations

from loaderx.sources.base import Source
from loaderx.sources.format import open_options
from loaderx.sources.formats.native import open_native
from loaderx.sources.ondisk.row_folder import RowFolder
from loaderx.sources.ondisk.row_parts import save_rows


def saved_source(rows: RowFolder) -> Source | None:
    """The records in the native layout, which are written now if all are there; else None."""
    if not rows.is_complete and not rows.was_removed:
        return None
    if rows.is_complete and rows.may_save and not rows.is_saved():
        save_rows(rows)
    return open_saved(rows.folder) if rows.is_saved() else None


def open_saved(folder: str) -> Source:
    """A folder in the native layout, as `Dataset.open` opens it."""
    return open_native(folder, open_options(None, True, None, None))
