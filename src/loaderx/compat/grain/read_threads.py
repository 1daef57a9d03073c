"""Reads many records of a source in a worker process.

Grain's workers read with threads.  Here a worker reads the records of a block one after the other,
or in threads if that is measured to be faster, as with sources that wait for a disk or a server.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, thread_time

from loaderx.compat.grain.protocols import Element

_WORTH_S = 2e-4  # a record that takes less time is not worth handing to a thread
_AGAIN = 64  # blocks after which the slower way is measured again
_TRIAL = 16  # records to measure with
_SLOW_TRIAL = 2  # records to measure the slower way with, since each costs a wait


class _Allowed:
    """The threads that `ReadOptions` allow for the current block, and the time spent waiting."""

    threads = 0
    waited_s = 0.0


@contextlib.contextmanager
def reading(threads: int) -> Iterator[type[_Allowed]]:
    """Lets sources be read with up to ``threads`` threads."""
    _Allowed.threads, _Allowed.waited_s = threads, 0.0
    try:
        yield _Allowed
    finally:
        _Allowed.threads = 0


class ManyReader:
    """Reads several records of a source."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._record_s = [0.0, 0.0]  # one after the other, and in threads
        self._calls = 0

    def read(self, source: Element, keys: Sequence[int], found: list[Element]) -> None:
        """Adds the records to ``found``, in order, up to the first that fails."""
        if _Allowed.threads < 2 or len(keys) < 2:
            _read_one_by_one(source, keys, found)
            return
        done = 0
        while done < len(keys):
            self._calls += 1
            stop = done + self._most(len(keys))
            self._read(source, keys[done:stop], found)
            done = stop

    def _most(self, count: int) -> int:
        """The number of records to read in this call."""
        if self._calls % _AGAIN == 0:
            return _SLOW_TRIAL
        return _TRIAL if self._calls <= 3 else count

    def _read(self, source: Element, keys: Sequence[int], found: list[Element]) -> None:
        in_threads = self._choose()
        begun, worked = perf_counter(), thread_time()
        if in_threads:
            self._read_in_threads(source, keys, found)
        else:
            _read_one_by_one(source, keys, found)
        seconds = perf_counter() - begun
        self._record_s[in_threads] = seconds / len(keys)
        _Allowed.waited_s += seconds - (thread_time() - worked)

    def _choose(self) -> bool:
        plain_s, threads_s = self._record_s
        if self._calls < 3 or plain_s < _WORTH_S:  # the first call may open files
            return False
        is_faster = threads_s < plain_s
        return not is_faster if self._calls % _AGAIN == 0 else is_faster

    def _read_in_threads(self, source: Element, keys: Sequence[int], found: list[Element]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_Allowed.threads, "grain-prefetch")
        numbers = deque(range(len(keys)))  # one future per record may cost more than the record
        records: dict[int, Element] = {}
        errors: dict[int, BaseException] = {}

        def read_some() -> None:
            with contextlib.suppress(IndexError):
                while not errors:
                    number = numbers.popleft()
                    try:
                        records[number] = source[keys[number]]
                    except BaseException as error:
                        errors[number] = error

        count = min(_Allowed.threads, len(keys))
        for one in [self._pool.submit(read_some) for _ in range(count)]:
            one.result()
        first = min(errors, default=len(keys))
        found += [records[number] for number in range(first)]
        if errors:
            raise errors[first]


def _read_one_by_one(source: Element, keys: Sequence[int], found: list[Element]) -> None:
    for key in keys:
        found.append(source[key])  # noqa: PERF401 (kept if the next one fails)
