"""The iterator of a loader, which knows its position.

The position is the number of batches that were handed out, each counted once:

- **An exception inside ``next``** (a record that fails, Ctrl-C) ends the engine's run.  The
  position has not moved, and the following ``next`` starts a run there.  Counting is the last
  thing that ``next`` does.  Python handles signals only after calls; the one call after counting
  releases the lock, and a Ctrl-C there undoes the counting.
- **``close()`` while a ``next`` is running**, in another thread or in the frame that a signal
  handler interrupted, only sets a flag and tells the engine.  The ``next`` either gets its batch,
  counts it and hands it out, or raises; in both cases it then closes the run itself.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from threading import get_ident
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from loaderx.chain.node import Node
from loaderx.dataset import Dataset
from loaderx.engines.base import Measured, Run, Session
from loaderx.errors import (
    ArgumentError,
    ArgumentTypeError,
    LoaderxError,
    StateError,
    check_int,
    hidden_by_pytest,
    hide_own_frames,
    hide_waiting_frames,
)
from loaderx.hints import ITERATOR, attribute_error
from loaderx.loader.checkpoint import Checkpointable
from loaderx.loader.data_digest import DataDigest
from loaderx.loader.failures import failure_limit
from loaderx.loader.passes import Passes, StepPasses, epoch_end, whole_epoch_of
from loaderx.loader.run import TaskRun
from loaderx.loader.state import FoundStep, State, make_state, read_state
from loaderx.loader.stats import Counters, EpochCounters, Listening
from loaderx.loader.tasks.plan_work import PlanWork
from loaderx.loader.waiting import Waiting
from loaderx.order.epochs import SkippedSteps
from loaderx.tree import ArraySpec, Tree, map_leaves

T = TypeVar("T")

__tracebackhide__ = hidden_by_pytest

Mark: TypeAlias = tuple[float, int, float]
"""When a batch was handed out, the step after it, and the time waited since the last count."""

Place: TypeAlias = Callable[[Run, Listening], Run]
"""Turns a run of batches into one whose batches are on devices."""

PATIENCE_S = 10.0  # how long `close` waits for a `next` in another thread that it interrupted
CLOSE_PATIENCE_S = 10.0  # how long closing waits for tasks under way
counting = threading.RLock()  # reentrant: a finaliser may count while another iterator is counted


class LoaderIterator(Checkpointable, Iterator[T], Generic[T]):
    """Made by ``iter(loader)`` and ``loader.epoch(e)``; its first ``next`` starts the work.

    `start` does so earlier.
    """

    if not TYPE_CHECKING:  # a type checker would believe that every name exists

        def __getattr__(self, name):
            raise attribute_error("the iterator of a loader", ITERATOR, name, self)

    def __init__(
        self,
        node: Node,
        base: Node,
        chain: list[str],
        data: DataDigest,
        steps: range,
        shard: tuple[int, int],
        session: Session | None,
        counters: Counters,
        work: PlanWork | None,
        place: Place | None,
        skipped: SkippedSteps,
    ) -> None:
        self._node = node
        self._base = base  # one epoch
        self._chain = chain  # as saved in a state
        self._data = data
        self._steps = steps
        self._shard = shard  # this host, and the number of hosts
        self._session = session
        self._work = work  # None: a stream
        self._place = place
        self._counters = counters
        self._skipped = skipped
        self._position = steps.start  # maybe of a skipped step, which the next `next` passes over
        self._pass_over_at = 0  # the next step that may be skipped; 0 where that is to be found
        self._waited = 0.0
        self._failed_step = -1  # a step whose failures are counted, though it was not handed out
        self._in_epoch: EpochCounters | None = None  # the counters of the current epoch
        self._epoch_end: float = 0  # the step at which the next epoch may begin
        self._run: Run | None = None
        self._next: Callable[[], Tree | Measured] | None = None  # None: no run is in use
        self._is_started = False  # `start` has made a run for the first `next`
        self._lock = threading.RLock()  # threads may share an iterator
        self._busy = 0  # the thread that is inside `next`, or closes the run
        self._closing = False  # `close` asked that thread to close the run
        self._taken = 0  # batches of this run counted for its pass, at most 2
        self._is_counted = False  # counted as a pass since it was made or restored
        self._passes: Passes | None = None  # None: it stays in its epoch, and counts for no pass

    def _begin_at(self, epoch: int) -> None:
        """Goes to the pass that begins with an epoch, before anything is read."""
        assert isinstance(self._passes, StepPasses)
        self._steps = self._passes.steps_of(epoch)
        self._position = self._passes.first_step(epoch)

    def __iter__(self) -> LoaderIterator[T]:
        return self

    def __len__(self) -> int:
        """The number of steps left; a TypeError where that is not known."""
        if self._steps.stop >= self._node.limit:
            raise ArgumentTypeError("the iterator of an endless loader has no length.")
        return self._skipped.kept_in(range(self._position, self._steps.stop))

    def __bool__(self) -> bool:
        return True  # else `if iterator` would call `__len__`, which may raise

    def __next__(self) -> T:
        begun = perf_counter()
        taken = False
        try:
            with self._lock:
                if self._busy:
                    self._check_not_busy("`next`")
                self._busy = get_ident()
                before = position = self._position
                try:
                    if position >= self._pass_over_at:
                        position = self._pass_over()
                    element = (self._next or self._open())()
                    if type(element) is Measured:
                        element = self._take_measured(element)
                    self._last = now = perf_counter()
                    self._waited += now - begun
                    self._position = position + 1
                    taken = True
                    if self._counters.listening.trace is not None:
                        self._trace(position, begun, now)
                    if position + 1 >= self._epoch_end:
                        self._note_batch()
                except StopIteration:
                    self._next = None
                    self._end()
                    raise
                except BaseException:
                    self._next = None  # first: a second Ctrl-C may interrupt `_stop`
                    self._stop()
                    raise
                finally:
                    self._busy = 0
            if self._closing:
                self._settle()
            return element  # type: ignore[return-value]
        except BaseException as error:
            # Counted, but not handed out: count back.  If another thread has taken the next batch
            # meanwhile, this one is lost, since it can no longer be handed out in order.
            if taken and self._position == position + 1:
                self._position = before
                self._next = None
            if isinstance(error, LoaderxError):
                hide_own_frames(error)
                # Not a bare `raise`: that would bring the frames back.
                raise error
            if isinstance(error, KeyboardInterrupt):
                hide_waiting_frames(error)
                raise error
            raise

    def _open(self) -> Callable[[], Tree | Measured]:
        """The function that gives the elements of the run that `start` began, or of a new one.

        Called at the first ``next``, and at the first after an error or a ``seek``.
        """
        run = self._run
        if run is None or not self._is_started:
            run = self._open_run()
        elif not self._closing:  # the time since `start` is not between two batches
            self._last = perf_counter()
            self._counted = (self._last, self._position)
        self._is_started = False
        self._next = run.next
        if self._closing:  # `close` was called before there was a run to interrupt
            run.interrupt()
        return run.next

    def _open_run(self) -> Run:
        self._closing = False
        if self._run is not None:  # an exception prevented closing the run
            self._stop()
        self._last = perf_counter()
        self._counted = (self._last, self._position)
        self._run = run = self._start()
        self._turn_epoch()
        self._taken, self._epoch_end = 0, 0  # so that the first batch is examined
        return run

    def _pass_over(self) -> int:
        """The next step that is not skipped; the run up to the steps that are has ended."""
        step = self.step
        if step != self._position:
            self._stop()
            self._position = step
        self._pass_over_at = self._skipped.next_start(step)
        return step

    def start(self) -> None:
        """Begins to load ahead now, rather than at the first ``next``.

        Workers start and make the first batches while a model is built or restored, and data behind
        URLs is fetched.  It does not wait, and does nothing if loading has begun already.  Without
        workers (``engine="inline"``, and ``"auto"`` until it has found that workers help) no batch
        is made.
        """
        try:
            with self._lock:
                self._check_not_busy("`start`")
                if self._next is None and not self._is_started:
                    self._begin_ahead()
            if self._closing:
                self._settle()
        except LoaderxError as error:
            hide_own_frames(error)
            raise error

    def _begin_ahead(self) -> None:
        self._busy = get_ident()
        try:
            self._pass_over()
            run = self._open_run()
            self._is_started = True
            run.start()
        except BaseException:
            self._stop()
            raise
        finally:
            self._busy = 0

    def _check_not_busy(self, call: str) -> None:
        if self._busy:
            raise LoaderxError(
                f"{call} was called inside a `next` of the same iterator (by a function of the "
                "dataset, or by a signal handler)."
            )

    def _start(self) -> Run:
        session = self._open_session()
        steps = range(self._position, min(self._steps.stop, self._pass_over_at))
        session.begin(len(steps))
        assert self._work is not None
        tasks = self._work.tasks(session, steps)
        ordered = TaskRun(session, self._work, tasks, self._counters.listening)
        run = self._work.ahead(ordered, steps) if session.shares_disk else ordered
        return run if self._place is None else self._place(run, self._counters.listening)

    def _open_session(self) -> Session:
        if self._session is None:
            raise LoaderxError(
                "this is a copy of an iterator, which cannot be iterated. A function that holds an "
                "iterator takes such a copy along to a worker process."
            )
        return self._session

    def _note_batch(self) -> None:
        """Called after a run's first two batches, and an epoch's last and the next one's first."""
        self._taken = min(2, self._taken + 1)
        self._count_pass()
        self._turn_epoch()
        if self._taken < 2:
            self._epoch_end = 0

    def _count_pass(self) -> None:
        self._is_counted = True
        if self._passes is not None:
            self._passes.taken(self._epoch_taken(), self._taken)

    def _epoch_taken(self) -> int:
        """The epoch of the last batch, as passes count them."""
        assert isinstance(self._passes, StepPasses)
        return self._passes.epoch_of(self._position - 1)

    def _turn_epoch(self) -> None:
        """Checks whether the following batches belong to another epoch."""
        if self._in_epoch is not None and self._position >= self._steps.stop:
            self._epoch_end = float("inf")
            return
        number = self.epoch
        if self._in_epoch is None or self._in_epoch.epoch != number:
            self._count()
            self._in_epoch = EpochCounters(number)
            self._epoch_end = 0
        else:
            self._epoch_end = epoch_end(self._base, self._position, self._steps.stop)

    def _rows_between(self, start: int, stop: int) -> int:
        """Records in the batches between two steps, on this host."""
        node, hosts = self._node, self._shard[1]
        # Each is divided by itself, so that the counts of adjacent ranges add up exactly.
        return node.rows_before(stop) // hosts - node.rows_before(start) // hosts

    def _take_measured(self, measured: Measured) -> Tree:
        """The element of a `Measured`, after counting its failures and times."""
        if measured.failures or measured.read:
            self._count_failures(measured)
        if self._session is not None:
            self._session.notice(measured)
        trace = self._counters.listening.trace
        if trace is not None:
            trace.timed(measured.times)
        self._counters.add_timing(measured.value, self._shard[1], measured.times)
        if self._counters.waiting is not None:
            self._look_at_waiting(self._counters.waiting)
        return measured.value

    def _trace(self, step: int, begun: float, now: float) -> None:
        listening = self._counters.listening
        trace = listening.trace
        if trace is not None and trace.waited(step, begun, now):
            listening.stop()

    def _look_at_waiting(self, waiting: Waiting) -> None:
        counters = self._counters
        if waiting.note(self._last, counters.waited + self._waited, self._position):
            self._count()
            stages = counters.stages.seconds(counters.batches, counters.worked_at_most)
            waiting.warn(counters.engine, counters.reason, stages)

    def _count_failures(self, measured: Measured) -> None:
        """Counts records that `on_error` replaced or left out; raises if they are too many."""
        log, failures, step = self._counters.failures, measured.failures, self._position
        limit = failure_limit(self._node) if failures else None
        if failures:
            log.check_share(self._records_read())  # of earlier steps: this one is not counted yet
        if step != self._failed_step:
            self._failed_step = step  # if the next lines raise, the step comes again
            with counting:
                log.read += measured.read
                log.add(failures, step, limit)
        if failures:
            log.check(failures[-1], step, limit)
        self._failed_step = -1

    def _records_read(self) -> int:
        self._count()
        return self._counters.records

    def _end(self) -> None:
        """Called after the last element."""
        if not self._is_counted:  # it was empty, or was restored at its end
            self._count_pass()
        try:
            self._count_rest()
            failures = self._counters.failures
            if failures.count:
                is_empty = self._position == self._steps.start
                failures.check_share_at_end(self._records_read(), is_empty=is_empty)
        except (LoaderxError, Warning) as error:
            raise error from None  # without the StopIteration as its context
        finally:
            if self._counters.listening.trace is not None:
                self._counters.listening.trace.pause()
            self._stop()

    def _count_rest(self) -> None:
        """Counts the failures after the last element."""

    def _stop(self) -> None:
        """Closes the run.  No other thread may be inside ``next``."""
        run, self._run = self._run, None
        self._next = None
        self._is_started = self._closing = False
        if run is not None:
            try:
                self._count(run)
            finally:
                run.close()

    def _settle(self) -> None:
        """Closes the run if `close` asked for it, unless a running ``next`` will.

        It waits a limited time for tasks under way, also for those of a run that failed: an error
        is raised without waiting for them.
        """
        if not self._busy:  # a busy thread has the lock: do not wait for user code
            with self._lock:
                if self._closing and not self._busy:
                    self._busy = get_ident()  # a worker that calls `close` must not wait for this
                    try:
                        self._stop()
                        if self._session is not None:
                            self._session.finish(monotonic() + CLOSE_PATIENCE_S)
                    finally:
                        self._busy = 0

    def _count(self, stopped: Run | None = None, until: Mark | None = None) -> None:
        """Updates the statistics; another thread may ask for them meanwhile."""
        with counting:
            run = stopped or self._run
            if run is None:
                return
            since, start = self._counted
            last, position, waited = until or (self._last, self._position, self._waited)
            if until and position <= start:
                return  # counted by a call of `stats` since
            self._counted = (last, position)
            self._waited -= waited
            self._counters.engine, self._counters.reason = run.describe()
            if self._in_epoch is not None:
                records = self._rows_between(start, position)
                seconds = max(last - since, waited)
                batches = self._skipped.kept_in(range(start, position))
                self._counters.add(self._in_epoch, batches, records, seconds, waited)
                if self._chain[0].startswith("mix("):
                    self._count_parts(start, position)

    def _count_parts(self, start: int, stop: int) -> None:
        from loaderx.stages.mix_plan import rows_by_part  # late: most chains have no mix

        parts = self._counters.parts
        before, after = (rows_by_part(self._base, step) for step in (start, stop))
        for name, rows in after.items():
            parts[name] = parts.get(name, 0) + rows - before[name]

    def __getstate__(self) -> dict[str, object]:
        """Leaves out the run: a function that holds an iterator can be sent to a worker process."""
        left = dict.fromkeys(("_session", "_place", "_work", "_run", "_next", "_lock", "_passes"))
        return {**self.__dict__, **left, "_busy": 0, "_closing": False, "_is_started": False}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _next=None, _lock=threading.RLock())

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # No `_run`: `__init__` failed.  At the end of the interpreter, modules may be gone.
        if hasattr(self, "_run") and not is_finalizing():
            self._count()  # the run is dropped, not closed: a finaliser must not wait

    @property
    def step(self) -> int:
        """The next step to be handed out."""
        return min(self._skipped.first_from(self._position), self._steps.stop)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch; at the end, that of the last one."""
        return whole_epoch_of(self._base, self.step - self._is_at_end)

    @property
    def _is_at_end(self) -> bool:
        return self._steps.start < self.step == self._steps.stop

    def seek(self, step: int) -> None:
        """Goes to a step: its element is handed out next.

        The step after the last one is the end of the stream.
        """
        step = check_int("step", step, least=0)
        if not self._steps.start <= step <= self._steps.stop:
            raise ArgumentError(
                f"step {step} is beyond this stream, which has {_text_of(self._steps)}."
            )
        with self._moving():
            self._position = step

    @contextlib.contextmanager
    def _moving(self) -> Iterator[None]:
        """Keeps threads from taking batches, and ends the run at the old position."""
        self.close()
        with self._lock:
            if self._busy:
                raise LoaderxError(
                    "an iterator cannot be moved inside its own `next` (by a function of the "
                    "dataset, or by a signal handler)."
                )
            self._stop()
            self._pass_over_at = 0
            yield

    def get_state(self) -> State:
        """The position as a small dict for JSON."""
        return make_state(self._chain, self._base, self.step, self._data, at_end=self._is_at_end)

    def set_state(self, state: State, *, strict: bool = True) -> None:
        """Continues where a state was taken.

        A state of another chain is an error that names the stage that differs; with
        ``strict=False`` it is a warning, and the stream continues at the same record.
        """
        chain, skipped = self._chain, self._skipped
        found = read_state(state, chain, self._base, self._data, skipped, strict=strict)
        steps = self._steps
        if isinstance(self._passes, StepPasses):
            steps = self._passes.steps_of(found.epoch)
        if not steps.start <= found.step <= steps.stop or steps.stop > self._node.limit:
            raise StateError(
                f"the state is at step {found.step}, but this stream has {_text_of(steps)}."
                f"{self._epoch_hint(found)}"
            )
        with self._moving():
            self._steps, self._position = steps, found.step
            self._is_counted = False

    def _epoch_hint(self, found: FoundStep) -> str:
        if self._base.length is None or found.step >= self._node.limit:
            return " No stream is that long: the state is damaged."
        if self._passes is not None:
            return " Was it saved with a larger .take(...)?"
        return (
            f" It was saved in epoch {found.epoch}: continue with loader.epoch({found.epoch}), or "
            "with iter(loader)."
        )

    def _part(self) -> tuple[int, int]:
        return self._shard

    # What trainers written for other libraries call ---------------------------------------------

    def start_prefetch(self) -> None:
        """`start`, as Grain calls it."""
        self.start()

    def state_dict(self) -> State:
        """`get_state`, as PyTorch calls it."""
        return self.get_state()

    def load_state_dict(self, state: State) -> None:
        """`set_state`, as PyTorch calls it."""
        self.set_state(state)

    @property
    def element_spec(self) -> Tree:
        """`Dataset.element_spec`; on several hosts, of the rows that this host gets.

        It reads the first element, unless the spec is known anyway (arrays, and no `map`).
        """
        spec, hosts = Dataset._of(self._base).element_spec, self._shard[1]
        if hosts == 1 or self._place is not None:  # arrays on the devices of all hosts are global
            return spec
        return map_leaves(lambda leaf: ArraySpec(_rows_of(leaf.shape, hosts), leaf.dtype), spec)

    def close(self) -> None:
        """Stops background work.  The position stays, and ``next`` starts the work again.

        A ``next`` that is running meanwhile (in another thread, or in the frame that a signal
        handler interrupted) hands out its batch, or raises a `LoaderxError`; no batch is lost.
        """
        self._closing = True
        busy = self._busy
        if busy and self._interrupt() and busy != get_ident():
            until = monotonic() + PATIENCE_S  # that thread leaves `next` soon, and closes the run
            while self._closing and self._busy and monotonic() < until:
                sleep(0.001)
        self._settle()

    def _interrupt(self) -> bool:
        run = self._run
        return run is not None and run.interrupt()

    def __repr__(self) -> str:
        return f"<LoaderIterator at step {self.step}>"


def _text_of(steps: range) -> str:
    return f"steps {steps.start} to {steps.stop - 1} and its end at {steps.stop}"


def _rows_of(shape: tuple[int | None, ...], hosts: int) -> tuple[int | None, ...]:
    """The shape of one host's rows."""
    rows = shape[0]
    return (None if rows is None else rows // hosts, *shape[1:])
