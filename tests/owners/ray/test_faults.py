"""Whatever happens to actors, connections and machines: the same stream, and nothing left behind.

LOADERX_FAULTS says how many faults there are in all.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from loaderx import DataLoader, Dataset, FileError, LoaderxError, RecordError
from loaderx.engines import Ray, Shared
from loaderx.engines.elsewhere import direct, payload, ray_session
from loaderx.errors import LoaderxWarning
from loaderx.testing.engine_work import InThread, wait_until
from tests.owners.ray import waits
from tests.owners.ray.actors import actors
from workers import loader_threads

pytestmark = [
    pytest.mark.owners,
    pytest.mark.foreign,
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:the worker on .* has died"
    ),
]
FAULTS = int(os.environ.get("LOADERX_FAULTS", "20"))
STEPS = 40


def share(percent):
    """How many of the faults are of one kind."""
    return max(1, FAULTS * percent // 100)


class NotedLine(direct.DirectLine):
    """A connection that is looked at again when all is over."""

    opened = []  # noqa: RUF012 (of all lines)

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.opened.append(self.connection)


@pytest.fixture(autouse=True)
def _noted(monkeypatch):
    monkeypatch.setattr(ray_session, "DirectLine", NotedLine)
    monkeypatch.setattr(ray_session, "Dispatch", waits.CountedDispatch)
    NotedLine.opened.clear()


def noisy(record):
    """Some work, and a result whose bytes depend on the record alone."""
    rng = np.random.default_rng(int(record))
    return {"x": rng.integers(0, 256, 20_000, np.uint8), "id": record}


def chain():
    return Dataset.range(4 * STEPS).shuffle(seed=3).map(noisy).batch(4).repeat()


@functools.cache
def expected():
    """The first batches of the stream."""
    with DataLoader(chain().take(2 * STEPS), engine="inline") as loader:
        return [batch["x"].tobytes() + batch["id"].tobytes() for batch in loader]


class Faults:
    """Does something to the workers, so many times, while a stream runs."""

    def __init__(self, do, times):
        self._do, self._times = do, times
        self.done, self.errors = 0, []
        self.steps = 0  # of the stream so far
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        rng = random.Random(0)
        try:
            while self.done < self._times:
                # After some batches: else no worker would live until it has made one.
                due = self.steps + rng.randrange(1, 8)
                while self.steps < due:
                    time.sleep(0.005)
                if self._do(rng):
                    self.done += 1
                    waits.WAITS.faults += 1
        except Exception as error:
            self.errors.append(error)
            self._times = 0

    @property
    def is_over(self):
        return not self._thread.is_alive()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._thread.join(120)
        assert not self.errors


def check_stream(engine, do, times):
    """The stream is what it would be without faults, from before the first until after the last."""
    with nothing_left(), DataLoader(chain(), engine=engine) as loader:
        iterator = iter(loader)
        check_next(iterator, 0)
        seen = 1
        with Faults(do, times) as faults:
            last = None
            while last is None or seen < last:  # ten more after the last fault
                check_next(iterator, seen)
                seen += 1
                faults.steps = seen
                if last is None and faults.is_over:
                    last = seen + 10
        assert faults.done == times
    waits.check()


def check_next(iterator, step):
    batch = next(iterator)
    assert batch["x"].tobytes() + batch["id"].tobytes() == whole(step), f"step {step}"


@contextlib.contextmanager
def nothing_left():
    """No actor, no thread, no connection, and no file."""
    before, files = actors(), files_of_cache()
    yield
    wait_until(lambda: not actors() - before, "the actors to end")
    wait_until(lambda: not loader_threads(), "the threads to end")
    wait_until(lambda: all(one.fileno() < 0 for one in NotedLine.opened), "the connections to end")
    assert files_of_cache() == files


def files_of_cache():
    return sorted(Path(os.environ["LOADERX_CACHE"]).rglob("*"))


def whole(step):
    """A batch of any epoch."""
    if step < 2 * STEPS:
        return expected()[step]
    batch = chain()[step]
    return batch["x"].tobytes() + batch["id"].tobytes()


def kill(rng):
    alive = sorted(actors())
    with contextlib.suppress(ProcessLookupError):
        if alive:
            os.kill(rng.choice(alive), signal.SIGKILL)
            return True
    return False


@pytest.fixture
def engine(request, way):
    """Three workers; `way` says how their elements come."""
    if way == "direct":
        request.getfixturevalue("other_machine")
    return Ray(3, direct=way != "store")


@pytest.mark.parametrize(("way", "percent"), [("memory", 20), ("direct", 15), ("store", 15)])
def test_actors_that_are_killed(engine, percent):
    check_stream(engine, kill, share(percent))


def test_one_actor_that_is_killed():
    """Nobody else can take its task: Ray brings it back."""
    check_stream(Ray(1), kill, times=2)


def test_actors_that_stand_still():
    """Their tasks are made by others; they go on later, or are ended with the loader."""
    still = set()

    def stop(rng):
        alive = sorted(actors() - still)
        if len(alive) < 2:  # one must live
            for pid in still:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            still.clear()
            return False
        pid = rng.choice(alive)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            still.add(pid)
            return True
        return False

    check_stream(Ray(3), stop, share(20))


@pytest.mark.parametrize(("way", "percent"), [("memory", 10), ("direct", 15)])
def test_connections_that_are_cut_and_garbled(engine, percent, monkeypatch):
    receive, rng, due = direct.receive_into, random.Random(1), []

    def damaged(connection, into):
        if not due:
            return receive(connection, into)
        due.pop()
        view = memoryview(into)
        at = rng.randrange(view.nbytes)
        if rng.random() < 0.5:
            receive(connection, view[:at])
            connection.shutdown(socket.SHUT_RDWR)
            return receive(connection, view[at:])
        receive(connection, view)
        view[at] ^= 1 << rng.randrange(8)
        return None

    monkeypatch.setattr(direct, "receive_into", damaged)
    # Else all workers would be used through Ray's store at some point, and nothing be damaged.
    monkeypatch.setattr(ray_session, "BROKEN_LINES", 10**6)

    def damage(rng):
        if not due:
            due.append(True)
            return True
        return False

    check_stream(engine, damage, share(percent))


def test_workers_whose_connections_always_break_are_used_through_rays_store(monkeypatch):
    def damaged(connection, into):
        raise direct.ConnectionLostError("the connection was closed")

    monkeypatch.setattr(direct, "receive_into", damaged)
    with nothing_left(), DataLoader(chain(), engine=Ray(2)) as loader:
        iterator = iter(loader)
        for step in range(20):
            check_next(iterator, step)
        assert {one.way for one in loader.stats().workers if one.made} == {"store"}


def test_a_raylet_that_is_killed_and_replaced(raylets):
    """Again and again; two of the four workers run on it."""
    times = share(5)
    with nothing_left(), DataLoader(chain(), engine=Ray(4, resources={"CPU": 2})) as loader:
        iterator = iter(loader)
        for step in range(40 * times + 20):
            if step % 40 == 20 and step < 40 * times:
                raylets.kill_node()
                waits.WAITS.faults += 1
            if step % 40 == 0 and step:
                raylets.add_node()
            check_next(iterator, step)
    waits.check()


# The consumer -------------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys
import ray
import numpy as np
import loaderx as lx
from loaderx import engines
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
loader = lx.DataLoader(lx.Dataset.range(10**6).batch(8), engine=engines.Ray(2))
it = iter(loader)
for _ in range(20): next(it)
print("begun", flush=True)
while True: next(it)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_consumer_that_dies_leaves_no_actor(raylets, number):
    before = actors()
    command = [sys.executable, "-c", SCRIPT, raylets.cluster.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as consumer:
        assert consumer.stdout.readline() == b"begun\n"
        wait_until(lambda: len(actors() - before) == 2, "both actors")
        consumer.send_signal(number)
        _, said = consumer.communicate(timeout=60)
    if number == signal.SIGINT:
        assert b"KeyboardInterrupt" in said
    wait_until(lambda: not actors() - before, "the actors to end")


def test_a_task_that_kills_its_workers_is_an_error_that_names_it():
    def fatal(record):
        return os._exit(1) if record == 21 else record

    dataset = Dataset.range(60).map(fatal).batch(4)
    with DataLoader(dataset, engine=Ray(2)) as loader:
        iterator, found = iter(loader), []
        with pytest.raises(RecordError, match=r"3 workers in a row .*records 20 to 23"):
            while True:
                found.append(next(iterator).tolist())
        assert found == [list(range(4 * step, 4 * step + 4)) for step in range(5)]


# What users meet ----------------------------------------------------------------------------------


def test_files_that_differ_on_the_workers_machine_are_named(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.arange(100_000))
    monkeypatch.setattr(payload, "see", lambda path, **_: payload.SeenFile(path, 7, b""))
    dataset = Dataset.open(tmp_path / "x.npy").batch(1000)
    with DataLoader(dataset, engine=Ray(2)) as loader:
        with pytest.raises(FileError, match=r"1 of the 1 files .*x\.npy has 800,128 bytes, not 7"):
            next(iter(loader))
        monkeypatch.undo()
        assert next(iter(loader))["x"][:3].tolist() == [0, 1, 2]


def test_a_loader_that_waits_for_workers_says_what_they_need(monkeypatch):
    from loaderx.engines.elsewhere import ray_session

    warned = []
    warn = ray_session.warn_user
    monkeypatch.setattr(ray_session, "PLACED_PATIENCE_S", 0.3)
    monkeypatch.setattr(ray_session, "warn_user", lambda text: (warn(text), warned.append(text)))
    engine = Ray(1, resources={"nowhere": 1})
    loader = DataLoader(Dataset.range(8).batch(4), engine=engine)
    waiting = InThread(lambda: next(iter(loader)))
    with pytest.warns(LoaderxWarning, match=r"Ray runs none of 1 now.*'nowhere': 1"):
        wait_until(lambda: warned, "the warning")
    loader.close()
    assert isinstance(waiting.join("next(), after close()").error, LoaderxError)


def test_several_loaders_share_actors():
    before, engine = actors(), Shared(Ray(2))
    train = DataLoader(Dataset.range(40).map(noisy).batch(4), engine=engine)
    test = DataLoader(Dataset.range(40).filter(lambda i: i % 2 == 1).batch(4), engine=engine)
    with train, test:
        pairs = list(zip(train, test, strict=False))
        wait_until(lambda: len(actors() - before) >= 2, "both actors")
        assert len(actors() - before) == 2
        assert len(pairs) == 5
        assert sum(one.made for one in train.stats().workers) > 0


@pytest.mark.parametrize("way", ["memory", "direct", "store"])
def test_stats_say_where_workers_run_and_how_elements_come(engine, way):
    with DataLoader(chain().take(20), engine=engine) as loader:
        list(loader)
        stats = loader.stats()
    assert sum(one.made for one in stats.workers) >= 20
    used = [one for one in stats.workers if one.made]
    assert all(one.way == way and "(pid" in one.name for one in used)
    assert all(one.making_s > 0 for one in used)
    assert stats.engine == "ray(3)"
