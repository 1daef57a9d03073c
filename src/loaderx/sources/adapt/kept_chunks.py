"""A cache of decoded chunks, within a budget of bytes.

A chunk (a row group, a shard) must be fetched and decoded as a whole, and the records of a batch
come from several.  So a chunk is kept as long as newer ones leave room for it.  Chunks of which as
many records were read as they hold are dropped first: most orders read each record once an epoch.
``LOADERX_CHUNK_BYTES`` sets how many bytes of chunks may be kept; by default 1 GiB.  Threads share
the chunks, and decode different ones at the same time.  Worker processes cannot: each may keep its
share of the bytes.  Each makes whole windows of shuffled chunks, so that no other needs the same
chunk, and as many windows are under way as the budget has room for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, Protocol, TypeVar, runtime_checkable

from loaderx.errors import bytes_setting, warn_user
from loaderx.locks import new_lock
from loaderx.sources.base import Indices

CHUNK_BYTES = "LOADERX_CHUNK_BYTES"
DEFAULT_BYTES = 1 << 30


def chunk_budget() -> int:
    """The bytes of decoded chunks that may be kept."""
    return bytes_setting(CHUNK_BYTES, DEFAULT_BYTES)


class Sized(Protocol):
    """A decoded chunk."""

    @property
    def nbytes(self) -> int: ...


C = TypeVar("C", bound=Sized)


class KeptChunks(Generic[C]):
    """Chunks by their number, decoded when they are asked for."""

    def __init__(self, decode: Callable[[int], C], rows: Indices) -> None:
        self.decode = decode
        self._rows = rows  # of each chunk
        self._begin()

    def _begin(self) -> None:
        self._kept: OrderedDict[int, C] = OrderedDict()
        self._unread: dict[int, int] = {}  # records of each chunk that were not read yet
        self._nbytes = self._most_nbytes = 0
        self._budget = chunk_budget()
        self._windows = 0  # windows under way
        self._has_warned = False
        self._lock = new_lock()
        self._making: dict[int, threading.Lock] = {}  # locked until that chunk is decoded
        self._held = threading.local()  # chunks that this thread is using, whatever the budget

    def get(self, number: int) -> C:
        """A chunk; of several threads that want the same one, one decodes it."""
        held: dict[int, C] = getattr(self._held, "chunks", {})
        if number in held:
            return held[number]
        window: set[int] | None = getattr(self._held, "window", None)
        if window is not None:
            window.add(number)
        while True:
            with self._lock:
                found = self._kept.get(number)
                if found is not None:
                    self._kept.move_to_end(number)
                    return found
                others = self._making.get(number)
                if others is None:
                    own = self._making[number] = new_lock()
                    own.acquire()
            if others is None:
                return self._make(number, own)
            with others, self._lock:  # then look again: decoding may have failed there
                if self._making.get(number) is others:  # in a fork: the thread does not exist
                    del self._making[number]

    def _make(self, number: int, own: threading.Lock) -> C:
        try:
            made = self.decode(number)
            with self._lock:
                self._kept[number] = made
                self._unread[number] = int(self._rows[number])
                self._nbytes += made.nbytes
                while self._nbytes > self._budget and len(self._kept) > 1 and not self._windows:
                    self._drop(next(iter(self._kept)))
                self._most_nbytes = max(self._most_nbytes, self._nbytes)
            return made
        finally:
            with self._lock:
                del self._making[number]
            own.release()

    def _drop(self, number: int) -> None:
        self._nbytes -= self._kept.pop(number).nbytes
        del self._unread[number]

    def together(self, counts: Mapping[int, int]) -> AbstractContextManager[dict[int, C]]:
        """Holds chunks for a block; ``counts`` says by number how many records are read."""
        return self._holding(self._get_all(list(counts)), counts)

    @contextmanager
    def _holding(self, found: dict[int, C], counts: Mapping[int, int]) -> Iterator[dict[int, C]]:
        self._held.chunks = found
        try:
            yield found
        finally:
            self._held.chunks = {}
        with self._lock:
            for number, count in counts.items():
                if number in self._kept:
                    self._unread[number] -= count
                    if self._unread[number] <= 0:
                        self._unread[number] = int(self._rows[number])  # for the next epoch
                        self._kept.move_to_end(number, last=False)

    def _get_all(self, numbers: Sequence[int]) -> dict[int, C]:
        """Gets chunks, those that other threads are decoding last."""
        left, found = list(numbers), {}
        while left:
            with self._lock:
                free = (place for place, one in enumerate(left) if one not in self._making)
                place = next(free, 0)
            number = left.pop(place)
            found[number] = self.get(number)
        if len(found) > 1:
            self._check(found)
        return found

    def _check(self, found: dict[int, C]) -> None:
        nbytes = sum(chunk.nbytes for chunk in found.values())
        if nbytes <= self._budget or self._has_warned or self._windows:
            return
        self._has_warned = True
        warn_user(
            f"records that are read together lie in {len(found)} chunks of {nbytes / 1e6:,.0f} MB, "
            f"and {self._budget / 1e6:,.0f} MB are kept decoded: chunks are decoded again and "
            f"again. Use a smaller window, or set {CHUNK_BYTES} to {2 * nbytes} or more."
        )

    @contextmanager
    def window(self) -> Iterator[None]:
        """Drops no chunk inside the block; after it, drops those that this thread used."""
        used: set[int] = set()
        with self._lock:
            self._windows += 1
            self._most_nbytes = 0
        self._held.window = used
        try:
            yield
        finally:
            self._held.window = None
            with self._lock:
                self._windows -= 1
                for number in used & self._kept.keys():
                    self._drop(number)

    @property
    def nbytes(self) -> int:
        """The bytes of the chunks that are kept."""
        return self._nbytes

    @property
    def most_nbytes(self) -> int:
        """The most bytes kept at a time since the last window began."""
        return self._most_nbytes

    def __getstate__(self) -> dict[str, object]:
        return {"decode": self.decode, "_rows": self._rows}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()


@runtime_checkable
class KeepsChunks(Protocol):
    """A source that keeps chunks."""

    @property
    def kept_chunks(self) -> KeptChunks[Sized] | None: ...

    @property
    def record_nbytes(self) -> int:
        """The approximate bytes of a decoded record; 0: not known before one is decoded."""
        ...
