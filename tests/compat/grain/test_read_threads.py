"""Reading many records in a worker: in threads only where that is measured to be faster."""

from __future__ import annotations

import threading

import pytest

from loaderx.compat.grain import read_threads
from loaderx.compat.grain.read_threads import ManyReader, reading


class Clocked:
    """A source that takes so long by a clock of its own; record 9 cannot be read."""

    def __init__(self, plain_s, threads_s):
        self.now = 0.0
        self.plain_s, self.threads_s = plain_s, threads_s
        self.was_in_thread = []

    def __getitem__(self, key):
        in_thread = threading.current_thread().name.startswith("grain-prefetch_")
        self.was_in_thread.append(in_thread)
        self.now += self.threads_s if in_thread else self.plain_s
        if key == 9:
            raise KeyError(key)
        return key


@pytest.mark.parametrize(
    ("plain_s", "threads_s", "threads", "expected"),
    [
        (1.0, 0.1, 16, [False, False, True, True, True]),
        (1.0, 2.0, 16, [False, False, True, False, False]),
        (1e-5, 0.0, 16, [False] * 5),
        (1.0, 0.1, 1, [False] * 5),
        (1.0, 0.1, 0, [False] * 5),
    ],
)
def test_the_faster_way_is_taken(monkeypatch, plain_s, threads_s, threads, expected):
    source = Clocked(plain_s, threads_s)
    monkeypatch.setattr(read_threads, "perf_counter", lambda: source.now)
    reader, used = ManyReader(), []
    for _ in expected:
        found = []
        with reading(threads):
            reader.read(source, range(4), found)
        assert found == [0, 1, 2, 3]
        used.append(source.was_in_thread[-1])
    assert used == expected


@pytest.mark.parametrize("threads_s", [0.1, 2.0])
def test_what_comes_before_an_error_is_kept(monkeypatch, threads_s):
    source = Clocked(1.0, threads_s)
    monkeypatch.setattr(read_threads, "perf_counter", lambda: source.now)
    reader = ManyReader()
    for _ in range(4):
        with reading(16):
            reader.read(source, range(4), [])
    found = []
    with reading(16), pytest.raises(KeyError):
        reader.read(source, [7, 8, 9, 10], found)
    assert found == [7, 8]
