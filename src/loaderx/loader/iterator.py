"""The stream itself: an iterator that knows its position."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, Generic, TypeAlias, TypeVar

from loaderx.chain.base import Node
from loaderx.engines.base import Noted, Run, Workshop
from loaderx.errors import ArgumentError, LoaderxError, StateError, check_int
from loaderx.loader.checkpoint import Checkpointable
from loaderx.loader.position import epoch_end, rows_before, whole_epoch_of
from loaderx.loader.state import make_state, read_state
from loaderx.loader.stats import Counters, EpochCounters

T = TypeVar("T")

Mark: TypeAlias = tuple[float, int, float]
"""When a batch was handed out, the step after it, and the time waited since the last count."""

counting = threading.RLock()  # a finaliser may count while another iterator is counted


class LoaderIterator(Checkpointable, Iterator[T], Generic[T]):
    """Made by ``iter(loader)`` and ``loader.epoch(e)``; its first ``next`` starts the work."""

    def __init__(
        self,
        node: Node,
        base: Node,
        chain: list[str],
        steps: range,
        work: Any,  # PlanWork, or for streams UnitWork
        workshop: Workshop | None,
        counters: Counters,
    ) -> None:
        self._node = node
        self._base = base  # one epoch
        self._chain = chain  # as it stands in a state
        self._steps = steps
        self._work = work
        self._workshop = workshop
        self._counters = counters
        self._position = steps.start
        self._waited = 0.0
        self._in_epoch: EpochCounters | None = None  # what is counted for the epoch of this step
        self._epoch_end: float = 0  # the step at which to look whether another epoch begins
        self._run: Run | None = None
        self._next: Any = self._open
        self._lock = threading.RLock()  # threads may share an iterator; closing does not wait

    def __iter__(self) -> LoaderIterator[T]:
        return self

    def __next__(self) -> T:
        begun = perf_counter()
        with self._lock:
            try:
                element = self._next()
            except BaseException:
                self._stop()
                raise
            self._position += 1
            if type(element) is Noted:
                element = self._note(element)
            self._last = now = perf_counter()
            self._waited += now - begun
            if self._position >= self._epoch_end:
                self._turn_epoch()
        return element  # type: ignore[no-any-return]

    def _open(self) -> Any:
        """The first ``next``, and the first after an error or a move."""
        self._last = perf_counter()
        self._counted = (self._last, self._position)
        self._run = self._start()
        self._turn_epoch()
        self._next = self._run.next
        return self._next()

    def _start(self) -> Run:
        return self._there().open(range(self._position, self._steps.stop))

    def _there(self) -> Workshop:
        if self._workshop is None:
            raise LoaderxError(
                "this is a copy of an iterator (one that came along to a worker process with the "
                "function that knows it, say), and only the iterator itself can be iterated."
            )
        return self._workshop

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
        node = self._node
        rows = rows_before(node, stop) - rows_before(node, start)
        hosts: int = self._work.hosts
        return rows // hosts

    def _note(self, noted: Noted) -> Any:
        self._counters.note(noted.value, self._work.hosts, noted.replaced, noted.times)
        return noted.value

    def _stop(self) -> None:
        self._count()
        run, self._run = self._run, None
        self._next = self._open
        if run is not None:
            run.close()

    def _count(self, until: Mark | None = None) -> None:
        """Brings the statistics up to date; another thread may ask for them meanwhile."""
        with counting:
            run = self._run
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
        left = dict.fromkeys(("_workshop", "_work", "_run", "_next", "_lock"))
        return {**self.__dict__, **left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _next=self._open, _lock=threading.RLock())

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
        """Goes to a step; the next element handed out is that one."""
        step = check_int("step", step, least=0)
        if not self._steps.start <= step <= self._steps.stop:
            raise ArgumentError(
                f"step {step} is beyond this stream, which has steps {self._steps.start} to "
                f"{self._steps.stop}."
            )
        self._stop()
        self._position = step

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
                f"the state is at step {step}, but this stream has steps {self._steps.start} to "
                f"{self._steps.stop}. Was it saved with more epochs, or in loader.epoch(e)? Go "
                f"on with loader.epoch({step // (self._base.length or 1)}).set_state(...)."
            )
        self.seek(step)

    def _part(self) -> tuple[int, int]:
        return self._work.host, self._work.hosts

    def close(self) -> None:
        """Stops what runs in the background.  The position stays; ``next`` would start anew."""
        self._stop()

    def __repr__(self) -> str:
        return f"<LoaderIterator at step {self._position}>"
