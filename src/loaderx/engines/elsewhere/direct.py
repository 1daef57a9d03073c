"""Elements straight from a worker's memory into the consumer's, over a connection of their own.

The worker listens at its node's address.  Both sides prove that they have the session's key, which
they got through Ray, and then the consumer sends tasks of a fixed size.  An answer is a header, a
line of JSON that says what comes, and the bytes of the leaves, which are received in the block in
which they stay.  On the same machine the line says where in the worker's memory the leaves lie, and
the consumer copies them (`worker_memory`); the worker keeps them until a later task says that they
were taken.  Nothing that arrives is unpickled: what needs pickles (errors, Python objects, the form
of a tree when it is new) is left with the worker, and fetched through Ray.

Headers have a CRC-32, leaves the sum of their 64-bit words: they notice damage, not an attacker who
can write into the connection.  The connection is not encrypted.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import select
import socket
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from loaderx.engines.base import Task
from loaderx.engines.elsewhere.dispatch import Job, Outcome
from loaderx.engines.elsewhere.packing import Packed, Unpacker, padding
from loaderx.engines.elsewhere.worker_memory import Mark, MarkedMemory, address_of
from loaderx.engines.processes.slots import ElementLayout, views
from loaderx.tree import Array

MAGIC = b"loaderx1"
_PROOF = struct.Struct("<16s32s")
_PLACE = struct.Struct("<QQ")  # of the worker's mark
TASK = struct.Struct("<4sQ?QB5Q")  # `Shared` adds one number to those of a task
ANSWER = struct.Struct("<4sQBIQQ")
_CRC = struct.Struct("<I")
TASK_MARK, ANSWER_MARK = b"task", b"answ"
# Leaves follow; or they lie in the worker's memory; or the element is to be fetched through Ray.
ELEMENT, MEMORY, FETCH = range(3)
MOST_HEAD = 1 << 24
PATIENCE_S = 10.0  # for the proofs of a new connection
STALLED_S = 60.0  # a peer that takes no byte for so long is gone
MOST_GUESTS = 16  # connections that have not proved anything yet
_MANY = 512  # pieces of one call of `sendmsg`


class ConnectionLostError(OSError):
    """The connection has ended, or what came over it makes no sense."""


# Both sides ---------------------------------------------------------------------------------------


def receive_into(connection: socket.socket, into: Any) -> None:
    view = memoryview(into)
    while view.nbytes:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionLostError("the connection was closed")
        view = view[count:]


def wait_for_message(connection: socket.socket) -> None:
    """Waits for the next message, however long it takes."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.poll()


def _received(connection: socket.socket, nbytes: int) -> bytearray:
    data = bytearray(nbytes)
    receive_into(connection, data)
    return data


def with_crc(data: bytes) -> bytes:
    return data + _CRC.pack(zlib.crc32(data))


def _checked(connection: socket.socket, kind: struct.Struct, mark: bytes) -> tuple[Any, ...]:
    """The next header, and what is in it."""
    data = _received(connection, kind.size + _CRC.size)
    if _CRC.unpack_from(data, kind.size)[0] != zlib.crc32(data[: kind.size]):
        raise ConnectionLostError("a header is damaged")
    found, *values = kind.unpack_from(data)
    if found != mark:
        raise ConnectionLostError("a header is of another kind")
    return tuple(values)


