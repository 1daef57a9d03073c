"""A folder that ``.cache(path)`` fills with records as they are made, in any order.

::

    folder/.filling/
      begun.json           the dataset, the number of records, the records of a part
      1234-0a1b2c3d.rows   the rows that one process has made (`row_files`)

Each process looks at the files of the others from time to time, so that it repeats little of their
work; a record that two have made is stored twice, with equal contents.  When all records are there,
the first process to notice writes the parts and ``loaderx.json`` (`row_parts`), and removes
``.filling``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import threading
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.frozen import Frozen
from loaderx.sources.base import ForWorkers, Indices
from loaderx.sources.cache.folder import Json
from loaderx.sources.columns.data import ColumnType
from loaderx.sources.columns.pick import Piece, gathered
from loaderx.sources.columns.record_columns import Encoded
from loaderx.sources.columns.widening import widened
from loaderx.sources.mapping import reading
from loaderx.sources.native.layout import MARK
from loaderx.sources.native.row_files import Block, RowFile, RowFileWriter
from loaderx.sources.native.save_folder import FILLING, another_dataset
from loaderx.sources.native.save_parts import merged_types

_BEGUN, _ROWS = "begun.json", ".rows"
MOST_MAPPED = 64  # files; descriptors are limited
_MANY_MISSED, _FEW_LEFT, _MANY_LOOKS = 32, 1024, 256  # when to look at the files of others
_MOST_WORKERS = 64  # approximate; each may have as many rows under way as this process

Flags = npt.NDArray[np.bool_]


class Begun(Frozen):
    """The content of ``begun.json``."""

    made_by: Json
    records: int
    part_records: int
    classes: Mapping[str, tuple[str, ...]]


class RowFolder(ForWorkers):
    """The records of a folder by position.  Threads and processes may share it."""

    def __init__(self, folder: str, begun: Begun) -> None:
        self.folder, self.begun = folder, begun
        self.place = os.path.join(folder, FILLING)
        self.kind: ColumnType | None = None  # of all records so far
        self.present = 0
        self.was_removed = False  # a process removes the files once it has saved all records
        self.may_save = True  # False after saving has failed
        self._lock = threading.RLock()
        self._files: dict[str, RowFile] = {}
        self._mapped: dict[str, RowFile] = {}
        self._blocks: list[tuple[RowFile, int]] = []
        self._checked = bytearray()  # for each block, whether its checksum was verified
        # For each record: its block, counted from 1, and its row there.
        self._block_of = np.zeros(begun.records, np.int32)
        self._row_of = np.zeros(begun.records, np.int32)
        self._writer: RowFileWriter | None = None
        self._writing_process = 0
        self._missed = _MANY_MISSED  # rows found missing since the last look at the files
        self._looks = 0

    @property
    def is_complete(self) -> bool:
        return self.present == self.begun.records

    def is_saved(self) -> bool:
        """True if the folder is in the native layout."""
        return os.path.exists(os.path.join(self.folder, MARK))

    # Finding ----------------------------------------------------------------------------------

    def find(self, positions: Indices) -> Flags:
        """Which of these rows are missing; those at negative positions always are."""
        with self._lock:
            is_missing = self.is_missing(positions)
            self._missed += int(is_missing.sum())
            self._looks += 1
            few_left = self.begun.records - self.present <= _FEW_LEFT
            is_due = self._missed >= _MANY_MISSED or few_left
            if (is_due and is_missing.any()) or self._looks >= _MANY_LOOKS:
                self.look()
                is_missing = self.is_missing(positions)
            return is_missing

    def is_missing(self, positions: Indices) -> Flags:
        """Which of these rows are missing, without looking at the files again."""
        is_missing: Flags = (self._block_of[positions] == 0) | (positions < 0)
        return is_missing

    def look(self) -> None:
        """Looks for rows that other processes have made."""
        with self._lock:
            self._missed = self._looks = 0
            try:
                sizes = dict(self._row_files())
            except FileNotFoundError:
                self.was_removed = True
                if self.is_saved():
                    return
                raise FileError(
                    f"{self.place} was removed while .cache(path) was filling it."
                ) from None
            for name, size in sizes.items():
                file = self._files.setdefault(name, RowFile(os.path.join(self.place, name)))
                with contextlib.suppress(FileNotFoundError):
                    for block in file.new_blocks(size):
                        self._add(file, block, is_checked=False)

    def _row_files(self) -> Iterator[tuple[str, int]]:
        with os.scandir(self.place) as entries:
            for entry in entries:
                if entry.name.endswith(_ROWS):
                    yield entry.name, entry.stat().st_size

    def _add(self, file: RowFile, block: Block, *, is_checked: bool) -> None:
        positions = block.positions
        if len(positions) and not 0 <= positions.min() <= positions.max() < self.begun.records:
            raise FileError(f"{file.path} has records that the dataset does not have.")
        self.kind = self._merged(block.kind, positions)
        is_new = self._block_of[positions] == 0
        self._blocks.append((file, block.start))
        self._checked.append(is_checked)
        self._row_of[positions[is_new]] = np.flatnonzero(is_new)
        self._block_of[positions[is_new]] = len(self._blocks)
        self.present += int(is_new.sum())

    def _merged(self, kind: ColumnType, positions: Indices) -> ColumnType:
        told = f"some of the records {positions.min()} to {positions.max()}"
        return merged_types(self.kind, kind, told)

    # Writing ----------------------------------------------------------------------------------

    def put(self, positions: Indices, found: Encoded) -> None:
        """Stores those of the rows that are missing."""
        with self._lock:
            fresh, rows = np.unique(positions, return_index=True)
            is_new = self.is_missing(fresh) & (fresh >= 0)
            fresh, rows = fresh[is_new], rows[is_new]
            if not len(fresh):
                return
            if len(rows) < len(positions):
                piece = Piece(found.data, rows, np.arange(len(rows)))
                found = Encoded(found.kind, gathered(found.kind, [piece], len(rows)))
            else:
                fresh = positions
            try:
                self._append(fresh, found)
            except OSError as error:
                self.was_removed = isinstance(error, FileNotFoundError)
                if self.was_removed and self.is_saved():
                    return  # another process completed it meanwhile
                raise FileError(
                    f"cannot keep records in {self.folder}: {error}. What is there is whole, and a "
                    "later run continues with it."
                ) from error
            # If several processes write the last rows, the last one must see the rows of all.
            left = self.begun.records - self.present
            if 0 < left <= max(_FEW_LEFT, _MOST_WORKERS * len(positions)):
                self.look()

    def _append(self, positions: Indices, found: Encoded) -> None:
        if self._writer is None or self._writing_process != os.getpid():  # not after a fork
            name = f"{os.getpid()}-{secrets.token_hex(4)}{_ROWS}"
            self._writer = RowFileWriter(os.path.join(self.place, name))
            self._writing_process = os.getpid()
            self._files[name] = RowFile(self._writer.path)
        file = self._files[os.path.basename(self._writer.path)]
        self._merged(found.kind, positions)  # raises before rows of another type are written
        self._writer.append(positions, found)
        for block in file.new_blocks(self._writer.end):
            self._add(file, block, is_checked=True)

    # Reading ----------------------------------------------------------------------------------

    def read(self, positions: Indices, kind: ColumnType | None = None) -> Encoded | None:
        """Rows that are there, as columns of a type; by default that of all records so far.

        None if some of them turn out to be damaged or removed: they then count as missing.
        """
        with self._lock:
            kind = kind or self.kind
            assert kind is not None
            pieces = self._pieces(positions, kind)
        if pieces is None:
            return None
        return Encoded(kind, gathered(kind, pieces, len(positions)))

    def _pieces(self, positions: Indices, kind: ColumnType) -> list[Piece] | None:
        numbers = self._block_of[positions]
        order = np.argsort(numbers, kind="stable")
        borders = np.flatnonzero(np.diff(numbers[order], prepend=-1, append=-1)).tolist()
        found: list[Piece] | None = []
        for start, stop in itertools.pairwise(borders):
            places = order[start:stop]
            number = int(numbers[places[0]])
            block = self._block(number)
            if block is None:
                self._remove(number)
                found = None
            elif found is not None:
                rows = self._row_of[positions[places]].astype(np.int64)
                found.append(Piece(widened(block.data, block.kind, kind), rows, places))
        return found

    def _block(self, number: int) -> Encoded | None:
        file, start = self._blocks[number - 1]
        try:
            block = file.read(start, is_checked=bool(self._checked[number - 1]))
        except FileNotFoundError:
            self.was_removed = True
            return None
        self._checked[number - 1] = True
        self._mapped[file.path] = file
        if len(self._mapped) > MOST_MAPPED:
            self._mapped.pop(next(iter(self._mapped))).unmap()
        return block

    def _remove(self, number: int) -> None:
        positions = np.flatnonzero(self._block_of == number)
        self._block_of[positions] = 0
        self.present -= len(positions)

    # Pickling ---------------------------------------------------------------------------------

    def for_workers(self) -> tuple[object, ...]:
        """Workers read the files themselves."""
        return RowFolder, (self.folder, self.begun)

    def __reduce__(self) -> tuple[object, ...]:
        return self.for_workers()


def begin(folder: str, begun: Begun) -> RowFolder:
    """Begins or continues to fill a folder; one of another dataset is refused."""
    place = os.path.join(folder, FILLING)
    path = os.path.join(place, _BEGUN)
    os.makedirs(place, exist_ok=True)
    if not os.path.exists(path):
        _write_begun(path, begun)
    found = _read_begun(path)
    if (found.made_by, found.records) != (begun.made_by, begun.records):
        raise another_dataset(folder, "was begun with", found.made_by, begun.made_by)
    made = RowFolder(folder, found)
    made.look()
    return made


def _write_begun(path: str, begun: Begun) -> None:
    told = {
        "made_by": begun.made_by,
        "records": begun.records,
        "part_records": begun.part_records,
        "classes": {name: list(names) for name, names in begun.classes.items()},
    }
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(told, file)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)  # fails if another process was faster: its description counts
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        os.replace(temporary, path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)


def _read_begun(path: str) -> Begun:
    try:
        with open(path, encoding="utf-8") as file, reading(path):
            told = json.load(file)
            return Begun(
                told["made_by"],
                int(told["records"]),
                max(1, int(told["part_records"])),
                {str(name): tuple(map(str, names)) for name, names in told["classes"].items()},
            )
    except FileError as error:
        raise FileError(f"{error}. Remove {os.path.dirname(path)}, and begin again.") from error
