"""The connection from a worker to its consumer: elements, strangers, damage."""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import struct
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from loaderx.engines.base import Measured, Timing
from loaderx.engines.elsewhere import direct, worker_memory
from loaderx.engines.elsewhere.direct import ConnectionLostError, DirectLine, Hold, Listener
from loaderx.engines.elsewhere.dispatch import Job
from loaderx.engines.elsewhere.packing import Packer, Unpacker
from loaderx.memory import ALIGNMENT
from loaderx.testing.engine_work import wait_until

KEY = b"k" * 32


def element_of(task):
    """Some arrays whose bytes depend on the task."""
    rng = np.random.default_rng(task)
    return {
        "image": rng.integers(0, 256, (7, 5, 3), np.uint8),
        "x": (rng.normal(size=(4, 9)), np.full((), 3, np.float32), np.zeros((0, 3), np.int16)),
        "date": np.array(["2026-11-18", "NaT"], "datetime64[s]"),
        "name": np.array(["a", "längere"]),
    }


class Worker:
    """A listener, and what it would get from its actor."""

    def __init__(self, make=element_of, threads=1):
        self.hold, packer = Hold(), Packer()
        self.made = []

        def made(task):
            self.made.append(task)
            return packer.pack(make(task), None)

        self.listener = Listener("127.0.0.1", KEY, made, self.hold, threads)

    def line(self, key=KEY):
        return DirectLine(
            self.listener.address, key, self.hold.held.pop, self.hold.forms.__getitem__
        )

    def close(self):
        self.listener.close()


WAYS = ["memory", "direct"]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Leaves are read in the worker's memory, or come over the connection."""
    if request.param == "direct":
        monkeypatch.setattr(worker_memory, "readv", None)
    elif worker_memory.readv is None:
        pytest.skip("this platform has no process_vm_readv")
    return request.param


@pytest.fixture
def make_worker(way):
    with contextlib.ExitStack() as stack:

        def make(*arguments, **options):
            worker = Worker(*arguments, **options)
            stack.callback(worker.close)
            return worker

        yield make


@contextlib.contextmanager
def connected(worker):
    line = worker.line()
    try:
        assert line.name == ("direct" if worker_memory.readv is None else "memory")
        yield line
    finally:
        line.close()
        line.release()


def ask(line, *tasks):
    """What comes for these tasks, by their numbers."""
    unpacker, found = Unpacker(8, (), collections.deque()), {}
    for number, task in enumerate(tasks):
        line.send(Job(task, number))
    for _ in tasks:
        number, packed, outcome = line.receive(unpacker)
        found[number] = unpacker.unpack(packed, None) if outcome is None else outcome[0]
    return [found[number] for number in range(len(tasks))]


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    pairs = [(found["x"][place], expected["x"][place]) for place in range(3)]
    pairs += [(found[name], expected[name]) for name in ("image", "date", "name")]
    for one, other in pairs:
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
        assert one.flags.writeable
        assert one.flags.c_contiguous
        assert one.ctypes.data % ALIGNMENT == 0


def test_elements_are_the_same_bytes_aligned_and_writable(make_worker):
    tasks = [(0,), (2**64 - 1,), (1, 2), (1, 2, 3), (4, 5, 6, 7), (8, 4, 5, 6, 7)]
    with connected(make_worker()) as line:
        for found, task in zip(ask(line, *tasks), tasks, strict=True):
            assert_equal(found, element_of(task))


def test_threads_of_a_worker_make_several_at_once(make_worker):
    both = threading.Barrier(2, timeout=60)

    def make(task):
        both.wait()
        return element_of(task)

    with connected(make_worker(make, threads=2)) as line:
        assert_equal(ask(line, (1,), (2,))[1], element_of((2,)))


def test_measured_elements_bring_their_times_without_pickles(make_worker):
    worker = make_worker(lambda task: Measured(element_of(task), [], Timing({"map": 0.5}, 3), 7))
    with connected(worker) as line:
        (found,) = ask(line, (1,))
    assert (found.times.stages, found.times.weight, found.read) == ({"map": 0.5}, 3, 7)
    assert not worker.hold.held


def test_what_needs_pickles_is_left_with_the_worker(make_worker):
    worker = make_worker(lambda task: {"x": np.arange(3), "text": "some text", "more": {1, 2}})
    with connected(worker) as line:
        line.send(Job((1,), 5))
        number, packed, outcome = line.receive(Unpacker(1, (), collections.deque()))
    assert (number, outcome, worker.hold.held) == (5, None, {})
    found = Unpacker(1, (), collections.deque()).unpack(packed, None)
    assert found["more"] == {1, 2}


