"""What to write instead, for an object that was given to the wrong constructor."""

from __future__ import annotations

import os
from collections.abc import Mapping

from loaderx.errors import ArgumentTypeError

_ARRAYS = "Write Dataset.from_file(path)."
_TABLE = "Read it with pandas, and give the frame: Dataset.from_arrays(pd.{}(path))."
_IMAGES = "For images write Dataset.from_source(paths).map(load), where load(path) gives an array."
_KINDS = {
    "csv": _TABLE.format("read_csv"),
    "tsv": _TABLE.format("read_table"),
    "parquet": _TABLE.format("read_parquet"),
    "feather": _TABLE.format("read_feather"),
    "xlsx": _TABLE.format("read_excel"),
    "json": "Read it with json.load, and give the records: Dataset.from_source(records).",
    "jsonl": "Read it with pandas: Dataset.from_arrays(pd.read_json(path, lines=True)).",
    "txt": "Read its lines: Dataset.from_source(open(path).read().splitlines()).",
    "h5": "Open it with h5py, and give its arrays: Dataset.from_arrays(x=file['x'], ...).",
    **dict.fromkeys(("jpg", "jpeg", "png", "gif", "bmp", "tif", "tiff", "webp"), _IMAGES),
    **dict.fromkeys(("npy", "npz"), _ARRAYS),
}


def of_file(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """How to read a file of this kind; empty if its name does not tell."""
    name = os.fspath(path)
    name = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return _KINDS.get(name.rpartition(".")[2].lower(), "")


def refuse_sources(obj: object) -> None:
    """Raises for a path, and for a dict of datasets, such as the splits of one."""
    if isinstance(obj, (str, bytes, os.PathLike)):
        kind = "path" if isinstance(obj, os.PathLike) else "text"
        advice = of_file(obj) or "For a file write Dataset.from_file(path)."
        raise ArgumentTypeError(
            f"a source of records is needed; got the {kind} {os.fspath(obj)!r}. {advice}"
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
