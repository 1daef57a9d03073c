"""Batches of an `IterDataset`, and batches cut to another size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from loaderx.compat.grain.batch_nodes import batch_spec, check_batch_size
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iter_functions import ParentStateIterator
from loaderx.compat.grain.iterator import DatasetIterator, get_next_index, set_next_index
from loaderx.compat.grain.protocols import Element, Spec, State
from loaderx.compat.grain.registry import node
from loaderx.compat.grain.stacking import make_batch
from loaderx.compat.grain.trees import flatten, map_structure, unflatten_as

T = TypeVar("T")


@node("iter.batch")
class BatchIterDataset(IterDataset[T]):
    """Consecutive elements, stacked."""

    def __init__(
        self,
        parent: IterDataset[Element],
        batch_size: int,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Element]], T] | None = None,
    ) -> None:
        super().__init__(parent)
        check_batch_size(batch_size)
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder
        self._batch_fn: Callable[[Sequence[Element]], Element] = batch_fn or make_batch

    def __iter__(self) -> DatasetIterator[T]:
        return BatchIterator(
            self._parent.__iter__(), self._batch_size, self._drop_remainder, self._batch_fn
        )

    @property
    def _element_spec(self) -> Spec:
        return batch_spec(
            self._parent._element_spec, self._batch_size, self._drop_remainder, self._batch_fn
        )

    def __str__(self) -> str:
        return (
            f"BatchIterDataset(batch_size={self._batch_size}, "
            f"drop_remainder={self._drop_remainder})"
        )


@runtime_checkable
class GivesRows(Protocol):
    """An iterator that can give a batch without giving its elements."""

    @property
    def gathers(self) -> bool:
        """Can it, in fact?"""

    def take_rows(self, count: int, drop_remainder: bool) -> Element:
        """The next elements stacked; StopIteration if there are none, or too few."""


class BatchIterator(ParentStateIterator[T]):
    """Takes elements one by one, or as rows of arrays where the parent can give them so."""

    def __init__(
        self,
        parent: DatasetIterator[Element],
        batch_size: int,
        drop_remainder: bool,
        batch_fn: Callable[[Sequence[Element]], Element],
    ) -> None:
        super().__init__(parent)
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder
        self._batch_fn = batch_fn
        # Of a pipeline read in this process, or in workers.
        gives_rows = isinstance(parent, GivesRows) and parent.gathers and batch_fn is make_batch
        self._rows = parent.take_rows if gives_rows else None  # type: ignore[attr-defined]

    def __next__(self) -> Element:
        if self._rows is not None:
            return self._rows(self._batch_size, self._drop_remainder)
        pull = self._pull
        values: list[Element] = []
        try:
            for _ in range(self._batch_size):
                values.append(pull())  # noqa: PERF401 (what came before the end is kept)
        except StopIteration:
            if self._drop_remainder or not values:
                raise
        return self._batch_fn(values)

    def _get_next_index(self) -> int:
        return -(-get_next_index(self._parent) // self._batch_size)

    def _set_next_index(self, index: int) -> None:
        set_next_index(self._parent, index * self._batch_size)


class RebatchIterDataset(IterDataset[T]):
    """Batches of another size, cut from batches."""

    def __init__(
        self, parent: IterDataset[T], batch_size: int, drop_remainder: bool = False
    ) -> None:
        super().__init__(parent)
        check_batch_size(batch_size)
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder

    def __iter__(self) -> DatasetIterator[T]:
        return _RebatchIterator(self._parent.__iter__(), self._batch_size, self._drop_remainder)

    @property
    def _element_spec(self) -> Spec:
        def cut(spec: Spec) -> Spec:
            if not hasattr(spec, "shape") or not hasattr(spec, "dtype"):
                return spec
            return type(spec)(shape=(self._batch_size, *spec.shape[1:]), dtype=spec.dtype)

        return map_structure(cut, self._parent._element_spec)

    def __str__(self) -> str:
        return (
            f"RebatchIterDataset(batch_size={self._batch_size}, "
            f"drop_remainder={self._drop_remainder})"
        )


class _RebatchIterator(DatasetIterator[T]):
    """Its state is that of the parent before the batch in use, and the rows used of that batch."""

    def __init__(self, parent: DatasetIterator[T], batch_size: int, drop_remainder: bool) -> None:
        super().__init__(parent)
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder
        self._leaves: list[Element] | None = None  # of the batch in use
        self._structure: Element = None
        self._used = 0
        self._before = self._parent.get_state()

    def get_state(self) -> State:
        """The state before the batch in use, and the rows used of it."""
        return {"parent": self._before, "batch_idx": self._used}

    def set_state(self, state: State) -> None:
        """Goes on where the state was taken; the batch there is made again."""
        self._parent.set_state(state["parent"])
        self._before = self._parent.get_state()
        self._used = state["batch_idx"]
        self._leaves = None

    def __next__(self) -> Element:
        missing = self._batch_size
        pieces: list[list[Element]] = []
        while missing > 0:
            if self._leaves is None or self._used >= len(self._leaves[0]):
                try:
                    self._advance()
                except StopIteration:
                    if self._drop_remainder:
                        raise
                    break
            assert self._leaves is not None
            until = min(self._used + missing, len(self._leaves[0]))
            pieces.append([leaf[self._used : until] for leaf in self._leaves])
            missing -= until - self._used
            self._used = until
        if not pieces:
            raise StopIteration
        joined = [
            parts[0] if len(parts) == 1 else np.concatenate(parts)
            for parts in zip(*pieces, strict=True)
        ]
        return unflatten_as(self._structure, joined)

    def _advance(self) -> None:
        """The next batch of the parent; after a restore, some of its rows are used already."""
        is_first = self._leaves is None
        before = self._parent.get_state()
        self._before = before
        element = next(self._parent)
        if self._structure is None:
            self._structure = element
        self._leaves = flatten(element)
        self._used = self._used if is_first else 0
        if not len(self._leaves[0]):
            raise ValueError("a batch without rows cannot be cut into others.")
