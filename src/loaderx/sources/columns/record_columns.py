"""Records as columns, which `Dataset.save` writes.

`encode` takes the values of one leaf, or whole records, and finds their type from these values
alone.  Those of other records may need a wider type: `columns.widening` joins types.

Numbers of Python get the dtypes that they have in batches (int32, float32).  A list of numbers is
an array; a list of anything else stays a list.  Where some values are None, ``valid`` says which;
in the others' arrays a blank stands in their place (zeros, or nothing).  The ``nulls`` of such a
type are 0: they are counted when all records are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Literal, NamedTuple, NoReturn

import numpy as np

from loaderx.errors import StackError
from loaderx.sources.columns.data import ITEMS, ColumnData, ColumnType
from loaderx.sources.columns.pick import spread
from loaderx.tree import Array, DType, Leaf, Tree, as_array, flatten, is_array_like, narrow_scalars

UNKNOWN = ColumnType("ragged", np.dtype("V1"))
"""The type of lists that were all empty so far; no value that can be stored has its dtype."""

NOTHING = ColumnType("ragged", np.dtype("V2"))
"""The type of values that were all None so far; ``nulls`` aside."""

_NUMBERS = (bool, int, float, complex)
_MAP = "Change it in a .map() before saving."

Path = tuple[str, ...]
"""The path of a value in its record."""


class Encoded(NamedTuple):
    """Values as columns."""

    kind: ColumnType
    data: ColumnData


class CannotStoreError(Exception):
    """A value that has no place in a column; ``record`` is its number among those given."""

    def __init__(self, reason: str, path: Path, record: int) -> None:
        super().__init__(reason, path, record)
        self.reason, self.path, self.record = reason, path, record


def encode(values: Sequence[Leaf], path: Path = ()) -> Encoded:
    """The values of a leaf, or records; there is at least one."""
    if type(None) in set(map(type, values)):
        return _with_nulls(values, path)
    first = values[0]
    if isinstance(first, str):
        return _runs("text", values, path)
    if isinstance(first, bytes):
        return _runs("bytes", values, path)
    if isinstance(first, Mapping):
        return _structs(values, path)
    if isinstance(first, tuple):
        return _tuples(values, path)
    if any(isinstance(value, list) and not _is_row(value) for value in values):
        return _lists(values, path)
    return _arrays(values, path)


def encode_columns(tree: Tree, count: int, path: Path = ()) -> Encoded:
    """Records that are stacked already: a tree of arrays with an entry for each record."""
    if isinstance(tree, np.ndarray):
        if tree.dtype.kind in "OV":
            return encode(list(tree), path)
        return Encoded(ColumnType("fixed", tree.dtype, tree.shape[1:]), ColumnData(count, tree))
    if isinstance(tree, Mapping) and _are_names(tree):
        fields = {name: encode_columns(one, count, (*path, name)) for name, one in tree.items()}
        return branch("struct", fields, count)
    if type(tree) is tuple and tree:
        named = [(str(number), one) for number, one in enumerate(tree)]
        fields = {name: encode_columns(one, count, (*path, name)) for name, one in named}
        return branch("tuple", fields, count)
    if tree is None:
        return _with_nulls([None] * count, path)
    leaves, structure = flatten(tree)
    if not leaves:
        _refuse("has no leaves, so that there is nothing to store", path, 0)
    return encode([structure.build(row) for row in zip(*leaves, strict=True)], path)


# None -------------------------------------------------------------------------------------------


def _with_nulls(values: Sequence[Leaf], path: Path) -> Encoded:
    if not path:
        number = [value is None for value in values].index(True)
        _refuse("is None: a leaf of a record may be None, the record itself may not", path, number)
    count = len(values)
    valid = np.fromiter((value is not None for value in values), np.bool_, count)
    places = np.flatnonzero(valid)
    if not len(places):
        nothing, offsets = np.empty(0, NOTHING.dtype), np.zeros(count + 1, np.int64)
        return Encoded(NOTHING.replace(nulls=0), ColumnData(count, nothing, offsets, valid=valid))
    try:
        kind, data = encode([values[place] for place in places.tolist()], path)
    except CannotStoreError as error:
        raise CannotStoreError(error.reason, error.path, int(places[error.record])) from None
    return Encoded(kind.replace(nulls=0), spread(kind, data, valid)._replace(valid=valid))


# Branches ---------------------------------------------------------------------------------------


def branch(kind: Literal["struct", "tuple"], fields: Mapping[str, Encoded], count: int) -> Encoded:
    """Columns side by side."""
    kinds = {name: one.kind for name, one in fields.items()}
    data = {name: one.data for name, one in fields.items()}
    return Encoded(ColumnType(kind, fields=kinds), ColumnData(count, fields=data))


def _structs(values: Sequence[Leaf], path: Path) -> Encoded:
    first = values[0]
    names = first.keys()
    if not names:
        _refuse("is an empty dict, so that there is nothing to store", path, 0)
    if not _are_names(first):
        _refuse(f"has the keys {list(names)}, and names of columns are text. {_MAP}", path, 0)
    for number, value in enumerate(values):
        if not isinstance(value, Mapping) or value.keys() != names:
            told = f"has the keys {list(value)}" if isinstance(value, Mapping) else _is_a(value)
            _refuse(f"{told}, and others have the keys {list(names)}. {_MAP}", path, number)
    fields = {name: encode([value[name] for value in values], (*path, name)) for name in names}
    return branch("struct", fields, len(values))


def _tuples(values: Sequence[Leaf], path: Path) -> Encoded:
    count = len(values[0])
    if not count:
        _refuse("is an empty tuple, so that there is nothing to store", path, 0)
    for number, value in enumerate(values):
        if type(value) is not tuple:
            how = "r._asdict()" if hasattr(value, "_fields") else "..."
            _refuse(f"{_is_a(value)}: make a dict of it, .map(lambda r: {how})", path, number)
        if len(value) != count:
            _refuse(f"has {len(value)} entries, and others have {count}. {_MAP}", path, number)
    fields = {
        str(place): encode([value[place] for value in values], (*path, str(place)))
        for place in range(count)
    }
    return branch("tuple", fields, len(values))


def _are_names(given: Mapping[Leaf, Leaf]) -> bool:
    return bool(given) and all(isinstance(name, str) for name in given)


# Lists, text and bytes --------------------------------------------------------------------------


def _is_row(value: list[Leaf]) -> bool:
    """True if a list is the row of an array: nothing but numbers."""
    return all(isinstance(item, (*_NUMBERS, np.number, np.bool_)) for item in value)


def _lists(values: Sequence[Leaf], path: Path) -> Encoded:
    for number, value in enumerate(values):
        if not isinstance(value, list):
            _refuse(f"{_is_a(value)}, and others are lists. {_MAP}", path, number)
    offsets = _offsets(values)
    items = list(chain.from_iterable(values))
    try:
        kind, data = encode(items, (*path, ITEMS))
    except CannotStoreError as error:
        record = int(np.searchsorted(offsets, error.record, side="right")) - 1
        raise CannotStoreError(error.reason, error.path, record) from None
    return Encoded(
        ColumnType("list", fields={ITEMS: kind}),
        ColumnData(len(values), None, offsets, {ITEMS: data}),
    )


def _runs(kind: Literal["text", "bytes"], values: Sequence[Leaf], path: Path) -> Encoded:
    wanted = str if kind == "text" else bytes
    for number, value in enumerate(values):
        if not isinstance(value, wanted):
            _refuse(f"{_is_a(value)}, and others are {wanted.__name__}. {_MAP}", path, number)
    encoded = values if kind == "bytes" else _utf8(values, path)
    joined: Array = np.frombuffer(b"".join(encoded), np.uint8)
    return Encoded(ColumnType(kind), ColumnData(len(values), joined, _offsets(encoded)))


def _utf8(values: Sequence[str], path: Path) -> list[bytes]:
    try:
        return list(map(str.encode, values))
    except UnicodeEncodeError:
        pass
    for number, value in enumerate(values):
        try:
            value.encode()
        except UnicodeEncodeError:
            _refuse(f"is text with half of a surrogate pair, {value!r:.60}. {_MAP}", path, number)
    raise AssertionError("one of them cannot be encoded")


def _offsets(values: Sequence[Leaf]) -> Array:
    """Where each value begins, and where the last ends."""
    found = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=found[1:])
    return found


# Arrays -----------------------------------------------------------------------------------------


def _arrays(values: Sequence[Leaf], path: Path) -> Encoded:
    count = len(values)
    if len(set(map(type, values))) == 1 and type(values[0]) in _NUMBERS:
        column = _numbers(values, path)
        return Encoded(ColumnType("fixed", column.dtype), ColumnData(count, column))
    # The dtype of an empty list is that of the others.
    is_open = [isinstance(value, list) and not value for value in values]
    if all(is_open):
        nothing, offsets = np.empty(0, UNKNOWN.dtype), np.zeros(count + 1, np.int64)
        return Encoded(UNKNOWN, ColumnData(count, nothing, offsets))
    first = _array(values[is_open.index(False)], path, is_open.index(False))
    empty = first[:0] if first.ndim else np.empty(0, first.dtype)
    arrays = [
        empty if blank else _array(value, path, number)
        for number, (value, blank) in enumerate(zip(values, is_open, strict=True))
    ]
    if first.dtype.kind == "O":  # rows of text
        return _lists([array.tolist() for array in arrays], path)
    _check_alike(arrays, first, path)
    # Given, since NumPy would turn the bytes into the order of this machine.
    dtype = max((array.dtype for array in arrays), key=lambda one: one.itemsize)
    if all(array.shape == first.shape for array in arrays):
        stacked = np.stack(arrays, dtype=dtype)
        return Encoded(ColumnType("fixed", stacked.dtype, first.shape), ColumnData(count, stacked))
    joined = np.concatenate(arrays, dtype=dtype)
    return Encoded(
        ColumnType("ragged", joined.dtype, first.shape[1:]),
        ColumnData(count, joined, _offsets(arrays)),
    )


def _numbers(values: Sequence[Leaf], path: Path) -> Array:
    try:
        return narrow_scalars(list(values))
    except StackError:
        for number, value in enumerate(values):
            _array(value, path, number)
        raise


def _array(value: Leaf, path: Path, number: int) -> Array:
    """A value as an array; object arrays have one axis."""
    if hasattr(type(value), "__dataclass_fields__") and not is_array_like(value):
        _refuse(f"{_is_a(value)}: make a dict of it, .map(dataclasses.asdict)", path, number)
    try:
        array = as_array(value)
    except (StackError, ValueError, OverflowError) as error:
        _refuse(f"cannot be an array: {error}", path, number)
    if array.dtype.kind == "O" and array.ndim != 1:
        _refuse(
            f"{_is_a(value)}, which cannot be stored. Make arrays, numbers, text or bytes of it in "
            "a .map().",
            path,
            number,
        )
    if array.dtype.kind == "V" or not array.dtype.itemsize:
        _refuse(f"has the dtype {array.dtype}, which cannot be stored. {_MAP}", path, number)
    return array


def _check_alike(arrays: Sequence[Array], first: Array, path: Path) -> None:
    """Refuses arrays that differ in more than their first axis."""
    for number, array in enumerate(arrays):
        if not same_dtype(array.dtype, first.dtype):
            _refuse(
                f"has the dtype {array.dtype}, and others have {first.dtype}. Cast it in a .map() "
                "before saving.",
                path,
                number,
            )
        if array.shape[1:] != first.shape[1:] or array.ndim != first.ndim:
            _refuse(
                f"has the shape {array.shape}, and others have {first.shape}: only the first axis "
                "may differ. Resize it in a .map(); images can be saved as the bytes of their "
                "files, which Dataset.open(..., decode=False) gives.",
                path,
                number,
            )


def same_dtype(one: DType, two: DType) -> bool:
    """True if both fit into one column.  Text of NumPy may differ in its length."""
    return one == two or (one.kind == two.kind and one.kind in "US")


def _is_a(value: object) -> str:
    kind = type(value).__name__
    return f"is {'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def _refuse(reason: str, path: Path, record: int) -> NoReturn:
    raise CannotStoreError(reason, path, record)
