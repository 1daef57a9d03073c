"""Reading many records in a worker: in threads only where that is measured to be faster."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from loaderx.compat.grain import MapDataset, read_threads
from loaderx.compat.grain.read_threads import ManyReader, reading
from loaderx.compat.grain.worker_blocks import Block, BlockIterator, Root


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


def test_measuring_the_slower_way_again_costs_two_records(monkeypatch):
    source = Clocked(1.0, 0.1)
    monkeypatch.setattr(read_threads, "perf_counter", lambda: source.now)
    reader = ManyReader()
    for _ in range(200):
        found = []
        with reading(16):
            reader.read(source, [*range(8), *range(10, 18)], found)
        assert len(found) == 16
    plain = source.was_in_thread.count(False)
    assert plain == 2 * 16 + 2 * (200 // 64)


def test_many_records_in_a_call_come_in_order(monkeypatch):
    source = Clocked(1.0, 0.0)
    monkeypatch.setattr(read_threads, "perf_counter", lambda: source.now)
    reader = ManyReader()
    keys = [number for number in range(1000, 0, -1) if number != 9]
    found = []
    with reading(16):
        reader.read(source, keys, found)
    assert found == keys
    assert source.was_in_thread[-1]


class Answers:
    """A session whose tasks are done at once, as a source that waits would have them done."""

    window = 1

    def __init__(self, element_s, waited_s):
        self.element_s, self.waited_s = element_s, waited_s
        self.sizes = []

    def submit(self, task):
        _, start, stop = task
        count = stop - start
        self.sizes.append(count)
        after = np.arange(start + 1, stop + 1)
        made = Block([0] * count, None, after, stop, count * self.element_s, count * self.waited_s)
        return SimpleNamespace(result=lambda: made, cancel=lambda: None)


@pytest.mark.parametrize(
    ("element_s", "waited_s", "expected"),
    [
        (1e-5, 0.0, [1, 2, 3, 4, 5, 6]),  # cheap ones: up to 16
        (1e-3, 0.0, [1, 2, 2, 2, 2, 2]),  # so many take 2 ms
        (1e-5, 3e-4, [1, 2, 4, 8, 16, 32]),  # a source that waits: up to 256, or 0.1 s
        (1e-5, 2e-3, [1, 2, 4, 8, 16, 32, 50, 50]),
    ],
)
def test_blocks_are_large_where_a_source_waits(element_s, waited_s, expected):
    session = Answers(element_s, waited_s)
    root = Root(MapDataset.range(10_000).to_iter_dataset())
    iterator = BlockIterator("blocks", root, 0, session)
    for _ in range(sum(expected)):
        next(iterator)
    assert session.sizes[: len(expected)] == expected


class Counted:
    """A source that reads many records at once, and says how many."""

    def __init__(self):
        self.calls = []

    def __len__(self):
        return 30

    def __getitem__(self, key):
        return self.__getitems__([key])[0]

    def __getitems__(self, keys):
        self.calls.append(len(keys))
        return [{"x": key} for key in keys]


def test_several_batches_are_read_in_one_call():
    source = Counted()
    batches = MapDataset.source(source).repeat(2).batch(8)
    found = Root(batches.to_iter_dataset()).block(2, 5)
    assert source.calls == [24]
    expected = [[*range(16, 24)], [*range(24, 30), 0, 1], [*range(2, 10)]]
    assert [batch["x"].tolist() for batch in found.elements] == expected
