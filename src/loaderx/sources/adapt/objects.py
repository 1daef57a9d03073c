"""Any object with a length and an index: a list, a torch or Hugging Face ``Dataset``, ...

Users' sources are read through the same class, which checks what they return.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from operator import getitem
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderx.errors import ArgumentError, LoaderxError
from loaderx.first_use import AttributesBeforeUse
from loaderx.memory import Lend
from loaderx.sources.adapt.arrays import ArraySource, is_group, is_sparse
from loaderx.sources.adapt.bulk import INDEXING, BulkReads
from loaderx.sources.adapt.checks import (
    check_readable,
    check_rows,
    checked_label,
    checked_length,
    checked_spec,
    checked_thread_safe,
    gather_takes_lend,
    is_source,
)
from loaderx.sources.adapt.frames import is_column, is_frame
from loaderx.sources.adapt.huggingface import read_slice, takes_slices
from loaderx.sources.base import Indices, OwnSource, Source, chunk_starts, overrides
from loaderx.tree import Array, ArraySpec, Leaf, Structure, Tree, flatten

if TYPE_CHECKING:
    from loaderx.sources.adapt.kept_chunks import KeptChunks, Sized


class ObjectSource(OwnSource):
    """Reads ``obj[i]``; uses ``obj.__getitems__`` and ``obj.gather`` where they exist.

    Of a `Source` it uses ``gather`` and ``records``.  If a bulk read fails on records that can be
    read one by one, they are read that way, with a warning (`bulk`).
    """

    def __init__(self, obj: Any, *, thread_safe: bool | None = None) -> None:
        check_readable(obj)
        self._obj = obj
        self.is_plain = isinstance(obj, (list, tuple, range))
        self.given = (
            None if self.is_plain else AttributesBeforeUse(obj)
        )  # before `len`, which may open a file
        self._length = checked_length(obj)
        self._is_source = is_source(obj)
        self._spec = checked_spec(obj) if self._is_source else None
        self._spec_leaves, self._spec_structure = flatten(self._spec)
        name = type(obj).__name__
        plain_label = f"from_source({name}, {self._length} records)"
        self._label = checked_label(obj, plain_label) if self._is_source else plain_label
        self._takes_lend = gather_takes_lend(obj)
        self._sliced = takes_slices(obj)
        if thread_safe is None:
            thread_safe = True if self.is_plain else checked_thread_safe(obj)
        self._thread_safe = bool(thread_safe)
        self.unsure = name if thread_safe is None else ""  # unknown whether threads may read it
        self._gather = BulkReads(name, "gather")
        self._many = self._bulk_read(name)

    def _bulk_read(self, name: str) -> BulkReads | None:
        """How `records` reads many records at once; None if it cannot."""
        obj = self._obj
        if isinstance(obj, Source) and not overrides(obj, "records"):
            return None if overrides(obj, "__getitem__") else self._gather
        if self._is_source:
            return BulkReads(name, "records")
        if self._sliced:
            return BulkReads(name, INDEXING)
        return BulkReads(name, "__getitems__") if hasattr(obj, "__getitems__") else None

    def __len__(self) -> int:
        return self._length

    @property
    def spec(self) -> Tree | None:
        return self._spec

    @property
    def thread_safe(self) -> bool:
        return self._thread_safe

    @property
    def gathers(self) -> bool:
        return self._takes_lend is not None

    @property
    def reads_each(self) -> bool:
        """True if user code reads its records one by one."""
        return self._many is None and not self.is_plain

    @property
    def random_access(self) -> bool:
        return bool(self._obj.random_access) if isinstance(self._obj, Source) else True

    def chunks(self) -> Indices | None:
        return chunk_starts(self._obj) if isinstance(self._obj, Source) else None

    @property
    def fetches(self) -> bool:
        return isinstance(self._obj, Source) and bool(self._obj.fetches)

    def fetch(self, indices: Indices) -> int:
        return int(self._obj.fetch(indices) or 0)

    @property
    def kept_chunks(self) -> KeptChunks[Sized] | None:
        """The chunks that a `ChunkSource` keeps."""
        return getattr(self._obj, "kept_chunks", None)

    @property
    def record_nbytes(self) -> int:
        """The bytes of a record, if all have the same shapes."""
        leaves = self._spec_leaves
        if any(None in leaf.shape for leaf in leaves):
            return 0
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)

    def label(self) -> str:
        return self._label

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        obj = self._obj
        try:
            batch = obj.gather(indices, lend) if self._takes_lend else obj.gather(indices)
        except Exception as error:
            if not self._gather.has_failed:
                self._read_alone(self._gather, indices, error)
            # The plan now reads the records one by one, and stacks them or names the one that
            # fails.
            raise _NotTogetherError from error
        leaves, structure = flatten(batch)
        owned = [_owned(leaf) for leaf in leaves]
        check_rows(owned, len(indices), f"{type(obj).__name__}.gather")
        if self._spec is not None:
            self._check_spec(owned, structure)
        if not self._gather.is_known and owned and len(indices):
            self._gather.worked(structure.build([leaf[0] for leaf in owned]))
        return structure.build(owned)

    def _check_spec(self, leaves: list[Array], structure: Structure) -> None:
        name = type(self._obj).__name__
        specs, expected = self._spec_leaves, self._spec_structure
        if structure is not expected:
            raise ArgumentError(
                f"{name}.gather gave the leaves {structure.paths()}; its spec has "
                f"{expected.paths()}."
            )
        for number, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
            if not spec.fits(leaf.dtype, leaf.shape[1:]):
                path = structure.paths()[number]
                which = f'leaf "{path}"' if path else "records"
                found = ArraySpec(leaf.shape[1:], leaf.dtype)
                raise ArgumentError(
                    f"{name}.gather gave {which} as {found!r}; its spec says {spec!r}."
                )

    def records(self, indices: Indices) -> list[Tree]:
        obj = self._obj
        if self._many is not None:
            return self._read_together(self._many, indices)
        found = [obj[i] for i in indices.tolist()]
        if self.is_plain:
            return [protected(record) for record in found]
        return _fresh(found)

    def reader(self) -> Callable[[int], Tree] | None:
        """Reads one record as `records` does; None if many are better read at once."""
        if self._many is not None:
            return None
        get: Callable[[int], Tree] = partial(getitem, self._obj)
        if self.is_plain:
            return lambda index: protected(get(index))
        return lambda index: dict(found) if type(found := get(index)) is dict else found

    def _read_together(self, bulk: BulkReads, indices: Indices) -> list[Tree]:
        try:
            in_order = read_slice(self._obj, indices) if self._sliced else None
            found = self._read_many(indices) if in_order is None else in_order
        except Exception as error:
            alone = self._read_alone(bulk, indices, error)
            if alone is not None:
                return _fresh(alone)
            if len(indices) > 1 and isinstance(error, LoaderxError):
                # The plan takes a loaderx error for an error of the whole source.
                raise _NotTogetherError from error
            raise
        if len(found) != len(indices):
            raise ArgumentError(
                f"{type(self._obj).__name__}.{bulk.method} was asked for {len(indices)} records "
                f"and gave {len(found)}."
            )
        if not bulk.is_known and found:
            bulk.worked(found[0])
        return found if in_order is not None else _fresh(found)  # a slice consists of new dicts

    def _read_many(self, indices: Indices) -> list[Tree]:
        if self._is_source:
            return list(self._obj.records(indices))
        if hasattr(self._obj, "__getitems__"):
            return list(self._obj.__getitems__(indices.tolist()))
        return [self._obj[i] for i in indices.tolist()]

    def _read_alone(self, bulk: BulkReads, indices: Indices, error: Exception) -> list[Tree] | None:
        """The records, each read alone after a bulk read failed; None if one of them fails."""
        obj, found = self._obj, []
        try:
            for index in indices.tolist():
                if hasattr(obj, "__getitem__"):
                    found.append(obj[index])
                else:
                    found += obj.records(np.array([index]))
        except Exception:
            return None
        bulk.failed(error, found)
        return found


class _NotTogetherError(Exception):
    """Some records cannot be read together: the caller reads them one by one."""


def _fresh(records: list[Tree]) -> list[Tree]:
    """Copies dicts: a `map` that writes into its record must not change the next epoch."""
    return [dict(record) if type(record) is dict else record for record in records]


def protected(value: Tree) -> Tree:
    """Copies containers, and makes arrays read-only views, to protect the user's data."""
    kind = type(value)
    if kind is np.ndarray:
        view = value.view()
        view.flags.writeable = False
        return view
    if kind is dict:
        return {key: protected(inner) for key, inner in value.items()}
    if kind is list:
        return [protected(inner) for inner in value]
    if kind is tuple:
        return tuple(map(protected, value))
    return value