def _prove(connection: socket.socket, key: bytes, own: bytes, other: bytes) -> tuple[bytes, bytes]:
    """Shows that this side has the key, and that the other side has it.  Both sides' nonces."""
    connection.settimeout(PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    nonce = secrets.token_bytes(16)
    connection.sendall(MAGIC + nonce)
    told = _received(connection, len(MAGIC) + 16)
    if told[: len(MAGIC)] != MAGIC:
        raise ConnectionLostError("the other side is no loaderx of this version")
    theirs = bytes(told[len(MAGIC) :])
    connection.sendall(_proof(key, own, theirs, nonce))
    if not hmac.compare_digest(_received(connection, 32), _proof(key, other, nonce, theirs)):
        raise ConnectionLostError("the other side has another key")
    return nonce, theirs


def _proof(key: bytes, side: bytes, to: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, side + to + nonce, hashlib.sha256)


def _checksum(data: Array) -> int:
    """The sum of the 64-bit words of bytes, as if zeros followed."""
    words = len(data) // 8 * 8
    total = int(np.add.reduce(data[:words].view(np.uint64)))
    return (total + int.from_bytes(data[words:].tobytes(), "little")) % (1 << 64)


# The worker ---------------------------------------------------------------------------------------


class Listener:
    """Serves one consumer: the newest that has the key."""

    def __init__(
        self, host: str, key: bytes, make: Callable[[Task], Packed], hold: Hold, threads: int
    ) -> None:
        self._key, self._make, self._hold, self._threads = key, make, hold, threads
        self._guests = threading.Semaphore(MOST_GUESTS)
        self.served: _Served | None = None
        self._is_closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=MOST_GUESTS)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        threading.Thread(target=self._accept, daemon=True, name="loaderx-listen").start()

    def close(self) -> None:
        self._is_closed = True
        if self.served is not None:
            self.served.close()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.1)  # out of descriptors, say
                continue
            if not self._guests.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._admit, args=(connection,), daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        try:
            try:
                own, _ = _prove(connection, self._key, b"worker", b"consumer")
                mark = Mark(own)
                connection.sendall(_PLACE.pack(*mark.place))
            finally:
                self._guests.release()
            if self.served is not None:
                self.served.close()
            self.served = served = _Served(connection, mark, self._make, self._hold, self._threads)
        except OSError:
            connection.close()
            return
        served.run()


class _Served:
    """A connection of a consumer, in its worker."""

    def __init__(
        self,
        connection: socket.socket,
        mark: Mark,
        make: Callable[[Task], Packed],
        hold: Hold,
        threads: int,
    ) -> None:
        connection.settimeout(STALLED_S)
        self.connection, self._mark, self._make, self._hold = connection, mark, make, hold
        self._hold.held.clear()
        self._sending = threading.Lock()
        self._tasks: SimpleQueue[_Asked | None] = SimpleQueue()
        self._threads = threads
        self._lent: deque[Packed] = deque()  # the consumer may be reading their memory
        self._taken = 0

    def run(self) -> None:
        """Reads tasks until the connection ends."""
        for _ in range(self._threads + 1):  # one sends while the others make
            threading.Thread(target=self._make_all, daemon=True, name="loaderx-make").start()
        try:
            while True:
                wait_for_message(self.connection)  # a consumer may be silent for long
                number, reads, taken, count, *words = _checked(self.connection, TASK, TASK_MARK)
                while self._taken < taken:
                    self._lent.popleft()
                    self._taken += 1
                asked = _Asked(number, tuple(words[:count]), reads, time.monotonic())
                self._tasks.put(asked)
        except (OSError, ValueError, IndexError):
            pass
        finally:
            self.close()
            self._lent.clear()

    def close(self) -> None:
        self._mark.erase()  # first: from here on what was lent may be overwritten
        self._tasks.put(None)
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def _make_all(self) -> None:
        while (asked := self._tasks.get()) is not None:
            packed = self._make(asked.task)
            packed = packed._replace(held_s=time.monotonic() - asked.came)
            try:
                self._send(asked, packed)
            except (OSError, ValueError):
                self.close()
            del packed  # the memory can be used again
        self._tasks.put(None)  # for the next thread

    def _send(self, asked: _Asked, packed: Packed) -> None:
        if packed.rest:
            self._hold.held[asked.number] = packed
            pieces: list[Any] = [ANSWER.pack(ANSWER_MARK, asked.number, FETCH, 0, 0, 0)]
            return self._send_all(pieces)
        form = self._hold.number_of(packed.form)
        took = packed.making_s, packed.held_s
        places = [address_of(array) for array in packed.arrays] if asked.reads else ()
        head = with_crc(
            json.dumps([form, packed.shapes, took, packed.read, packed.times, places]).encode()
        )
        pieces = [b"", head]
        nbytes = total = 0
        for array in packed.arrays:
            nbytes += array.nbytes + padding(array.nbytes)
            if not asked.reads:
                flat = array.reshape(-1).view(np.uint8)
                total += _checksum(flat)
                pieces += [flat, bytes(padding(flat.nbytes))]
        kind = MEMORY if asked.reads else ELEMENT
        told = ANSWER_MARK, asked.number, kind, len(head), nbytes, total % (1 << 64)
        pieces[0] = ANSWER.pack(*told)
        return self._send_all(pieces, packed if asked.reads else None)

    def _send_all(self, pieces: list[Any], lent: Packed | None = None) -> None:
        pieces[0] = with_crc(pieces[0])
        with self._sending:
            if lent is not None:
                self._lent.append(lent)  # in the order of answers
            _send_all(self.connection, [memoryview(one) for one in pieces if len(one)])


