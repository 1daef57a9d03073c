"""Rows that were made once, kept in one memory for all workers of a loader (`row_memory`).

Several processes and threads may write at once, even the same row: the bytes are the same.  Each
row has a byte that says where the row is.  It is written under a lock, after the data, and read
under the lock, before the data: a reader that sees the byte also sees the data.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Sequence

import numpy as np

from loaderx.errors import LoaderxError, one_line, warn_user
from loaderx.locks import new_lock
from loaderx.memory import Lend
from loaderx.reading.row_memory import (
    HAS_NO_ROOM,
    IN_COLUMNS,
    IN_HEAP,
    MISSING,
    ROWS,
    ROWS_IN_HEAP,
    Flags,
    RowLayout,
    RowMemory,
    layout_of,
)
from loaderx.reading.rows import Positions, Record, Rows
from loaderx.sources.base import ForWorkers
from loaderx.tree import Tree


class RowStore(ForWorkers):
    """Rows by position.  It has no memory before the first of them is kept.

    Without ``may_begin`` it never gets any: a worker that cannot map the loader's memory must not
    allocate its own.
    """

    def __init__(self, count: int, *, may_begin: bool = True) -> None:
        self.count, self.may_begin = count, may_begin
        self._lock = new_lock()
        self._memory: RowMemory | None = None
        self._is_complete = False
        self.uniform: RowMemory | None = None  # the memory, when all rows are there, in columns
        self._looks, self._has_warned = 0, False

    @property
    def is_ready(self) -> bool:
        return self._memory is not None

    def is_first_look(self) -> bool:
        """True at the first call: a single record that a user looks at need not be kept."""
        self._looks += 1
        return self._looks == 1

    def prepare(self, sample: Sequence[Record]) -> None:
        """Takes memory for rows like these, if there is none yet."""
        with self._lock:
            if self._memory is None:
                layout = layout_of(self.count, sample)
                try:
                    self._memory = RowMemory(layout)
                except OSError as error:  # a limit of the system
                    raise LoaderxError(
                        f"cache() cannot get memory for {self.count:,} records: {error}. Give a "
                        "folder instead, .cache(path)."
                    ) from error

    def find(self, positions: Positions) -> Flags:
        """Where each of these rows is; rows at negative positions are never kept."""
        if self._is_complete:
            flags = self._opened.flags[positions]
        else:
            with self._lock, self._opened.locked():
                memory = self._opened
                flags = memory.flags[positions]
                self._is_complete = int(memory.header[ROWS]) == self.count
                if self._is_complete and not memory.header[ROWS_IN_HEAP]:
                    self.uniform = memory
        flags[positions < 0] = MISSING
        return flags

    def put(self, positions: Positions, rows: Rows) -> None:
        """Keeps rows, as far as there is room."""
        memory = self._opened
        is_kept = positions >= 0
        if not is_kept.all():
            kept = np.flatnonzero(is_kept)
            positions, rows = positions[kept], rows.pick(kept)
        if not len(positions):
            return
        flags = np.full(len(positions), IN_COLUMNS, np.uint8)
        places = np.zeros((len(positions), 2), np.int64)
        if not memory.write_columns(positions, rows):
            self._write_each(memory, positions, rows.records(), flags, places)
        self._publish(memory, positions, flags, places)

    def _write_each(
        self,
        memory: RowMemory,
        positions: Positions,
        records: list[Record],
        flags: Flags,
        places: Positions,
    ) -> None:
        for number, (position, record) in enumerate(zip(positions.tolist(), records, strict=True)):
            if memory.write_record(position, record):
                continue
            place = None
            data = self._pickled(record)
            if data is not None:
                with self._lock, memory.locked():
                    place = memory.reserve(len(data))
            flags[number] = MISSING if place is None else IN_HEAP
            if data is not None and place is not None:
                places[number] = place, len(data)
                memory.heap[place : place + len(data)] = np.frombuffer(data, np.uint8)

    def _pickled(self, record: Record) -> bytes | None:
        """A record as bytes; None, with a warning, if it cannot be pickled."""
        try:
            return pickle.dumps(record, protocol=5)
        except Exception as error:  # of a class of the user's, which may raise anything
            if not self._has_warned:
                self._has_warned = True
                warn_user(
                    f"cache() cannot keep some of the records, which are made again in every "
                    f"epoch: {one_line(error)}. Make arrays, numbers or text of them below it."
                )
            return None

    def _publish(
        self, memory: RowMemory, positions: Positions, flags: Flags, places: Positions
    ) -> None:
        with self._lock, memory.locked():
            if memory is not self._memory:  # it was copied meanwhile, without these rows
                return
            is_new = (memory.flags[positions] == MISSING) & (flags != MISSING)
            fresh, first = np.unique(positions[is_new], return_index=True)
            chosen = np.flatnonzero(is_new)[first]
            memory.places[fresh] = places[chosen]
            memory.flags[fresh] = flags[chosen]
            memory.header[ROWS] += len(fresh)
            memory.header[ROWS_IN_HEAP] += int((flags[chosen] == IN_HEAP).sum())
            has_no_room = memory.header[HAS_NO_ROOM] == 1  # it was found now
            if has_no_room:
                memory.header[HAS_NO_ROOM] = 2
        if has_no_room:
            warn_user(
                f"cache() has used the {memory.layout.heap_bytes / 1e9:,.1f} GB of memory that it "
                "may use: records that are not in it yet are made again in every epoch. Give a "
                "folder instead, .cache(path)."
            )

    @property
    def gives_columns(self) -> bool:
        """Whether rows of the columns equal the kept records: with Python numbers they do not."""
        return not self._opened.layout.has_python_numbers

    def gather(self, positions: Positions, lend: Lend) -> Tree:
        """Rows that are all in columns, as columns."""
        return self._opened.gather(positions, lend)

    def records(self, positions: Positions, flags: Flags) -> list[Record]:
        """Kept rows, one by one; raises a `LookupError` if one cannot be unpickled here."""
        memory = self._opened
        return [
            memory.row(position) if flag == IN_COLUMNS else memory.from_heap(position)
            for position, flag in zip(positions.tolist(), flags.tolist(), strict=True)
        ]

    @property
    def _opened(self) -> RowMemory:
        assert self._memory is not None
        return self._memory

    def for_workers(self) -> tuple[object, ...]:
        """Workers map the same memory."""
        with self._lock:
            memory = self._memory
            if memory is not None and not memory.is_shared:
                if memory.has_room_for_copy():
                    self._memory = memory = memory.shared_copy()
                    self.uniform = memory if self.uniform is not None else None
                else:
                    warn_user(
                        "cache() has kept so much that there is no memory to share it with worker "
                        "processes: they make records themselves. Use engine='threads', or "
                        ".cache(path)."
                    )
        if memory is None or memory.path is None:
            return _attached, (self.count, None, None)
        return _attached, (self.count, memory.path, memory.layout)

    def __reduce__(self) -> tuple[object, ...]:
        return RowStore, (self.count,)  # a copy makes the rows again


def _attached(count: int, path: str | None, layout: RowLayout | None) -> RowStore:
    """The store in a worker.  If the memory cannot be opened, rows are made again there."""
    made = RowStore(count, may_begin=False)
    if path is not None and layout is not None:
        with contextlib.suppress(OSError):
            made._memory = RowMemory.open(path, layout)
    return made
