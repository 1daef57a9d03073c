"""What an engine is: it opens a session for the work of one loader, and a session takes tasks.

A *task* is a small tuple of whole numbers that says what to make: ``(step,)`` for a batch that is
known by its step, ``(input, epoch key, unit)`` for a unit of a stream.  What is made depends on the
task alone, so any worker may make it, in any order, and make it again.

``session.submit(task)`` returns a `Pending`, and ``pending.result()`` waits for the element.  A
future of ``concurrent.futures`` is a `Pending`.  Whoever submits tasks asks for their results in an
order of its own, and keeps about ``session.window`` of them under way.  Workers (threads,
processes) belong to the session: they start with the first task, serve everybody who submits, and
live until the session is closed or dropped.  A session that was closed starts again with the next
task.

An engine from outside writes two classes: one with ``session(work)``, and a subclass of `Session`
with ``window``, ``submit``, ``close`` and ``describe``.  A worker makes the element of a task with
``work(task, lend)``.  ``docs/extending.md`` has an example, ``loaderx.testing.EngineContract`` the
tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any, Protocol, TypeAlias

from loaderx.errors import LoaderxError, RecordError, one_line, warn_user
from loaderx.memory import Lend

CLOSE_PATIENCE_S = 10.0  # how long closing waits for tasks that are under way

Task: TypeAlias = tuple[int, ...]
"""What to make: up to four numbers, each from 0 to 2**64 - 1."""

Element: TypeAlias = Any
"""What a task makes: a tree of arrays, or a `Measured` with one.  Engines do not look into it."""


class Timing:
    """How long each stage of an element took.

    ``weight`` is how many elements it stands for; 0 for the first that a worker makes, which stands
    for itself alone.
    """

    __slots__ = ("stages", "weight")

    def __init__(self, stages: dict[str, float], weight: int) -> None:
        self.stages = stages
        self.weight = weight


class Measured:
    """An element with what is known about its making, for the statistics."""

    __slots__ = ("failures", "read", "times", "value")

    def __init__(
        self, value: Element, failures: Sequence[Any], times: Timing | None, read: int = 0
    ) -> None:
        self.value = value
        self.failures = failures  # records that `on_error` replaced or left out
        self.times = times
        self.read = read  # records, for a batch of a stream


class Work:
    """What is to be done for a task; the loader makes it, engines call it.

    Threads may call it at once, whatever `thread_safe` says: reads of a source that is not
    thread-safe take turns.  Worker processes get it pickled with ``cloudpickle``, since it holds
    functions of the user's.
    """

    thread_safe: bool = True
    """May threads read all sources at once?  If not, threads wait for each other."""

    unsure: str = ""
    """A source that has not said whether threads may read it at once; empty if none."""

    only_gathers: bool = False
    """Is there nothing to do but gather rows of arrays, which needs no GIL?"""

    noun: str = "batch"
    """What is made, for messages."""

    is_in_order: bool = False
    """Can its input only be read in order, so that there is nothing for workers to do?"""

    decodes_chunks: bool = False
    """Does its source decode chunks, which several tasks need?"""

    makes_units: bool = False
    """Are tasks units of a stream, each of which has many batches?"""

    def __call__(self, task: Task, lend: Lend) -> Element:
        """Makes the element of a task: a tree of arrays, or a `Measured` with one.

        An engine hands on what it gets, without looking into it.

        ``lend`` gives the memory for the element.  Every thread needs one of its own, such as
        ``pools.lend`` of a `PoolPerThread`.  It may use memory again only if nobody holds the
        element that it was lent for.
        """
        raise NotImplementedError

    def stream(self, steps: range, lend: Lend) -> Iterator[Element]:
        """The elements of consecutive steps, for a caller that makes one after the other."""
        for step in steps:
            yield self((step,), lend)

    def elements(self, task: Task) -> int:
        """How many elements a task makes."""
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
    """A task that was submitted.  Whoever drops it without asking for its result cancels it."""

    def result(self) -> Element:
        """Waits for the element; raises the error of the task.  It is called once at most.

        After `cancel`, or after the session was closed, it gives the element or raises an error of
        any kind, and never waits for workers that are gone.  Loaders turn the `CancelledError` of
        ``concurrent.futures`` into a `LoaderxError` that says that the loader was closed.
        """

    def done(self) -> bool:
        """False if `result` would have to wait for somebody else."""

    def cancel(self) -> object:
        """Says that the result is not wanted: the task need not be begun.

        A `result` that is being waited for gives up soon, with an error.  If it cannot, since the
        task has begun, closing a loader while another thread waits for a batch takes as long as
        that batch.

        It may be called at any time, by other threads, signal handlers and finalisers, and several
        times: it waits for nobody.
        """


class Session:
    """Does the work of one loader.  An engine's session says how, with `submit` and `close`.

    All iterators of the loader use it, in any threads: several may submit tasks and wait at once.
    Workers must not hold the session, and between two tasks nothing of the work either: the user's
    functions may hold the loader.  So a session that nobody uses is collected, and its workers end.
    """

    window = 0
    """Tasks to keep under way; 0: each is made by whoever asks for its result, when it asks.

    More may be submitted, and their results may be asked for in any order.
    """

    def submit(self, task: Task) -> Pending:
        """Takes on a task, and does not wait for it.  The first one starts the workers.

        Tasks are begun in the order in which they are submitted.
        """
        raise NotImplementedError

    shares_memory: bool = False
    """Do the arrays of an element lie in one piece of memory, which any of them keeps alive?"""

    shares_sources: bool = False
    """Do workers share what a source keeps in memory, as threads do?"""

    here: int = 0
    """How many of the next elements the caller is to make itself, without a task."""

    def made_here(self, count: int) -> None:
        """The caller has made so many elements itself."""

    def notice(self, measured: Measured) -> None:
        """An element is handed out, and this is known about its making."""

    def is_end(self, error: BaseException) -> bool:
        """Does this error of a task mean that the stream ends before it?"""
        return False

    def finish(self, cancelled: Sequence[Pending], until: float) -> None:
        """Waits until no worker is at these tasks any more, or until a time of the monotonic clock.

        For engines whose workers call the user's functions in this process.
        """

    def close(self) -> None:
        """Stops the workers, and waits for them.  A task that is submitted later starts them again.

        It may be called several times, and while other threads submit tasks or wait for results:
        these come back, with the element or an error.
        """

    def describe(self) -> tuple[str, str]:
        """The engine that runs, such as ``threads(2)``, and why: `loader.stats` shows both."""
        return type(self).__name__.lower().removesuffix("session"), "it was asked for"

    def begin(self, tasks: int | None) -> None:
        """A series of tasks begins, so many of them (None: unknown).  For engines that measure."""


class Engine(Protocol):
    """Opens sessions.  An engine is a value: it holds no threads and no position."""

    def session(self, work: Work) -> Session:
        """A session for the work of one loader.  It starts nothing before the first task."""


class Run(Protocol):
    """Elements in order.

    A run is closed only while nobody is inside its ``next``.  Whoever wants to close it from
    another thread, or from a signal handler that came in the middle of ``next``, calls `interrupt`
    instead, at which a ``next`` that waits for workers gives up with an error.  ``next`` never ends
    quietly (with StopIteration) because of that.
    """

    @property
    def next(self) -> Callable[[], Element]:
        """Gives the next element; StopIteration after the last."""

    def start(self) -> None:
        """Lets workers begin with the first elements now; the first ``next`` would do it, too.

        An engine without workers has nothing to do here.
        """

    def ready(self) -> bool:
        """False if ``next`` would have to wait for somebody else."""

    def close(self) -> None: ...

    def describe(self) -> tuple[str, str]:
        """The engine that runs, and why."""

    def interrupt(self) -> bool:
        """Asks a ``next`` that is under way to give up; False if it makes its element itself.

        It takes no lock and waits for nobody, so a signal handler may call it.
        """


def cancel_all(session: Session, pending: Sequence[Pending]) -> None:
    """Cancels tasks, and waits for those that are under way where the engine can: not for ever.

    So after closing an iterator, no thread calls a function of the user's for it any more.
    """
    for one in reversed(pending):  # the last first: it has not begun, perhaps
        one.cancel()
    session.finish(pending, monotonic() + CLOSE_PATIENCE_S)


class TryAgainError(LoaderxError):
    """The workers could not be used just then; the same task may be submitted again."""


def closed_error() -> TryAgainError:
    """For a ``next`` that gave up because its loader was closed."""
    return TryAgainError(
        "the loader was closed while this batch was waited for. The next `next` goes on with it."
    )


class Closable(Protocol):
    """What waits for results, and may be closed meanwhile by another thread."""

    is_closing: bool


def check_closed(error: Exception, waiting: Closable) -> None:
    """Raises a `TryAgainError` if a result failed because it was cancelled, or of the closing."""
    if isinstance(error, LoaderxError):
        return
    if waiting.is_closing or is_cancellation(error):
        raise closed_error() from None


def is_cancellation(error: Exception) -> bool:
    """Is it what a future raises that was cancelled, by `Pending.cancel` or by `Session.close`?

    A function of the user's that raises the same is not meant: its error comes as a `RecordError`.
    """
    from concurrent.futures import CancelledError  # late: it imports logging

    return isinstance(error, CancelledError)


def worker_error(error: BaseException, task: Task) -> BaseException:
    """What a task failed with in a worker.

    A SystemExit would end the consumer, who has not called it: it is an error like any other.
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


def warn_if_in_order(work: Work, asked: str) -> None:
    """Warns that there is nothing to do for the workers that were asked for."""
    if work.is_in_order:
        warn_user(
            f"{asked} was asked for, but what stands above from_iterable runs in the caller's "
            "thread. To use workers, give the data as something with __len__ and __getitem__ "
            "(Dataset.from_source)."
        )


def what_to_say(source: str) -> str:
    """How the user answers the question whether threads may read a source."""
    return (
        f"If threads may read {source} at once, write Dataset.from_source(obj, thread_safe=True); "
        "thread_safe=False says that they may not, and ends this warning."
    )


def workers_of(engine: str) -> float:
    """The workers of an engine by the name that `Session.describe` gives it; infinity if unknown.

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
