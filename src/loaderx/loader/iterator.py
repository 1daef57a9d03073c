"""The stream itself: an iterator that knows its position.

The position counts the batches that were handed out, each once, whatever comes in between:

- **An exception inside ``next``** (a record that fails, Ctrl-C) ends the run of the engine.  The
  position has not moved, and the following ``next`` starts a run there.  Counting is the last
  thing that ``next`` does.  Python handles signals after calls only; the one call after counting
  opens the lock, and Ctrl-C there takes the counting back.
- **``close()`` while a ``next`` is under way**, in another thread or in the frame that a signal
  handler broke into, only leaves a request and tells the engine.  The ``next`` either gets its
  batch, counts it and hands it out, or raises; in both cases it then closes the run itself.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from threading import get_ident
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from loaderx.engines.base import Measured, Run, Session
from loaderx.errors import (
    ArgumentError,
    ArgumentTypeError,
    LoaderxError,
    StateError,
    check_int,
    hidden_by_pytest,
    hide_own_frames,
)
from loaderx.hints import ITERATOR, attribute_error
from loaderx.loader.checkpoint import Checkpointable
from loaderx.loader.failures import failure_limit
from loaderx.loader.position import epoch_end, whole_epoch_of
from loaderx.loader.state import make_state, read_state
from loaderx.loader.stats import Counters, EpochCounters
from loaderx.stages.node import Node

T = TypeVar("T")

__tracebackhide__ = hidden_by_pytest

Mark: TypeAlias = tuple[float, int, float]
"""When a batch was handed out, the step after it, and the time waited since the last count."""

Place: TypeAlias = Callable[[Run], Run]
"""Makes of a run of batches one whose batches are on devices."""

PATIENCE_S = 10.0  # how long `close` waits for a `next` in another thread that it has woken
counting = threading.RLock()  # a finaliser may count while another iterator is counted


class Ends:
    """Has one of the iterators that share it come to its end?"""

    reached = False


class LoaderIterator(Checkpointable, Iterator[T], Generic[T]):
    """Made by ``iter(loader)`` and ``loader.epoch(e)``; its first ``next`` starts the work."""

    if not TYPE_CHECKING:  # a type checker would believe that every name exists

        def __getattr__(self, name):
            raise attribute_error("the iterator of a loader", ITERATOR, name, self)

    def __init__(
        self,
        node: Node,
        base: Node,
        chain: list[str],
        steps: range,
        work: Any,  # PlanWork, or for streams UnitWork
        session: Session | None,
        counters: Counters,
        place: Place | None = None,
    ) -> None:
        self._node = node
        self._base = base  # one epoch
        self._chain = chain  # as it stands in a state
        self._steps = steps
        self._work = work
        self._session = session
        self._place = place
        self._counters = counters
        self._position = steps.start
        self._waited = 0.0
        self._told = -1  # a step whose failures are counted, though it was not handed out
        self._in_epoch: EpochCounters | None = None  # what is counted for the epoch of this step
        self._epoch_end: float = 0  # the step at which to look whether another epoch begins
        self._run: Run | None = None
        self._next: Callable[[], Any] | None = None  # None: no run is open
        self._lock = threading.RLock()  # threads may share an iterator
        self._busy = 0  # the thread that is inside `next`, or closes the run
        self._closing = False  # has somebody asked that thread to close the run?
        self._ends = Ends()

    def __iter__(self) -> LoaderIterator[T]:
        return self

    def __len__(self) -> int:
        """The number of steps that are left; a TypeError where that is not known."""
        if self._steps.stop >= self._node.limit:
            raise ArgumentTypeError("the iterator of an endless loader has no length.")
        return self._steps.stop - self._position

    def __bool__(self) -> bool:
        return True  # an iterator is no container: `if iterator` asks whether there is one

    def __next__(self) -> T:
        begun = perf_counter()
        taken = False
        try:
            with self._lock:
                if self._busy:
                    raise LoaderxError(
                        "`next` was called while a `next` of the same iterator was under way in "
                        "this thread (in a function of the dataset, or in a signal handler)."
                    )
                self._busy = get_ident()
                position = self._position
                try:
                    element = self._open() if self._next is None else self._next()
                    if type(element) is Measured:
                        element = self._note(element)
                    self._last = now = perf_counter()
                    self._waited += now - begun
                    self._position = position + 1
                    taken = True
                    if position + 1 >= self._epoch_end:
                        self._turn_epoch()
                except StopIteration:
                    self._next = None
                    self._end()
                    raise
                except BaseException:
                    self._next = None  # at once: a second Ctrl-C may cut `_stop` short
                    self._stop()
                    raise
                finally:
                    self._busy = 0
            if self._closing:
                self._settle()
            return element  # type: ignore[no-any-return]
        except BaseException as error:
            # Counted, but not handed out.  If another thread has taken the next one since, this
            # one is lost: there is no way to give it back in order.
            if taken and self._position == position + 1:
                self._position = position
                self._next = None
            if isinstance(error, LoaderxError):
                hide_own_frames(error)
                # Not a bare `raise`: that would bring the frames back.
                raise error
            raise

    def _open(self) -> Any:
        """The first ``next``, and the first after an error or a move."""
        self._closing = False
        if self._run is not None:  # an exception came before it could be closed
            self._stop()
        self._last = perf_counter()
        self._counted = (self._last, self._position)
        self._run = run = self._start()
        self._turn_epoch()
        self._next = run.next
        if self._closing:  # it did not see the run, which was not there yet
            run.interrupt()
        return run.next()

    def _start(self) -> Run:
        session = self._open_session()
        session.begin(self._steps.stop - self._position)
        run = session.run(range(self._position, self._steps.stop))
        return run if self._place is None else self._place(run)

    def _open_session(self) -> Session:
        if self._session is None:
            raise LoaderxError(
                "this is a copy of an iterator (one that came along to a worker process with the "
                "function that knows it, say), and only the iterator itself can be iterated."
            )
        return self._session

    def _turn_epoch(self) -> None:
        """From here on batches may count for another epoch."""
        if self._in_epoch is not None and self._position >= self._steps.stop:
            self._epoch_end = float("inf")
            return
        number = self.epoch
        if self._in_epoch is None or self._in_epoch.epoch != number:
            self._count()
            self._in_epoch = EpochCounters(number)
        self._epoch_end = epoch_end(self._base, self._position, self._steps.stop)

    def _rows_between(self, start: int, stop: int) -> int:
        """Records in the batches from a step to another."""
        node, hosts = self._node, int(self._work.hosts)
        # Each divided by itself: so the parts of a stretch add up, however often it is counted.
        return node.rows_before(stop) // hosts - node.rows_before(start) // hosts

    def _note(self, noted: Measured) -> Any:
        if noted.failures or noted.read:
            self._note_failures(noted)
        self._counters.note(noted.value, self._work.hosts, noted.times)
        return noted.value

    def _note_failures(self, noted: Measured) -> None:
        """Counts records that `on_error` replaced or left out; raises if they are too many."""
        log, failures, step = self._counters.failures, noted.failures, self._position
        limit = failure_limit(self._node) if failures else None
        if failures:
            log.judge(self._records_read())  # of what came before: this step is not counted yet
        if step != self._told:
            self._told = step  # if this raises, the step will come again
            with counting:
                log.read += noted.read
                log.add(failures, step, limit)
        if failures:
            log.check(failures[-1], step, limit)
        self._told = -1

    def _records_read(self) -> int:
        self._count()
        return self._counters.records

    def _end(self) -> None:
        """After the last element."""
        self._ends.reached = True
        try:
            self._note_rest()
            failures = self._counters.failures
            if failures.count:
                is_empty = self._position == self._steps.start
                failures.judge_at_end(self._records_read(), is_empty=is_empty)
        except (LoaderxError, Warning) as error:
            raise error from None  # what it follows is the end of the stream, no failure
        finally:
            self._stop()

    def _note_rest(self) -> None:
        """Takes note of what came up after the last element."""

    def _stop(self) -> None:
        """Closes the run; nobody else may be inside ``next``."""
        run, self._run = self._run, None
        self._next = None
        self._closing = False
        if run is not None:
            try:
                self._count(run)
            finally:
                run.close()

    def _settle(self) -> None:
        """Does what `close` asked for, unless somebody is inside ``next``, who will then do it."""
        if not self._busy:  # whoever is busy has the lock: this does not wait for user code
            with self._lock:
                if self._closing and not self._busy:
                    self._busy = get_ident()  # a worker that calls `close` must not wait for this
                    try:
                        self._stop()
                    finally:
                        self._busy = 0

    def _count(self, stopped: Run | None = None, until: Mark | None = None) -> None:
        """Brings the statistics up to date; another thread may ask for them meanwhile."""
        with counting:
            run = stopped or self._run
            if run is None:
                return
            since, start = self._counted
            last, position, waited = until or (self._last, self._position, self._waited)
            if until and position <= start:
                return  # somebody has asked since, and it is counted
            self._counted = (last, position)
            self._waited -= waited
            self._counters.engine, self._counters.reason = run.describe()
            if self._in_epoch is not None:
                records = self._rows_between(start, position)
                seconds = max(last - since, waited)
                self._counters.add(self._in_epoch, position - start, records, seconds, waited)

    def __getstate__(self) -> dict[str, Any]:
        """What a function that knows an iterator takes along to a worker process."""
        left = dict.fromkeys(("_session", "_work", "_place", "_run", "_next", "_lock"))
        return {**self.__dict__, **left, "_busy": 0, "_closing": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _next=None, _lock=threading.RLock())

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Without a run, making it failed; at the interpreter's end there is nothing to count with.
        if hasattr(self, "_run") and not is_finalizing():
            self._count()  # the run is dropped, not closed: nothing may be waited for here

    @property
    def step(self) -> int:
        """The next step to be handed out."""
        return self._position

    @property
    def epoch(self) -> int:
        """The epoch that the next step belongs to."""
        return whole_epoch_of(self._base, self._position)

    def seek(self, step: int) -> None:
        """Goes to a step; the next element handed out is that one.

        The step after the last one is the end, where nothing is left.
        """
        step = check_int("step", step, least=0)
        if not self._steps.start <= step <= self._steps.stop:
            raise ArgumentError(
                f"step {step} is beyond this stream, which has {self._said_steps()}."
            )
        with self._moving():
            self._position = step

    @contextlib.contextmanager
    def _moving(self) -> Iterator[None]:
        """Nobody takes a batch meanwhile, and no run goes on at the old position."""
        self.close()
        with self._lock:
            if self._busy:
                raise LoaderxError(
                    "an iterator cannot be moved while its own `next` is under way in this thread "
                    "(in a function of the dataset, or in a signal handler)."
                )
            self._stop()
            yield

    def get_state(self) -> dict[str, Any]:
        """The position as a small JSON-able dict."""
        return make_state(self._chain, self._base, self._position)

    def set_state(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """Goes on where a state was taken.

        A state of another chain is an error that names the stage that differs; with
        ``strict=False`` it is a warning, and the stream goes on at the same record.
        """
        step = read_state(state, self._chain, self._base, strict=strict)
        if not self._steps.start <= step <= self._steps.stop:
            raise StateError(
                f"the state is at step {step}, but this stream has {self._said_steps()}."
                f"{self._where_it_may_belong(step)}"
            )
        self.seek(step)

    def _said_steps(self) -> str:
        start, stop = self._steps.start, self._steps.stop
        return f"steps {start} to {stop - 1} and its end at {stop}"

    def _where_it_may_belong(self, step: int) -> str:
        length = self._base.length
        if length is None or step >= self._node.limit:
            return " No stream gets that far: the state is damaged."
        return (
            " Was it saved with more epochs, or in loader.epoch(e)? Go on with "
            f"loader.epoch({step // length}).set_state(...)."
        )

    def _part(self) -> tuple[int, int]:
        return self._work.host, self._work.hosts

    def close(self) -> None:
        """Stops what runs in the background.  The position stays; ``next`` would start anew.

        A ``next`` that is under way meanwhile (in another thread, or in the frame that a signal
        handler broke into) hands out its batch, or raises a `LoaderxError`; no batch is lost.
        """
        self._closing = True
        busy = self._busy
        if busy and self._interrupt() and busy != get_ident():
            until = monotonic() + PATIENCE_S  # it comes out soon, and closes the run
            while self._closing and self._busy and monotonic() < until:
                sleep(0.001)
        self._settle()

    def _interrupt(self) -> bool:
        run = self._run
        return run is not None and run.interrupt()

    def __repr__(self) -> str:
        return f"<LoaderIterator at step {self._position}>"
