"""The records of a `DataLoader` in order, for operations that run one after the other.

Grain calls the operations of a loader in the caller's thread, record by record: they may keep
something between two records.  Here as well.  Only reading the source goes ahead, in blocks.
"""

from __future__ import annotations

from loaderx.compat.grain.element_work import Rows
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.options import ReadOptions
from loaderx.compat.grain.protocols import Element, State
from loaderx.compat.grain.read_iterator import PrefetchDatasetIterator
from loaderx.compat.grain.sampled import Failure, SampledRecords


def options_for_blocks(options: ReadOptions, size: int) -> ReadOptions:
    """Options for blocks of records: a buffer of 500 records is one of a few blocks."""
    buffered = -(-options.prefetch_buffer_size // size)
    return ReadOptions(min(options.num_threads, buffered), buffered)


def block_size(options: ReadOptions, size: int) -> int:
    """How many of ``size`` records to read at once, for every thread to have a block to read."""
    if not options.num_threads or not options.prefetch_buffer_size:
        return size
    return max(1, min(size, options.prefetch_buffer_size // options.num_threads))


class RecordsIterDataset(IterDataset[Element]):
    """Records in order, or their data alone if ``bare``; up to ``size`` are read at once."""

    def __init__(
        self, ds: SampledRecords, read_options: ReadOptions, size: int, *, bare: bool
    ) -> None:
        super().__init__(ds)
        self._records = ds
        self._size = block_size(read_options, size)
        self._bare = bare
        self._read_options = options_for_blocks(read_options, self._size)

    def __iter__(self) -> DatasetIterator[Element]:
        return _RecordsIterator(self._records, self._read_options, self._size, self._bare)


class _RecordsIterator(DatasetIterator[Element]):
    """Its position is that of the next record."""

    def __init__(
        self, ds: SampledRecords, read_options: ReadOptions, size: int, bare: bool
    ) -> None:
        super().__init__()
        self._ds, self._read_options, self._size, self._bare = ds, read_options, size, bare
        self._go_to(0)

    def _go_to(self, index: int) -> None:
        self._next_index = index
        self._block: list[Element] = []  # the next record last
        blocks = _Blocks(self._ds, index, self._size, self._bare)
        self._reader = PrefetchDatasetIterator(blocks, self._read_options, allow_nones=False)

    def __next__(self) -> Element:
        self._assert_not_closed()
        if not self._block:
            self._block = next(self._reader)[::-1]
        record = self._block.pop()
        self._next_index += 1
        if type(record) is Failure:
            raise record.error
        return record

    def get_state(self) -> State:
        """The number of the next record."""
        return {"next_index": self._next_index}

    def set_state(self, state: State) -> None:
        """Goes on where the state was taken."""
        self._reader.close()
        self._go_to(state["next_index"])

    def start_prefetch(self) -> None:
        """Begins to read."""
        self._reader.start_prefetch()

    def close(self) -> None:
        """Ends the threads that read."""
        super().close()
        self._reader.close()


class _Blocks(Rows):
    """Lists of what comes of reading consecutive records."""

    def __init__(self, ds: SampledRecords, start: int, size: int, bare: bool) -> None:
        super().__init__(ds, start, size, len(ds))
        self._records, self._bare = ds, bare

    def _made(self, rows: range) -> Element:
        return self._records.outcomes(rows, bare=self._bare)
