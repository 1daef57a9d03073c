"""Gives tasks to workers that may vanish, stand still or come later; needs no network.

A *hand* is a worker that can be sent tasks: it has a few under way, so that it never waits for the
next.  Answers come in any order.  The tasks of lost hands are next for the others, oldest first.

A hand that stands still cannot be told from a slow one.  So when the consumer waits for a task, and
another hand has done two tasks that it was sent later, that hand is sent the task as well: a task
makes the same element anywhere, and the first answer counts.

A worker that dies takes all its tasks with it, also those that are not to blame.  So a task that
two hands were lost with is made alone: if a third is lost, it is the one.

The consumer only appends to the queue and wakes the *sender*, a thread: an exception that a signal
handler raises in the consumer cannot leave a task half sent.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol, TypeAlias

from loaderx.engines.base import Element, Made, Task

OVERTAKEN = 2  # later tasks that another worker has done, after which it gets this one too
MOST_DEATHS = 3  # of workers while they made the same task
LONG_S = 5.0  # after which an idle hand gets any task that is waited for
IDLE_S = 0.25  # after which an idle hand may get a task that is waited for
CHECK_S = 0.25  # how often a waiting thread checks what has changed
BRIEF_S = 0.02  # a shorter wait is no reason to look for another worker


Outcome: TypeAlias = tuple[Element, BaseException | None]
"""What a worker made of a task, or its error."""


class Job:
    """A task and its result."""

    __slots__ = (
        "_done", "deaths", "hands", "is_done", "losses", "made", "number", "outcome", "sent_at",
        "task", "turn",
    )  # fmt: skip

    def __init__(self, task: Task, number: int) -> None:
        self.task, self.number = task, number
        self.hands: set[Hand] = set()  # those that make it
        self.turn = 0  # grows with every task that is sent
        self.sent_at = 0.0
        self.losses = self.deaths = 0  # of hands that made it; of their workers, as is known later
        self.is_done = False  # it has an outcome, or none is wanted
        self.outcome: Outcome | None = None
        self.made: Made | None = None
        self._done = threading.Lock()
        self._done.acquire()

    @property
    def is_made_alone(self) -> bool:
        """Whether a hand that makes it must have nothing else under way."""
        return self.losses >= MOST_DEATHS - 1 and not self.is_done

    def finish(self, outcome: Outcome | None = None) -> None:
        """Sets the result, unless there is one.  Safe to call from anywhere."""
        if not self.is_done:
            self.outcome, self.is_done = outcome, True
        with contextlib.suppress(RuntimeError):
            self._done.release()

    def wait(self, seconds: float) -> bool:
        """Waits for the result; for one thread."""
        return self._done.acquire(timeout=seconds) or self.is_done

    def __lt__(self, other: Job) -> bool:
        return self.number < other.number


class Line(Protocol):
    """A way to a worker."""

    def send(self, job: Job) -> None:
        """Sends a task, without waiting for the worker; `OSError` if that cannot be."""


class Sent(NamedTuple):
    """A task that a worker was sent."""

    job: Job
    turn: int
    at: float


class Hand:
    """A worker that can be sent tasks."""

    def __init__(self, line: Line, depth: int) -> None:
        self.line, self.depth = line, depth
        self.under_way: dict[int, Sent] = {}
        self.latest = [-1] * OVERTAKEN  # the highest turns that it has done

    def has_room(self, most: float = math.inf) -> bool:
        """Whether it can be sent a task, and has no more than ``most`` then."""
        sent = list(self.under_way.values())
        is_full = len(sent) >= min(most, self.depth)
        return not is_full and not any(one.job.is_made_alone for one in sent)


class Dispatch:
    """The tasks of one session, and the hands that make them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._numbers, self._turns = itertools.count(1), itertools.count(1)
        self._queue: deque[Job] = deque()
        self._lost: list[Job] = []  # a heap
        self.awaited: dict[Job, None] = {}
        self._hands: list[Hand] = []
        self._wake: SimpleQueue[None] = SimpleQueue()  # unlike an Event it has no lock
        self._last_left = time.monotonic()
        self.is_stopped = False
        self._end: Outcome | None = None  # of the tasks that have none when all is stopped

    def submit(self, task: Task) -> Job:
        job = Job(task, next(self._numbers))
        self._queue.append(job)
        # Else a worker that is full takes it with its next answer, and the sender can sleep on.
        if any(hand.has_room() for hand in list(self._hands)):
            self._wake.put(None)
        if self.is_stopped:
            job.finish(self._end)
        return job

    def wait(self, job: Job, while_waiting: Callable[[], object]) -> None:
        """Waits for a result, and calls a function now and then."""
        if job.wait(BRIEF_S):
            return
        self.awaited[job] = None
        try:
            self._wake.put(None)
            while not job.wait(CHECK_S):
                while_waiting()
                self._wake.put(None)
                if self.is_stopped:  # while it was between the queue and a hand
                    job.finish(self._end)
        finally:
            # A result holds what the consumer does with it: the sender must not keep it.
            self.awaited.pop(job, None)

    def seconds_without_hands(self) -> float:
        """For how long there has been no worker."""
        return 0.0 if self._hands else time.monotonic() - self._last_left

    def run_sender(self) -> None:
        """Sends tasks until all is stopped; the main loop of a thread."""
        while not self.is_stopped:
            self._wake.get()
            with contextlib.suppress(Empty):
                while True:  # one look is enough for all that has happened
                    self._wake.get_nowait()
            self.send()

    def send(self) -> None:
        """Sends what can be sent, in turns: no worker has two tasks while another has none."""
        with self._lock:
            for most in range(1, 1 + max((hand.depth for hand in self._hands), default=0)):
                for hand in list(self._hands):
                    self._fill(hand, most)

    # For the threads of the workers ---------------------------------------------------------------

    def join(self, hand: Hand) -> None:
        with self._lock:
            self._hands.append(hand)
        self._wake.put(None)

    def leave(self, hand: Hand) -> list[Job]:
        """Takes back the tasks of a hand that is lost: they are next for the others."""
        with self._lock:
            if hand not in self._hands:
                return []
            self._hands.remove(hand)
            self._last_left = time.monotonic()
            left = [sent.job for sent in hand.under_way.values() if not sent.job.is_done]
            hand.under_way.clear()
            for job in left:
                job.losses += 1
                job.hands.discard(hand)
                if not job.hands:
                    heapq.heappush(self._lost, job)
        self._wake.put(None)
        return left

    def answer(self, hand: Hand, number: int, outcome: Outcome) -> None:
        """Takes a result, and sends the next task."""
        with self._lock:
            sent = hand.under_way.pop(number, None)
            if sent is not None:
                hand.latest = sorted([*hand.latest, sent.turn])[-OVERTAKEN:]
                sent.job.finish(outcome)
            self._fill(hand)

    def stop(self, error: BaseException | None = None) -> None:
        """Ends the sender, and all tasks without a result.  Safe to call from anywhere."""
        self._end = None if error is None else (None, error)
        self.is_stopped = True
        self._wake.put(None)
        sent = [one.job for hand in list(self._hands) for one in list(hand.under_way.values())]
        for job in [*sent, *list(self._lost), *list(self._queue)]:
            job.finish(self._end)

    def _fill(self, hand: Hand, most: float = math.inf) -> None:
        while hand.has_room(most) and hand in self._hands and not self.is_stopped:
            job = self._overtaken(hand) or self._next(hand)
            if job is None:
                return
            sent = Sent(job, next(self._turns), time.monotonic())
            job.turn, job.sent_at = sent.turn, sent.at
            job.hands.add(hand)
            hand.under_way[job.number] = sent
            try:
                hand.line.send(job)
            except OSError:
                self.leave(hand)

    def _next(self, hand: Hand) -> Job | None:
        while self._lost or self._queue:
            if hand.under_way and self._lost and self._lost[0].is_made_alone:
                return None  # it is next, once the hand has done the others
            job = heapq.heappop(self._lost) if self._lost else self._queue.popleft()
            if not job.is_done:
                return job
        return None

    def _overtaken(self, hand: Hand) -> Job | None:
        """A task that is waited for, and that this hand would have made by now."""
        for job in list(self.awaited):
            if job.is_done or not job.hands or hand in job.hands:
                continue
            if job.is_made_alone and hand.under_way:
                continue
            waited_s = time.monotonic() - job.sent_at
            later = [turn > job.turn for turn in hand.latest]
            is_idle = not (self._lost or self._queue or hand.under_way)
            # An idle hand need not have overtaken it: it may be new, with nothing else to do.
            if all(later) or (is_idle and waited_s > (IDLE_S if any(later) else LONG_S)):
                return job
        return None
