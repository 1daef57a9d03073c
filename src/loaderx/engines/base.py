"""The engine interface: an engine opens a session for one loader's work; a session takes tasks.

A *task* is a small tuple of whole numbers that says what to make: ``(step,)`` for a batch that is
known by its step, ``(input, epoch key, unit)`` for a unit of a stream.  What is made depends on the
task alone, so any worker may make it, in any order, and make it again.

``session.submit(task)`` returns a `Pending`, and ``pending.result()`` waits for the element.  A
future of ``concurrent.futures`` is a `Pending`.  The caller asks for results in any order, and
keeps about ``session.window`` tasks under way.  Workers (threads, processes) belong to the session:
they start with the first task, serve all callers, and live until the session is closed or dropped.
A closed session starts again with the next task.

An engine of your own takes two classes: one with ``session(work)``, and a subclass of `Session`
with ``window``, ``submit``, ``close`` and ``describe``.  A worker makes the element of a task with
``work(task, lend)``.  ``docs/extending.md`` has an example, ``loaderx.testing.EngineContract`` the
tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeAlias

from loaderx.errors import LoaderxError, RecordError, check_int, one_line, warn_user
from loaderx.frozen import Frozen
from loaderx.memory import Lend

Task: TypeAlias = tuple[int, ...]
"""What to make: up to four numbers, each from 0 to 2**64 - 1."""

Element: TypeAlias = Any
"""What a task makes: a tree of arrays, or a `Measured` with one.  Engines do not look into it."""


class Timing:
    """How long each stage of an element took.

    ``weight`` is how many elements it stands for; 0 for the first that a worker makes, which stands
    for itself alone.  ``ended`` is when it was done, as `time.perf_counter` tells it; 0: it was not
    made at one time, by one thread.
    """

    __slots__ = ("ended", "stages", "weight")

    def __init__(self, stages: dict[str, float], weight: int, *, is_at_once: bool = True) -> None:
        self.stages = stages
        self.weight = weight
        self.ended = perf_counter() if is_at_once else 0.0


class Measured:
    """An element and how it was made, for the statistics."""

    __slots__ = ("failures", "read", "times", "value")

    def __init__(
        self, value: Element, failures: Sequence[Any], times: Timing | None, read: int = 0
    ) -> None:
        self.value = value
        self.failures = failures  # records that `on_error` replaced or left out
        self.times = times
        self.read = read  # records, for a batch of a stream


class WorkerStats(Frozen):
    """What a worker elsewhere has done: an entry of `Stats.workers`.

    Attributes:
        name: its machine and process.
        way: how its elements come: ``memory``, ``direct`` or ``store`` with Ray, else ``executor``.
        made: tasks.
        making_s: seconds that it took for them.
        travel_s: seconds that tasks and elements were on their way, waiting included.
    """

    name: str
    way: str
    made: int
    making_s: float
    travel_s: float


class Made(NamedTuple):
    """Which worker made the element of a task, and when, as `time.perf_counter` tells it."""

    worker: str
    began: float
    ended: float


class Work:
    """What makes the element of a task.  The loader provides it, engines call it.

    Threads may call it at once, whatever `thread_safe` says: reads of a source that is not
    thread-safe take turns.  Worker processes get it pickled with ``cloudpickle``, since it holds
    the user's functions.
    """

    thread_safe: bool = True
    """True if threads may read all sources at once.  If not, they take turns."""

    unsure: str = ""
    """A source that has not said whether threads may read it at once; empty if none."""

    only_gathers: bool = False
    """True if the work only gathers rows of arrays, which needs no GIL."""

    noun: str = "batch"
    """What is made, for messages."""

    is_in_order: bool = False
    """True if the input can only be read in order, which leaves workers nothing to do."""

    decodes_chunks: bool = False
    """True if the source decodes chunks that several tasks need."""

    makes_units: bool = False
    """True if tasks are units of a stream, of many batches each."""

    def __call__(self, task: Task, lend: Lend) -> Element:
        """Makes the element of a task: a tree of arrays, or a `Measured` with one.

        An engine passes it on without looking into it.

        ``lend`` gives the memory for the element.  Every thread needs its own, such as
        ``pools.lend`` of a `PoolPerThread`.  It may reuse memory only once nobody holds the element
        that the memory was lent for.
        """
        raise NotImplementedError

    def stream(self, steps: range, lend: Lend) -> Iterator[Element]:
        """The elements of consecutive steps, for a caller that makes them one by one."""
        for step in steps:
            yield self((step,), lend)

    def elements(self, task: Task) -> int:
        """How many elements a task makes."""
        return 1

    def steps(self, task: Task) -> int:
        """How many steps' time a task may take before its worker seems to be stuck."""
        return 1

    def describe(self, task: Task) -> str:
        """Which records a task is made of, for messages."""
        return f"task {task}"

    def noun_of(self, task: Task) -> str:
        """What a task makes, for messages: a step, if it makes one."""
        return "step" if len(task) == 1 else self.noun

    def parts(self) -> Iterator[tuple[str, Any]]:
        """The user's functions and sources with a name each, for messages."""
        return iter(())