def _owned(leaf: Leaf) -> Array:
    array = np.asarray(leaf)
    return array if array.flags.writeable else array.copy()


def adapt(obj: object, *, thread_safe: bool | None = None) -> Source:
    """The source for a user's object."""
    if isinstance(obj, OwnSource):
        return obj
    if isinstance(obj, Source):
        return ObjectSource(obj, thread_safe=thread_safe)
    if isinstance(obj, np.ndarray) or (hasattr(obj, "__dlpack__") and hasattr(obj, "shape")):
        return ArraySource(obj)
    if (tensors := _tensors(obj)) is not None:
        return ArraySource(tensors, "from_source")
    # `frame[i]` may be a column, or a row by label; a group is read by the names of its arrays.
    if is_frame(obj) or is_column(obj) or is_sparse(obj) or is_group(obj):
        return ArraySource(obj, "from_source")
    if takes_slices(obj):
        from loaderx.sources.formats.arrow.objects import recognised  # slow to import

        return recognised(obj) or ObjectSource(obj, thread_safe=thread_safe)
    return ObjectSource(obj, thread_safe=thread_safe)


def _tensors(obj: object) -> tuple[Array, ...] | None:
    """The tensors of torch's `TensorDataset`, whose rows are the records; else None."""
    kind = type(obj)
    if kind.__name__ != "TensorDataset" or not kind.__module__.startswith("torch."):
        return None
    tensors = getattr(obj, "tensors", ())
    if any(tensor.requires_grad or tensor.device.type != "cpu" for tensor in tensors):
        return None
    return tuple(np.asarray(tensor) for tensor in tensors)
