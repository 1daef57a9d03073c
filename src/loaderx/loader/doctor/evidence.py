"""What was measured while steps ran, in the form that causes are found from.

All times are seconds of one step, unless a name says otherwise.  A *gap* is how much longer a step
takes than it would without its data.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import NamedTuple

from loaderx.engines.base import Made, Task, Timing, Work, workers_of
from loaderx.loader.doctor.usage import Times, Used
from loaderx.loader.trace import MOST_EVENTS, NEXT, PLACE, Recording


class Heard(Recording):
    """A recording that also tells when the loop had what a worker made."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: deque[float] = deque(maxlen=MOST_EVENTS)  # of `tasks`

    def made(self, made: Made | None, task: Task, work: Work, timing: Timing | None) -> None:
        if made is not None:
            self.arrivals.append(perf_counter())
        super().made(made, task, work, timing)


@dataclasses.dataclass(slots=True)
class Block:
    """Some steps in a row, and what happened meanwhile."""

    steps: int
    seconds: float
    recording: Heard
    used: Used
    first_steps: frozenset[int]  # those that begin an epoch
    began: float
    ended: float
    turn_s: float = 0.0  # how long one more thread waits for its turn


@dataclasses.dataclass(slots=True)
class Evidence:
    """What is known of the steps of a loader."""

    engine: str
    step_s: float
    gap_s: float
    is_measured: bool
    steps: int = 0
    waits: Sequence[tuple[bool, float]] = ()  # of each step: is it an epoch's first; its wait
    place_s: float = 0.0
    handing_s: float = 0.0  # in `next`, from a worker's end of a task until the loop has it
    task_s: Sequence[float] = ()  # of each task, or of those of the loop that were timed
    stage_s: dict[str, float] = dataclasses.field(default_factory=dict)
    in_loop: frozenset[str] = frozenset()  # stages that run in the loop's thread with any engine
    in_loop_s: dict[str, float] = dataclasses.field(default_factory=dict)
    cpu_s: float = 0.0  # of what makes the elements, all workers together
    delayed_s: float = 0.0
    blocked_s: float = 0.0
    used_s: float = 0.0  # CPU time of all of it, the step's included
    turn_s: float = 0.0  # how long one more thread waits until Python lets it run
    loop_blocked_s: float = 0.0  # outside `next`
    disk_bytes: float = 0.0
    first_s: float = 0.0  # the first batch
    compile_s: float = 0.0
    user_stages: frozenset[str] = frozenset()
    fetches: bool = False
    cores: int = 1
    missing: frozenset[str] = frozenset()

    @property
    def workers(self) -> float:
        return workers_of(self.engine)

    @property
    def made_s(self) -> float:
        """How long one worker takes to make an element."""
        return self.cpu_s + self.delayed_s + self.blocked_s

    @property
    def without_s(self) -> float:
        """A step without its data."""
        return max(0.0, self.step_s - self.gap_s)


def gather(evidence: Evidence, blocks: Sequence[Block]) -> Evidence:
    """Adds what is in the blocks.

    Without workers, tasks are those that `auto` has tried some with; they say nothing.
    """
    steps, seconds = sum(one.steps for one in blocks), sum(one.seconds for one in blocks)
    if not steps:
        return evidence
    calls = [call for block in blocks for call in _calls(block)]
    by_workers = evidence.workers > 0
    made = [task for one in blocks for task in one.recording.tasks if by_workers]
    tasks = [made.ended - made.began for made, *_ in made]
    timings = [timing for one in blocks for timing in _of_elements(one.recording)]
    loop, in_next, workers, process = (
        sum((getattr(used, name) for used in (one.used for one in blocks)), Times())
        for name in ("loop", "in_next", "workers", "process")
    )
    making = sum(tasks) if by_workers else sum(call.wait_s for call in calls)
    times = workers if by_workers else in_next
    cpu, delayed = min(times.cpu, making), min(times.delayed, making)
    elements = _seconds(timings)
    stages = _seconds([timing for *_, timing in made if timing is not None]) or elements
    total = sum(stages.values()) or 1.0
    outside = seconds - sum(call.wait_s + call.place_s for call in calls)
    missing: set[str] = set().union(*(one.used.missing for one in blocks))
    if by_workers and not tasks:
        missing.add("when workers made what")
    return dataclasses.replace(
        evidence,
        steps=steps,
        waits=[(call.is_first, call.wait_s) for call in calls],
        place_s=sum(call.place_s for call in calls) / steps,
        handing_s=sum(call.handing_s for call in calls) / steps if by_workers else 0.0,
        task_s=tasks or [sum(timing.stages.values()) for timing in timings],
        stage_s={stage: took / total * making / steps for stage, took in stages.items()},
        in_loop_s={stage: elements.get(stage, 0.0) / steps for stage in evidence.in_loop},
        cpu_s=cpu / steps,
        delayed_s=delayed / steps,
        blocked_s=max(0.0, making - cpu - delayed) / steps,
        used_s=(process.cpu + workers.cpu * evidence.engine.startswith("processes")) / steps,
        turn_s=median(one.turn_s for one in blocks),
        loop_blocked_s=max(0.0, outside - sum(loop - in_next)) / steps,
        disk_bytes=sum(one.used.disk_bytes for one in blocks) / steps,
        missing=frozenset(missing),
    )


class _Call(NamedTuple):
    """A call of `next`."""

    is_first: bool  # of its epoch
    wait_s: float  # without placing
    place_s: float
    handing_s: float  # of what workers had done


def _calls(block: Block) -> Iterator[_Call]:
    events = block.recording.events
    places = [event for event in events if event.name == PLACE]
    ends = [made.ended for made, *_ in block.recording.tasks]
    arrivals = [*block.recording.arrivals]
    for call in (event for event in events if event.name == NEXT):
        place_s = sum(
            one.ended - one.began
            for one in places
            if call.began <= one.began and one.ended <= call.ended
        )
        wait_s = max(0.0, call.ended - call.began - place_s)
        handing_s, since = 0.0, call.began
        first, after = (bisect.bisect(arrivals, at) for at in (call.began, call.ended))
        for ended, arrived in zip(ends[first:after], arrivals[first:after], strict=True):
            handing_s += max(0.0, arrived - max(since, ended))
            since = arrived
        is_first = call.about["step"] in block.first_steps
        yield _Call(is_first, wait_s, place_s, handing_s)


def _of_elements(recording: Heard) -> list[Timing]:
    """The timings of elements.  Those of a stream have the times of its units, too."""
    timings = [*recording.timings]
    return [timing for timing in timings if not timing.ended] or timings


def _seconds(timings: Sequence[Timing]) -> dict[str, float]:
    """The time of each stage."""
    found: dict[str, float] = {}
    for timing in timings:
        for stage, seconds in timing.stages.items():
            found[stage] = found.get(stage, 0.0) + seconds
    return found
