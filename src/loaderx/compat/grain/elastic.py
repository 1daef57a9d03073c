"""`ElasticIterator`: continues with another number of processes, or another batch size.

All processes have the same state: the number of records that all of them together have used.
"""

from __future__ import annotations

from loaderx import ArgumentError, ChainError
from loaderx.compat.grain.batch_nodes import is_dense
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.options import MultiprocessingOptions, ReadOptions
from loaderx.compat.grain.protocols import Element, State
from loaderx.compat.grain.sharding import ShardOptions

_STATE = "global_next_index"


class ElasticIterator(IterDataset[Element], DatasetIterator[Element]):  # type: ignore[misc]
    """This process's part of each batch of a dataset that is neither batched nor sharded.

    It is its own iterator.

    Args:
        ds: the dataset.
        global_batch_size: the size of the batch of all processes together.
        shard_options: this process, and the number of processes.
        read_options: how records are read.
        multiprocessing_options: worker processes.
    """

    def __init__(
        self,
        ds: MapDataset[Element],
        global_batch_size: int,
        shard_options: ShardOptions,
        *,
        read_options: ReadOptions | None = None,
        multiprocessing_options: MultiprocessingOptions | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(ds, MapDataset):
            raise ChainError("ElasticIterator takes a MapDataset: an element needs a number.")
        if not is_dense(ds):
            raise ChainError(
                "ElasticIterator cannot follow a filter or a flat map: the number of records "
                "before an element would not be known. Change the source beforehand."
            )
        self._ds = ds
        self._global_batch_size = global_batch_size
        self._shard_options = shard_options
        self._read_options = read_options or ReadOptions()
        self._multiprocessing_options = multiprocessing_options
        self._next = 0  # the number of records that all processes together have used
        self._running: DatasetIterator[Element] | None = None

    def _batches(self, start: int) -> IterDataset[Element]:
        shard = self._shard_options
        size, rest = divmod(self._global_batch_size, shard.shard_count)
        if rest:
            raise ArgumentError(
                f"a global batch of {self._global_batch_size} cannot be divided evenly among "
                f"{shard.shard_count} shards."
            )
        records = self._ds[start + shard.shard_index :: shard.shard_count]
        batches: IterDataset[Element] = records.batch(size, drop_remainder=True).to_iter_dataset(
            self._read_options
        )
        if self._multiprocessing_options is not None:
            batches = batches.mp_prefetch(self._multiprocessing_options)
        return batches

    def __iter__(self) -> ElasticIterator:
        return self

    def __next__(self) -> Element:
        self._assert_not_closed()
        if self._running is None:
            self._running = self._batches(self._next).__iter__()
        element = next(self._running)
        self._next += self._global_batch_size
        return element

    def get_state(self) -> State:
        """The number of records that all processes together have used."""
        return {_STATE: self._next}

    def set_state(self, state: State) -> None:
        """Continues where the state was taken, by any number of processes."""
        self._next = int(state[_STATE])
        self._stop()

    def close(self) -> None:
        """Ends all work in the background."""
        super().close()
        self._stop()

    def _stop(self) -> None:
        if self._running is not None:
            self._running.close()
        self._running = None
