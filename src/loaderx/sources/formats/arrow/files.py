"""Arrow IPC files and streams: their record batches, and an index of where these lie.

pyarrow reads the schema and the messages.  An uncompressed file needs nothing else: the
addresses of all buffers are kept in the cache folder, and records are read from the mapped file.
Others (compressed, or with dictionaries or views) are decoded batch by batch.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.sources.cache.folder import CacheFolder, FileIndex, IndexedFile
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.formats.arrow.addresses import Addresses, Node, NotMappedError, node_of
from loaderx.sources.formats.arrow.types import import_pyarrow
from loaderx.sources.formats.heads import ARROW_FILE, ARROW_STREAM, OLD_FEATHER
from loaderx.sources.mapping import reading
from loaderx.tree import Array

if TYPE_CHECKING:
    import pyarrow as pa

_END = ARROW_STREAM + b"\0\0\0\0"
_VERSION = 1


class ArrowReader:
    """The record batches of one file, in order."""

    def __init__(self, data: Array, path: str, fields: Sequence[int] | None = None) -> None:
        """``fields`` are the numbers of the columns to read; None for all of them."""
        import pyarrow as pa

        self._data, self._path = data, path
        head = bytes(data[:8])
        if head.startswith(OLD_FEATHER):
            raise FileError(
                f"{path} is a Feather file of version 1, which is not Arrow: write it again with "
                "pyarrow.feather.write_feather."
            )
        self._is_file = head.startswith(ARROW_FILE)
        self._input = pa.BufferReader(pa.py_buffer(data))
        options = pa.ipc.IpcReadOptions(
            use_threads=False, included_fields=[] if fields is None else list(fields)
        )
        kind = pa.ipc.open_file if self._is_file else pa.ipc.open_stream
        self._reader = kind(self._input, options=options)
        self.schema: pa.Schema = self._reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches that have records; their lengths and buffers are checked."""
        for batch in self._file() if self._is_file else self._stream():
            if len(batch):
                batch.validate()
                yield batch

    def _file(self) -> Iterator[pa.RecordBatch]:
        for number in range(self._reader.num_record_batches):
            yield self._reader.get_batch(number)

    def _stream(self) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                yield self._reader.read_next_batch()
            except StopIteration:
                break
        # A stream may be cut off between two batches: only its end mark shows that it is whole.
        end = self._input.tell()
        if bytes(self._data[max(0, end - 8) : end]) != _END:
            raise FileError(
                f"{self._path} is cut off: its end mark is missing. If it is whole, write it again "
                "with a writer that closes the stream."
            )
        if end < len(self._data):
            raise FileError(
                f"{self._path} has {len(self._data) - end} bytes behind the end of the stream."
            )


# The index --------------------------------------------------------------------------------------


class ArrowFile(NamedTuple):
    """The index of one file."""

    schema: pa.Schema
    is_mapped: bool
    slots: npt.NDArray[np.int64]  # [batch, slot] of all columns
    columns: dict[str, range]  # the slots of each column; none for those that cannot be mapped


class ArrowIndex:
    """Where the batches of all files lie."""

    def __init__(self, files: FileSet, cache: CacheFolder) -> None:
        import_pyarrow("an Arrow file")
        self._files = files
        self._found: FileIndex = cache.index("arrow", _VERSION, files, self._indexed)
        self.batches = self._counts("rows")
        self.rows = self._array("rows")

    def _array(self, name: str) -> npt.NDArray[np.int64]:
        return self._found.arrays.get(name, np.empty(0, np.int64))

    def _counts(self, name: str) -> npt.NDArray[np.int64]:
        parts = self._found.parts.get(name)
        return np.zeros(len(self._files), np.int64) if parts is None else parts.counts

    def _indexed(self, number: int) -> IndexedFile:
        path, data = self._files.paths[number], self._files.data(number)
        with reading(path):
            reader = ArrowReader(data, path)
            schema = base64.b64encode(reader.schema.serialize().to_pybytes()).decode()
            nodes = _nodes(reader.schema)
            try:
                rows, slots = _find(reader, nodes, data)
            except NotMappedError:
                return IndexedFile({}, {"schema": schema, "mapped": False})
        return IndexedFile({"rows": rows, "slots": slots}, {"schema": schema, "mapped": True})

    def files(self) -> Iterator[ArrowFile]:
        """The index of each file."""
        import pyarrow as pa

        starts = np.cumsum(self._counts("slots")) - self._counts("slots")
        text, schema, columns = None, pa.schema([]), {}
        for number, note in enumerate(self._found.notes):
            assert isinstance(note, dict)
            if note["schema"] != text:  # most shards have the same
                text = note["schema"]
                schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(str(text))))
                columns = _column_slots(_nodes(schema))
            start, count = int(starts[number]), int(self._counts("slots")[number])
            slots = self._array("slots")[start : start + count]
            width = sum(map(len, columns.values()))
            rows = int(self.batches[number])
            table = slots.reshape(rows, width) if rows * width == len(slots) else slots[:0]
            yield ArrowFile(schema, bool(note["mapped"]), table, columns)


def _nodes(schema: pa.Schema) -> dict[str, Node]:
    """The layout of each column that can be read in place."""
    found = {field.name: node_of(field.type) for field in schema}
    return {name: node for name, node in found.items() if node is not None}


def _column_slots(nodes: dict[str, Node]) -> dict[str, range]:
    found, at = {}, 0
    for name, node in nodes.items():
        found[name] = range(at, at + node.slots)
        at += node.slots
    return found


def _find(
    reader: ArrowReader, nodes: dict[str, Node], data: Array
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The number of rows of each batch, and its slots."""
    addresses = Addresses(data.ctypes.data if len(data) else 0, len(data))
    numbers = {name: number for number, name in enumerate(reader.schema.names)}
    places = {numbers[name]: node for name, node in nodes.items()}
    rows: list[int] = []
    slots: list[npt.NDArray[np.int64]] = []
    for batch in reader.batches():
        rows.append(len(batch))
        found: list[int] = []
        for place, node in places.items():
            found.extend(addresses.slots(batch.column(place), node))
        slots.append(np.array(found, np.int64))
    joined = np.concatenate(slots) if slots else np.empty(0, np.int64)
    return np.array(rows, np.int64), joined
