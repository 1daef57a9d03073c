"""Stacks a list of records into one batch, each leaf straight into a recycled buffer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, countOf, itemgetter
from typing import Any, TypeAlias

import numpy as np

from loaderx.errors import StackError, one_line
from loaderx.frozen import Frozen
from loaderx.memory import Layout, Lend, aligned
from loaderx.tree import (
    LEAF,
    Array,
    DType,
    Leaf,
    Structure,
    Tree,
    as_array,
    describe,
    flatten,
    narrow_scalars,
    narrowed,
    same_structure,
)

Name = Callable[[int], str]
"""Names the record in a row, for messages."""

Value: TypeAlias = object
"""A user's scalar for places without data, or a dict with one for each leaf."""

RESIZE = "Resize it in .map(), or pad with batch(..., pad_to=...)."
"""Advice about unequal shapes, in messages."""

_shape, _dtype = attrgetter("shape"), attrgetter("dtype")
_PYTHON_NUMBERS = {bool, int, float, complex}
_TEXT = {str, bytes}
_SCALARS = {*_PYTHON_NUMBERS, *_TEXT}
_LEAVES = {np.ndarray, *_SCALARS}
_DTYPES = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}


_NO_LENGTHS: Mapping[str, int] = {}


class Padding(Frozen):
    """``pad_to``: leaves to pad along their first axis, and the values to pad with."""

    lengths: Mapping[str, int] = _NO_LENGTHS
    value: Value = 0

    def value_for(self, path: str) -> Value:
        return self.value.get(path, 0) if isinstance(self.value, Mapping) else self.value


NO_PADDING = Padding()


def stack(records: list[object], lend: Lend, name: Name, padding: Padding = NO_PADDING) -> Tree:
    """The batch of these records, in arrays that the caller owns."""
    _, structure = flatten(records[0])
    columns = columns_of(records, structure, name)
    paths = structure.paths()
    if records[0] is None:
        raise StackError(
            f"cannot stack: {name(0)} is None; did its source or its function forget its `return`?"
        )
    for path in padding.lengths:
        if path not in paths:
            raise StackError(
                f"`pad_to` names a leaf {path!r} that records do not have; "
                f"they have {', '.join(map(repr, paths))}."
            )
    pieces = [
        _Piece.of(column, path, name, padding.lengths.get(path))
        for column, path in zip(columns, paths, strict=True)
    ]
    targets = lend(Layout.of(*[((len(records), *piece.shape), piece.dtype) for piece in pieces]))
    for piece, path, target in zip(pieces, paths, targets, strict=True):
        value = (
            None if piece.lengths is None else filler(piece.dtype, padding.value_for(path), path)
        )
        try:
            piece.write(target, value)
        except TypeError as error:  # some row would have to be cast
            raise _misfit(list(piece.values), path, name) from error
    batch = structure.build(targets)
    if padding.lengths:
        batch = _with_lengths(batch, paths, pieces)
    return batch


def columns_of(records: list[Any], structure: Structure, name: Name) -> list[list[Any]]:
    """Each leaf of all records, in the order of the structure."""
    if structure.is_flat_dict:
        width, keys = len(structure.keys), structure.keys
        if set(map(type, records)) == {dict} and set(map(len, records)) == {width}:
            try:
                return [list(map(itemgetter(key), records)) for key in keys]
            except KeyError:
                pass  # reported below
    else:
        at_once = columns_at_once(records, structure)
        if at_once is not None:
            return at_once
    rows = []
    for number, record in enumerate(records):
        leaves = same_structure(record, structure)
        if leaves is None:
            _check_missing(record, records[0], "", (name(number), name(0)))
            raise StackError(
                f"cannot stack: {name(number)} has the structure "
                f"{describe(flatten(record)[1])}, {name(0)} has {describe(structure)}. "
                "Make them alike in .map()."
            )
        rows.append(leaves)
    return [list(column) for column in zip(*rows, strict=True)]


