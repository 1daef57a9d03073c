"""Batches of a `MapDataset`: one gather where the chain below only rearranges rows of arrays."""

from __future__ import annotations

import builtins
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from loaderx.compat.grain.function_nodes import FilterMapDataset, FlatMapMapDataset
from loaderx.compat.grain.indices import Indices, as_ints
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.protocols import Element, ShapeDtypeStruct, Spec
from loaderx.compat.grain.registry import node
from loaderx.compat.grain.stacking import buffers, make_batch
from loaderx.compat.grain.trees import map_structure

T = TypeVar("T")


@runtime_checkable
class HasBatchSpec(Protocol):
    """A batch function that says what it makes of a spec."""

    def output_spec(self, input_spec: Spec, batch_size: int, drop_remainder: bool) -> Spec:
        """The spec of its batches."""


def batch_spec(
    input_spec: Spec,
    batch_size: int,
    drop_remainder: bool,
    batch_fn: Callable[[Sequence[Element]], Element] | None,
) -> Spec:
    """The spec of batches; the number of rows is None unless all have the same."""
    function: object = batch_fn  # for a type checker, a function has no other methods
    if isinstance(function, HasBatchSpec):
        return function.output_spec(input_spec, batch_size, drop_remainder)
    if batch_fn not in (None, make_batch):
        raise NotImplementedError(
            "the spec of a batch is not known: `batch_fn` has no method output_spec."
        )
    rows = batch_size if drop_remainder else None
    return map_structure(lambda x: ShapeDtypeStruct((rows, *x.shape), x.dtype), input_spec)


def check_batch_size(batch_size: int) -> None:
    """Batches have at least one element."""
    if batch_size <= 0:
        raise ValueError(f"batch_size must be positive, got {batch_size}.")


@node("map.batch")
class BatchMapDataset(MapDataset[T]):
    """Consecutive elements of an epoch, stacked."""

    def __init__(
        self,
        parent: MapDataset[Element],
        batch_size: int,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Element]], T] | None = None,
    ) -> None:
        super().__init__(parent)
        check_batch_size(batch_size)
        _check_dense(parent)
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder
        self._batch_fn: Callable[[Sequence[Element]], Element] = batch_fn or make_batch
        self._parent_length = len(parent)
        if drop_remainder:
            self._length = self._parent_length // batch_size
        else:
            self._length = math.ceil(self._parent_length / batch_size)
        self._stacks_rows = batch_fn is None and parent._gathers

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: builtins.slice | int) -> Element:
        if isinstance(index, slice):
            return self.slice(index)
        rows = self._rows(index)
        if self._stacks_rows:
            batch = self._parent._gather(rows, buffers.lend)
            if batch is not None:
                return batch
        return self._stacked(self._parent._getitems(rows))

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[T | None]:
        if self._stacks_rows:
            return super()._getitems(indices)
        batches = [self._rows(index) for index in as_ints(indices)]
        # In one call: a source that waits is read with many threads, which then pause less often.
        values = iter(self._parent._getitems([row for rows in batches for row in rows]))
        return [self._stacked([*itertools.islice(values, len(rows))]) for rows in batches]

    def _rows(self, index: int) -> range:
        """The elements of the parent that are in a batch."""
        epoch, number = divmod(index, self._length)
        first = number * self._batch_size
        after = min(self._parent_length, first + self._batch_size)
        before = epoch * self._parent_length
        return range(first + before, after + before)

    def _stacked(self, values: Sequence[Element]) -> Element:
        try:
            return self._batch_fn(values if isinstance(values, list) else list(values))
        except ValueError as error:
            error.add_note(
                "None is not stacked: after a filter, write .to_iter_dataset().batch(...)."
            )
            raise

    @property
    def _element_spec(self) -> Spec:
        return batch_spec(
            self._parent._element_spec, self._batch_size, self._drop_remainder, self._batch_fn
        )

    def __str__(self) -> str:
        return (
            f"BatchMapDataset(batch_size={self._batch_size}, drop_remainder={self._drop_remainder})"
        )


def is_dense(ds: MapDataset[Element]) -> bool:
    """Is no element left out?"""
    return _leaving_out(ds) is None


def _leaving_out(ds: MapDataset[Element]) -> str | None:
    if isinstance(ds, FilterMapDataset):
        return "`MapDataset.filter`"
    if isinstance(ds, FlatMapMapDataset):
        return "`FlatMapMapDataset`"
    return next(filter(None, map(_leaving_out, ds.parents)), None)


def _check_dense(ds: MapDataset[Element]) -> None:
    """A batch of elements of which some may be missing has no shape."""
    if name := _leaving_out(ds):
        raise ValueError(
            f"`MapDataset.batch` can not follow {name}, which may leave elements out: write "
            ".to_iter_dataset() before .batch(...)."
        )
