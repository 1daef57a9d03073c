"""Measures what a step costs without its data: real and replayed blocks of steps take turns.

An `Examination` takes the place of ``next`` of the loader that a program trains with.  In real
blocks it hands out the batches of the loader; in replayed blocks copies of the last few of them,
which are on the device already.  Both kinds see the same noise of the machine, and their difference
is what the data cost.  The other loaders of the program run as ever.

A model that was trained on replayed batches is worth nothing.  So from the first of them on, states
of the loader raise, as Orbax does, and the program ends with the last block.  Whatever else it
saves cannot be seen from here, so the diagnosis says that batches were repeated.
"""

from __future__ import annotations

import contextlib
import copy
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from statistics import mean, median
from time import perf_counter
from typing import Any, NoReturn

from loaderx.engines.base import Engine, Session, cores, workers_of
from loaderx.errors import StateError, warn_user
from loaderx.loader.devices import processes
from loaderx.loader.doctor.causes import diagnose, stages_in_loop, user_stages
from loaderx.loader.doctor.diagnosis import ROUNDS, Diagnosis
from loaderx.loader.doctor.evidence import Block, Evidence, Heard, gather
from loaderx.loader.doctor.usage import ThreadClock, Times, Turns, Usage, used_between
from loaderx.loader.iterator import LoaderIterator
from loaderx.loader.loader import ENGINES, DataLoader, engine_of
from loaderx.loader.stats import Listening
from loaderx.loader.stream_iterator import StreamIterator
from loaderx.loader.tasks.plan_work import PlanWork, are_fetched
from loaderx.loader.tasks.units import UnitWork
from loaderx.loader.trace import NEXT
from loaderx.tree import Tree, flatten

WARM_STEPS = 20  # before the first block
BLOCK_S = 0.4  # a block takes about so long
LEAST_STEPS, MOST_STEPS = 24, 4000
KEPT = 4  # batches that are replayed
PATIENCE = 10 * WARM_STEPS  # of another loop, after which the chosen one is given up
WAKE = getattr(signal, "SIGURG", 0)  # most programs leave it alone; Windows has none
NO_TRACE = "trace() and watch() do nothing while the doctor listens: no file is written."
SEVERAL_PROCESSES = (
    "jax runs in several processes, which would repeat batches for different numbers of steps, and "
    "wait for each other for ever. Examine the program in a single process; or let it call "
    "loader.stats(), loader.trace(path) and loaderx.jax.fleet(loader)."
)


class Examined(SystemExit):
    """Ends the program when all blocks were measured."""


