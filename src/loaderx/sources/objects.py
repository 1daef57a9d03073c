"""Any object with a length and an index: a list, a torch or Hugging Face ``Dataset``, ..."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError
from loaderx.given import Given
from loaderx.memory import Lend
from loaderx.sources.arrays import ArraySource
from loaderx.sources.base import Indices, Source
from loaderx.sources.frames import is_column, is_frame
from loaderx.sources.huggingface import read_slice, takes_slices
from loaderx.sources.tokens import Tokens
from loaderx.tree import Tree, flatten, map_leaves


class ObjectSource:
    """Reads ``obj[i]``; uses ``obj.__getitems__`` and ``obj.gather`` where they exist."""

    def __init__(self, obj: Any, *, thread_safe: bool | None = None) -> None:
        missing = [name for name in ("__len__", "__getitem__") if not hasattr(obj, name)]
        if missing:
            hint = ""
            if callable(obj) or hasattr(obj, "__iter__"):
                hint = (
                    " What can only be read from its beginning goes into "
                    "Dataset.from_iterable(function), where the function gives a new iterator."
                )
            raise ArgumentTypeError(
                f"a source needs __len__ and __getitem__; {type(obj).__name__} has no "
                f"{' and no '.join(missing)}.{hint}"
            )
        if isinstance(obj, (str, bytes)):
            raise ArgumentTypeError(
                f"a source is needed, got the text {obj!r}. "
                "For a file write Dataset.from_file(path)."
            )
        if isinstance(obj, Mapping):
            raise ArgumentTypeError(
                f"a {type(obj).__name__} is not indexed by record. "
                "For a dict of arrays write Dataset.from_arrays(...)."
            )
        if type(obj) is tuple and _are_columns(obj):
            raise ArgumentTypeError(
                f"a tuple of {len(obj)} arrays would be {len(obj)} records. For the rows of all of "
                "them write Dataset.from_arrays((x, y)); if each array is a record, give a list."
            )
        self._obj = obj
        self._plain = isinstance(obj, (list, tuple, range))
        self.given = None if self._plain else Given(obj)  # before `len`, which may open a file
        self._length = len(obj)
        if self._length == 0:
            raise ArgumentError(f"the dataset is empty: {type(obj).__name__} of length 0.")
        self._sliced = takes_slices(obj)
        is_said = thread_safe is not None or self._plain or hasattr(obj, "thread_safe")
        if thread_safe is None:
            thread_safe = self._plain or bool(getattr(obj, "thread_safe", False))
        self._thread_safe = thread_safe
        self.unsure = "" if is_said else type(obj).__name__  # may threads read it at once?

    def __len__(self) -> int:
        return self._length

    @property
    def spec(self) -> Tree | None:
        return None

    @property
    def thread_safe(self) -> bool:
        return self._thread_safe

    @property
    def gathers(self) -> bool:
        return callable(getattr(self._obj, "gather", None))

    def label(self) -> str:
        return f"from_source({type(self._obj).__name__}, {self._length} records)"

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        batch = map_leaves(_owned, self._obj.gather(indices))
        for leaf in flatten(batch)[0]:
            if leaf.ndim == 0 or len(leaf) != len(indices):
                raise ArgumentError(
                    f"{type(self._obj).__name__}.gather was asked for {len(indices)} records and "
                    f"gave an array of shape {leaf.shape}."
                )
        return batch

    def records(self, indices: Indices) -> list[Any]:
        in_order = read_slice(self._obj, indices) if self._sliced else None
        if in_order is not None:
            return in_order  # fresh dicts already
        where = indices.tolist()
        many = getattr(self._obj, "__getitems__", None)
        if many is not None:
            found = list(many(where))
            if len(found) != len(where):
                raise ArgumentError(
                    f"{type(self._obj).__name__}.__getitems__ was asked for {len(where)} records "
                    f"and gave {len(found)}."
                )
        else:
            obj = self._obj
            found = [obj[i] for i in where]
        # A `map` that writes into its record must not change what the next epoch reads.
        if self._plain:
            return [_protected(record) for record in found]
        return [dict(record) if type(record) is dict else record for record in found]


def _are_columns(arrays: tuple[Any, ...]) -> bool:
    """Do they look like the leaves of records: several arrays of one leading length?"""
    shapes: list[tuple[int, ...]] = [getattr(array, "shape", ()) for array in arrays]
    return len(shapes) > 1 and all(shapes) and len({shape[0] for shape in shapes}) == 1


def _protected(value: Any) -> Any:
    """Containers copied, arrays as read-only views: what lies in memory stays as it is."""
    kind = type(value)
    if kind is np.ndarray:
        view = value.view()
        view.flags.writeable = False
        return view
    if kind is dict:
        return {key: _protected(inner) for key, inner in value.items()}
    if kind is list:
        return [_protected(inner) for inner in value]
    if kind is tuple:
        return tuple(map(_protected, value))
    return value


def _owned(leaf: Any) -> Any:
    array = np.asarray(leaf)
    return array if array.flags.writeable else array.copy()


def adapt(obj: Any, *, thread_safe: bool | None = None) -> Source:
    """The source for whatever the user has."""
    if isinstance(obj, Tokens):
        return obj
    if isinstance(obj, np.ndarray) or (hasattr(obj, "__dlpack__") and hasattr(obj, "shape")):
        return ArraySource(obj)
    if is_frame(obj) or is_column(obj):  # its own index may be by label, not by row
        return ArraySource(obj, "from_source")
    return ObjectSource(obj, thread_safe=thread_safe)
