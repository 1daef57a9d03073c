"""Lists of rows, which a batched function returns where rows differ in length (tokenizers do)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from loaderx.tree import Tree


def records_of(tree: Tree, count: int) -> list[object] | None:
    """The records of a tree of columns: arrays of ``count`` rows, or lists of as many items.

    None if a leaf is neither.
    """
    if isinstance(tree, list):
        return tree if len(tree) == count else None
    if isinstance(tree, np.ndarray):
        return list(tree) if tree.ndim and len(tree) == count else None
    if isinstance(tree, Mapping):
        columns = [records_of(value, count) for value in tree.values()]
        found = [column for column in columns if column is not None]
        if not columns or len(found) < len(columns):
            return None
        return [dict(zip(tree, row, strict=True)) for row in zip(*found, strict=True)]
    if isinstance(tree, tuple):
        columns = [records_of(value, count) for value in tree]
        found = [column for column in columns if column is not None]
        if not columns or len(found) < len(columns):
            return None
        rows = zip(*found, strict=True)
        return [type(tree)(*row) if hasattr(tree, "_fields") else row for row in rows]
    return None


def wrong_rows(tree: Tree, count: int, path: str = "") -> str:
    """Describes the column of a tree that does not have ``count`` rows; empty if all do."""
    is_column = isinstance(tree, list) or (isinstance(tree, np.ndarray) and tree.ndim > 0)
    if is_column and len(tree) != count:
        which = f'leaf "{path}"' if path else "what it returned"
        rows = "1 row" if len(tree) == 1 else f"{len(tree)} rows"
        return f"{which} has {rows} for {count} records"
    columns: Any = ()
    if isinstance(tree, Mapping):
        columns = tree.items()
    elif isinstance(tree, tuple):
        columns = enumerate(tree)
    found = (wrong_rows(value, count, f"{path}.{key}".strip(".")) for key, value in columns)
    return next(filter(None, found), "")