def columns_at_once(values: list[Any], structure: Structure) -> list[list[Any]] | None:
    """The leaves of all values, key by key; None if their structures differ."""
    kinds = set(map(type, values))
    if structure is LEAF:
        return [values] if _are_leaves(values, kinds) else None
    if kinds != {_TYPES.get(structure.kind, structure.type)}:
        return None
    width = len(structure.keys)
    if structure.kind in ("dict", "tuple", "list") and set(map(len, values)) != {width}:
        return None
    found: list[list[Any]] = []
    for key, child in zip(structure.keys, structure.children, strict=True):
        get = itemgetter(key) if structure.type is None else attrgetter(str(key))
        try:
            inner = columns_at_once(list(map(get, values)), child)
        except (KeyError, IndexError, AttributeError):
            return None
        if inner is None:
            return None
        found += inner
    return found


_TYPES = {"dict": dict, "tuple": tuple, "list": list, "none": type(None)}
"""The type of each kind of structure; named tuples and dataclasses have types of their own."""


def _are_leaves(values: list[Any], kinds: set[type]) -> bool:
    if kinds == {list}:  # a row of numbers
        numbers = list(itertools.chain.from_iterable(values))
        return _kind_of_all(numbers) in _SCALARS or set(map(type, numbers)) <= _SCALARS
    return kinds <= _LEAVES or not any(map(_is_structure, kinds))


def _is_structure(kind: type) -> bool:
    built = issubclass(kind, (Mapping, tuple, list, type(None)))
    return built or hasattr(kind, "__dataclass_fields__")


def _check_missing(one: object, first: object, path: str, names: tuple[str, str]) -> None:
    """Raises if a value is None in one of two dicts and not in the other."""
    if (one is None) != (first is None):
        raise _missing(path, names[0] if one is None else names[1])
    if isinstance(one, Mapping) and isinstance(first, Mapping):
        for key in one:
            if key in first:
                _check_missing(one[key], first[key], f"{path}.{key}".strip("."), names)


class _Piece:
    """One leaf of all records, checked: the values to write, and the shape and dtype of a row."""

    __slots__ = ("dtype", "lengths", "shape", "values")

    def __init__(
        self,
        values: Array | list[Array],  # a finished column, or its rows
        shape: tuple[int, ...],
        dtype: DType,
        lengths: list[int] | None = None,
    ) -> None:
        self.values, self.shape, self.dtype, self.lengths = values, shape, dtype, lengths

    @classmethod
    def of(cls, column: list[Any], path: str, name: Name, pad_to: int | None) -> _Piece:
        kinds = set(map(type, column))
        if pad_to is not None:
            arrays = column if kinds == {np.ndarray} else _as_arrays(column, path, name)
            return cls._padded(arrays, path, name, pad_to)
        if kinds <= _PYTHON_NUMBERS:
            if len(kinds) > 1:
                other = next(i for i, v in enumerate(column) if type(v) is not type(column[0]))
                raise StackError(
                    f"cannot stack {_leaf(path)}: {name(0)} has the {type(column[0]).__name__} "
                    f"{column[0]!r}, {name(other)} the {type(column[other]).__name__} "
                    f"{column[other]!r}. Make them one type in .map()."
                )
            try:
                values = narrow_scalars(column)
            except StackError as error:
                raise StackError(f"cannot stack {_leaf(path)}: {error}") from error
            return cls(values, (), values.dtype)
        if len(kinds) == 1 and _is_numpy_number(kinds):
            values = np.array(column)
            return cls(values, (), values.dtype)
        if kinds <= _TEXT:
            values = np.empty(len(column), object)
            values[:] = column
            return cls(values, (), values.dtype)
        arrays = column if kinds == {np.ndarray} else _as_arrays(column, path, name)
        shape, dtype = arrays[0].shape, arrays[0].dtype
        if len(set(map(_shape, arrays))) > 1:
            raise _misfit(arrays, path, name)
        return cls(arrays, shape, dtype)

    @classmethod
    def _padded(cls, arrays: list[Array], path: str, name: Name, pad_to: int) -> _Piece:
        """Arrays that differ in length."""
        shapes, dtypes = list(map(_shape, arrays)), set(map(_dtype, arrays))
        if len(dtypes) == 1 and set(map(len, shapes)) == {1}:  # the usual case
            lengths = [shape[0] for shape in shapes]
            if max(lengths) <= pad_to:
                return cls(arrays, (pad_to,), dtypes.pop(), lengths)
        first = next((array for array in arrays if array.size), arrays[0])
        for number, array in enumerate(arrays):
            if array.ndim == 0:
                raise StackError(
                    f"cannot pad {_leaf(path)}: in {name(number)} it has no axis to pad."
                )
            if len(array) > pad_to:
                raise StackError(
                    f"cannot pad {_leaf(path)} to {pad_to}: {name(number)} has length "
                    f"{len(array)}. Cut it in .map(), or raise `pad_to`."
                )
            if array.size and (array.shape[1:] != first.shape[1:] or array.dtype != first.dtype):
                raise _misfit([first, array], path, lambda _, number=number: name(number))  # type: ignore[misc]
        lengths = [len(array) for array in arrays]
        return cls(arrays, (pad_to, *first.shape[1:]), first.dtype, lengths)

    def write(self, target: Array, pad_value: object) -> None:
        values = self.values
        if self.lengths is not None:
            target[...] = pad_value
            for row, array, length in zip(target, values, self.lengths, strict=True):
                if length:
                    row[:length] = array
        elif isinstance(values, np.ndarray):
            target[...] = values
        elif self.shape and self.dtype != object:
            # One call for all rows: the records laid end to end along their first axis.
            np.concatenate(values, out=target.reshape(-1, *self.shape[1:]), casting="no")
        else:
            for number, array in enumerate(values):
                if array.dtype != self.dtype:
                    raise TypeError
                target[number] = array[()] if array.ndim == 0 else array


