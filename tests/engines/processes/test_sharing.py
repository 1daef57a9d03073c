"""The pool of worker processes behind a loader: shared by iterators and threads, interrupted."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
import warnings

import pytest

from chains import arrays
from inside import pool_of, processes_of
from loaderx import DataLoader, LoaderxError, LoaderxWarning, RecordError
from loaderx.engines import Processes, Work
from loaderx.engines.processes import pool as pool_module
from loaderx.engines.processes import protocol
from loaderx.engines.processes.session import ProcessesSession
from loaderx.engines.processes.slot_pool import HELD_SLOTS, PERIOD
from oracle import assert_same
from plain import echo
from workers import wait_until_no_worker_is_left, worker_processes

CLOSED = "the loader was closed while this batch was waited for"


def pids():
    return {int(one.split()[1]) for one in worker_processes()}


def work_of(function):
    """A work that makes elements from the numbers of a task.  It goes to workers by value."""

    class Numbers(Work):
        noun = "unit of the stream"

        def __call__(self, task, lend):
            return function(task)

        def describe(self, task):
            return f"records {task[-1]} to {task[-1] + 9} of the input"

    return Numbers()


def session_of(function, workers=1, prefetch=0, timeout_s=None, **options):
    return ProcessesSession(work_of(function), workers, prefetch, timeout_s, **options)


def wait_for(path):
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.001)


# Tasks.


def test_tasks_have_one_to_four_numbers_of_64_bits():
    session = session_of(echo)
    most = 2**64 - 1
    tasks = [(0,), (most,), (1, most), (1, 2, 3), (most, 0, 5, most)]
    for task, pending in [(task, session.submit(task)) for task in tasks]:
        assert tuple(pending.result().tolist()) == task
    session.close()


def test_a_task_that_cannot_be_sent_leaves_the_workers_alone():
    session = session_of(echo)
    session.submit((1,)).result()
    before = pids()
    for task in [(-1,), (2**64,), (1, 2, 3, 4, 5, 6)]:  # five: whose it is, and four
        with pytest.raises(Exception, match=r"argument|format|range|expected"):
            session.submit(task)
    assert session.submit((2,)).result().tolist() == [2]
    assert pids() == before
    session.close()


def test_results_may_be_asked_for_in_any_order():
    session = session_of(echo, workers=2)
    pending = [session.submit((1, number)) for number in range(30)]
    for number in [29, 0, 15, *range(1, 15), *range(28, 15, -1)]:
        assert pending[number].result().tolist() == [1, number]
    session.close()


def test_a_session_that_is_dropped_ends_its_workers():
    session = session_of(echo, workers=2)
    pending = session.submit((3,))
    assert pending.result().tolist() == [3]
    assert len(pids()) == 2
    del session, pending
    gc.collect()
    assert not wait_until_no_worker_is_left()


def test_a_session_that_was_closed_starts_again_with_the_next_task():
    session = session_of(echo)
    late = session.submit((1,))
    session.close()
    assert pids() == set()
    assert late.done()
    with pytest.raises(LoaderxError, match=CLOSED):
        late.result()
    assert session.submit((2,)).result().tolist() == [2]
    session.close()


def test_messages_name_a_part_of_a_stream_by_its_records(tmp_path):
    def die(task):
        if task[1] == 7 or not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os._exit(3)
        return echo(task)

    session = session_of(die)
    with pytest.warns(LoaderxWarning) as said:
        assert session.submit((0, 4)).result().tolist() == [0, 4]
    assert str(said[0].message) == (
        "worker 0 died (exit code 3) while it made a unit of the stream (records 4 to 13 of the "
        "input). It has been replaced, and the unit of the stream is made again: the stream stays "
        "the same."
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoaderxWarning)
        with pytest.raises(RecordError) as caught:
            session.submit((0, 7)).result()
    assert caught.value.step is None
    assert str(caught.value).startswith(
        "3 worker processes in a row died of this unit of the stream (exit code 3). It is made of "
        "records 7 to 16 of the input."
    )
    session.close()


def test_an_error_that_done_has_met_is_raised_by_result():
    class Refusing:
        def __reduce__(self):
            return _refuse, ()

    refusing = Refusing()
    session = session_of(lambda task: refusing)
    pending = session.submit((1,))
    until = time.monotonic() + 60
    while not pending.done():
        assert time.monotonic() < until
    with pytest.raises(LoaderxError, match="a worker failed to build it: ImportError: no"):
        pending.result()
    session.close()


def _refuse():
    raise ImportError("no")


# One pool for all.


def test_two_iterators_in_two_threads_share_the_workers():
    dataset = arrays(120).shuffle(0).batch(4)
    expected = list(dataset)
    seen, workers = {}, set()
    with DataLoader(dataset, engine=Processes(2)) as loader:

        def consume(name, iterator):
            batches = []
            for batch in iterator:
                workers.update(pids())
                batches.append(batch)
            seen[name] = batches

        threads = [threading.Thread(target=consume, args=(name, iter(loader))) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert_same(seen["a"], expected)
        assert_same(seen["b"], expected)
        until = time.monotonic() + 60
        while pids() != workers:  # the system lists them by thread, and theirs has just ended
            assert time.monotonic() < until
        assert len(workers) == 2


def test_the_same_workers_in_every_epoch():
    with DataLoader(arrays(40).shuffle(0).batch(4), engine=Processes(2)) as loader:
        workers = []
        for epoch in range(3):
            assert len(list(loader.epoch(epoch))) == 10
            workers.append(pids())
        assert workers[0] == workers[1] == workers[2]
        assert len(workers[0]) == 2


def test_who_waits_is_woken_when_another_thread_reads_its_report(monkeypatch, tmp_path):
    """Nobody looks again by itself here: whoever is not woken waits for ever."""
    monkeypatch.setattr(pool_module, "CHECK_S", 3600.0)

    def make(task):
        while not (tmp_path / str(task[0])).exists():
            time.sleep(0.001)
        return echo(task)

    session = session_of(make, workers=3)
    pending = [session.submit((number,)) for number in range(3)]
    results = [None] * 3

    def take(number):
        results[number] = pending[number].result()

    threads = [threading.Thread(target=take, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    pool = pool_of(session)
    until = time.monotonic() + 60
    while len(pool.awaited) < 3 and time.monotonic() < until:
        time.sleep(0.001)
    for number in (1, 0, 2):
        (tmp_path / str(number)).touch()
        threads[number].join(60)
        assert results[number].tolist() == [number]
    session.close()


def test_tasks_that_are_cancelled_are_not_begun(tmp_path):
    def make(task):
        (tmp_path / f"{task[0]}-{task[1]}").touch()
        wait_for(tmp_path / "go")
        return echo(task)

    session = session_of(make)
    dropped = [session.submit((0, number)) for number in range(5)]
    wait_for(tmp_path / "0-0")
    first = session.submit((1, 0))
    for one in dropped:
        one.cancel()
    second = session.submit((1, 1))
    (tmp_path / "go").touch()
    assert second.result().tolist() == [1, 1]
    assert first.result().tolist() == [1, 0]
    assert {path.name for path in tmp_path.iterdir()} == {"go", "0-0", "1-0", "1-1"}
    slots = processes_of(session).slots
    assert slots.spare == slots.count
    session.close()


def test_an_iterator_goes_on_when_another_one_is_dropped():
    dataset = arrays(60).batch(4)
    with DataLoader(dataset, engine=Processes(2)) as loader:
        one, two = iter(loader), iter(loader)
        seen = [next(one)]
        next(two)
        before = pids()
        del two
        gc.collect()
        seen += one
        assert_same(seen, dataset)
        assert pids() == before


# Slots and pipes.


@pytest.fixture
def small_pipes(monkeypatch):
    """Pipes that hold 20 tasks."""
    monkeypatch.setattr(protocol, "pipe_capacity", lambda descriptor, size: 42)


@pytest.mark.usefixtures("small_pipes")
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "the last first"])
def test_more_tasks_than_the_pipes_hold(order):
    session = session_of(echo)
    count = 100
    pending = [session.submit((number, 1)) for number in range(count)]
    assert processes_of(session).capacity == 20
    for number in range(count)[::order]:
        assert pending[number].result().tolist() == [number, 1]
    assert processes_of(session).slots.numbered <= 20 + HELD_SLOTS + count * (order < 0)
    session.close()


@pytest.mark.usefixtures("small_pipes")
def test_tasks_beyond_the_pipes_can_be_cancelled():
    session = session_of(echo)
    pending = [session.submit((number,)) for number in range(100)]
    for one in pending[10:90]:
        one.cancel()
    del pending[10:90]
    assert [int(one.result()[0]) for one in pending] == [*range(10), *range(90, 100)]
    slots = processes_of(session).slots
    assert slots.spare == slots.count
    session.close()


def test_more_tasks_under_way_than_the_window_have_slots_and_give_them_back():
    session = session_of(echo, workers=2, prefetch=2)
    burst = [session.submit((number,)) for number in range(40)]
    held = [pending.result() for pending in burst]
    assert [int(one[0]) for one in held] == list(range(40))
    slots = processes_of(session).slots
    assert 40 <= slots.count <= 40 + HELD_SLOTS
    del held, burst
    for number in range(2 * PERIOD):
        assert session.submit((number,)).result().tolist() == [number]
    assert slots.count <= 4 + HELD_SLOTS
    numbered = slots.numbered
    burst = [session.submit((number,)) for number in range(40)]  # emptied slots are used again
    assert [int(one.result()[0]) for one in burst] == list(range(40))
    assert slots.numbered == numbered
    session.close()


def test_results_that_nobody_asks_for_yet_keep_their_slots():
    session = session_of(echo, workers=2)
    early = [session.submit((number, 7)) for number in range(12)]
    for number in range(50):
        assert session.submit((number, 8)).result().tolist() == [number, 8]
    assert [pending.result().tolist() for pending in early] == [[n, 7] for n in range(12)]
    session.close()


# Interrupted.


@pytest.fixture
def at_a_wait(monkeypatch):
    """A function that is put here is called in the middle of pool code, at its next wait."""
    poll, box = pool_module.WorkerPool.poll, []

    def interrupted(pool, timeout_s):
        if box:
            box.pop()()
        poll(pool, timeout_s)

    monkeypatch.setattr(pool_module.WorkerPool, "poll", interrupted)
    return box


@pytest.fixture
def handler():
    """What a handler of SIGUSR1 is to do."""
    box = []
    before = signal.signal(signal.SIGUSR1, lambda *_: box[0]())
    yield box
    signal.signal(signal.SIGUSR1, before)


def raise_usr1():
    signal.raise_signal(signal.SIGUSR1)


def gated(path):
    def make(task):
        if task == (0,):
            wait_for(path)
        return echo(task)

    return make


def test_a_signal_handler_cancels_what_is_waited_for(at_a_wait, handler, tmp_path):
    session = session_of(gated(tmp_path / "go"), workers=2)
    first, second = session.submit((0,)), session.submit((1,))
    at_a_wait.append(raise_usr1)
    handler.append(first.cancel)
    with pytest.raises(LoaderxError, match=CLOSED):
        first.result()
    before = pids()
    assert second.result().tolist() == [1]
    (tmp_path / "go").touch()
    assert session.submit((2,)).result().tolist() == [2]
    assert pids() == before
    with pytest.raises(LoaderxError, match=CLOSED):
        first.result()
    session.close()


def test_a_signal_handler_that_asks_for_a_batch_gets_an_error(at_a_wait, handler):
    dataset = arrays(40).batch(4)
    with DataLoader(dataset, engine=Processes(1)) as loader:
        one, two = iter(loader), iter(loader)
        said = []

        def ask():
            with pytest.raises(LoaderxError) as caught:
                next(two)
            said.append(str(caught.value))

        at_a_wait.append(raise_usr1)
        handler.append(ask)
        seen = list(one)
        assert said == [
            "a signal handler or a finaliser asked for a batch of this loader while the thread "
            "that it interrupted was getting one from the same worker processes. Ask for it after "
            "the handler has returned."
        ]
        assert_same(seen, dataset)
        assert_same(two, dataset)


def test_a_signal_handler_that_closes_and_asks_for_a_batch_starts_no_second_pool(
    at_a_wait, handler
):
    session = session_of(echo, workers=2)
    pending = session.submit((1,))
    before = pids()

    def close_and_ask():
        session.close()
        with pytest.raises(LoaderxError, match="a signal handler or a finaliser asked for a batch"):
            session.submit((2,))
        assert pids() == before

    at_a_wait.append(raise_usr1)
    handler.append(close_and_ask)
    with contextlib.suppress(LoaderxError):  # unless its result has come by then
        pending.result()
    assert not at_a_wait
    assert pids() == set()
    assert session.submit((2,)).result().tolist() == [2]
    session.close()


def test_an_interrupt_in_the_middle_ends_the_pool_and_iterators_go_on(at_a_wait):
    dataset = arrays(40).batch(4)
    with DataLoader(dataset, engine=Processes(1)) as loader:
        one, two = iter(loader), iter(loader)
        seen = [next(two)]
        before = pids()
        at_a_wait.append(lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            next(one)
        assert pids() == set()
        seen.append(next(two))  # it has nothing to do with the interrupt
        assert_same(one, dataset)
        assert_same([*seen, *two], dataset)
        assert len(pids()) == 1
        assert not pids() & before


def test_pendings_of_the_parent_are_errors_in_a_fork():
    session = session_of(echo)
    pending = session.submit((1,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and JAX warn of forks
        child = os.fork()
    if child == 0:
        status = 1
        try:
            pending.result()
        except LoaderxError as error:
            status = 0 if "belong to the process from which" in str(error) else 2
        if session.submit((2,)).result().tolist() != [2]:
            status = 3
        session.close()
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert pending.result().tolist() == [1]
    session.close()


def test_closing_in_the_middle_of_a_start(monkeypatch):
    """Nobody has seen the workers yet: whoever started them ends them."""
    session = session_of(echo)
    start = pool_module.WorkerPool.start_first

    def closing(pool, count):
        start(pool, count)
        session.close()

    with monkeypatch.context() as patch:
        patch.setattr(pool_module.WorkerPool, "start_first", closing)
        with pytest.raises(LoaderxError, match=CLOSED):
            session.submit((1,))
    assert pids() == set()
    assert session.submit((2,)).result().tolist() == [2]
    session.close()