class Examination:
    """The steps of one loop of a program."""

    def __init__(self, steps: int | None = None, *, tries: bool = False) -> None:
        self._wanted_steps, self._tries = steps, tries
        self._first_fix: Engine | None = None  # that is tried
        self._trials: dict[PlanWork | UnitWork, Session] = {}  # with the first fix
        self._next: Callable[[LoaderIterator[Any]], Any] = LoaderIterator.__next__
        self._replaced: list[tuple[type, str, Any]] = []  # what others of their attributes were
        self._loops: dict[str, _Loop] = {}  # by the chain of their loaders
        self._chosen: _Loop | None = None
        self._alone = Counter[_Loop]()  # steps of others since the last one of the chosen loop
        self._block: _Running | None = None
        self._copies: list[Tree] = []
        self._are_donated = False
        self._copy_s = float("inf")
        self._engine = "none"
        self._work: PlanWork | UnitWork | None = None
        self._compiling = _Compiling()
        self._is_over = False
        self.real: list[Block] = []
        self.replayed: list[float] = []  # seconds of a step
        self.repeated = 0  # batches
        self.refusal = ""  # why nothing is examined

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Examines the loaders that are iterated inside."""

        def examined(iterator: LoaderIterator[Any]) -> Any:
            return self._take(iterator)

        can_wake = WAKE and threading.current_thread() is threading.main_thread()
        before = signal.signal(WAKE, self._woken) if can_wake else None
        try:
            self._replace(LoaderIterator, "__next__", examined)
            for kind in (LoaderIterator, StreamIterator):
                for name in ("get_state", "__getstate__"):
                    self._guard(kind, name, self._refuse_repeated)
                for name in ("seek", "set_state"):
                    self._guard(kind, name, self._moved)
            for name in ("trace", "watch"):
                self._replace(DataLoader, name, lambda *_, **__: warn_user(NO_TRACE))
            yield
        finally:
            for owner, name, old in reversed(self._replaced):
                setattr(owner, name, old)
            if can_wake:
                signal.signal(WAKE, before or signal.SIG_DFL)
            self._drop_block()
            self._compiling.stop()
            for loop in self._loops.values():
                loop.listening.trace = None
            for session in self._trials.values():
                session.close()

    def _replace(self, owner: type, name: str, new: object) -> None:
        self._replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, new)

    def _guard(self, owner: type, name: str, check: Callable[[Any], None]) -> None:
        """Calls a function before a method, which may refuse."""
        original = getattr(owner, name)

        def guarded(of: Any, *given: Any, **named: Any) -> Any:
            check(of)
            return original(of, *given, **named)

        self._replace(owner, name, guarded)

    def _refuse_repeated(self, _: object) -> None:
        if self.repeated:
            raise StateError(
                "this program is examined by the doctor, which repeats batches: states and "
                "checkpoints of such a run are worth nothing, and are not made."
            )

    def _moved(self, iterator: LoaderIterator[Any]) -> None:
        """The next batch must be the one at the new position, and not a repeated one."""
        if self._loops.get(_chain(iterator)) is self._chosen:
            self._drop_block()

    def _drop_block(self) -> None:
        if self._block is not None:
            self._block.drop()
        self._block, self._copies = None, []

    # In place of `next`.

    def _take(self, iterator: LoaderIterator[Any]) -> Any:
        if self._is_over:  # in a thread that goes on
            raise SystemExit(0)
        loop = self._loop_of(iterator)
        is_left = self._alone[loop] > PATIENCE and self._first_fix is None
        if (self._chosen is None or is_left) and len(loop.periods) >= WARM_STEPS:
            self._chosen, self.real, self.replayed = loop, [], []
            loop.thread = threading.get_native_id()
            self._drop_block()
            self._are_donated = any(map(_is_donated, flatten(loop.watched)[0]))
            loop.watched = ()
        if loop is not self._chosen or loop.thread != threading.get_native_id():
            self._alone[loop] += 1
            return loop.step(lambda: self._next(iterator))
        self._alone.clear()
        if self._first_fix is not None:
            self._try_on(iterator, self._first_fix)
        block = self._block or self._new_block(iterator, loop)
        if block.is_over:
            self._end(block, iterator, loop)
            block = self._new_block(iterator, loop)
        if block.is_replayed:
            return self._replay(iterator, block)
        return self._real(iterator, block, loop)

    def _loop_of(self, iterator: LoaderIterator[Any]) -> _Loop:
        chain, thread = _chain(iterator), threading.get_native_id()
        if chain not in self._loops:
            self._compiling.listen()
            if processes()[1] > 1:
                self.refusal = SEVERAL_PROCESSES
                self._finish()
            self._loops[chain] = _Loop(thread)
        loop = self._loops[chain]
        loop.listening = iterator._counters.listening
        if loop.thread != thread and loop.thread not in {
            one.native_id for one in threading.enumerate()
        }:
            loop.thread = thread  # it goes on in another one
            self._drop_block()
        return loop

    def _new_block(self, iterator: LoaderIterator[Any], loop: _Loop) -> _Running:
        manager = getattr(sys.modules.get("orbax.checkpoint"), "CheckpointManager", None)
        if manager is not None and all(owner is not manager for owner, *_ in self._replaced):
            self._guard(manager, "save", self._refuse_repeated)
        usual = mean(loop.periods[WARM_STEPS // 2 :])
        steps = max(LEAST_STEPS, min(MOST_STEPS, round(BLOCK_S / max(usual, 1e-6))))
        if self._wanted_steps is not None:
            steps = max(8, self._wanted_steps // (2 * ROUNDS))
        at_once = loop.steps_of_a_task
        steps, skipped = max(steps, 3 * at_once), 4
        if iterator._session is not None:
            # As many may have been made while the block before was replayed.
            skipped += iterator._session.window * at_once
        is_replayed = self._first_fix is None and len(self.replayed) < len(self.real)
        if self._first_fix is not None:
            skipped += WARM_STEPS  # workers start
        if is_replayed:
            skipped += KEPT
        self._block = made = _Running(steps + skipped, skipped, is_replayed=is_replayed)
        return made

    def _real(self, iterator: LoaderIterator[Any], block: _Running, loop: _Loop) -> Any:
        if block.step == block.skipped:
            settle()
            block.begin(loop)
        # In each step, since `loader.close()` ends it.
        loop.listening.trace = block.recording if block.clock else None
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
        return batch

    def _replay(self, iterator: LoaderIterator[Any], block: _Running) -> Any:
        if block.step == block.skipped:
            settle()
            block.begun = perf_counter()
        block.step += 1
        if len(self._copies) < KEPT:
            batch = self._next(iterator)
            settle()
            begun = perf_counter()
            self._copies.append(self._copied(batch))  # now: the step may change it
            settle()
            self._copy_s = min(self._copy_s, perf_counter() - begun)
            return batch
        self.repeated += 1
        return self._copied(self._copies[block.step % KEPT])

    def _copied(self, batch: Tree) -> Tree:
        """A batch of its own for each step, which may change it.

        Arrays of JAX are the same ones, unless the program donates them: on a CPU, copies of large
        ones take longer than the step.
        """
        leaves, structure = flatten(batch)
        kept = [
            leaf if hasattr(leaf, "is_deleted") and not self._are_donated else _own(leaf)
            for leaf in leaves
        ]
        return structure.build(kept)

    def _end(self, block: _Running, iterator: LoaderIterator[Any], loop: _Loop) -> None:
        settle()
        steps = block.step - block.skipped
        seconds = perf_counter() - block.begun
        if block.is_replayed:
            self.replayed.append(seconds / steps)
        else:
            self.real.append(block.ended(steps, seconds, loop))
            if self._first_fix is None and iterator._session:
                self._work = work_of(iterator)
                in_order = self._work.is_in_order  # then no engine is used
                self._engine = "inline" if in_order else iterator._session.describe()[0]
        self._drop_block()
        if len(self.replayed) == ROUNDS and (self._first_fix or not self.begins_trial()):
            self._finish()

    def _finish(self) -> NoReturn:
        """Ends the program, whose main thread may wait for the one that runs the loop."""
        self._is_over = True
        main = threading.main_thread().ident
        if main is None or main == threading.get_ident():
            raise Examined(0)
        if WAKE:
            signal.pthread_kill(main, WAKE)
        raise SystemExit(0)  # a thread ends silently with this class alone

    def _woken(self, *_: object) -> None:
        raise Examined(0)

    def begins_trial(self) -> bool:
        """Goes on with the first fix, if that is one of the loader's arguments."""
        found = self.diagnosis()
        options = dict(found.causes[0].options) if found.causes and self._tries else {}
        kind = options.get("engine", found.engine.partition("(")[0])
        if not options or kind not in ENGINES:
            return False
        workers = options.pop("num_workers", int(workers_of(found.engine)) or None)
        self._first_fix = engine_of(kind, workers, options.pop("prefetch", None))
        return True

    def _try_on(self, iterator: LoaderIterator[Any], engine: Engine) -> None:
        work = work_of(iterator)
        if work not in self._trials:
            self._trials[work] = engine.session(work)
        if iterator._session is not self._trials[work]:
            iterator.close()
            iterator._session = self._trials[work]

    # Afterwards.

    def diagnosis(self) -> Diagnosis:
        """What was found; without replayed blocks, nothing but that."""
        loop, work = self._chosen, self._work
        rounds = min(len(self.real), len(self.replayed))
        if loop is None or work is None or not rounds:
            found = diagnose(Evidence("none", 0.0, 0.0, is_measured=False))
            return found.replace(repeated=self.repeated)
        steps = [block.seconds / block.steps for block in self.real[:rounds]]
        # A busy machine makes blocks differ, too.  What three rounds agree in is real; of the rest,
        # only what was seen to take time in `next`.
        in_next = _in_next(self.real[:rounds])
        # Copies cost time as well, but none if the loop only waits for the device meanwhile.
        copy_s = min(self._copy_s, in_next)
        gaps = [one - other + copy_s for one, other in zip(steps, self.replayed, strict=False)]
        gap = min(median(gaps), max(min(gaps) if rounds == ROUNDS else 0.0, in_next))
        evidence = Evidence(self._engine, median(steps), gap, is_measured=True)
        evidence.first_s, evidence.cores = loop.first_s, cores()
        evidence.compile_s = self._compiling.seconds_in(self.real)
        evidence.user_stages, evidence.in_loop = user_stages(work), stages_in_loop(work)
        evidence.fetches = are_fetched(work._sources)
        found = diagnose(gather(evidence, self.real[:rounds]))
        found = found.replace(pairs=rounds, repeated=self.repeated)
        tried = self.real[rounds:]
        if not tried:
            return found
        return found.replace(tried_ms=tried[0].seconds / tried[0].steps * 1e3)


