"""Arrow files that cannot be read in place: their record batches are decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from loaderx.errors import FileError
from loaderx.locks import new_lock
from loaderx.sources.columns.data import ColumnData
from loaderx.sources.columns.gaps import keeping
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.arrow.columns import arrow_columns
from loaderx.sources.formats.arrow.files import ArrowReader
from loaderx.sources.formats.arrow.shard_types import ShardTypes
from loaderx.sources.formats.arrow.types import Features, import_pyarrow, number_type
from loaderx.sources.formats.blocks import BlockFiles
from loaderx.sources.mapping import reading

if TYPE_CHECKING:
    import pyarrow as pa


class _Block(NamedTuple):
    file: int
    number: int  # of those in the file that have records
    rows: int


class ArrowBlocks(BlockFiles):
    """Record batches of files with the same columns, decoded."""

    def __init__(
        self,
        files: FileSet,
        options: OpenOptions,
        features: Features | None = None,
    ) -> None:
        import_pyarrow("an Arrow file")
        self._files, self._fill, self.shards = files, options.fill, files.paths
        self.counts: list[int] = []
        self.nbytes = sum(files.sizes)
        self._blocks: list[_Block] = []
        types: ShardTypes | None = None
        for number, path in enumerate(files.paths):
            with reading(path):
                schema = ArrowReader(files.data(number), path).schema
                if types is None:
                    types = ShardTypes(schema, path, options.columns, features)
                else:
                    types.add(schema, path)
                self._count(number, types.names)
        assert types is not None
        self._names, self.classes = types.names, types.classes
        self.kinds = keeping(types.kinds, options)
        if not self._blocks:
            raise FileError(f"{files.paths[0]}: there are no records.")
        self.group_rows = np.array([block.rows for block in self._blocks], np.int64)
        self._begin()

    def _begin(self) -> None:
        self._open: dict[int, _Position] = {}
        self._lock = new_lock()

    def _count(self, number: int, names: list[str]) -> None:
        """Finds the lengths of the batches of a file; one column of each is decoded for that."""
        schema = ArrowReader(self._files.data(number), self._files.paths[number]).schema
        cheap = [name for name in names if number_type(schema.field(name).type) is not None]
        batches = self._reader(number, [*cheap, *names][:1]).batches()
        rows = [len(batch) for batch in batches]
        self._blocks += [_Block(number, at, count) for at, count in enumerate(rows)]
        self.counts.append(sum(rows))

    def _reader(self, number: int, names: list[str]) -> ArrowReader:
        data, path = self._files.data(number), self._files.paths[number]
        have = ArrowReader(data, path).schema.names
        return ArrowReader(data, path, [have.index(name) for name in names])

    def block(self, number: int) -> dict[str, ColumnData]:
        block = self._blocks[number]
        path = self._files.paths[block.file]
        with reading(path):
            batch = self._batch(block)
            if len(batch) != block.rows:
                raise FileError(f"{path} has changed: a batch has {len(batch)} records.")
            return arrow_columns(batch, self._names, self.kinds, self._fill, path)

    def _batch(self, block: _Block) -> pa.RecordBatch:
        """A stream is read on from its position, or again from its beginning."""
        with self._lock:
            position = self._open.pop(block.file, None)
        if position is None or position.number > block.number:
            position = _Position(0, self._reader(block.file, self._names).batches())
        for number in range(position.number, block.number + 1):
            batch = next(position.batches, None)
            if batch is None:
                raise FileError(f"{self._files.paths[block.file]} has changed: batch {number}.")
        with self._lock:
            self._open[block.file] = _Position(block.number + 1, position.batches)
        return batch

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_open", "_lock")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()


class _Position(NamedTuple):
    number: int  # of the next batch
    batches: Iterator[pa.RecordBatch]
