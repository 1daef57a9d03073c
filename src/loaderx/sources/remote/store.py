"""The interface of a store, and retries after transient failures."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from loaderx.errors import FileError, bytes_setting

T = TypeVar("T")

ATTEMPTS = 6
FIRST_ATTEMPTS = 3  # to reach a server at all: a wrong host should be reported soon
_CONCURRENCY = 64  # requests for many files: they are small, or there are few
TIMEOUT_S = 30.0  # without any byte received
HEAD_BYTES = 512  # that come with the lookup of a file
READ_BYTES = 1 << 20  # to read at once
LEAST_SPEED = "LOADERX_LEAST_SPEED"  # in bytes a second
_LEAST_SPEED, SPEED_PERIOD_S = 100, 60.0
FIRST_PAUSE_S, GROWTH, _LONGEST_PAUSE_S = 0.1, 3.0, 30.0
_LOOK_S = 0.1  # between checks whether to end a pause


class RemoteFile(NamedTuple):
    """A file behind a URL, as it was when the dataset was opened."""

    url: str  # without secrets
    size: int
    version: str  # a digest of the ETag or the time of the last write
    address: str  # the URL to request; it may contain secrets
    sha256: str = ""  # of the content, if the store gives it

    @property
    def stamp(self) -> str:
        return self.version

    def __repr__(self) -> str:
        return f"RemoteFile({self.url}, {self.size} bytes)"


class Listed(NamedTuple):
    """An entry of a folder in a store."""

    name: str  # ends with a slash for a folder
    size: int = 0
    version: str = ""


class Store(Protocol):
    """Where files lie.  Addresses are URLs; errors are `FileError` or `TransientError`."""

    lists: bool  # listing a folder is better than looking up each of its files

    def find(
        self, url: str, address: str, head_bytes: int = HEAD_BYTES
    ) -> tuple[RemoteFile, bytes] | None:
        """A file and its first bytes (if they cost no request); None: it does not exist."""
        ...

    def names(self, address: str) -> list[Listed]:
        """The entries of a folder; empty if there is no such folder."""
        ...

    def read(self, file: RemoteFile, start: int, stop: int) -> Generator[bytes]:
        """Bytes ``start`` to ``stop - 1`` in pieces; raises if the file has changed."""
        ...


StoreOf: TypeAlias = Callable[[RemoteFile], Store]
"""Finds the store of a file; called only when it must be fetched."""


class TransientError(Exception):
    """A failure that may be temporary: the request is tried again."""

    def __init__(self, text: str, after_s: float = 0.0, *, is_reached: bool = True) -> None:
        super().__init__(text)
        self.after_s = after_s  # the least time to wait
        self.is_reached = is_reached  # the server was reached


class Pace:
    """Measures the speed of an answer; one below the least speed is aborted.

    The time between two reads, in which data is written, does not count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._came, self._spent_s = clock, 0, 0.0
        self._least = bytes_setting(LEAST_SPEED, _LEAST_SPEED, least=0)

    def timed(self, read: Callable[[int], bytes], most: int) -> bytes:
        """Reads bytes; raises if too few came in the last minute."""
        begun = self._clock()
        piece = read(most)
        self._spent_s += self._clock() - begun
        self._came += len(piece)
        if self._spent_s >= SPEED_PERIOD_S:
            if self._came < self._least * self._spent_s:
                raise TransientError(
                    f"{self._came} bytes came in {self._spent_s:.0f} s, less than "
                    f"{self._least} a second ({LEAST_SPEED})"
                )
            self._came, self._spent_s = 0, 0.0
        return piece


class UnreachableError(FileError):
    """A store gave no answer, in spite of several attempts; the last failure is its context."""


class NoRangesError(Exception):
    """The server sends whole files only."""


def digest(*told: object) -> str:
    """A short digest of what a store says about a file."""
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def file_changed(url: str, what: str) -> FileError:
    """The error for a file that has changed."""
    return FileError(
        f"{url} has changed since the dataset was opened: {what}. Records of two versions must not "
        "be mixed. Open the dataset again, and write new versions of data to new names."
    )


def pause(seconds: float, is_stopped: Callable[[], bool] | None = None) -> None:
    """Waits before another attempt, unless stopped."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not (is_stopped and is_stopped()):
        time.sleep(min(left, _LOOK_S))


def retrying(
    work: Callable[[], T],
    url: str,
    reaching: int = ATTEMPTS,
    is_stopped: Callable[[], bool] | None = None,
    done: str = "read",
) -> T:
    """The result of ``work``, retried with growing pauses after a `TransientError`.

    ``reaching`` is the number of attempts to reach the server at all.  Once ``is_stopped``, there
    are no more pauses, and ``work`` does nothing.  ``done`` is for messages.
    """
    longest = FIRST_PAUSE_S
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return work()
        except TransientError as error:
            if attempt >= (ATTEMPTS if error.is_reached else reaching):
                raise UnreachableError(
                    f"{url} cannot be {done}: {error} ({attempt} attempts). Check the address, the "
                    "network and the server. What was done is kept: try again to resume."
                ) from None
            # Random, so that hosts that failed together do not retry together.
            pause(max(error.after_s, random.uniform(longest / 2, longest)), is_stopped)
            longest = min(longest * GROWTH, _LONGEST_PAUSE_S)
    raise AssertionError


def at_once(work: Callable[..., T], asked: Sequence[object]) -> list[T]:
    """The results of ``work`` for all at once, to save round trips."""
    if not asked:
        return []
    from concurrent.futures import ThreadPoolExecutor  # late: it imports logging

    with ThreadPoolExecutor(min(_CONCURRENCY, len(asked)), "loaderx-download") as pool:
        try:
            return list(pool.map(work, asked))
        finally:
            pool.shutdown(cancel_futures=True)
