"""The session of a loader whose workers are actors of Ray.

Each actor has a thread here that opens it, receives what it makes, and opens it again after a loss:
when the actor died (Ray starts another), or the connection broke.  Tasks go from hand to hand
(`dispatch`) meanwhile.  Elements come over a connection of the worker's own (`direct`), or else
through Ray's store.

The threads hold the crew, not the session: a dropped session is collected, and its finaliser tells
the crew to stop.  Each thread then ends its actor.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

from loaderx.engines.base import (
    Element,
    Made,
    Pending,
    Task,
    Work,
    WorkerStats,
    closed_error,
    forked_error,
)
from loaderx.engines.elsewhere.direct import DirectLine
from loaderx.engines.elsewhere.dispatch import (
    CHECK_S,
    MOST_DEATHS,
    Dispatch,
    Hand,
    Job,
    Outcome,
    Sent,
)
from loaderx.engines.elsewhere.packing import Packed, Unpacker, made_now
from loaderx.engines.elsewhere.payload import payload_of
from loaderx.engines.elsewhere.ray_address import check_cluster, is_address_of
from loaderx.engines.elsewhere.ray_engine import Ray
from loaderx.engines.elsewhere.session import ElsewhereSession
from loaderx.engines.processes.jobs import step_of
from loaderx.engines.signals import SignalsDeferred
from loaderx.errors import (
    ArgumentError,
    LoaderxError,
    MissingPackageError,
    one_line,
    warn_user,
)

STOP_PATIENCE_S = 10.0
EXIT_PATIENCE_S = 3.0
PLACED_PATIENCE_S = 30.0  # after which a loader without any worker warns
HELD = 4  # elements of a worker that the user may hold before memory is added
BROKEN_LINES = 3  # in a row, after which a worker is used through Ray's store


class RaySession(ElsewhereSession):
    """Actors for the tasks of one loader."""

    def __init__(self, work: Work, engine: Ray) -> None:
        super().__init__(work, engine.prefetch)
        self._engine = engine
        self._lock = threading.Lock()
        self._crew: Crew | None = None
        self._finaliser: weakref.finalize[..., RaySession] | None = None
        self._members: Sequence[Member] = ()  # also of a crew that has ended

    @property
    def at_once(self) -> int:
        workers = self._engine.num_workers if self._crew is None else len(self._crew.members)
        return (workers or 1) * self._engine.threads

    @property
    def shares_disk(self) -> bool:  # type: ignore[override]
        """True if the whole cluster is this machine."""
        ray = self._usable().ray
        machines = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        return machines == {ray.util.get_node_ip_address()}

    def submit(self, task: Task) -> PendingInRay:
        crew = self._usable()
        return PendingInRay(self, crew, crew.dispatch.submit(task))

    def _usable(self) -> Crew:
        if self._owner != os.getpid():
            raise forked_error("Ray workers")
        crew = self._crew
        if crew is not None and not crew.dispatch.is_stopped:
            return crew
        with self._lock:
            if self._crew is None or self._crew.dispatch.is_stopped:
                crew = Crew(self._work, self._engine)
                self._finaliser = weakref.finalize(self, crew.stop)
                self._finaliser.atexit = False  # `_stop_all` does that
                self._crew, self._members = crew, crew.members
                with SignalsDeferred():
                    crew.start()
            return self._crew

    def made(self, pending: Pending) -> Made | None:
        return pending.made if type(pending) is PendingInRay else None

    def workers_stats(self) -> Sequence[WorkerStats]:
        return [one.stats() for one in self._members]

    def close(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None and self._owner == os.getpid():
            if self._finaliser is not None:
                self._finaliser.detach()
            crew.stop()
            crew.wait(STOP_PATIENCE_S)

    def describe(self) -> tuple[str, str]:
        ways = [one.way for one in self._members]
        memory, direct, store, none = map(ways.count, ("memory", "direct", StoreLine.name, ""))
        return f"ray({len(ways)})", (
            f"it was asked for: {memory} workers whose memory is read here, {direct} with "
            f"connections of their own, {store} through Ray's store, {none} not started"
        )


class PendingInRay:
    """The consumer's side of a task."""

    __slots__ = ("_crew", "_job", "_owner", "_session")

    @property
    def made(self) -> Made | None:
        return self._job.made

    def __init__(self, session: RaySession, crew: Crew, job: Job) -> None:
        self._session = weakref.ref(session)  # a pending task must not keep the session alive
        self._crew, self._job, self._owner = crew, job, os.getpid()

    def result(self) -> Element:
        if self._owner != os.getpid():
            raise forked_error("Ray workers")
        job, crew = self._job, self._crew
        crew.dispatch.wait(job, crew.warn_of_waiting)
        session = self._session()
        if session is not None:
            session.tell(crew.warnings)
        if job.outcome is None:
            if session is not None and job.deaths >= MOST_DEATHS:
                raise session.died(job.task, f"{MOST_DEATHS} workers in a row have died")
            raise closed_error()
        (element, error), job.outcome = job.outcome, None
        if error is not None:
            try:
                raise error
            finally:
                del error, job  # else the error would hold this frame, and the frame the error
        return element

    def done(self) -> bool:
        return self._job.is_done

    def cancel(self) -> None:
        self._job.finish()


