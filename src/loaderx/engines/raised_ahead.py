"""An error inside a result, raised when its step is asked for."""

from __future__ import annotations

import os


class RaisedAhead:
    """The error of a step, raised when the step is asked for.

    Unlike a pickled exception it keeps its cause and its frames between processes.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> tuple[object, ...]:
        from loaderx.engines.processes import exceptions  # late: brings cloudpickle

        return _raised_in_worker, (exceptions.pack(self.error), os.getpid())


def _raised_in_worker(packed: bytes, pid: int) -> RaisedAhead:
    from loaderx.engines.processes import exceptions

    return RaisedAhead(exceptions.unpack(packed, f"a worker (pid {pid})", None))
