"""A worker in an actor of Ray."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import NamedTuple

from loaderx.engines.base import Task
from loaderx.engines.elsewhere.direct import Hold, Listener
from loaderx.engines.elsewhere.maker import Maker, worker_name
from loaderx.engines.elsewhere.packing import Packed, packed_error
from loaderx.engines.elsewhere.payload import Payload
from loaderx.engines.elsewhere.worker_memory import permit


class Opened(NamedTuple):
    """A worker that is ready, or why it cannot be."""

    pid: int
    name: str
    address: tuple[str, int] | None = None  # where it listens
    error: Packed | None = None


class RayActor:
    """Makes elements; Ray starts it again if it dies.

    Args:
        key: of the session, for the connection; empty: none is wanted.
        threads: tasks that it makes at once.
    """

    def __init__(self, key: bytes, threads: int) -> None:
        self._key, self._threads = key, threads
        self._turns = threading.Semaphore(threads)
        self._lock = threading.Lock()
        self._hold = Hold()
        self._maker: Maker | None = None
        self._opened: Opened | None = None

    def open(self, payload: Payload) -> Opened:
        """Gets ready, with the work; may be called again."""
        with self._lock:
            if self._opened is None:
                try:
                    self._opened = self._open(payload)
                except BaseException as error:
                    return Opened(os.getpid(), worker_name(), error=packed_error(error))
            return self._opened

    def _open(self, payload: Payload) -> Opened:
        self._maker = Maker(payload)
        address = None
        if self._key:
            import ray  # late: it is an extra

            if payload.host == socket.gethostname():
                permit(payload.pid)
            host = ray.util.get_node_ip_address()
            listener = Listener(host, self._key, self._make, self._hold, self._threads)
            address = listener.address
        return Opened(os.getpid(), worker_name(), address)

    def make(self, task: Task) -> Packed:
        """The element of a task, through Ray's store."""
        came = time.monotonic()
        packed = self._make(task)
        return packed._replace(held_s=time.monotonic() - came)

    def _make(self, task: Task) -> Packed:
        assert self._maker is not None
        with self._turns:
            return self._maker.make(task)

    def fetch(self, number: int) -> Packed:
        """What was made of a task for the connection, and needs pickles."""
        return self._hold.held.pop(number)

    def form(self, number: int) -> bytes:
        """The form of elements that came over the connection."""
        return self._hold.forms[number]
