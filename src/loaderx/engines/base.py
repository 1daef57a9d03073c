"""What an engine is.

An engine sets up a *workshop* for the work of one loader; the workshop opens *runs*: a run is given
a range of steps and gives one element per step, in order.  A failure keeps its place: it is raised
when its step is asked for.  A run that is closed leaves nothing under way; closing twice is fine,
and dropping a run closes it.  What outlives a run (worker processes) belongs to the workshop, and
goes when that is closed or dropped.

A run is closed only while nobody is inside its ``next``.  Whoever wants to close it from another
thread, or from a signal handler that came in the middle of ``next``, calls `interrupt` instead: it
only sets a flag, at which a ``next`` that waits for workers gives up with an error.  ``next`` never
ends quietly (with StopIteration) because of that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from loaderx.errors import LoaderxError, warn_user
from loaderx.memory import Lend


class Timing:
    """How long each stage of an element took.

    ``weight`` is how many elements it stands for; 0 for the first that a worker makes, which stands
    for itself alone.
    """

    __slots__ = ("stages", "weight")

    def __init__(self, stages: dict[str, float], weight: int) -> None:
        self.stages = stages
        self.weight = weight


class Noted:
    """An element with something to tell about its making, for the statistics."""

    __slots__ = ("failures", "read", "times", "value")

    def __init__(
        self, value: Any, failures: Sequence[Any], times: Timing | None, read: int = 0
    ) -> None:
        self.value = value
        self.failures = failures  # records that `on_error` replaced or left out
        self.times = times
        self.read = read  # records, for a batch of a stream


class Work(Protocol):
    """What is to be done for a step.  Threads may call it at once, each with its own ``lend``."""

    @property
    def thread_safe(self) -> bool: ...

    @property
    def unsure(self) -> str:
        """A source of which nobody has said whether threads may read it at once; empty if none."""

    @property
    def only_gathers(self) -> bool:
        """Is there nothing to do but gather rows of arrays, which needs no GIL?"""

    def __call__(self, step: int, lend: Lend) -> Any:
        """The element of a step, or `Noted`."""

    def stream(self, steps: range, lend: Lend) -> Iterator[Any]:
        """The same for consecutive steps, for an engine that makes one after the other."""

    def describe(self, step: int) -> str:
        """Which records a step is made of, for messages."""

    def parts(self) -> Iterator[tuple[str, Any]]:
        """The user's functions and sources with a name each, for messages."""

    # A work may also have a `noun` for what it makes, if that is not a batch, and `is_in_order`:
    # True if its input can only be read in order, so that there is nothing for workers to do.


class Run(Protocol):
    """Elements in the order of their steps."""

    @property
    def next(self) -> Callable[[], Any]:
        """Gives the next element; StopIteration after the last."""

    def ready(self) -> bool:
        """False if ``next`` would have to wait for somebody else."""

    def close(self) -> None: ...

    def describe(self) -> tuple[str, str]:
        """The engine that runs, and why."""

    # A run may also have `interrupt() -> bool`: see the function of that name.


class Workshop(Protocol):
    """A place where the work of one loader is done, run after run."""

    def open(self, steps: range) -> Run:
        """A run over these steps.  Nothing starts before its first element is asked for."""

    def close(self) -> None:
        """Stops what outlives the runs.  A run that is opened later starts it again."""


class Engine(Protocol):
    """Sets up workshops.  An engine is a value: it holds no threads and no position."""

    def workshop(self, work: Work) -> Workshop: ...


class BareWorkshop:
    """A workshop of runs that leave nothing behind."""

    def __init__(self, open_run: Callable[[range], Run]) -> None:
        self.open = open_run

    def close(self) -> None:
        """There is nothing to stop."""


def interrupt(run: Any) -> bool:
    """Asks a ``next`` that is under way to give up; False if it makes its element itself.

    Takes no lock and waits for nobody, so a signal handler may call it in the middle of ``next``.
    """
    ask = getattr(run, "interrupt", None)
    return ask is not None and bool(ask())


def closed_error() -> LoaderxError:
    """For a ``next`` that gave up because its loader was closed."""
    return LoaderxError(
        "the loader was closed while this batch was waited for. The next `next` goes on with it."
    )


def close_generator(elements: Any) -> None:
    """Closes a generator, unless it is running: then it ends when whoever runs it drops it.

    Closing a running generator that is inside ``yield from`` crashes Python 3.11 and 3.12.
    """
    if not getattr(elements, "gi_running", False) and hasattr(elements, "close"):
        elements.close()


def warn_if_in_order(work: Work, asked: str) -> None:
    """Whoever asked for workers is told that there is nothing for them to do."""
    if getattr(work, "is_in_order", False):
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
    """The workers of an engine by the name that `Run.describe` gives it; infinity if unknown.

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
