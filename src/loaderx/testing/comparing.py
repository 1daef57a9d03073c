"""Trees that must be equal, and messages that say where they differ.

The checks raise their own messages: pytest explains a bare ``assert`` in test files only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from loaderx.errors import one_line
from loaderx.tree import Array, as_array, flatten


def check(is_true: bool, message: str) -> None:
    """Raises an `AssertionError` with the message unless the condition holds."""
    if not is_true:
        raise AssertionError(message)


def check_equal(found: object, expected: object, what: str) -> None:
    """Two trees must have the same leaves, with the same dtypes, shapes and values."""
    leaves, structure = flatten(found)
    others, other = flatten(expected)
    if structure is not other:
        raise AssertionError(
            f"{what} has the leaves {structure.paths()}, expected are {other.paths()}."
        )
    for path, one, two in zip(structure.paths(), leaves, others, strict=True):
        message = _difference(as_array(one), as_array(two))
        if message:
            where = f'leaf "{path}" of {what}' if path else what
            raise AssertionError(f"{where} {message}")


def _difference(found: Array, expected: Array) -> str:
    """What is wrong, or nothing: text is made of arrays only where they differ."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        have, want = (f"{one.dtype}{list(one.shape)}" for one in (found, expected))
        return f"is {have}, expected is {want}."
    if np.array_equal(found, expected, equal_nan=found.dtype.kind in "fc"):
        return ""
    return f"has other values than expected:\n{found}\nexpected:\n{expected}"


def check_all_equal(found: Sequence[object], expected: Sequence[object], what: str) -> None:
    """As `check_equal`, for several trees; ``what`` names one of them."""
    check(
        len(found) == len(expected),
        f"there are {len(found)} of {what}, expected are {len(expected)}.",
    )
    for number, (one, two) in enumerate(zip(found, expected, strict=True)):
        check_equal(one, two, f"{what} {number}")


def check_raises(kind: type[Exception], read: Callable[[], object], what: str) -> None:
    """Calling ``read`` must raise an error of this kind."""
    try:
        found = read()
    except kind:
        return
    except Exception as error:
        raise AssertionError(
            f"{what} must raise {kind.__name__}; it raised {one_line(error)}."
        ) from error
    raise AssertionError(f"{what} must raise {kind.__name__}; it returned {found!r}.")


def stacked(records: Sequence[object]) -> object:
    """Records as one batch, leaf by leaf."""
    columns = zip(*[flatten(record)[0] for record in records], strict=True)
    return flatten(records[0])[1].build([np.stack([*map(as_array, column)]) for column in columns])


def can_be_stacked(records: Sequence[object]) -> bool:
    """Whether all records have the same leaves, with the same dtypes and shapes."""

    def look(record: object) -> tuple[object, ...]:
        leaves, structure = flatten(record)
        return structure, [(array.shape, array.dtype) for array in map(as_array, leaves)]

    return all(look(record) == look(records[0]) for record in records)