class Crew:
    """The workers of a session, and what they need."""

    def __init__(self, work: Work, engine: Ray) -> None:
        self.ray = connected(engine.address)
        self.engine = engine
        self.takes: dict[str, float] = {"CPU": engine.threads, **(engine.resources or {})}
        self.key = secrets.token_bytes(32) if engine.direct else b""
        payload, self.reset = payload_of(work)
        self.payload: Any = self.ray.put(payload)
        self.warnings: deque[str] = deque()
        self.dispatch = Dispatch()
        self.members = [Member(self, number) for number in range(self._workers())]
        self._has_warned = False

    def start(self) -> None:
        _crews.add(self)
        dispatch = self.dispatch
        threading.Thread(target=dispatch.run_sender, daemon=True, name="loaderx-send").start()
        for member in self.members:
            member.thread.start()

    def _workers(self) -> int:
        if self.engine.num_workers is not None:
            return self.engine.num_workers
        all_cpus = self.ray.cluster_resources().get("CPU", 1)
        return max(1, int(all_cpus / (self.takes["CPU"] or 1)))

    def warn_of_waiting(self) -> None:
        """Called now and then while a task is waited for."""
        if self._has_warned or self.dispatch.seconds_without_hands() < PLACED_PATIENCE_S:
            return
        self._has_warned = True
        warn_user(
            f"waiting for workers: Ray runs none of {len(self.members)} now. Each takes "
            f"{self.takes}; free in the cluster: {self.ray.available_resources()}. Another loader "
            "may hold the rest until it is closed; `ray status` shows more."
        )

    def stop(self, error: BaseException | None = None) -> None:
        """Tells all threads to end, and with them their actors.  Does not wait."""
        self.dispatch.stop(error)
        for member in self.members:
            member.stop()

    def wait(self, patience_s: float) -> None:
        until = time.monotonic() + patience_s
        for member in self.members:
            if member.thread.is_alive() and member.thread is not threading.current_thread():
                member.thread.join(max(0.0, until - time.monotonic()))


class Member:
    """A worker, as its thread here sees it."""

    def __init__(self, crew: Crew, number: int) -> None:
        self._crew, self._number = crew, number
        self._actor: Any = None
        self._line: DirectLine | StoreLine | None = None
        self._broken = 0  # connections in a row
        self._pid = 0
        self._lost: list[Job] = []
        self.name, self.way = "", ""
        self.made, self.making_s, self.travel_s = 0, 0.0, 0.0
        self.thread = threading.Thread(target=self._run, daemon=True, name=f"loaderx-ray-{number}")

    def stats(self) -> WorkerStats:
        return WorkerStats(self.name, self.way, self.made, self.making_s, self.travel_s)

    def stop(self) -> None:
        line = self._line
        if line is not None:
            line.close()

    @property
    def _is_stopped(self) -> bool:
        return self._crew.dispatch.is_stopped

    def _run(self) -> None:
        crew = self._crew
        try:
            self._actor = self._new_actor()
            while not self._is_stopped:
                line = self._opened()
                if line is not None:
                    self._serve(line)
        except BaseException as error:
            crew.stop(error)
        finally:
            actor, self._actor = self._actor, None
            if actor is not None and crew.ray.is_initialized():  # else `kill` would start a new Ray
                with contextlib.suppress(Exception):  # the cluster may be gone
                    crew.ray.kill(actor)

    def _new_actor(self) -> Any:
        from loaderx.engines.elsewhere.ray_actor import RayActor  # late: imports ray

        crew, engine = self._crew, self._crew.engine
        resources = {**crew.takes}
        options = {
            "num_cpus": resources.pop("CPU"),
            "num_gpus": resources.pop("GPU", 0),
            "memory": resources.pop("memory", None),
            "resources": resources,
            "max_restarts": -1,
            # Calls that wait must not keep others from the actor.
            "max_concurrency": 2 * engine.threads + 4,
        }
        actor = crew.ray.remote(RayActor).options(**options)
        return actor.remote(crew.key, engine.threads)

    def _opened(self) -> DirectLine | StoreLine | None:
        """A way to the worker, once Ray has started it; None if that has to be tried again."""
        crew = self._crew
        try:
            opened = waited_for(crew, self._actor.open.remote(crew.payload))
        except crew.ray.exceptions.ActorUnavailableError:
            time.sleep(CHECK_S)  # it is being started again
            return None
        except crew.ray.exceptions.ActorDiedError as error:
            raise LoaderxError(
                "Ray cannot start a worker. Is loaderx installed on all of its machines? It says: "
                f"{one_line(error)}"
            ) from error
        if opened.error:
            Unpacker(1, crew.reset, crew.warnings).unpack(opened.error, None)
        if opened.pid != self._pid:
            self._note_deaths(opened.name)
            self._pid, self.name, self._broken = opened.pid, opened.name, 0
        self._lost = []
        if opened.address is not None and self._broken < BROKEN_LINES:
            try:
                return DirectLine(opened.address, crew.key, self._fetch, self._form)
            except OSError as error:
                # Where a firewall drops what is sent, each try would take long.
                self._broken = BROKEN_LINES if isinstance(error, TimeoutError) else self._broken + 1
                return None
        return StoreLine(self._actor, crew)

    def _note_deaths(self, name: str) -> None:
        if self._pid:
            self._crew.warnings.append(
                f"the worker on {self.name} has died; Ray has started another, on {name}. What it "
                "was making is made again."
            )
        for job in self._lost:
            job.deaths += 1
            if job.deaths >= MOST_DEATHS:
                job.finish()

    def _serve(self, line: DirectLine | StoreLine) -> None:
        """Receives answers until the worker, or the way to it, is lost."""
        crew = self._crew
        # One task waits there while another one's element is sent.
        hand = Hand(line, crew.engine.threads + 2)
        unpacker = Unpacker(hand.depth + HELD, crew.reset, crew.warnings)
        self._line, self.way = line, line.name
        crew.dispatch.join(hand)
        try:
            while not self._is_stopped:
                number, packed, outcome = line.receive(unpacker)
                sent = hand.under_way.get(number)
                if outcome is None:
                    outcome = self._unpacked(unpacker, packed, sent)
                self.made += 1
                self.making_s += packed.making_s
                if sent is not None:
                    self.travel_s += max(0.0, time.monotonic() - sent.at - packed.held_s)
                    sent.job.made = made_now(self.name, packed)
                crew.dispatch.answer(hand, number, outcome)
                self._broken = 0
                del outcome, packed, sent  # the consumer alone must hold the element
        except Exception:  # whatever was wrong, the worker is opened again
            self._broken += line.name != StoreLine.name
        finally:
            self._lost = crew.dispatch.leave(hand)
            self._line = None
            line.release()

    def _unpacked(self, unpacker: Unpacker, packed: Packed, sent: Sent | None) -> Outcome:
        try:
            return unpacker.unpack(packed, None if sent is None else step_of(sent.job.task)), None
        except BaseException as error:
            return None, error

    def _fetch(self, number: int) -> Packed:
        found: Packed = waited_for(self._crew, self._actor.fetch.remote(number))
        return found

    def _form(self, number: int) -> bytes:
        found: bytes = waited_for(self._crew, self._actor.form.remote(number))
        return found


