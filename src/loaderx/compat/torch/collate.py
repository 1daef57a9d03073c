"""Makes batches of records by the rules of torch's ``default_collate``, with NumPy arrays.

Numbers and arrays are stacked, dicts, lists and named tuples are structure, text stays as it is.  A
tuple becomes a list, as in torch.  Numbers keep torch's widths: int64 and float64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx import ArgumentTypeError, StackError

Tree: TypeAlias = Any
"""A record or a batch."""

Array: TypeAlias = npt.NDArray[Any]


def default_collate(batch: Sequence[Tree]) -> Tree:
    """One batch of a list of records.

    >>> default_collate([({"x": 1.5}, "a"), ({"x": 2.5}, "b")])
    [{'x': array([1.5, 2.5])}, ('a', 'b')]
    """
    first = batch[0]
    if isinstance(first, np.ndarray):
        return _stacked(list(batch))
    if is_tensor(first):
        return _stacked([to_array(tensor) for tensor in batch])
    if isinstance(first, (str, bytes)):
        return batch  # inside tuples this is a tuple, as in torch
    if isinstance(first, (bool, int, float, complex, np.generic)):
        return _numbers(batch)
    if isinstance(first, Mapping):
        made = {key: default_collate([record[key] for record in batch]) for key in first}
        return _like(first, made)
    if isinstance(first, (tuple, list)):
        return _collate_columns(first, batch)
    if hasattr(first, "__array__") or hasattr(first, "__array_interface__"):
        return _stacked([np.asarray(leaf) for leaf in batch])
    raise ArgumentTypeError(
        "default_collate takes arrays, numbers, text, dicts, lists and tuples; a record holds "
        f"{type(first).__name__}. Leave it out of the record, or pass a `collate_fn`."
    )


numpy_collate = default_collate
"""The name that the JAX tutorials give it."""


def default_convert(record: Tree) -> Tree:
    """A record for a loader without batches: arrays in place of tensors and NumPy scalars."""
    return _with_arrays(record, as_list=True)


def arrays_of(batch: Tree) -> Tree:
    """The result of a user's ``collate_fn``, with arrays in place of tensors."""
    # Without torch there are no tensors to look for.
    return _with_arrays(batch, as_list=False) if "torch" in sys.modules else batch


def is_tensor(value: object) -> bool:
    """Whether it is a torch tensor; without torch imported there are none."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def to_array(tensor: Any) -> Array:
    """A tensor as an array, without a copy if it is in CPU memory."""
    try:
        found: Array = tensor.detach().cpu().numpy()
    except TypeError as error:
        raise StackError(
            f"NumPy has no {tensor.dtype}: {error}. Write .float() in the dataset, and cast it in "
            "the training step."
        ) from error
    return found


def _with_arrays(tree: Tree, *, as_list: bool) -> Tree:
    if is_tensor(tree):
        return to_array(tree)
    if isinstance(tree, Mapping):
        return _like(tree, {key: _with_arrays(tree[key], as_list=as_list) for key in tree})
    if isinstance(tree, (tuple, list)):
        found = [_with_arrays(value, as_list=as_list) for value in tree]
        if hasattr(tree, "_fields"):
            return type(tree)(*found)
        return tuple(found) if isinstance(tree, tuple) and not as_list else found
    is_number = as_list and isinstance(tree, np.generic) and not isinstance(tree, (str, bytes))
    return np.asarray(tree) if is_number else tree


def _collate_columns(first: Tree, batch: Sequence[Tree]) -> Tree:
    sizes = set(map(len, batch))
    if len(sizes) > 1:
        raise StackError(
            f"the records of a batch are lists of {sorted(sizes)} items; a batch needs as many in "
            "each. Pad them in the dataset, or pass a `collate_fn`."
        )
    columns = [default_collate(column) for column in zip(*batch, strict=True)]
    return type(first)(*columns) if hasattr(first, "_fields") else columns


def _numbers(values: Sequence[Any]) -> Array:
    found = np.asarray(values)
    if found.dtype == object or found.dtype.kind in "US":
        raise StackError(f"cannot make an array of the numbers {list(values)!r:.80}.")
    # On some systems NumPy's default integers have 32 bits.
    plain = found.dtype.kind == "i" and not isinstance(values[0], np.generic)
    return found.astype(np.int64, copy=False) if plain else found


def _stacked(arrays: list[Array]) -> Array:
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        number = next(i for i, array in enumerate(arrays) if array.shape != arrays[0].shape)
        raise StackError(
            f"cannot stack arrays of different shapes: record {number} of the batch has "
            f"{arrays[number].shape}, the first {arrays[0].shape}. Resize or pad them in the "
            "dataset, or pass a `collate_fn`."
        )
    return np.stack(arrays)


def _like(first: Mapping[Any, Tree], made: dict[Any, Tree]) -> Tree:
    """A mapping of the same class, if it can be made from a dict."""
    kind: Callable[[dict[Any, Tree]], Tree] = type(first)
    if kind is dict:
        return made
    try:
        return kind(made)
    except TypeError:
        return made
