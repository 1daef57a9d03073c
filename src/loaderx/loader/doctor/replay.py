"""Measures what a step costs without its data: real and replayed blocks of steps take turns.

An `Examination` takes the place of ``next`` of the loader that a program trains with.  In real
blocks it hands out the batches of the loader; in replayed blocks the last few of them again, which
are on the device already.  Both kinds see the same noise of the machine, and their difference is
what the data cost.  The other loaders of the program run as ever.

A model that was trained on replayed batches is worth nothing.  So from the first of them on, states
of the loader raise, and the program ends with the last block.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from statistics import mean, median
from time import perf_counter
from typing import Any

from loaderx.engines.base import cores
from loaderx.errors import StateError
from loaderx.loader.doctor.causes import diagnose, user_stages
from loaderx.loader.doctor.diagnosis import Diagnosis
from loaderx.loader.doctor.evidence import Block, Evidence, gather
from loaderx.loader.doctor.usage import ThreadClock, Times, Usage, used_between
from loaderx.loader.iterator import LoaderIterator
from loaderx.loader.stats import Counters
from loaderx.loader.stream_iterator import StreamIterator
from loaderx.loader.tasks.plan_work import are_fetched
from loaderx.loader.trace import Recording
from loaderx.tree import Tree, flatten, map_leaves

WARM_STEPS = 20  # before the first block
ROUNDS = 3
BLOCK_S = 0.4  # a block takes about so long
LEAST_STEPS, MOST_STEPS = 24, 4000
KEPT = 4  # batches that are replayed


class Examined(SystemExit):
    """Ends the program when all blocks were measured."""


class Examination:
    """The steps of one loader of a program."""

    def __init__(self, steps: int | None = None) -> None:
        self._wanted_steps = steps
        self._next: Callable[[LoaderIterator[Any]], Any] = LoaderIterator.__next__
        self._states = {kind: kind.get_state for kind in (LoaderIterator, StreamIterator)}
        self._warming: dict[int, _Warming] = {}  # by loader
        self._chosen: _Warming | None = None
        self._iterator: LoaderIterator[Any] | None = None  # the last one of the chosen loader
        self._block: _Running | None = None
        self._copies: list[Tree] = []
        self._handed: Tree = None
        self._is_donated = False
        self._compiling = _Compiling()
        self.real: list[Block] = []
        self.replayed: list[float] = []  # seconds of a step
        self.has_replayed = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Examines the loaders that are iterated inside."""

        def examined(iterator: LoaderIterator[Any]) -> Any:
            return self._take(iterator)

        def refused(*_: object) -> Any:
            raise StateError(
                "this program is examined by the doctor, which repeats batches: states and "
                "checkpoints of such a run are worth nothing, and are not made."
            )

        def state(kind: type[LoaderIterator[Any]]) -> Callable[..., Any]:
            original = self._states[kind]
            return lambda iterator: (refused if self.has_replayed else original)(iterator)

        changed: list[tuple[type, str, Any, Any]] = [
            (LoaderIterator, "__next__", self._next, examined)
        ]
        for kind, original in self._states.items():
            changed.append((kind, "get_state", original, state(kind)))
        try:
            for owner, name, _, new in changed:
                setattr(owner, name, new)
            yield
        finally:
            for owner, name, old, _ in changed:
                setattr(owner, name, old)
            self._compiling.stop()
            for warming in self._warming.values():
                warming.listening.stop()

    # In place of `next`.

    def _take(self, iterator: LoaderIterator[Any]) -> Any:
        warming = self._warming.get(id(iterator._counters))
        if warming is None:
            self._compiling.listen()
            warming = self._warming[id(iterator._counters)] = _Warming(iterator._counters)
        if self._chosen is None and len(warming.periods) >= WARM_STEPS:
            self._chosen = warming
        if warming is not self._chosen or threading.get_ident() != warming.thread:
            return warming.step(lambda: self._next(iterator))
        self._iterator = iterator
        block = self._block or self._new_block(warming)
        if block.is_over:
            self._end(block, warming)
            block = self._new_block(warming)
        if block.is_replayed:
            return self._replay(block)
        return self._real(iterator, block, warming)

    def _new_block(self, warming: _Warming) -> _Running:
        usual = mean(warming.periods[WARM_STEPS // 2 :])
        steps = max(LEAST_STEPS, min(MOST_STEPS, round(BLOCK_S / max(usual, 1e-6))))
        if self._wanted_steps is not None:
            steps = max(8, self._wanted_steps // (2 * ROUNDS))
        skipped = 4
        if self._iterator is not None and self._iterator._session is not None:
            skipped += self._iterator._session.window  # made while the block before was replayed
        is_replayed = len(self.replayed) < len(self.real)
        if is_replayed:
            self.has_replayed = True
            self._copies = [_copied(batch) for batch in warming.kept]
        self._block = made = _Running(steps + skipped, skipped, is_replayed=is_replayed)
        return made

    def _real(self, iterator: LoaderIterator[Any], block: _Running, warming: _Warming) -> Any:
        if block.step == block.skipped:
            settle()
            block.begin(warming)
        first = _in_epoch(iterator)
        before = block.clock() if block.clock else Times()
        try:
            batch = self._next(iterator)
        finally:
            if block.clock is not None:
                block.in_next = block.in_next + (block.clock() - before)
        if first:
            block.first_steps.add(iterator.step - 1)
        block.step += 1
        warming.kept.append(batch)
        return batch

    def _replay(self, block: _Running) -> Any:
        if block.step == block.skipped:
            settle()
            block.begun = perf_counter()
        block.step += 1
        if not self._is_donated and _is_deleted(self._handed):
            self._is_donated = True  # the step takes its batch over: it needs its own each time
        batch = self._copies[block.step % len(self._copies)]
        self._handed = _copied(batch) if self._is_donated else batch
        return self._handed

    def _end(self, block: _Running, warming: _Warming) -> None:
        settle()
        steps = block.step - block.skipped
        seconds = perf_counter() - block.begun
        if block.is_replayed:
            self.replayed.append(seconds / steps)
        else:
            self.real.append(block.ended(steps, seconds, warming))
        self._block = None
        if len(self.replayed) == ROUNDS:
            raise Examined(0)

    # Afterwards.

    def diagnosis(self) -> Diagnosis:
        """What was found; without replayed blocks, nothing but that."""
        iterator, warming = self._iterator, self._chosen
        rounds = min(len(self.real), len(self.replayed))
        if iterator is None or iterator._session is None or warming is None or not rounds:
            return diagnose(Evidence("none", 0.0, 0.0, is_measured=False))
        steps = [block.seconds / block.steps for block in self.real[:rounds]]
        gaps = [one - other for one, other in zip(steps, self.replayed, strict=False)]
        engine, _ = iterator._session.describe()
        evidence = Evidence(engine, median(steps), median(gaps), is_measured=True)
        evidence.first_s, evidence.cores = warming.first_s, cores()
        evidence.compile_s = self._compiling.seconds_in(self.real)
        work = iterator._setup.work if isinstance(iterator, StreamIterator) else iterator._work
        assert work is not None
        evidence.user_stages = user_stages(work)
        evidence.fetches = are_fetched(work._sources)
        return diagnose(gather(evidence, self.real))


class _Warming:
    """The first steps of a loader."""

    def __init__(self, counters: Counters) -> None:
        self.thread = threading.get_ident()
        self.kept: deque[Tree] = deque(maxlen=KEPT)
        self.periods: list[float] = []
        self.first_s = 0.0
        self._last = 0.0
        self.listening = counters.listening
        self.listening.stop()
        self.listening.trace = self._recording = Recording()  # for the names of workers

    def step(self, take: Callable[[], Any]) -> Any:
        begun = perf_counter()
        batch = take()
        now = perf_counter()
        if self._last:
            self.periods.append(now - self._last)
        else:
            self.first_s = now - begun
        self._last = now
        self.kept.append(batch)
        return batch

    @property
    def workers(self) -> set[str]:
        """Names of the workers seen so far."""
        return {made.worker for made, *_ in self._recording.tasks}


class _Running:
    """A block under way."""

    def __init__(self, steps: int, skipped: int, *, is_replayed: bool) -> None:
        self.steps, self.skipped, self.is_replayed = steps, skipped, is_replayed
        self.step, self.begun = 0, 0.0
        self.clock: ThreadClock | None = None
        self.in_next = Times()
        self.first_steps: set[int] = set()
        self._usage: Usage | None = None
        self.recording = Recording()

    @property
    def is_over(self) -> bool:
        return self.step >= self.steps

    def begin(self, warming: _Warming) -> None:
        self.clock, self._usage = ThreadClock(), Usage(warming.workers)
        warming.listening.trace = self.recording
        self.begun = perf_counter()

    def ended(self, steps: int, seconds: float, warming: _Warming) -> Block:
        warming.listening.trace = None
        assert self._usage is not None
        assert self.clock is not None
        self.clock.close()
        used = used_between(self._usage, Usage(warming.workers), self.in_next)
        return Block(
            steps, seconds, self.recording, used, frozenset(self.first_steps),
            self.begun, self.begun + seconds,
        )  # fmt: skip


class _Compiling:
    """When JAX compiled, as it tells."""

    def __init__(self) -> None:
        self._times: list[tuple[float, float]] = []  # when it was done, and the seconds it took
        self._jax: Any = None

    def listen(self) -> None:
        """Begins to listen, once jax is there: the doctor does not import it."""
        jax = sys.modules.get("jax.monitoring")
        if self._jax is None and jax is not None:
            self._jax = jax
            jax.register_event_duration_secs_listener(self._note)

    def stop(self) -> None:
        if self._jax is not None:
            self._jax.unregister_event_duration_listener(self._note)

    def _note(self, event: str, seconds: float, **_: object) -> None:
        if event.startswith("/jax/core/compile/"):
            self._times.append((perf_counter(), seconds))

    def seconds_in(self, blocks: list[Block]) -> float:
        """Seconds of a step."""
        steps = sum(block.steps for block in blocks)
        took = sum(
            seconds
            for at, seconds in self._times
            for block in blocks
            if block.began <= at <= block.ended
        )
        return took / steps if steps else 0.0


def settle() -> None:
    """Waits until the devices have done what they were given."""
    jax = sys.modules.get("jax")
    if jax is not None and hasattr(jax, "live_arrays"):
        for array in jax.live_arrays():
            with contextlib.suppress(RuntimeError):  # deleted meanwhile
                array.block_until_ready()


def _in_epoch(iterator: LoaderIterator[Any]) -> bool:
    """True if the next step begins an epoch."""
    return iterator._in_epoch is None or iterator.epoch != iterator._in_epoch.epoch


def _is_deleted(batch: Tree) -> bool:
    return any(getattr(leaf, "is_deleted", bool)() for leaf in flatten(batch)[0])


def _copied(batch: Tree) -> Tree:
    """Copies of jax's arrays, since a step may take them over; others as they are."""
    return map_leaves(lambda leaf: leaf.copy() if hasattr(leaf, "is_deleted") else leaf, batch)