class Pending(Protocol):
    """A submitted task.  Dropping it without asking for its result cancels it."""

    def result(self) -> Element:
        """Waits for the element, or raises the task's error.  Called at most once.

        After `cancel`, or after the session was closed, it gives the element or raises an error of
        any kind, and never waits for workers that are gone.  Loaders turn the `CancelledError` of
        ``concurrent.futures`` into a `LoaderxError` that says that the loader was closed.
        """

    def done(self) -> bool:
        """False if `result` would have to wait for a worker."""

    def cancel(self) -> object:
        """Says that the result is not wanted: the task need not be started.

        A `result` call that is waiting gives up soon, with an error.  If it cannot, because the
        task has started, closing a loader while another thread waits for a batch takes as long as
        that batch.

        It may be called at any time and repeatedly, by other threads, signal handlers and
        finalisers: it does not wait.
        """


class Session:
    """Does the work of one loader.  An engine's session defines `submit` and `close`.

    All iterators of the loader use it, in any threads: several may submit tasks and wait at once.
    Workers must not hold the session, nor, between two tasks, the work: the user's functions may
    hold the loader.  So an unused session is collected, and its workers end.
    """

    window = 0
    """Tasks to keep under way; 0: each runs in the thread that asks for its result.

    More may be submitted, and their results may be asked for in any order.
    """

    def submit(self, task: Task) -> Pending:
        """Takes on a task without waiting for it.  The first one starts the workers.

        Tasks start in the order in which they are submitted.
        """
        raise NotImplementedError

    shares_memory: bool = False
    """True if an element's arrays lie in one piece of memory, which any of them keeps alive."""

    shares_sources: bool = False
    """True if workers share what a source keeps in memory, as threads do."""

    shares_disk: bool = True
    """True if workers read the disks of this machine, where records may be fetched for them."""

    here: int = 0
    """How many of the next elements the caller should make itself, without a task."""

    def made_here(self, count: int) -> None:
        """Notes that the caller made ``count`` elements itself."""

    def notice(self, measured: Measured) -> None:
        """Receives the measurements of an element that is handed out."""

    def is_end(self, error: BaseException) -> bool:
        """True if this error of a task means that the stream ends before it."""
        return False

    def made(self, pending: Pending) -> Made | None:
        """Where and when a task was done, once its result was taken; None if that is not known."""
        return None

    def finish(self, until: float) -> None:
        """Waits until no worker runs a cancelled task, or until a time of the monotonic clock.

        For engines whose workers call the user's functions in this process: after an iterator was
        closed, no thread calls them for it any more.
        """

    def close(self) -> None:
        """Stops the workers, and waits for them.  A later task starts them again.

        It may be called several times, and while other threads submit tasks or wait for results:
        these calls return the element or raise an error.
        """

    def describe(self) -> tuple[str, str]:
        """The engine that runs, such as ``threads(2)``, and why: `loader.stats` shows both."""
        return type(self).__name__.lower().removesuffix("session"), "it was asked for"

    def workers_stats(self) -> Sequence[WorkerStats]:
        """What each worker has done, for engines whose workers may be on other machines."""
        return ()

    def begin(self, tasks: int | None) -> None:
        """Announces a series of ``tasks`` (None: unknown number).  For engines that measure."""


class Engine(Protocol):
    """Opens sessions.  An engine is a value: it holds no threads and no position."""

    def session(self, work: Work) -> Session:
        """A session for the work of one loader.  It starts nothing before the first task."""