def _as_arrays(column: list[Leaf], path: str, name: Name) -> list[Array]:
    at_once = rows_of_numbers(column)
    if at_once is not None:
        return at_once
    arrays = []
    for number, value in enumerate(column):
        if value is None:
            raise _missing(path, name(number))
        if isinstance(value, (dict, tuple)):
            raise StackError(
                f"cannot stack {_leaf(path)}: {name(number)} has a {type(value).__name__} there, "
                "others have an array. Make them alike in .map()."
            )
        try:
            arrays.append(as_array(value))
        except StackError as error:
            raise StackError(f"cannot stack {_leaf(path)}, {name(number)}: {error}") from error
        except (ValueError, TypeError) as error:
            raise StackError(
                f"cannot stack {_leaf(path)}: {name(number)} has a {type(value).__name__} "
                f"that cannot be made an array ({one_line(error)})."
            ) from error
    return arrays


def _missing(path: str, record: str) -> StackError:
    return StackError(
        f"cannot stack: {_leaf(path)} of {record} is None (missing?). Fill it in with .map(), or "
        "leave such records out with .filter()."
    )


def rows_of_numbers(column: list[Any]) -> list[Array] | None:
    """`as_array` of lists of Python numbers of one type, in one call: ten times as fast."""
    if set(map(type, column)) != {list}:
        return None
    numbers = list(itertools.chain.from_iterable(column))
    dtype = _DTYPES.get(_kind_of_all(numbers))
    if dtype is None:
        return None
    try:
        values = narrowed(np.fromiter(numbers, dtype, len(numbers)), numbers)
    except (StackError, OverflowError):  # the slow path reports it, with the record
        return None
    ends = list(itertools.accumulate(map(len, column)))
    return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _kind_of_all(values: Sequence[object]) -> type:
    """The type that all values have; object if there is no such type."""
    kind = type(values[0]) if values else object
    return kind if countOf(map(type, values), kind) == len(values) else object


def _is_numpy_number(kinds: set[type]) -> bool:
    (kind,) = kinds
    return issubclass(kind, (np.number, np.bool_))


def _misfit(arrays: list[Array], path: str, name: Name) -> StackError:
    first = arrays[0]
    number, one = next(
        (i, a) for i, a in enumerate(arrays) if (a.shape, a.dtype) != (first.shape, first.dtype)
    )
    if one.shape != first.shape:
        return StackError(
            f"cannot stack {_leaf(path)}: {name(number)} has shape {one.shape}, "
            f"the others {first.shape}. {RESIZE}"
        )
    return StackError(
        f"cannot stack {_leaf(path)}: {name(number)} has dtype {one.dtype}, "
        f"the others {first.dtype}. Cast it in .map()."
    )


