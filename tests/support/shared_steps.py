"""An engine whose workers share every step, whatever it takes."""

from __future__ import annotations

from typing import Any

from loaderx.engines import Engine, Pending, Session, Task, Work


class AlwaysShared:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def session(self, work: Work) -> Session:
        return _SharedSession(self._engine.session(work))


class _SharedSession(Session):
    def __init__(self, session: Session) -> None:
        self._session = session
        self.window = session.window

    def submit(self, task: Task) -> Pending:
        return self._session.submit_shared(task)

    def close(self) -> None:
        self._session.close()


def meet(path: Any, *, first: bool) -> None:
    """Returns when two processes are here at once, one of them as the first: opening a FIFO waits
    for its other end."""
    with open(path, "rb" if first else "wb"):
        pass