def waited_for(crew: Crew, reference: Any) -> Any:
    """What a call of Ray gives."""
    while not crew.dispatch.is_stopped:
        ready, _ = crew.ray.wait([reference], timeout=CHECK_S)
        if ready:
            return crew.ray.get(reference)
    raise closed_error()


class StoreLine:
    """Elements through Ray's store: the way that always works."""

    name = "store"

    def __init__(self, actor: Any, crew: Crew) -> None:
        self._actor, self._crew = actor, crew
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._under_way: deque[tuple[int, Any]] = deque()

    def send(self, job: Job) -> None:
        self._jobs.put(job)

    def receive(self, unpacker: Unpacker) -> tuple[int, Packed, Outcome | None]:
        """The next answer."""
        while True:
            with contextlib.suppress(Empty):
                while (job := self._jobs.get(block=not self._under_way)) is not None:
                    reference = self._actor.make.remote(job.task)
                    self._under_way.append((job.number, reference))
                raise closed_error()
            number, reference = self._under_way.popleft()
            return number, waited_for(self._crew, reference), None

    def close(self) -> None:
        self._jobs.put(None)

    def release(self) -> None:
        """Nothing is open."""


def connected(address: str | None) -> Any:
    """The package `ray`, connected to a cluster."""
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError(
            "engines.Ray needs the package ray. Install it: pip install ray"
        ) from error
    if not ray.is_initialized():
        check_cluster(address)
        try:
            ray.init(address=address, include_dashboard=False, logging_level="ERROR")
        except ConnectionError as error:
            raise LoaderxError(
                f"Ray has not connected: {one_line(error)}. A server answers there. Is it the head "
                "of the cluster, by its port? And is this machine part of the cluster? If not, run "
                "`ray start --address=` here, with that address."
            ) from error
    elif not is_address_of(address, here := ray.get_runtime_context().gcs_address):
        raise ArgumentError(
            f"engines.Ray(address={address!r}): this process is connected to Ray at {here} "
            "already. Leave `address` out, or disconnect first: ray.shutdown()."
        )
    if not _crews:
        atexit.unregister(_stop_all)
        atexit.register(_stop_all)  # last, so that it runs before Ray's own
    return ray


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


def _stop_all() -> None:
    """At exit, before Ray disconnects."""
    crews = list(_crews)
    for crew in crews:
        crew.stop()
    until = time.monotonic() + EXIT_PATIENCE_S
    for crew in crews:
        crew.wait(until - time.monotonic())