def test_a_new_connection_takes_the_place_of_the_old_one(make_worker):
    worker = make_worker()
    with connected(worker) as first:
        ask(first, (1,))
        with connected(worker) as second:
            ask(second, (2,))
            with pytest.raises(OSError):
                ask(first, (3,))
            assert_equal(ask(second, (4,))[0], element_of((4,)))


# Strangers ----------------------------------------------------------------------------------------


def test_another_key_is_refused_and_the_worker_lives_on(make_worker):
    worker = make_worker()
    with pytest.raises(OSError):
        worker.line(b"other key" + b"k" * 23)
    with connected(worker) as line:
        assert_equal(ask(line, (1,))[0], element_of((1,)))


def test_a_worker_that_does_not_have_the_key_is_refused(make_worker):
    """Both sides prove that they have it: an address may have been taken over."""
    server = socket.create_server(("127.0.0.1", 0))

    def pretend():
        connection, _ = server.accept()
        with connection:
            connection.sendall(direct.MAGIC + b"n" * 16 + b"p" * 32)
            connection.recv(1000)

    thread = threading.Thread(target=pretend, daemon=True)
    thread.start()
    with pytest.raises(ConnectionLostError, match="has another key"):
        DirectLine(server.getsockname(), KEY, None, None)
    thread.join(60)
    server.close()


GARBAGE = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 3,
    "zeros": bytes(1000),
    "a length of 2 GB": struct.pack("<Q", 2 << 30) * 20,
    "half a greeting": direct.MAGIC[:4],
    "a greeting and no proof": direct.MAGIC + bytes(16),
    "a greeting and a wrong proof": direct.MAGIC + bytes(48),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_refused_and_the_worker_lives_on(garbage, make_worker):
    worker = make_worker()
    with connected(worker) as line:
        with (
            socket.create_connection(worker.listener.address) as stranger,
            contextlib.suppress(OSError),  # the worker may have closed it already
        ):
            stranger.sendall(garbage)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1000):  # until the worker has closed it
                pass
        assert_equal(ask(line, (1,))[0], element_of((1,)))
    assert worker.made == [(1,)]


def test_silent_guests_do_not_keep_others_out_for_long(make_worker, monkeypatch):
    monkeypatch.setattr(direct, "PATIENCE_S", 0.5)
    worker = make_worker()
    with contextlib.ExitStack() as stack:
        for _ in range(direct.MOST_GUESTS + 3):
            stack.enter_context(socket.create_connection(worker.listener.address))
        line = None
        while line is None:  # the guests' time is over at some point
            with contextlib.suppress(OSError):
                line = worker.line()
        assert_equal(ask(line, (1,))[0], element_of((1,)))
        line.close()
        line.release()


@pytest.mark.parametrize("damage", ["mark", "crc"])
def test_a_damaged_task_ends_the_connection_and_the_worker_lives_on(damage, make_worker):
    worker = make_worker()
    with connected(worker) as line:
        task = direct.TASK.pack(b"task", 1, False, 0, 1, 2, 0, 0, 0, 0)
        data = direct.with_crc(task if damage == "crc" else b"TASK" + task[4:])
        if damage == "crc":
            data = data[:-1] + bytes([data[-1] ^ 1])
        line.connection.sendall(data)
        with pytest.raises(OSError):
            line.receive(Unpacker(1, (), collections.deque()))
    with connected(worker) as line:
        ask(line, (7,))
    assert worker.made == [(7,)]


def test_a_client_that_reads_nothing_does_not_keep_the_next_one_out(make_worker):
    worker = make_worker(lambda task: {"x": np.zeros(1 << 25, np.uint8)})
    with connected(worker) as slow:
        slow.send(Job((1,), 1))
        with connected(worker) as line:
            assert ask(line, (2,))[0]["x"].nbytes == 1 << 25


@pytest.mark.parametrize("way", ["direct"], indirect=True)
def test_a_client_that_reads_nothing_is_given_up(make_worker, monkeypatch):
    worker = make_worker(lambda task: {"x": np.zeros(1 << 25, np.uint8)})
    monkeypatch.setattr(direct, "STALLED_S", 0.1)
    with connected(worker) as slow:
        slow.send(Job((1,), 1))
        wait_until(lambda: worker.listener.served is not None, "the connection")
        wait_until(lambda: worker.listener.served.connection.fileno() < 0, "its end")


# Memory of the worker -----------------------------------------------------------------------------

in_memory = pytest.mark.parametrize("way", ["memory"], indirect=True)


