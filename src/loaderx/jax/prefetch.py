"""Batches placed ahead of their use.

A placed run stands between an engine's run and the iterator.  Whenever a batch is asked for it also
asks for the next ones, until ``depth`` of them are on their way to the devices; a transfer takes
its time while the user's step runs.  It grows by one batch per step: so the first batch comes as
soon as it can, and an engine that measures sees its usual rhythm.

Batches are taken from the engine in the caller's thread, since an engine may promise to work there.
Placing takes some time of its own, though (Python in JAX, a copy on the host), so it moves to a
thread once it has been seen to matter: where it takes more than 0.5 % of the time between two
batches, and these are a millisecond or more apart.  Closer together, handing a batch over would
cost as much as placing it.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Protocol

import jax

from loaderx.engines.base import Noted, Run, Workshop
from loaderx.errors import LoaderxError
from loaderx.jax.placement import Placement

LOOK = 8  # batches until the first look at the times
LOOK_AGAIN = 32
SMALL_SHARE = 0.005
LARGE_SHARE = 0.3  # so much of the time: the consumer does little else, and would only wait
CLOSE_S = 0.001
PATIENCE_S = 10.0


class Habit(Protocol):
    """What one run finds out about placing, for the next: should a thread do it?"""

    in_background: bool


class PlacedWorkshop:
    """A workshop whose runs give placed elements."""

    def __init__(self, workshop: Workshop, placement: Placement, depth: int, habit: Habit) -> None:
        self._workshop, self._placement, self._depth = workshop, placement, depth
        self._habit = habit

    def open(self, steps: range) -> PlacedRun:
        return PlacedRun(self._workshop.open(steps), self._placement, self._depth, self._habit)

    def close(self) -> None:
        self._workshop.close()


class _Ticket:
    """An element that is being placed, or an error: what its step will get."""

    __slots__ = ("done", "element", "error", "placement")

    def __init__(self, element: Any, placement: Placement | None) -> None:
        self.element = element
        self.placement = placement
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def place(self) -> None:
        placement, self.placement = self.placement, None
        try:
            assert placement is not None
            with _numbers_as(placement.x64):
                self.element = place(self.element, placement)
        except BaseException as error:
            self.fail(error)
        else:
            self.done.release()

    def fail(self, error: BaseException) -> None:
        self.element, self.error = None, error
        self.done.release()

    def result(self) -> Any:
        self.done.acquire()
        if self.error is None:
            return self.element
        try:
            raise self.error
        finally:
            self.error = None


def place(element: Any, placement: Placement) -> Any:
    """The element placed, with what is noted about it."""
    if type(element) is Noted:
        element.value = placement.place(element.value)
        return element
    return placement.place(element)


def _numbers_as(x64: bool) -> AbstractContextManager[Any]:
    """The loader's own setting for wide numbers: another thread may have another one."""
    if bool(jax.config.jax_enable_x64) == x64:
        return nullcontext()
    if hasattr(jax, "enable_x64"):
        setting: AbstractContextManager[Any] = jax.enable_x64(x64)
    else:
        from jax import experimental

        setting = experimental.enable_x64(x64)
    return setting


class _Placer:
    """A thread that places what is put into its queue.  It holds nothing while it waits."""

    def __init__(self) -> None:
        self.tickets: SimpleQueue[_Ticket | None] = SimpleQueue()
        self.stopping = threading.Event()
        self._closing = threading.Lock()
        self.thread = threading.Thread(
            target=_labour, args=(self.tickets, self.stopping), name="loaderx-placer", daemon=True
        )
        self.thread.start()
        _placers.add(self)

    def put(self, ticket: _Ticket) -> None:
        with self._closing:  # a ticket behind the last one would be waited for in vain
            if not self.stopping.is_set():
                self.tickets.put(ticket)
                return
        ticket.fail(_closed())

    def dismiss(self) -> None:
        """Sends the thread home, and waits for nothing: safe in a finaliser."""
        self.stopping.set()
        self.tickets.put(None)

    def close(self) -> None:
        """The same while somebody may be asking for a batch."""
        with self._closing:
            self.dismiss()
        self.wait()

    def wait(self) -> None:
        if self.thread is not threading.current_thread():
            self.thread.join(PATIENCE_S)


def _closed() -> LoaderxError:
    return LoaderxError("the loader was closed while this batch was waited for.")


def _labour(tickets: SimpleQueue[_Ticket | None], stopping: threading.Event) -> None:
    while (ticket := tickets.get()) is not None:
        if stopping.is_set():
            ticket.fail(_closed())
        else:
            ticket.place()
        del ticket


_placers: weakref.WeakSet[_Placer] = weakref.WeakSet()


@atexit.register
def _close_up() -> None:
    placers = list(_placers)
    for placer in placers:
        placer.dismiss()
    for placer in placers:
        placer.wait()


class PlacedRun:
    """The elements of a run, placed; up to ``depth`` ahead."""

    def __init__(self, run: Run, placement: Placement, depth: int, habit: Habit) -> None:
        self._run = run
        self._placement = placement
        self._depth = depth
        self._habit = habit
        self._ahead: deque[Any] = deque()
        self._started = self._ended = False
        self._placer: _Placer | None = None
        self._lock = threading.Lock()  # two threads may share an iterator
        self._placing_s, self._look_at, self._count, self._since = 0.0, LOOK, 0, 0.0

    def next(self) -> Any:
        with self._lock:
            for _ in range(2 if self._started else 1):  # one to hand out, one to grow by
                if len(self._ahead) <= self._depth:
                    self._pull()
            self._started = True
            if not self._ahead:
                raise StopIteration
            element = self._ahead.popleft()
        return element.result() if type(element) is _Ticket else element

    def _pull(self) -> None:
        if self._ended:
            return
        try:
            element = self._run.next()
        except StopIteration:
            self._ended = True
            return
        except Exception as error:
            self._fail(error)
            return
        if self._placer is None and not self._habit.in_background:
            self._place_here(element)
            return
        ticket = _Ticket(element, self._placement)
        self._ahead.append(ticket)
        self._start().put(ticket)

    def _fail(self, error: BaseException) -> None:
        """Keeps an error for its step, and goes no further."""
        self._ended = True
        ticket = _Ticket(None, None)
        ticket.fail(error)
        self._ahead.append(ticket)

    def _place_here(self, element: Any) -> None:
        begun = perf_counter()
        try:
            self._ahead.append(place(element, self._placement))
        except Exception as error:
            self._fail(error)
        now = perf_counter()
        self._placing_s += now - begun
        self._count += 1
        if self._count >= self._look_at:
            self._look(now)

    def _look(self, now: float) -> None:
        """Does placing matter?  Then it goes into a thread."""
        period = (now - self._since) / self._count
        share = self._placing_s / (now - self._since)
        if self._since and self._depth and period >= CLOSE_S:
            self._habit.in_background = SMALL_SHARE < share < LARGE_SHARE
        self._placing_s, self._count, self._since, self._look_at = 0.0, 0, now, LOOK_AGAIN

    def _start(self) -> _Placer:
        if self._placer is None:
            self._placer = _Placer()
            weakref.finalize(self, self._placer.dismiss).atexit = False  # `_close_up` does that
        return self._placer

    def close(self) -> None:
        self._ended = True
        if self._placer is not None:
            self._placer.close()
        self._run.close()
        self._ahead.clear()

    def describe(self) -> tuple[str, str]:
        return self._run.describe()