class _Loop:
    """A loop of the program over a loader, which may be made anew in each epoch."""

    listening: Listening

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.periods: list[float] = []
        self.first_s = 0.0
        self.recording = Heard()  # of its first steps
        self.workers: set[str] = set()  # their names
        self.watched: Tree = ()  # an early batch: does the program donate it?
        self._last = 0.0

    def step(self, take: Callable[[], Any]) -> Any:
        self.listening.trace = self.recording
        begun = perf_counter()
        batch = take()
        now = perf_counter()
        if len(self.periods) == WARM_STEPS // 2:
            self.watched = batch
        if self._last:
            self.periods.append(now - self._last)
        else:
            self.first_s = now - begun
        self._last = now
        return batch

    @property
    def steps_of_a_task(self) -> int:
        """Steps that a task makes: many, if it is a unit of a stream."""
        tasks = len(self.recording.tasks) or len(self.recording.timings)
        return max(1, round(len(self.periods) / tasks)) if tasks else 1


class _Running:
    """A block under way."""

    def __init__(self, steps: int, skipped: int, *, is_replayed: bool) -> None:
        self.steps, self.skipped, self.is_replayed = steps, skipped, is_replayed
        self.step, self.begun = 0, 0.0
        self.clock: ThreadClock | None = None
        self.in_next = Times()
        self.first_steps: set[int] = set()
        self._usage: Usage | None = None
        self.recording = Heard()
        self._turns: Turns | None = None

    @property
    def is_over(self) -> bool:
        return self.step >= self.steps

    def begin(self, loop: _Loop) -> None:
        loop.workers |= {made.worker for made, *_ in loop.recording.tasks}
        self.clock, self._usage = ThreadClock(), Usage(loop.workers)
        self.drop()  # at the end of an epoch it begins again
        self._turns = Turns() if len(loop.workers) > 1 else None
        self.begun = perf_counter()

    def drop(self) -> float:
        """Ends what listens to it; how long one more thread waited for its turn."""
        turns, self._turns = self._turns, None
        return 0.0 if turns is None else turns.ended()

    def ended(self, steps: int, seconds: float, loop: _Loop) -> Block:
        loop.listening.trace = None
        assert self._usage is not None
        loop.workers |= {made.worker for made, *_ in self.recording.tasks}
        used = used_between(self._usage, Usage(loop.workers), self.in_next)
        return Block(
            steps, seconds, self.recording, used, frozenset(self.first_steps),
            self.begun, self.begun + seconds, self.drop(),
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


def work_of(iterator: LoaderIterator[Any]) -> PlanWork | UnitWork:
    """What makes the elements of an iterator."""
    work = iterator._setup.work if isinstance(iterator, StreamIterator) else iterator._work
    assert work is not None
    return work


def settle() -> None:
    """Waits until the devices have done what they were given."""
    jax = sys.modules.get("jax")
    if jax is not None and hasattr(jax, "live_arrays"):
        for array in jax.live_arrays():
            with contextlib.suppress(RuntimeError):  # deleted meanwhile
                array.block_until_ready()


def _in_next(blocks: list[Block]) -> float:
    """The seconds of a step that the loop was inside `next`."""
    calls = [event for one in blocks for event in one.recording.events if event.name == NEXT]
    return sum(one.ended - one.began for one in calls) / sum(one.steps for one in blocks)


def _in_epoch(iterator: LoaderIterator[Any]) -> bool:
    """True if the next step begins an epoch."""
    return iterator._in_epoch is None or iterator.epoch != iterator._in_epoch.epoch


def _chain(iterator: LoaderIterator[Any]) -> str:
    """Its stages: the same for loaders that are made anew in each epoch, with other seeds."""
    return re.sub(r"seed=\d+", "", " ".join(iterator._chain))


def _own(leaf: Any) -> Any:
    """A copy, on the leaf's own devices."""
    try:
        return copy.deepcopy(leaf)
    except Exception:  # it has an open file, for example, of which nobody can make another
        return leaf


def _is_donated(leaf: Any) -> bool:
    return hasattr(leaf, "is_deleted") and leaf.is_deleted()