@in_memory
def test_elements_are_kept_until_they_were_taken_and_no_longer(make_worker):
    made = []

    def make(task):
        element = {"x": np.full(10_000, task[0])}
        made.append(weakref.ref(element["x"]))
        return element

    with connected(make_worker(make)) as line:
        line.send(Job((0,), 0))
        direct.wait_for_message(line.connection)
        assert made[0]() is not None
        _, _, (element, _) = line.receive(Unpacker(2, (), collections.deque()))
        assert element["x"].tolist() == [0] * 10_000
        ask(line, (1,), (2,))
        wait_until(lambda: made[0]() is None, "the first element to be dropped")


@in_memory
def test_nothing_is_read_after_the_worker_has_gone_over_to_another_connection(make_worker):
    worker = make_worker()
    with connected(worker) as first:
        first.send(Job((1,), 0))
        direct.wait_for_message(first.connection)  # it tells where the element is
        with connected(worker) as second:
            assert_equal(ask(second, (2,))[0], element_of((2,)))
        with pytest.raises(OSError, match="erased its mark"):
            first.receive(Unpacker(1, (), collections.deque()))


@in_memory
@pytest.mark.parametrize("pid", [2**22 + 1, os.getpid()], ids=["nobody", "another"])
def test_a_process_without_the_mark_is_not_read(pid, way):
    mark = worker_memory.Mark(b"m" * 16)
    other = np.zeros(16, np.uint8)
    place = pid, worker_memory.address_of(other)
    assert not worker_memory.MarkedMemory(b"m" * 16, place).is_readable()
    assert worker_memory.MarkedMemory(b"m" * 16, mark.place).is_readable()
    assert not worker_memory.MarkedMemory(b"m" * 16, (mark.place[0], 0)).is_readable()


@in_memory
def test_more_pieces_than_one_call_takes_are_read(make_worker):
    count = worker_memory.MOST_PIECES + 7
    worker = make_worker(lambda task: {f"x{i}": np.full(i % 3, i) for i in range(count)})
    with connected(worker) as line:
        (found,) = ask(line, (1,))
    assert [found[f"x{i}"].tolist() for i in range(count)] == [[i] * (i % 3) for i in range(count)]


@in_memory
def test_more_bytes_than_one_call_takes_are_read(make_worker, monkeypatch):
    calls = []

    def readv(pid, own, own_count, theirs, count, flags):
        calls.append(sum(one.length for one in theirs))
        return usual(pid, own, own_count, theirs, count, flags)

    usual = worker_memory.readv
    worker = make_worker(lambda task: {"x": np.arange(5001), "y": np.zeros(0)})
    with connected(worker) as line:
        monkeypatch.setattr(worker_memory, "readv", readv)
        monkeypatch.setattr(worker_memory, "MOST_BYTES", 4096)
        (found,) = ask(line, (1,))
    assert found["x"].tolist() == list(range(5001))
    assert max(calls) == 4096
    assert sum(calls) >= found["x"].nbytes


# Damage -------------------------------------------------------------------------------------------


class Damaging:
    """A connection that changes one byte that it receives."""

    def __init__(self, connection, place):
        self._connection, self._left = connection, place

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def recv_into(self, view):
        count = self._connection.recv_into(view)
        if 0 <= self._left < count:
            view[self._left] ^= 0x10
        self._left -= count
        return count


class Cutting(Damaging):
    """A connection that ends after some bytes."""

    def recv_into(self, view):
        if self._left <= 0:
            return 0
        count = self._connection.recv_into(view[: self._left])
        self._left -= count
        return count


def answer_bytes():
    """The length of an answer, by what the consumer receives."""
    worker, counted = Worker(), []
    with connected(worker) as line:
        receive = line.connection

        class Counting(Damaging):
            def recv_into(self, view):
                count = self._connection.recv_into(view)
                counted.append(count)
                return count

        line.connection = Counting(receive, -1)
        ask(line, (1,))
    worker.close()
    return sum(counted)


@pytest.mark.parametrize("kind", [Damaging, Cutting])
def test_damage_at_any_byte_is_noticed(kind, way, make_worker, monkeypatch):
    """Nothing wrong is ever handed on: the connection is lost, or the padding was hit."""
    monkeypatch.setattr(direct, "wait_for_message", lambda connection: None)
    # Times are sent as text: else an answer would be longer at times.
    monkeypatch.setattr(direct, "time", SimpleNamespace(monotonic=lambda: 1.0, sleep=time.sleep))
    worker, length = make_worker(), answer_bytes()
    assert length > (600 if way == "direct" else 200)
    length -= 6 * (way == "memory")  # an address may have one digit more or less
    for place in [*range(min(length, 250)), *range(250, length, 7)]:  # headers, then leaves
        with connected(worker) as line:
            line.connection = kind(line.connection, place)
            with pytest.raises((OSError, ValueError)):
                ask(line, (1,))