class Run(Protocol):
    """Elements in order.

    A run may be closed only while no thread is inside its ``next``.  Another thread, or a signal
    handler that ran in the middle of ``next``, calls `interrupt` instead: a ``next`` that waits for
    workers then gives up with an error, never silently with StopIteration.
    """

    @property
    def next(self) -> Callable[[], Element]:
        """Gives the next element; StopIteration after the last."""

    def start(self) -> None:
        """Lets workers start on the first elements now, rather than at the first ``next``.

        Does nothing for an engine without workers.
        """

    def ready(self) -> bool:
        """False if ``next`` would have to wait for a worker."""

    def close(self) -> None: ...

    def describe(self) -> tuple[str, str]:
        """The engine that runs, and why."""

    def interrupt(self) -> bool:
        """Asks a ``next`` that is under way to give up; False if it makes its element itself.

        It takes no lock and does not wait, so a signal handler may call it.
        """


def cancel_all(pending: Sequence[Pending]) -> None:
    """Cancels tasks, without waiting for those under way."""
    for one in reversed(pending):  # the last first: it is the least likely to have started
        one.cancel()


class TryAgainError(LoaderxError):
    """The workers could not be used at that moment; the same task may be submitted again."""


def closed_error() -> TryAgainError:
    """For a ``next`` that gave up because its loader was closed."""
    return TryAgainError(
        "the loader was closed while this batch was waited for. The next `next` continues with it."
    )


class Closable(Protocol):
    """Waits for results, and may be closed meanwhile by another thread."""

    is_closing: bool


def check_closed(error: Exception, waiting: Closable) -> None:
    """Raises a `TryAgainError` if a result failed because of a cancellation or of closing."""
    if isinstance(error, LoaderxError):
        return
    if waiting.is_closing or is_cancellation(error):
        raise closed_error() from None


def is_cancellation(error: Exception) -> bool:
    """True for the error of a future that `Pending.cancel` or `Session.close` cancelled.

    The same error raised by a user's function does not count: it arrives as a `RecordError`.
    """
    from concurrent.futures import CancelledError  # late: it imports logging

    return isinstance(error, CancelledError)


def worker_error(error: BaseException, task: Task) -> BaseException:
    """The error of a task that failed in a worker, as the consumer raises it.

    SystemExit becomes an ordinary error, since it would end the consumer, which did not call it.
    """
    if not isinstance(error, SystemExit):
        return error
    made = RecordError(
        f"the dataset's code ended its worker: {one_line(error)}.",
        step=task[0] if len(task) == 1 else None,
    )
    made.__cause__ = error
    return made


def forked_error(workers: str) -> LoaderxError:
    """For a ``next`` in a fork of the process that started the workers."""
    return LoaderxError(
        f"this iterator's {workers} belong to the process from which this one was forked. Make a "
        "new iterator here."
    )


def close_generator(elements: Any) -> None:
    """Closes a generator, unless it is running: then it ends when its thread drops it.

    Closing a running generator that is inside ``yield from`` crashes Python 3.11 and 3.12.
    """
    if not getattr(elements, "gi_running", False) and hasattr(elements, "close"):
        elements.close()


def check_counts(name: str, workers: int | None, prefetch: int | None) -> None:
    """Checks what an engine was told about its workers and what to keep ready."""
    if workers is not None:
        check_int(name, workers, least=1)
    if prefetch is not None:
        check_int("prefetch", prefetch, least=0)


def warn_if_in_order(work: Work, asked: str) -> None:
    """Warns that the workers that were asked for have nothing to do."""
    if work.is_in_order:
        warn_user(
            f"{asked} was asked for, but what stands above from_iterable runs in the caller's "
            "thread. To use workers, give the data as something with __len__ and __getitem__ "
            "(Dataset.from_source)."
        )


def what_to_say(source: str) -> str:
    """Tells the user how to declare whether threads may read a source."""
    return (
        f"If threads may read {source} at once, write Dataset.from_source(obj, thread_safe=True); "
        "thread_safe=False says that they may not, and ends this warning."
    )


def workers_of(engine: str) -> float:
    """The number of workers in an engine name from `Session.describe`; infinity if unknown.

    >>> workers_of("threads(4)"), workers_of("inline")
    (4, 0)
    """
    if engine == "inline":
        return 0
    number = engine[engine.find("(") + 1 : -1]
    return int(number) if number.isdecimal() else float("inf")


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
