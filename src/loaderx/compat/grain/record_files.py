"""Files that are read in order: TFRecord and Parquet."""

from __future__ import annotations

import builtins
import struct
from collections.abc import Sequence
from importlib import import_module
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from loaderx import FileError, MissingPackageError
from loaderx.compat.grain.interleave import InterleaveIterDataset
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.protocols import Element, State

_FILES_AT_A_TIME = 16
_HEAD = struct.Struct("<QI")  # the length of a record, and a checksum
_CHECKSUM_BYTES = 4


class _TFRecordIterator(DatasetIterator[bytes]):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._file: BinaryIO = open(path, "rb")  # noqa: SIM115 (closed by `close`)

    def __next__(self) -> bytes:
        self._assert_not_closed()
        start = self._file.tell()
        head = self._file.read(_HEAD.size)
        if not head:
            raise StopIteration
        if len(head) < _HEAD.size:
            raise self._damaged(start)
        length, _ = _HEAD.unpack(head)
        data = self._file.read(length + _CHECKSUM_BYTES)
        if len(data) < length + _CHECKSUM_BYTES:
            raise self._damaged(start)
        return data[:length]

    def _damaged(self, start: int) -> FileError:
        return FileError(
            f"{self._path} is not a valid TFRecord file: the record at byte {start} is cut short."
        )

    def get_state(self) -> State:
        return {"reader_offset": self._file.tell()}

    def set_state(self, state: State) -> None:
        self._file.seek(state["reader_offset"])

    def close(self) -> None:
        super().close()
        self._file.close()

    def __del__(self) -> None:
        if file := self.__dict__.get("_file"):
            file.close()


class TFRecordIterDataset(IterDataset[bytes]):
    """The records of a TFRecord file, as bytes.  Checksums are not verified."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def __iter__(self) -> DatasetIterator[bytes]:
        return _TFRecordIterator(self._path)


class _ParquetIterator(DatasetIterator[dict[str, Element]]):
    """Reads a row group at a time."""

    def __init__(self, path: str, options: dict[str, Element]) -> None:
        super().__init__()
        try:
            parquet = import_module("pyarrow.parquet")
        except ImportError as error:
            raise MissingPackageError(
                "ParquetIterDataset needs pyarrow: pip install 'loaderx-jax[parquet]'"
            ) from error
        self._file = parquet.ParquetFile(path, **options)
        self._group = self._row = 0
        self._columns: dict[str, NDArray[np.generic]] | None = None
        self._rows = 0

    def _read_group(self) -> dict[str, NDArray[np.generic]]:
        table = self._file.read_row_group(self._group)
        self._rows = len(table)
        return {name: table.column(name).to_numpy() for name in table.column_names}

    def __next__(self) -> dict[str, Element]:
        self._assert_not_closed()
        while True:
            if self._columns is None:
                if self._group >= self._file.num_row_groups:
                    raise StopIteration
                self._columns = self._read_group()
            if self._row < self._rows:
                break
            if self._group >= self._file.num_row_groups - 1:
                raise StopIteration
            self._group, self._row, self._columns = self._group + 1, 0, None
        element = {name: column[self._row] for name, column in self._columns.items()}
        self._row += 1
        return element

    def get_state(self) -> State:
        return {"row_group": self._group, "index_within_row_group": self._row}

    def set_state(self, state: State) -> None:
        self._group, self._row = state["row_group"], state["index_within_row_group"]
        self._columns = None


class ParquetIterDataset(IterDataset[dict[str, Element]]):
    """The rows of Parquet files as dicts; several files take turns, 16 at a time.

    Args:
        path: one path, or several.
        read_kwargs: passed to `pyarrow.parquet.ParquetFile`.
    """

    def __init__(self, path: str | Sequence[str], **read_kwargs: Element) -> None:
        super().__init__()
        self._paths = [path] if isinstance(path, (str, bytes)) else list(path)
        self._read_kwargs = read_kwargs

    def __iter__(self) -> DatasetIterator[dict[str, Element]]:
        if len(self._paths) == 1:
            return _ParquetIterator(self._paths[0], self._read_kwargs)
        files = [ParquetIterDataset(path, **self._read_kwargs) for path in self._paths]
        return InterleaveIterDataset(files, cycle_length=_FILES_AT_A_TIME).__iter__()

    def set_slice(self, sl: builtins.slice, sequential_slice: bool = False) -> None:
        """Keeps some of the files."""
        self._paths = self._paths[sl]
