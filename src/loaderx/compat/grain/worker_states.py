"""States of a pipeline in workers, as Grain has them: an interleave of what each worker reads.

One worker reads all.  Of several, worker *w* of *W* reads elements *w*, *w* + *W*, ...: where each
element comes of one element of the source, that is the order without workers, and states mean the
same.  Elsewhere Grain's order is another, and its states cannot be continued here.
"""

from __future__ import annotations

from typing import TypeVar

from loaderx.compat.grain.batch_nodes import is_dense
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iter_functions import MapIterDataset, ParentStateIterator
from loaderx.compat.grain.iterator import (
    DatasetIterator,
    get_next_index,
    of_workers,
    set_next_index,
    worker_positions,
)
from loaderx.compat.grain.protocols import State
from loaderx.compat.grain.read_iterator import PrefetchIterDataset

T = TypeVar("T")


def in_workers(ds: IterDataset[T], iterator: DatasetIterator[T], count: int) -> DatasetIterator[T]:
    """An iterator of the pipeline, with the states of so many workers where they can be had."""
    one_for_one = _is_one_for_one(ds)
    return iterator if count > 1 and not one_for_one else _InWorkers(iterator, count, one_for_one)


def _is_one_for_one(ds: IterDataset[T]) -> bool:
    while type(ds) is MapIterDataset:
        ds = ds._parent
    return type(ds) is PrefetchIterDataset and (ds._allow_nones or is_dense(ds.map_dataset))


class _InWorkers(ParentStateIterator[T]):
    def __init__(self, parent: DatasetIterator[T], count: int, one_for_one: bool) -> None:
        super().__init__(parent)
        self._count = count
        self._one_for_one = one_for_one

    def __next__(self) -> T:
        return self._pull()  # type: ignore[no-any-return]

    def get_state(self) -> State:
        inner, count = self._parent.get_state(), self._count
        states, position = [inner], 0
        if count > 1:
            position = inner["next_index"]
            states = [{"next_index": at} for at in worker_positions(position, count)]
        return {
            "next_index_in_cycle": position % count,
            "next_index_in_datasets": count,
            "iterators_in_use_indices": [*range(count)],
            "iterators_in_use_states": states,
            "exhausted": [0] * count,
            "future_states": {},
        }

    def set_state(self, state: State) -> None:
        self._parent.set_state(of_workers(self._parent, state, one_for_one=self._one_for_one))

    def _get_next_index(self) -> int:
        return get_next_index(self._parent)

    def _set_next_index(self, index: int) -> None:
        set_next_index(self._parent, index)

    def __str__(self) -> str:
        return str(self._parent)
