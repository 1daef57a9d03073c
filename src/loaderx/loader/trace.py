"""What a loader does while steps are loaded: a file for Perfetto and other viewers of traces.

The events are kept as they come, and become Chrome's trace events when the file is written: a new
one, which takes the place of the old one when it is whole.  The loop has a lane of its own, and so
has each worker.  Workers only tell when they began a task and when it was done, which costs nothing
measurable, so nobody has to tell them that somebody listens.
Inside a task, stages are shown where it was timed stage by stage (`sampling`): all that are slow.

Times of workers on other machines are those of the way back: their clocks are other ones.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from loaderx.engines.base import Made, Task, Timing, Work
from loaderx.errors import FileError, warn_user

T = TypeVar("T")

MOST_EVENTS = 65_536  # the newest ones
LOOP, NEXT, PLACE = "training loop", "next", "place on devices"


class Event(NamedTuple):
    """Something that took time."""

    lane: str
    name: str
    began: float  # `time.perf_counter`
    ended: float
    about: dict[str, Any]


class Recording:
    """What iterators and runs tell of the steps of a loader."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.tasks: deque[tuple[Made, Task, Work, Timing | None]] = deque(maxlen=MOST_EVENTS)
        self.timings: deque[Timing] = deque(maxlen=MOST_EVENTS)
        self._last = 0.0  # the end of the last `next`

    def waited(self, step: int, began: float, ended: float) -> bool:
        """Adds a step of the loop; True if it was the last one that is wanted."""
        if self._last:
            self.events.append(Event(LOOP, "your step", self._last, began, {"step": step - 1}))
        self.events.append(Event(LOOP, NEXT, began, ended, {"step": step}))
        self._last = ended
        return False

    def placed(self, began: float, ended: float) -> None:
        """Adds the placing of a batch on the devices."""
        self.events.append(Event(LOOP, PLACE, began, ended, {}))

    def made(self, made: Made | None, task: Task, work: Work, timing: Timing | None) -> None:
        """Adds a task, and its stages if it was timed."""
        if made is not None:
            self.tasks.append((made, task, work, timing))
        else:
            self.timed(timing)  # by the loop itself

    def timed(self, timing: Timing | None) -> None:
        """Adds the stages of an element, unless it was made by a worker: then its task has them."""
        if timing is not None:
            self.timings.append(timing)

    def pause(self) -> None:
        """Called at the end of a stream; another loop may follow."""

    def stop(self) -> None:
        """Called when nobody listens any more."""


class Trace(Recording):
    """The events of some steps, as a file.

    Args:
        path: of the file.
        steps: for how many steps it is to listen.
    """

    def __init__(self, path: str, steps: int) -> None:
        super().__init__()
        self._path, self._left = os.path.realpath(path), steps
        self._lock = threading.Lock()
        self._process = 0  # that has recorded something new; a fork of it has not
        self._at_end: weakref.finalize[..., Any] | None = None
        try:
            self._write()  # a wrong path is an error now
        except OSError as error:
            raise FileError(f"{self._path} cannot be written: {error.strerror}.") from error

    def write_at_end_of(self, owner: object) -> None:
        """Also writes when the owner is collected, or the interpreter exits: after Ctrl-C, say."""
        self._at_end = weakref.finalize(owner, self.pause)

    def waited(self, step: int, began: float, ended: float) -> bool:
        super().waited(step, began, ended)
        self._process = os.getpid()
        with self._lock:
            self._left -= 1
            return self._left == 0

    def stop(self) -> None:
        if self._at_end is not None:
            self._at_end.detach()
        self.pause()

    def pause(self) -> None:
        """Writes what there is, if some of it is new; if it cannot, the training goes on."""
        if self._process == os.getpid():
            self._process = 0
            try:
                self._write()
            except OSError as error:
                warn_user(f"the trace {self._path} cannot be written: {error.strerror}.")

    def _write(self) -> None:
        import json  # late: slow to import

        events = [*_copied(self.events), *self._of_tasks(), *self._of_loop()]
        lanes = sorted({event.lane for event in events}, key=lambda lane: (lane != LOOP, lane))
        numbers = {lane: number for number, lane in enumerate(lanes, 1)}
        shown: list[dict[str, Any]] = [_name("process_name", 0, f"loaderx, process {os.getpid()}")]
        shown += [_name("thread_name", number, lane) for lane, number in numbers.items()]
        # Of two that begin at once, the outer one comes first.
        for event in sorted(events, key=lambda one: (one.began, -one.ended)):
            shown.append(
                {
                    "ph": "X",
                    "name": event.name,
                    "pid": os.getpid(),
                    "tid": numbers[event.lane],
                    "ts": event.began * 1e6,
                    "dur": max(0.0, event.ended - event.began) * 1e6,
                    "args": event.about,
                }
            )
        text = json.dumps({"traceEvents": shown, "displayTimeUnit": "ms"})
        if os.path.exists(self._path) and not os.path.isfile(self._path):  # such as /dev/null
            Path(self._path).write_text(text, encoding="utf-8")
            return
        temporary = Path(f"{self._path}.{secrets.token_hex(4)}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self._path)
        finally:
            with contextlib.suppress(OSError):  # it is there only if it could not be written
                temporary.unlink()

    def _of_tasks(self) -> Iterator[Event]:
        ends: dict[str, list[float]] = {}  # for each worker, of the tasks that it makes at once
        for made, task, work, timing in sorted(_copied(self.tasks), key=lambda one: one[0].began):
            about: dict[str, Any] = {"task": list(task), "of": work.describe(task)}
            if len(task) == 1:
                about["step"] = task[0]
            free = ends.setdefault(made.worker, [])
            at = next((n for n, end in enumerate(free) if end <= made.began), len(free))
            free[at : at + 1] = [made.ended]
            lane = f"{made.worker} ({at + 1})" if at else made.worker
            outer = Event(lane, work.noun_of(task), made.began, made.ended, about)
            yield outer
            yield from _stages(timing, outer)

    def _of_loop(self) -> Iterator[Event]:
        """The stages of elements that the loop made itself, inside a `next`."""
        timings = _copied(self.timings)
        of_workers = {id(timing) for *_, timing in _copied(self.tasks)}
        calls = [event for event in _copied(self.events) if event.name == NEXT]
        for timing in timings:
            place = bisect.bisect_right(calls, timing.ended, key=lambda one: one.began) - 1
            if place >= 0 and timing.ended <= calls[place].ended and id(timing) not in of_workers:
                yield from _stages(timing, calls[place])


def _copied(recorded: deque[T]) -> list[T]:
    while True:
        with contextlib.suppress(RuntimeError):  # another thread has just added something
            return list(recorded)


def _stages(timing: Timing | None, outer: Event) -> Iterator[Event]:
    """Stages one after the other, though those of records take turns."""
    if timing is None or not outer.began <= timing.ended <= outer.ended:
        return
    began = max(outer.began, timing.ended - sum(timing.stages.values()))
    for stage, seconds in timing.stages.items():
        ended = min(timing.ended, began + seconds)
        yield Event(outer.lane, stage, began, ended, {})
        began = ended


def _name(kind: str, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": os.getpid(), "tid": lane, "args": {"name": name}}
