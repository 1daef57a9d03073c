"""Tables: pandas and polars frames, pyarrow tables, and their columns.

A frame is a dict of its columns.  Nothing here imports these libraries: a frame is recognised by
the attributes of its class.  Numbers, bools and times keep their dtype, and are not copied where
the frame allows it; text is an object array of str.  Lists of one length are rows of a matrix,
others are arrays that differ from record to record.  An array cannot hold missing values, so they
are refused, except NaN and NaT that are values of the column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError
from loaderx.tree import Array, Leaf, Tree, as_array, flatten

Table: TypeAlias = Any
"""A frame or a column of pandas, polars or pyarrow, which are not imported here."""


def is_frame(obj: object) -> bool:
    """True for a table of columns."""
    kind = type(obj)  # asking the object could start a query
    pandas = hasattr(kind, "iloc") and hasattr(kind, "columns")
    polars = hasattr(kind, "get_columns") or hasattr(kind, "collect_schema")
    return pandas or polars or hasattr(kind, "itercolumns") or hasattr(kind, "__dataframe__")


def is_column(obj: object) -> bool:
    """True for one column of a table."""
    kind = type(obj)
    counts = hasattr(kind, "null_count") or hasattr(kind, "isna")
    return counts and hasattr(kind, "to_numpy") and not is_frame(obj)


def without_frames(tree: Tree) -> tuple[Tree, bool]:
    """The tree with arrays in place of frames and columns, and whether records differ in length.

    If they do, the array holds objects, each a read-only array.
    """
    leaves, structure = flatten(tree)
    if not any(is_frame(leaf) or is_column(leaf) for leaf in leaves):
        return tree, False
    paths = structure.paths()
    found = [_replaced(leaf, path) for leaf, path in zip(leaves, paths, strict=True)]
    return structure.build(leaf for leaf, _ in found), any(ragged for _, ragged in found)


def _replaced(leaf: Leaf, path: str) -> tuple[Tree, bool]:
    if is_column(leaf):
        _check_missing({path or "column": leaf})
        return _array(leaf, path or "column")
    if not is_frame(leaf):
        return leaf, False
    columns = _columns(leaf)
    _check_missing(columns)
    arrays = {name: _array(column, str(name)) for name, column in columns.items()}
    tree = {name: array for name, (array, _) in arrays.items()}
    return tree, any(ragged for _, ragged in arrays.values())


def _columns(frame: Table) -> dict[str | int, Table]:
    kind = type(frame)
    if hasattr(kind, "compute") or hasattr(kind, "collect"):
        end = "compute" if hasattr(kind, "compute") else "collect"
        raise ArgumentTypeError(
            f"a {kind.__name__} is a query, not yet a table: call .{end}() first."
        )
    if hasattr(kind, "iloc"):  # pandas
        names, columns = list(frame.columns), [frame.iloc[:, i] for i in range(frame.shape[1])]
    elif hasattr(kind, "get_columns"):  # polars
        columns = frame.get_columns()
        names = [column.name for column in columns]
    elif hasattr(kind, "itercolumns"):  # pyarrow
        names, columns = list(frame.column_names), list(frame.itercolumns())
    else:
        raise ArgumentTypeError(
            f"loaderx reads tables of pandas, polars and pyarrow, not {kind.__module__}."
            f"{kind.__name__}. Give its columns as arrays: Dataset.from_arrays(x=..., y=...)."
        )
    for number, name in enumerate(names):
        if not isinstance(name, (str, int)):
            raise ArgumentTypeError(
                f"the name of column {number} is {name!r}; it becomes the name of a leaf, which "
                "must be a string. Rename the columns first."
            )
        if name in names[:number]:
            raise ArgumentError(f"two columns have the name {name!r}. Rename one of them.")
    return dict(zip(names, columns, strict=True))


def _array(column: Table, name: str) -> tuple[Array, bool]:
    """A column as an array, and whether its cells are arrays of their own."""
    dtype: Any = getattr(column, "dtype", None)
    kind = getattr(dtype, "kind", "")
    if _is_of_numpy(column):
        return np.asarray(column.to_numpy()), False
    if getattr(dtype, "fields", None):  # polars would drop the names
        raise ArgumentTypeError(
            f'column "{name}" holds records of several fields ({dtype}). Unnest it first.'
        )
    if hasattr(column, "num_chunks") and column.num_chunks == 1:  # pyarrow copies several into one
        column = column.chunk(0)
    if hasattr(dtype, "numpy_dtype") and kind in "biufcmM":  # pandas, with a mask or over arrow
        values = column.to_numpy(dtype=dtype.numpy_dtype)
    elif kind == "M":  # pandas, with a time zone: as UTC
        values = column.to_numpy(dtype=f"datetime64[{dtype.unit}]")
    elif hasattr(column, "type"):  # pyarrow
        values = column.to_numpy(zero_copy_only=False)
    else:
        values = column.to_numpy()
    return _of_objects(values, name) if values.dtype == object else (values, False)


def _check_missing(columns: Mapping[str | int, Table]) -> None:
    """One error for all columns that have missing values."""
    counts = {name: _count_missing(one) for name, one in columns.items() if not _is_of_numpy(one)}
    lacking = {name: count for name, count in counts.items() if count}
    if not lacking:
        return
    listed = ", ".join(f'"{name}" ({count})' for name, count in lacking.items())
    fill = ", ".join(f"{name!r}: ..." for name in lacking)
    raise ArgumentError(
        f"columns with missing values, which arrays cannot hold: {listed}. Fill them, "
        f"Dataset.from_source(table, fill={{{fill}}}), keep them, missing='valid' or 'nan', or "
        "drop those rows before."
    )


def _is_of_numpy(column: Table) -> bool:
    """True for a column of pandas over a NumPy array, in which NaN and NaT are values."""
    dtype: Any = getattr(column, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind != "O"


def _count_missing(column: Table) -> int:
    if not hasattr(column, "null_count"):
        return int(column.isna().sum())
    return int(column.null_count() if callable(column.null_count) else column.null_count)


def _of_objects(values: Array, name: str) -> tuple[Array, bool]:
    kinds = set(map(type, values))
    if all(issubclass(kind, (str, bytes)) for kind in kinds):
        return values, False
    if not all(issubclass(kind, (list, np.ndarray)) for kind in kinds):
        listed = ", ".join(sorted(kind.__name__ for kind in kinds)[:3])
        raise ArgumentTypeError(
            f'column "{name}" holds objects ({listed}) that are neither numbers, times, text nor '
            "lists of them. Convert it first, or leave it out. A list of records may hold any "
            "object: Dataset.from_source(records)."
        )
    cells = [_cell(value, name) for value in values]
    looks = {(cell.shape, cell.dtype) for cell in cells}
    if len(looks) == 1:
        return np.stack(cells), False
    out = np.empty(len(cells), object)
    out[:] = cells
    return out, True


def _cell(value: Leaf, name: str) -> Array:
    array = as_array(value).view()
    if array.dtype == object and not all(isinstance(one, (str, bytes)) for one in array.flat):
        raise ArgumentTypeError(
            f'column "{name}" holds lists of other things than numbers or text. Convert it first, '
            "or leave it out."
        )
    array.flags.writeable = False  # an in-place `map` must not change the data
    return array
