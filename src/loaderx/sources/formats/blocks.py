"""Files that must be decoded in blocks: copied once into the native layout, or read in order.

A block (a row group, a compressed batch) must be decoded whole, so records in random order cost a
thousand times what they should.  One pass over all blocks costs less than an epoch of any other way
to read them, so that is done first: the columns are decoded into the cache folder, and read from
there ever after.  With ``cache=False`` nothing is copied, and a global shuffle is refused.
"""

from __future__ import annotations

import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.sources.column_data import ColumnData, DataArrays, build_column
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.native import open_native
from loaderx.sources.native_copies import CopiedFiles, write_copy
from loaderx.sources.ondisk.cache import Json
from loaderx.sources.parts import Parts
from loaderx.sources.table import ColumnTree, TableSource

_VERSION = 1
_KEPT_BYTES = 1 << 28  # of blocks that were decoded last
_LOCKS = 16


class BlockFiles(CopiedFiles, Protocol):
    """The shards of a dataset, whose records are decoded in blocks."""

    group_rows: npt.NDArray[np.int64]  # records of each block

    def column(self, number: int, name: str) -> ColumnData:
        """One column of a block."""
        ...


OpenBlocks: TypeAlias = Callable[[], BlockFiles]


def open_blocks(
    open_files: OpenBlocks, files: list[str], options: OpenOptions, label: str
) -> TableSource:
    """The records of files that are decoded in blocks; ``label`` is the name of the format."""
    if not options.cache.makes_copies:
        return BlockSource(open_files(), files, options, label)
    folder = _copied(open_files, files, options, label)
    try:
        return open_native(folder, options, label)
    except FileError:  # the copy is damaged: it is made again
        shutil.rmtree(folder, ignore_errors=True)
        return open_native(_copied(open_files, files, options, label), options, label)


# With a copy ------------------------------------------------------------------------------------


def _copied(open_files: OpenBlocks, files: list[str], options: OpenOptions, label: str) -> str:
    """The folder that has the columns in the native layout; it is made if it is not there."""
    columns: Json = None if options.columns is None else list(options.columns)
    fill: Json = {name: repr(value) for name, value in sorted(options.fill.items())}

    def make(folder: str) -> None:
        write_copy(
            open_files(), files, folder, label=label.capitalize(), cache=options.cache.folder
        )

    return options.cache.copy("copied", _VERSION, files, make, [label, columns, fill])


# Without one ------------------------------------------------------------------------------------


class BlockSource(TableSource):
    """Records straight from blocks: those that were decoded last are kept."""

    is_mapped = False

    def __init__(
        self, found: BlockFiles, files: list[str], options: OpenOptions, label: str
    ) -> None:
        parts = Parts(found.group_rows)
        kept = _KeptBlocks(found)
        columns: ColumnTree = {
            name: build_column(
                kind, parts, DataArrays(_ColumnOf(kept, name)), decode=options.decode
            )
            for name, kind in found.kinds.items()
        }
        super().__init__(
            columns,
            len(parts),
            label=label,
            classes=found.classes,
            shard_counts=found.counts,
            shard_names=files,
        )

    @property
    def random_access(self) -> bool:
        return False


class _KeptBlocks:
    """Columns of blocks by their number, decoded when they are asked for."""

    def __init__(self, files: BlockFiles) -> None:
        self._files = files
        self._begin()

    def _begin(self) -> None:
        self._kept: OrderedDict[tuple[int, str], ColumnData] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()
        # Threads that want the same block wait for one of them; others go on.
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def column(self, number: int, name: str) -> ColumnData:
        key = (number, name)
        found = self._find(key)
        if found is not None:
            return found
        with self._locks[hash(key) % _LOCKS]:
            found = self._find(key)
            if found is None:
                found = self._files.column(number, name)
                _protect(found)  # views of it are handed out
                self._keep(key, found)
        return found

    def _find(self, key: tuple[int, str]) -> ColumnData | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        return found

    def _keep(self, key: tuple[int, str], found: ColumnData) -> None:
        with self._lock:
            self._kept[key] = found
            self._nbytes += found.nbytes
            while self._nbytes > _KEPT_BYTES and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self._nbytes -= oldest.nbytes

    def __getstate__(self) -> dict[str, object]:
        return {"_files": self._files}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()


def _protect(data: ColumnData) -> None:
    """Makes the arrays read-only."""
    for array in (data.values, data.offsets):
        if array is not None:
            array.flags.writeable = False
    for field in data.fields.values():
        _protect(field)


class _ColumnOf:
    def __init__(self, blocks: _KeptBlocks, name: str) -> None:
        self._blocks, self._name = blocks, name

    def __call__(self, number: int) -> ColumnData:
        return self._blocks.column(number, self._name)
