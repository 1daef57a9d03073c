"""Batches for both kinds of dataset; a batch is one gather if all nodes below only move rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from loaderx.compat.grain.function_nodes import FilterMapDataset, FlatMapMapDataset
from loaderx.compat.grain.graph import DatasetNode, walk
from loaderx.compat.grain.indices import Indices, as_ints
from loaderx.compat.grain.iter_dataset import IterNode
from loaderx.compat.grain.iterator import NodeIterator
from loaderx.compat.grain.map_dataset import MapDataset, MapNode
from loaderx.compat.grain.protocols import Element, ShapeDtypeStruct, Spec
from loaderx.compat.grain.stacking import buffers, make_batch
from loaderx.compat.grain.trees import map_structure

T = TypeVar("T")


class BatchNode(DatasetNode):
    """Common base of both kinds: the size, the function, and the spec of batches."""

    _shown = ("batch_size", "drop_remainder")

    def __init__(
        self,
        parent: DatasetNode,
        batch_size: int,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Element]], Element] | None = None,
    ) -> None:
        super().__init__(parent)
        if batch_size <= 0:
            raise ValueError(f"batch_size must be positive, got {batch_size}.")
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder
        self._batch_fn: Callable[[Sequence[Element]], Element] = batch_fn or make_batch

    @property
    def _element_spec(self) -> Spec:
        """The number of rows is None unless it is the same in all batches."""
        below, size, drops = self._parents[0]._element_spec, self._batch_size, self._drop_remainder
        function: Element = self._batch_fn
        if hasattr(function, "output_spec"):
            return function.output_spec(below, size, drops)
        if function is not make_batch:
            raise NotImplementedError(
                "the spec of a batch is not known: `batch_fn` has no method output_spec."
            )
        rows = size if drops else None
        return map_structure(lambda x: ShapeDtypeStruct((rows, *x.shape), x.dtype), below)


class BatchMapDataset(BatchNode, MapNode[T]):
    """Consecutive elements of an epoch, stacked."""

    def __init__(
        self,
        parent: MapDataset[Element],
        batch_size: int,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Element]], Element] | None = None,
    ) -> None:
        super().__init__(parent, batch_size, drop_remainder, batch_fn)
        _check_dense(parent)
        self._parent_length = len(parent)
        if drop_remainder:
            self._length = self._parent_length // batch_size
        else:
            self._length = math.ceil(self._parent_length / batch_size)
        self._stacks_rows = batch_fn is None and parent._gathers

    def _item(self, index: int) -> Element:
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
        # One call for all batches keeps the threads busy that read a source which waits.
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


class _BatchIterator(NodeIterator[T]):
    """Takes elements one by one, or as rows of arrays if the parent has `take_rows`."""

    def __init__(self, ds: BatchIterDataset[T]) -> None:
        super().__init__(ds)
        parent: Element = self._parents[0]
        # `take_rows` gives the next elements stacked, read in this process or in workers.  It
        # raises StopIteration if no elements are left, or too few for a batch.
        gives_rows = getattr(parent, "gathers", False) and ds._batch_fn is make_batch
        self._rows = parent.take_rows if gives_rows else None

    def __next__(self) -> Element:
        ds = self._ds
        if self._rows is not None:
            return self._rows(ds._batch_size, ds._drop_remainder)
        pull = self._pull
        values: list[Element] = []
        try:
            for _ in range(ds._batch_size):
                values.append(pull())  # noqa: PERF401 (what came before the end is kept)
        except StopIteration:
            if ds._drop_remainder or not values:
                raise
        return ds._batch_fn(values)

    def _get_next_index(self) -> int:
        return -(-self._parent._get_next_index() // self._ds._batch_size)  # type: ignore[no-any-return]

    def _set_next_index(self, index: int) -> None:
        self._parent._set_next_index(index * self._ds._batch_size)


class BatchIterDataset(BatchNode, IterNode[T]):
    """Consecutive elements, stacked."""

    _iterator = _BatchIterator


def is_dense(ds: MapDataset[Element]) -> bool:
    """Whether no element is left out."""
    return _leaving_out(ds) is None


def _leaving_out(ds: MapDataset[Element]) -> str | None:
    for node in walk(ds):
        if isinstance(node, FilterMapDataset):
            return "`MapDataset.filter`"
        if isinstance(node, FlatMapMapDataset):
            return "`FlatMapMapDataset`"
    return None


def _check_dense(ds: MapDataset[Element]) -> None:
    """Raises if elements may be left out: the shape of a batch would not be known."""
    if name := _leaving_out(ds):
        raise ValueError(
            f"`MapDataset.batch` can not follow {name}, which may leave elements out: write "
            ".to_iter_dataset() before .batch(...)."
        )
