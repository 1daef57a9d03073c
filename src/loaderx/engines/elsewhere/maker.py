"""Makes elements in a worker that others run."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

from loaderx.chain.global_generators import GlobalDraws
from loaderx.engines.base import Task, worker_error
from loaderx.engines.elsewhere.packing import Packed, Packer, packed_error
from loaderx.engines.elsewhere.payload import Payload, load
from loaderx.engines.processes.jobs import step_of
from loaderx.errors import RecordError, one_line
from loaderx.memory import PoolPerThread

MOST_MAKERS = 4  # kept in a worker, which may serve several loaders


class Maker:
    """The work of a loader in a worker.  Threads may use it at once."""

    def __init__(self, payload: Payload) -> None:
        if (payload.host, payload.pid) != (socket.gethostname(), os.getpid()):
            os.environ["JAX_PLATFORMS"] = "cpu"  # the accelerator belongs to the training
        self._work = load(payload)
        self._pools = PoolPerThread()
        self._packer = Packer()
        self._draws, self._modules = GlobalDraws(), len(sys.modules)

    def make(self, task: Task) -> Packed:
        """The element of a task, or its error."""
        began = time.monotonic()
        packed = self._make(task)
        return packed._replace(worker=worker_name(), making_s=time.monotonic() - began)

    def _make(self, task: Task) -> Packed:
        try:
            element = self._work(task, self._pools.lend)
        except BaseException as error:
            return packed_error(worker_error(error, task))
        try:
            return self._packer.pack(element, self._notice_draws())
        except Exception as error:
            failed = RecordError(
                f"the element cannot be sent from a worker: {one_line(error)}. Make arrays, "
                "numbers or text of it in .map(), or use engine='threads'.",
                step=step_of(task),
            )
            failed.__cause__ = error
            return packed_error(failed)

    def _notice_draws(self) -> str | None:
        """A warning, if functions draw from the global generators.  Importing may draw as well."""
        if len(sys.modules) > self._modules:  # the import may have drawn: check from here on
            self._draws, self._modules = GlobalDraws(), len(sys.modules)
        return self._draws.notice()


_makers: dict[str, Maker] = {}
_lock = threading.Lock()


def kept_maker(key: str, payload: Payload | None) -> Maker | None:
    """The maker of a payload, made once in a process; None if the payload is needed for that."""
    with _lock:
        maker = _makers.get(key)
        if maker is None and payload is not None:
            maker = Maker(payload)
            while len(_makers) >= MOST_MAKERS:
                del _makers[next(iter(_makers))]
            _makers[key] = maker
        return maker


def worker_name() -> str:
    """How messages and statistics name this process."""
    return f"{socket.gethostname()} (pid {os.getpid()})"
