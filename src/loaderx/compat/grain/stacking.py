"""Stacks elements as NumPy does, into reused buffers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.compat.grain.protocols import Element
from loaderx.compat.grain.trees import map_structure, spec_text
from loaderx.engines import PoolPerThread
from loaderx.extend import Layout
from loaderx.sources import Lend

Array: TypeAlias = npt.NDArray[Any]

buffers = PoolPerThread()
"""Memory for batches.  A worker sets ``buffers.lend`` to the memory of its task."""

_POOLED_BYTES = 4096  # smaller arrays are cheaper to allocate
# Labels out of arrays are NumPy scalars, of which `np.stack` would first make arrays.
_SCALARS = (
    *(np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.float16, np.float32, np.float64),
)
_NUMBERS: dict[type, type[np.generic]] = {
    int: np.int64,
    float: np.float64,
    **{kind: kind for kind in _SCALARS},
}
_dtype_of, _shape_of = attrgetter("dtype"), attrgetter("shape")


def make_batch(values: Sequence[Element]) -> Element:
    """Elements of one structure, leaf by leaf along a new first dimension."""
    if not values:
        raise ValueError("there is nothing to batch.")
    if len(values) == 1:
        return map_structure(_alone, values[0])
    try:
        return map_structure(_stack, *values)
    except ValueError as error:
        raise _unequal(values) from error


def _alone(leaf: Element) -> Array:
    return np.expand_dims(leaf, 0)


def _stack(*leaves: Element) -> Array:
    kind = type(leaves[0])
    if kind is np.ndarray:
        first = leaves[0]
        if first.nbytes * len(leaves) >= _POOLED_BYTES and _are_alike(leaves, first.dtype):
            return _stack_rows(leaves, first.shape, first.dtype, buffers.lend)
    elif kind in _NUMBERS and {*map(type, leaves)} == {kind}:
        try:
            return np.array(leaves, _NUMBERS[kind])
        except OverflowError:  # `np.stack` chooses another type
            pass
    return np.stack(leaves)


def _are_alike(leaves: Sequence[Array], dtype: np.dtype[np.generic]) -> bool:
    """Whether all are arrays of one plain dtype and shape.  Loops would cost as much as copying."""
    return (
        dtype.kind in "biufc"
        and dtype.isnative
        and {*map(type, leaves)} == {np.ndarray}
        and len({*map(_dtype_of, leaves)}) == 1
        and len({*map(_shape_of, leaves)}) == 1
    )


def _stack_rows(
    rows: Sequence[Array], shape: tuple[int, ...], dtype: np.dtype[np.generic], lend: Lend
) -> Array:
    (out,) = lend(Layout.of(((len(rows), *shape), dtype)))
    # `np.concatenate` is faster than `np.stack`, which first makes a view of each row.
    flat = out.reshape((len(rows) * shape[0], *shape[1:])) if shape else out
    np.concatenate(rows, out=flat) if shape else np.stack(rows, out=out)
    return out


def batch_and_pad(values: Sequence[Element], *, batch_size: int, pad_value: Element = 0) -> Element:
    """As `make_batch`, filled up with ``pad_value`` to ``batch_size`` rows."""
    if not values:
        raise ValueError("there is nothing to batch.")
    if len(values) > batch_size:
        raise ValueError(f"{len(values)} elements are too many for a batch of {batch_size}.")
    if len(values) == batch_size:
        return make_batch(values)
    try:
        return map_structure(partial(_padded, batch_size - len(values), pad_value), *values)
    except ValueError as error:
        raise _unequal(values) from error


def _padded(missing: int, pad_value: Element, *leaves: Element) -> Array:
    rows = [np.expand_dims(leaf, 0) for leaf in leaves]
    first = rows[0]
    padding = np.full((missing, *first.shape[1:]), pad_value, first.dtype)
    return np.concatenate([*rows, padding])


def _unequal(values: Sequence[Element]) -> ValueError:
    return ValueError(
        f"the elements of a batch have different structures:\n{spec_text(list(values))}"
    )
