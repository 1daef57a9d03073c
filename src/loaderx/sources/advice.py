"""What to write instead, for an object that was given to the wrong constructor."""

from __future__ import annotations

import os
from collections.abc import Mapping

from loaderx.errors import ArgumentTypeError


def refuse_sources(obj: object) -> None:
    """Raises for a path, and for a dict of datasets, such as the splits of one."""
    if isinstance(obj, (str, bytes, os.PathLike)):
        kind = "path" if isinstance(obj, os.PathLike) else "text"
        raise ArgumentTypeError(
            f"a source of records is needed; got the {kind} {os.fspath(obj)!r}. For a file write "
            "Dataset.open(path)."
        )
    if isinstance(obj, Mapping) and obj and all(map(is_indexed, obj.values())):
        names = list(obj)
        shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
        raise ArgumentTypeError(
            f"this {type(obj).__name__} holds several datasets ({shown}). Choose one of them: "
            f"Dataset.from_source(d[{names[0]!r}])."
        )


def is_indexed(obj: object) -> bool:
    """Is it read record by record, and is it not an array, list or dict?"""
    is_array = hasattr(obj, "shape") and hasattr(obj, "dtype")
    if is_array or isinstance(obj, (str, bytes, list, tuple, Mapping)):
        return False
    return hasattr(obj, "__len__") and hasattr(obj, "__getitem__")
