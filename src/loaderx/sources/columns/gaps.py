"""Missing values of columns: what stands in their places, for all formats of tables.

A format says which values of a column are missing (`Missing`, or `ColumnType.nulls` with
`ColumnData.valid`), and what was asked for (`MissingWords`).  Here it is done: "nan" makes floats
with NaN, and times with NaT; "valid" puts zeros there, and a leaf of bools beside the column, which
are True where there is a value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from loaderx.errors import ArgumentError, FileError
from loaderx.sources.columns.build import FindArrays, build_column, valid_of
from loaderx.sources.columns.column import Column
from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.columns.derived_columns import (
    ColumnOver,
    FilledColumn,
    Missing,
    OptionalColumn,
)
from loaderx.sources.columns.elements import Needs, new_rows
from loaderx.sources.columns.table import ColumnTree
from loaderx.sources.decoding import Decoding
from loaderx.sources.files.cold import Span
from loaderx.sources.files.parts import Located, Parts
from loaderx.sources.format import MissingWord, MissingWords, OpenOptions
from loaderx.tree import Array, ArraySpec, DType

_NARROW = 2  # bytes of the integers of which float32 has all
TEXT = ColumnType("text")


# What was asked for -----------------------------------------------------------------------------


def refuse_gaps(
    where: str, counts: Mapping[str, int | None], kinds: Mapping[str, ColumnType] = {}
) -> None:
    """The error that names all columns with missing values, whose numbers may not be known."""
    if not counts:
        return
    told = ", ".join(
        f"column {name!r} has {'' if count is None else f'{count} '}null{'s' * (count != 1)}"
        for name, count in counts.items()
    )
    lists = {name for name, kind in kinds.items() if kind.kind in ("ragged", "list")}
    at = f"{where}: " if where else ""
    raise FileError(
        f"{at}{told}, and a record has a value in every leaf. {ways_out(counts, lists)}."
    )


def ways_out(names: Collection[str], lists: Collection[str] = ()) -> str:
    """What can be done about missing values of columns, for messages."""
    fill = ", ".join(f"{name!r}: {'[]' if name in lists else '...'}" for name in names)
    return (
        f"Fill them, fill={{{fill}}}, keep them, missing='valid' or 'nan', or leave the "
        f"column{'s' * (len(names) > 1)} out with columns=[...]"
    )


def check_gaps(
    words: MissingWords,
    leaves: Mapping[str, ColumnType],
    have: Collection[str],
    count: Callable[[str], int | None],
    where: str,
) -> dict[str, MissingWord]:
    """The word of each leaf that gets one; all leaves that it is not for are in one error.

    ``leaves`` has no filled ones, ``have`` those with missing values, of which ``count`` tells the
    number.
    """
    asked = {n: words.named(n) or (words.every if n in have else "error") for n in leaves}
    refused = {name: count(name) for name in leaves if name in have and asked[name] == "error"}
    refuse_gaps(where, refused, leaves)
    no_nan = [n for n, word in asked.items() if word == "nan" and nan_dtype(leaves[n]) is None]
    found: dict[str, MissingWord] = {name: word for name, word in asked.items() if word != "error"}
    if no_nan:
        listed = ", ".join(f"{name!r} ({leaves[name]})" for name in no_nan)
        fill = ", ".join(f"{name!r}: ..." for name in no_nan)
        raise ArgumentError(
            f"missing='nan' is for numbers and times, and {where or 'the table'} has missing "
            f"values in {listed}. Fill them, fill={{{fill}}}, or add leaves that say which values "
            f"are there, missing={dict(found) | dict.fromkeys(no_nan, 'valid')}."
        )
    return found


def nan_dtype(kind: ColumnType) -> DType | None:
    """The dtype of a column with NaN or NaT for missing values; None if it cannot have them."""
    if kind.dtype is None or kind.kind not in ("fixed", "linear") or kind.dtype.kind == "b":
        return None
    if kind.dtype.kind not in "iu":
        return kind.dtype
    return np.dtype(np.float32 if kind.dtype.itemsize <= _NARROW else np.float64)


def _nan(dtype: DType) -> object:
    return np.array("NaT" if dtype.kind in "mM" else np.nan, dtype)[()]


def blank(kind: ColumnType, *, decode: bool = False) -> object:
    """The value in place of a missing one."""
    if kind.kind == "image" and decode:
        return np.zeros((1, 1, 3), np.uint8)
    if kind.kind in ("fixed", "linear"):
        assert kind.dtype is not None
        return _nan(kind.dtype) if kind.dtype.kind in "mM" else kind.dtype.type(0)
    if kind.kind == "ragged":
        return np.empty((0, *kind.shape), kind.dtype)
    return "" if kind.kind == "text" else [] if kind.kind == "list" else b""


# Columns ----------------------------------------------------------------------------------------


class _ColumnOfSpec(ColumnOver):
    """The base of columns whose values are made from those of another one, by `take`."""

    def __init__(self, column: Column, spec: ArraySpec) -> None:
        super().__init__(column)
        self._spec = spec

    @property
    def spec(self) -> ArraySpec:
        return self._spec

    def values(self, at: Located) -> Sequence[object]:
        found = new_rows(self._spec, len(at))
        self.take(at, found)
        return list(found)


class CastColumn(_ColumnOfSpec):
    """Numbers as numbers of another dtype."""

    def __init__(self, column: Column, dtype: DType) -> None:
        assert column.spec is not None
        self._have = column.spec
        super().__init__(column, ArraySpec(column.spec.shape, dtype))

    def take(self, at: Located, out: Array) -> None:
        found = new_rows(self._have, len(at))
        self._column.take(at, found)
        out[...] = found


class ValidColumn(_ColumnOfSpec):
    """True where another column has a value."""

    def __init__(self, column: Column, missing: Missing | None) -> None:
        super().__init__(column, ArraySpec((), np.dtype(np.bool_)))
        self._missing = missing

    def spans(self, at: Located) -> Iterator[Span]:
        return iter(())

    def needs(self, at: Located) -> Iterator[Needs]:
        return iter([] if self._missing is None else [self._missing.needs(at)])

    def take(self, at: Located, out: Array) -> None:
        missing = None if self._missing is None else self._missing.missing(at)
        out[:] = True if missing is None else ~missing


def gap_columns(
    name: str,
    column: Column,
    kind: ColumnType,
    missing: Missing | None,
    word: MissingWord,
    *,
    decode: bool = False,
) -> dict[str, Column]:
    """A column with this word, by its name, and the leaf beside it, if there is one."""
    made = {name: column}
    value = blank(kind, decode=decode)
    if word == "valid":
        made[f"{name}_valid"] = ValidColumn(column, missing)
    else:
        dtype = nan_dtype(kind)
        assert dtype is not None
        value = _nan(dtype)
        made[name] = column if kind.dtype == dtype else CastColumn(column, dtype)
    if missing is not None:
        made[name] = FilledColumn(made[name], missing, value)
    return made


def add_columns(tree: dict[str, Any], made: Mapping[str, object]) -> None:
    """Adds columns to a record's; two of one name are refused."""
    for name, column in made.items():
        if name in tree:
            raise ArgumentError(
                f"missing='valid' adds a leaf {name!r}, and the table has a column of that name. "
                "Leave that out with columns=[...], or fill the missing values, fill={...}."
            )
        tree[name] = column


