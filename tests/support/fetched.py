"""Sources whose records are fetched: they write down which, and can hold up those who fetch."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from loaderx import ArraySpec
from loaderx.sources import Indices, Source

PATIENCE_S = 60


class Fetched(Source):
    """Records {"x": number}, from ``first`` on; each has ``nbytes`` bytes to be fetched.

    With ``waits`` reading waits for what was not fetched, and fails if nobody fetches it.
    """

    thread_safe = True

    def __init__(
        self, length: int, first: int = 0, *, nbytes: int = 1, waits: bool = False
    ) -> None:
        self.length, self.first, self.nbytes, self.waits = length, first, nbytes, waits
        self._begin()

    def _begin(self) -> None:
        self.calls: list[list[int]] = []  # in the order in which they began
        self.fetched: Counter[int] = Counter()
        self.read: Counter[int] = Counter()  # in this process
        self.gate = threading.Event()  # closed: who fetches waits
        self.gate.set()
        self.changed = threading.Condition()

    def __getstate__(self) -> dict[str, Any]:
        return {"length": self.length, "first": self.first, "nbytes": 1, "waits": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __len__(self) -> int:
        return self.length

    @property
    def spec(self) -> Any:
        return {"x": ArraySpec((), np.dtype(np.int64))}

    def fetch(self, indices: Indices) -> int:
        numbers = (indices + self.first).tolist()
        with self.changed:
            self.calls.append(numbers)
            self.changed.notify_all()
        assert self.gate.wait(PATIENCE_S)
        with self.changed:
            fresh = set(numbers) - set(self.fetched)
            self.fetched.update(numbers)
            self.changed.notify_all()
        return len(fresh) * self.nbytes

    def gather(self, indices: Indices) -> Any:
        numbers = indices + self.first
        if self.waits:
            self.wait_for(lambda: set(numbers.tolist()) <= set(self.fetched))
        with self.changed:
            self.read.update(numbers.tolist())
        return {"x": numbers}

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits for something that fetching or reading changes."""
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S), (self.calls, self.read)

    def wait_for_records(self, numbers: Any) -> None:
        """Waits until these were fetched, of those that this source has."""
        own = {n for n in np.ravel(numbers).tolist() if 0 <= n - self.first < self.length}
        self.wait_for(lambda: own <= set(self.fetched))


class Local(Fetched):
    """The same, but for the fetching."""

    fetches = False
