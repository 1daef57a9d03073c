"""Turns a folder that was filled in any order into one in the native layout."""

from __future__ import annotations

import shutil

import numpy as np

from loaderx.errors import FileError, warn_user
from loaderx.sources.base import Source
from loaderx.sources.columns.widening import settled
from loaderx.sources.format import open_options
from loaderx.sources.native.layout import MARK
from loaderx.sources.native.reader import open_native
from loaderx.sources.native.row_folder import RowFolder
from loaderx.sources.native.save_folder import SaveFolder
from loaderx.sources.native.save_journal import FolderInUseError, open_journal, remove_journals
from loaderx.sources.native.save_parts import PartsWriter, finish, known_type
from loaderx.sources.progress import progress

_PIECES = 4  # of a part; one at a time is in memory


def save_rows(rows: RowFolder) -> None:
    """Writes the parts, if all records are there and no other process does it.

    Parts that an interrupted process completed are kept.  If writing fails, a warning says why, and
    the records are read as they are.
    """
    try:
        with open_journal(rows.folder) as journal:
            if rows.is_saved():  # by another process, which held the lock until now
                remove_journals(rows.folder)
                return
            begun = rows.begun
            folder = SaveFolder(journal, begun.made_by, begun.part_records)
            folder.remove_unfinished()
            if _write(rows, folder):
                finish(folder, begun.made_by, (), begun.classes)
    except FolderInUseError:
        return
    except (OSError, FileError) as error:
        rows.may_save = False
        warn_user(
            f"cache({rows.folder}) has all records, and cannot write its {MARK}: {error}. They are "
            "read as they are, and a later run tries again."
        )
        return
    if rows.is_saved():
        shutil.rmtree(rows.place, ignore_errors=True)


def _write(rows: RowFolder, folder: SaveFolder) -> bool:
    """Writes the missing parts; False if some records turn out to be damaged."""
    assert rows.kind is not None
    kind, count, size = settled(rows.kind), rows.begun.records, folder.part_records
    at_once = -(-size // _PIECES)
    what = f"saving into {rows.folder}"
    with (
        progress(what, count, "records") as shown,
        PartsWriter(rows.folder, known_type(folder), shown) as parts,
    ):
        shown.add(folder.records)
        for part, first in enumerate(range(0, count, size)):
            if part in folder.parts:
                continue
            stop = min(first + size, count)
            for start in range(first, stop, at_once):
                found = rows.read(np.arange(start, min(start + at_once, stop)), kind)
                if found is None:
                    return False
                parts.append(part, found, start)
            folder.add(parts.finish())
    return True


def saved_source(rows: RowFolder) -> Source | None:
    """The records in the native layout, written now if all are there; else None."""
    if not rows.is_complete and not rows.was_removed:
        return None
    if rows.is_complete and rows.may_save and not rows.is_saved():
        save_rows(rows)
    return open_saved(rows.folder) if rows.is_saved() else None


def open_saved(folder: str) -> Source:
    """A folder in the native layout, as `Dataset.open` opens it."""
    return open_native(folder, open_options(None, True, None, None))