# Columns that are built from data ---------------------------------------------------------------


def keeping(kinds: Mapping[str, ColumnType], options: OpenOptions) -> dict[str, ColumnType]:
    """The types of leaves whose missing values are kept: ``nulls`` says so, and counts from 0."""

    def kept(name: str, kind: ColumnType) -> ColumnType:
        if kind.is_branch:
            fields = {field: kept(f"{name}.{field}", one) for field, one in kind.fields.items()}
            return kind.replace(fields=fields)
        return kind.replace(nulls=0) if options.keeps(name) else kind

    return {name: kept(name, kind) for name, kind in kinds.items()}


def counted(kind: ColumnType, data: ColumnData) -> ColumnType:
    """The type with the nulls of some more records."""
    if kind.is_branch:
        fields = {name: counted(one, data.fields[name]) for name, one in kind.fields.items()}
        return kind.replace(fields=fields)
    if kind.nulls is None or data.valid is None:
        return kind
    return kind.replace(nulls=kind.nulls + int((~data.valid).sum()))


def table_columns(
    kinds: Mapping[str, ColumnType],
    parts: Parts,
    arrays_of: Callable[[str], FindArrays],
    options: OpenOptions,
    where: str,
    *,
    given: Mapping[str, Column] = {},
    keeps_none: bool = False,
) -> dict[str, Column | ColumnTree]:
    """The columns of these types, whose missing values are filled, kept or refused.

    Those that are ``given`` are not built.  With ``keeps_none``, missing values that nothing was
    asked for become None.
    """
    made = {
        name: given.get(name)
        or build_column(kind, parts, arrays_of(name), decode=options.decode.below(name))
        for name, kind in kinds.items()
    }
    fill, words, kind_of = options.fill, options.missing, dict(_leaves(made, kinds))
    leaves = {".".join(names): kind for names, kind in kind_of.items()}
    if words.is_used and len(leaves) < len(kind_of):
        raise ArgumentError(
            f"{where} has a column with a dot in its name, and a struct with a field that is named "
            "alike, so that `missing` cannot tell them apart. Leave one out with columns=[...]."
        )
    counts = {name: kind.nulls for name, kind in leaves.items() if kind.nulls and name not in fill}
    if keeps_none:
        counts = {name: count for name, count in counts.items() if words.word(name) != "error"}
    codes = options.categories
    plain = {name: TEXT if name in codes else kind for name, kind in leaves.items()}
    plain = {name: one for name, one in plain.items() if name not in fill and not one.is_branch}
    asked = check_gaps(words, plain, counts, counts.get, where)

    def treated(
        tree: Mapping[str, Column | ColumnTree], above: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        found: dict[str, object] = {}
        for name, column in tree.items():
            add_columns(found, one((*above, name), column))
        return found

    def one(
        names: tuple[str, ...], column: Column | ColumnTree
    ) -> Mapping[str, Column | ColumnTree]:
        name, path = names[-1], ".".join(names)
        if isinstance(column, Mapping):
            return {name: treated(column, names)}
        if isinstance(column, tuple):
            fields = {str(number): field for number, field in enumerate(column)}
            return {name: tuple(treated(fields, names).values())}
        kind, valid = kind_of[names], None
        if kind.nulls or (kind.nulls is not None and path in asked):
            valid = valid_of(parts, arrays_of(names[0]), names[1:])
        if path in asked:
            is_decoded = bool(reduce(Decoding.below, names, options.decode))
            return gap_columns(name, column, kind, valid, asked[path], decode=is_decoded)
        if valid is None or isinstance(column, OptionalColumn):
            return {name: column}
        if path not in fill:
            return {name: OptionalColumn(column, valid)}
        _check_filler(column.spec, fill[path], path)
        return {name: FilledColumn(column, valid, fill[path])}

    return treated(made)


def _leaves(
    tree: ColumnTree, kinds: Mapping[str, ColumnType], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], ColumnType]]:
    named = tree if isinstance(tree, Mapping) else dict(zip(kinds, tree, strict=True))
    for name, column in named.items():
        if isinstance(column, Column):
            yield (*above, name), kinds[name]
        else:
            yield from _leaves(column, kinds[name].fields, (*above, name))


def _check_filler(spec: ArraySpec | None, value: object, name: str) -> None:
    """Refuses a value that the column cannot hold."""
    if spec is None or spec.dtype == object:
        return
    try:
        cast = np.asarray(value).astype(spec.dtype)
        is_same = bool((cast == value).all()) or spec.dtype.kind in "fcmM"
        np.broadcast_to(cast, [axis or 0 for axis in spec.shape])
    except (TypeError, ValueError, OverflowError):
        is_same = False
    if not is_same:
        raise ArgumentError(f"`fill` has {value!r} for the column {name!r} of {spec!r}.")
