"""Defers Ctrl-C, and every other signal, to a moment when it does no harm.

Python runs signal handlers in the main thread, between any two calls, and most raise an exception
there.  Between starting a process and registering it, or in the middle of releasing resources, that
would cause a leak.  A mask (`signal.pthread_sigmask`) does not help: the system delivers the signal
to another thread of the process, and the handler runs in the main thread all the same.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


class SignalsDeferred:
    """A block in which no Python signal handler runs: signals are handled at its end.

    It does nothing outside the main thread, where no handler runs.  For short blocks that do not
    wait for long.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._came: dict[int, FrameType | None] = {}

    def __enter__(self) -> SignalsDeferred:
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            for number in _CATCHABLE:
                handler = signal.getsignal(number)
                if callable(handler):  # unlike SIG_DFL, SIG_IGN and handlers in C
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except ValueError:  # not the main interpreter: no handler runs here either
            self._handlers.clear()
        except BaseException:  # from a handler that was not replaced yet
            self._restore()
            raise
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came[number] = frame

    def __exit__(self, *exception: object) -> None:
        if self._handlers:
            self._restore()
        if self._came:
            self._deliver()

    def _restore(self) -> None:
        # One call into C, so that no restored handler runs before all are restored.
        list(map(signal.signal, self._handlers.keys(), self._handlers.values()))

    def _deliver(self) -> None:
        try:
            while self._came:
                number, frame = self._came.popitem()
                self._handlers[number](number, frame)
        finally:
            if self._came:  # a handler has raised, and others are still to be called
                self._deliver()


def _catchable() -> list[int]:
    """Signals that can have a handler; Ctrl-C last, so that it is restored last."""
    never = {getattr(signal, name, None) for name in ("SIGKILL", "SIGSTOP")}
    faults = {getattr(signal, name, None) for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")}
    numbers = [int(number) for number in signal.valid_signals() if number not in never | faults]
    return sorted(numbers, key=lambda number: number == signal.SIGINT)


_CATCHABLE = _catchable()