def _leaf(path: str) -> str:
    return f'leaf "{path}"' if path else "records"


def _with_lengths(batch: Tree, paths: list[str], pieces: list[_Piece]) -> Tree:
    """Beside each padded leaf, the lengths before padding."""
    for path, piece in zip(paths, pieces, strict=True):
        if piece.lengths is None:
            continue
        lengths = aligned(np.array(piece.lengths, np.int32))
        batch = add_leaf(batch, f"{path}_length", lengths, "pad_to")
    return batch


def unpadded(record: object, padding: Padding) -> object:
    """A row of a padded batch as the record that it was."""
    for path in padding.lengths:
        record = _unpadded(record, path)
    return record


def _unpadded(record: Tree, path: str) -> object:
    key, _, rest = path.partition(".")
    if rest and key in record:
        return {**record, key: _unpadded(record[key], rest)}
    key = path
    length = record[f"{key}_length"]
    found = {name: leaf for name, leaf in record.items() if name != f"{key}_length"}
    return {**found, key: found[key][:length]}


def add_leaf(batch: Tree, path: str, leaf: Array, asked_by: str) -> Tree:
    """The batch with one more leaf, at a dotted path of dict keys (keys may have dots too)."""
    key, _, rest = path.partition(".")
    if not isinstance(batch, dict):
        raise StackError(
            f"`{asked_by}` adds a leaf {path!r}, so records must be dicts; "
            f"these are {type(batch).__name__}. Make a dict of them in .map() first."
        )
    if rest and key in batch:
        return {**batch, key: add_leaf(batch[key], rest, leaf, asked_by)}
    if path in batch:
        advice = "Give the new one another name: mask_key='row_mask'."
        if asked_by not in ("pad_remainder", "without"):
            advice = "Rename that one in a .map() first."
        raise StackError(
            f"`{asked_by}` adds a leaf {path!r}, but records have one already. {advice}"
        )
    return {**batch, path: leaf}


def pad_rows(
    batch: Tree,
    count: int,
    size: int,
    mask_key: str,
    value: Padding,
    lend: Lend,
    places: Array | None = None,
) -> Tree:
    """The batch padded from ``count`` to ``size`` rows, with a mask of the real ones.

    Those come first, or go to their ``places``.
    """
    leaves, structure = flatten(batch)
    if not all(isinstance(leaf, np.ndarray) and leaf.ndim and len(leaf) for leaf in leaves):
        raise StackError("`pad_remainder` needs batches whose leaves are arrays of rows.")
    mask_layout = ((size,), np.dtype(np.bool_))
    real = slice(count) if places is None else places
    if count == size:
        (mask,) = lend(Layout.of(mask_layout))
    else:
        shapes = [((size, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        *targets, mask = lend(Layout.of(*shapes, mask_layout))
        for leaf, target, path in zip(leaves, targets, structure.paths(), strict=True):
            target[...] = _filler(target.dtype, value.value_for(path))
            target[real] = leaf[:count]
        batch = structure.build(targets)
    mask[...] = False
    mask[real] = True
    return add_leaf(batch, mask_key, mask, "pad_remainder")


def _filler(dtype: DType, value: Value) -> Any:
    if dtype.kind in "OUS":
        return value if value else ""
    return np.asarray(value).astype(dtype)


def filler(dtype: DType, value: Value, path: str, asked_by: str = "pad_value") -> Any:
    """A value for places without data, of the leaf's own dtype."""
    if dtype.kind in "OUS":
        return _filler(dtype, value)
    try:
        with np.errstate(invalid="ignore"):
            made = np.asarray(value).astype(dtype)
    except (TypeError, ValueError):
        made = None
    if made is None or (dtype.kind in "iu" and not np.array_equal(made, np.asarray(value))):
        raise StackError(
            f"`{asked_by}` is {value!r}, and {_leaf(path)} is {dtype}, which has no such value. "
            "Give another one (a dict has one for each leaf), or cast the leaf in .map()."
        )
    return made