class _Asked(NamedTuple):
    """A task, as the consumer has sent it."""

    number: int
    task: Task
    reads: bool  # the consumer can read this process's memory
    came: float


class Hold:
    """What the consumer will fetch through Ray."""

    def __init__(self) -> None:
        self.held: dict[int, Packed] = {}
        self.forms: list[bytes] = []
        self._numbers: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def number_of(self, form: bytes) -> int:
        """The number of the form of an element."""
        with self._lock:
            number = self._numbers.setdefault(form, len(self.forms))
            if number == len(self.forms):
                self.forms.append(form)
            return number


def _send_all(connection: socket.socket, pieces: Sequence[memoryview]) -> None:
    left = list(pieces)
    while left:
        sent = connection.sendmsg(left[:_MANY])
        while left and sent >= left[0].nbytes:
            sent -= left.pop(0).nbytes
        if sent:
            left[0] = left[0][sent:]


# The consumer -------------------------------------------------------------------------------------


class DirectLine:
    """A connection to a worker.

    Args:
        address: where the worker listens.
        key: of the session.
        fetch: gives what a worker holds, by the number of its task; through Ray.
        form: gives the form of an element by its number; through Ray.
    """

    def __init__(
        self,
        address: tuple[str, int],
        key: bytes,
        fetch: Callable[[int], Packed],
        form: Callable[[int], bytes],
    ) -> None:
        self._fetch, self._form = fetch, form
        self._forms: dict[int, bytes] = {}
        self.connection = socket.create_connection(address, PATIENCE_S)
        try:
            _, nonce = _prove(self.connection, key, b"consumer", b"worker")
            place = _PLACE.unpack(_received(self.connection, _PLACE.size))
        except BaseException:
            self.connection.close()
            raise
        self.connection.settimeout(STALLED_S)
        self._memory = MarkedMemory(nonce, place)
        self._reads, self._taken = self._memory.is_readable(), 0
        self.name = "memory" if self._reads else "direct"

    def send(self, job: Job) -> None:
        task = job.task
        words = (*task, 0, 0, 0, 0)[:5]
        told = job.number, self._reads, self._taken, len(task), *words
        self.connection.sendall(with_crc(TASK.pack(TASK_MARK, *told)))

    def receive(self, unpacker: Unpacker) -> tuple[int, Packed, Outcome | None]:
        """The next answer: the number of its task, and an element if it came this way."""
        connection = self.connection
        wait_for_message(connection)  # a worker may work for long
        number, kind, head_bytes, nbytes, told = _checked(connection, ANSWER, ANSWER_MARK)
        if kind == FETCH:
            return number, self._fetch(number), None
        if not _CRC.size <= head_bytes <= MOST_HEAD:
            raise ConnectionLostError("the header names an impossible length")
        data = _received(connection, head_bytes)
        head, (crc,) = data[: -_CRC.size], _CRC.unpack(data[-_CRC.size :])
        if crc != zlib.crc32(head):
            raise ConnectionLostError("the description of an element is damaged")
        form, shapes, (making_s, held_s), read, times, places = json.loads(head)
        if form not in self._forms:
            self._forms[form] = self._form(form)
        packed = Packed(self._forms[form], tuple(map(tuple, shapes)), (), times, read)
        packed = packed._replace(making_s=making_s, held_s=held_s)
        layout = unpacker.layout(packed.form, packed.shapes)
        block = unpacker.block(layout)
        if nbytes != block.nbytes:
            raise ConnectionLostError("the bytes do not fit the shapes")
        if kind == MEMORY:
            self._copy(places, layout, block)
        else:
            receive_into(connection, block)
            if _checksum(block) != told:
                raise ConnectionLostError("the bytes of an element are damaged")
        return number, packed, (unpacker.element(layout, block, packed), None)

    def _copy(self, places: Sequence[int], layout: ElementLayout, block: Array) -> None:
        """Copies leaves out of the worker's memory."""
        leaves = [leaf for leaf in views(layout, block) if leaf is not None]
        into = [(address_of(leaf), leaf.nbytes) for leaf in leaves]
        pieces = [(place, leaf.nbytes) for place, leaf in zip(places, leaves, strict=True)]
        self._memory.read(pieces, into)
        self._taken += 1

    def close(self) -> None:
        """Ends a `receive` in another thread.  Safe to call from anywhere."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        self.connection.close()
