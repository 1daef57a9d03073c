"""The contract of engines' sessions, as tests."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Sequence

import numpy as np

from loaderx.engines.base import Engine, Measured, Session, Task, Work
from loaderx.loader.run import TaskRun
from loaderx.loader.tasks.steps import StepTasks
from loaderx.testing.comparing import check, check_equal
from loaderx.testing.engine_work import (
    Gate,
    InThread,
    MeasuredNumbers,
    Numbers,
    numbers_of,
    wait_until,
)

_LARGEST = 2**64 - 1


class SessionContract:
    """Tests of what ``engine.session(work)`` returns; `EngineContract` adds those of loaders."""

    gives_up_when_cancelled: bool = True
    """False if ``result``, once its task has begun, waits for the end of it though it was
    cancelled, as a future of `concurrent.futures` does.  Then closing a loader while another thread
    waits for a batch has to wait for that batch."""

    can_be_pickled: bool = True
    """False if the engine is no value, since it stands for something that belongs to this process:
    an executor that it was given, or a connection to a cluster, such as Ray's.  Then loaders that
    use it cannot be pickled, and say so."""

    def make_engine(self) -> Engine:
        """A new engine."""
        raise NotImplementedError("a subclass of EngineContract needs make_engine(self).")

    def workers(self) -> set[str]:
        """Names of all possible workers of an engine now; those that a test adds must go again.

        These are the threads of this process, and the processes that `multiprocessing` has started.
        An engine that starts others overrides this.
        """
        threads = {f"thread {one.name} ({one.native_id})" for one in threading.enumerate()}
        children = multiprocessing.active_children()
        return threads | {f"process {one.name} ({one.pid})" for one in children}

    # Tasks --------------------------------------------------------------------------------------

    def test_results_in_the_order_of_tasks(self) -> None:
        """Each pending gives the element of its own task; many more tasks than the window."""
        session = self._open(Numbers())
        tasks = _many(session)
        pendings = [session.submit(task) for task in tasks]
        for task, pending in zip(tasks, pendings, strict=True):
            _check_element(pending.result(), task)
        session.close()

    def test_results_in_any_order(self) -> None:
        """The last result may be asked for first, and more tasks submitted in between."""
        session = self._open(Numbers())
        tasks = _many(session)
        pendings = [session.submit(task) for task in tasks]
        order = np.random.default_rng(0).permutation(len(tasks)).tolist()
        for number in [len(tasks) - 1, *order]:
            if pendings[number] is not None:
                pending, pendings[number] = pendings[number], None  # type: ignore[call-overload]
                _check_element(InThread(pending.result).join("result()"), tasks[number])
                _check_element(session.submit((number, 7)).result(), (number, 7))
        session.close()

    def test_tasks_of_one_to_four_numbers(self) -> None:
        """A task has up to four numbers, from 0 to 2**64 - 1."""
        session = self._open(Numbers())
        tasks: list[Task] = [(0,), (_LARGEST,), (1, _LARGEST), (2, _LARGEST, 3), (4, 5, 6, 7)]
        tasks += [(_LARGEST,) * 4, (0,) * 4]
        for task, pending in [(task, session.submit(task)) for task in tasks]:
            _check_element(pending.result(), task)
        session.close()

    def test_the_same_task_twice(self) -> None:
        """It is made twice, and writing into one of the elements changes no other."""
        session = self._open(Numbers())
        one, two = [pending.result() for pending in [session.submit((5,)), session.submit((5,))]]
        one["values"][...] = 0
        _check_element(two, (5,))
        _check_element(session.submit((5,)).result(), (5,))
        session.close()

    def test_held_elements_are_never_overwritten(self) -> None:
        """Memory is used again only after its element was dropped."""
        session = self._open(Numbers())
        tasks = [(number,) for number in range(10 * session.window + 50)]
        held = []
        for task in tasks:
            dropped = session.submit((task[0], 1)).result()
            _check_element(dropped, (task[0], 1))
            del dropped
            held.append(session.submit(task).result())
        for task, element in zip(tasks, held, strict=True):
            _check_element(element, task)
        session.close()

    def test_statistics_come_along(self) -> None:
        """A `Measured` is handed on as it is."""
        session = self._open(MeasuredNumbers())
        found = session.submit((3,)).result()
        check(type(found) is Measured, f"the work gave a Measured, and result() {type(found)}.")
        _check_element(found.value, (3,))
        told = (list(found.failures), found.times.stages, found.times.weight, found.read)
        check(told == (["a failure"], {"map": 0.5}, 3, 7), f"the Measured has become {told}.")
        session.close()

    def test_an_error_is_raised_by_result(self) -> None:
        """At its own task only, and again if the task is submitted again."""
        session = self._open(Numbers(fails=[(2,), (5,)]))
        for _ in range(2):
            pendings = [session.submit((number,)) for number in range(8)]
            for number, pending in enumerate(pendings):
                if number not in {2, 5}:
                    _check_element(pending.result(), (number,))
                    continue
                found = InThread(pending.result).join("result() of a task that fails")
                said = f"task {(number,)} is one that fails"
                is_told = isinstance(found.error, ValueError) and said in str(found.error)
                check(is_told, f"the task raised ValueError({said!r}), result() {found.error!r}.")
        session.close()

    def test_done(self) -> None:
        """False while a worker makes the element; once it is True, ``result`` does not wait."""
        with Gate() as gate:
            session = self._open(Numbers(gate, waits=[(1,)]))
            pending = session.submit((1,))
            if session.window:
                gate.wait_until_begun((1,))
                check(not pending.done(), "done() is True, but the task is still being made.")
            else:
                check(pending.done(), "done() is False, but no worker will make it: `window` is 0.")
            gate.open()
            wait_until(pending.done, "done() to be True")
            _check_element(pending.result(), (1,))
            session.close()

    def test_threads_share_a_session(self) -> None:
        """Iterators of one loader may be used in several threads: all submit tasks, and wait."""
        session = self._open(Numbers())

        def use(first: int) -> None:
            for number in range(first, first + 40, 4):
                tasks = [(number + place, first) for place in range(4)]
                pendings = [session.submit(task) for task in tasks]
                for task, pending in zip(tasks, pendings, strict=True):
                    _check_element(pending.result(), task)

        def user(first: int) -> InThread[None]:
            return InThread(lambda: use(first))

        for one in [user(1000 * number) for number in range(4)]:
            error = one.join("a thread that shares a session").error
            if error is not None:
                raise error
        session.close()

    # Cancelling ---------------------------------------------------------------------------------

    def test_cancelled_before(self) -> None:
        """A cancelled task gives its element or an error, at once; the others are not affected."""
        with Gate() as gate:
            session = self._open(Numbers(gate, waits=[(0,)]))
            first = session.submit((0,))
            pendings = [session.submit((number,)) for number in range(1, 13)]
            for pending in pendings[::2]:
                pending.cancel()
                pending.cancel()
            gate.open()
            _check_element(first.result(), (0,))
            for number, pending in enumerate(pendings, 1):
                found = InThread(pending.result).join("result() of a task that was cancelled")
                if number % 2 == 0 or found.error is None:
                    _check_element(found, (number,))
            session.close()

    def test_cancelled_while_it_is_waited_for(self) -> None:
        """``result`` gives up with an error, and the session keeps working."""
        with Gate() as gate:
            session = self._open(Numbers(gate, waits=[(1,)]))
            pending = session.submit((1,))
            gives_up = self.gives_up_when_cancelled and session.window > 0
            waiting = InThread(pending.result)
            gate.wait_until_begun((1,))
            pending.cancel()
            if not gives_up:  # the waiting thread makes the element itself, or waits for its end
                gate.open()
            waiting.join("result(), after cancel() in another thread,")
            if gives_up:
                check(
                    waiting.error is not None, "result() returned an element that is not made yet."
                )
            gate.open()
            _check_element(session.submit((2,)).result(), (2,))
            session.close()

    def test_cancelled_after(self) -> None:
        """It changes nothing, and neither does it after the session is closed."""
        session = self._open(Numbers())
        pending = session.submit((3,))
        element = pending.result()
        pending.cancel()
        _check_element(session.submit((4,)).result(), (4,))
        session.close()
        pending.cancel()
        _check_element(element, (3,))

    def test_dropped_pendings(self) -> None:
        """A pending may be dropped, without asking for its result and without cancelling it."""
        session = self._open(Numbers(fails=[(6,)]))
        kept = []
        for number in range(40):
            pending = session.submit((number,))
            if number % 3 == 1:
                kept.append((number, pending))
            del pending
        for number, pending in kept:
            _check_element(pending.result(), (number,))
        del kept, pending
        _check_element(session.submit((50,)).result(), (50,))
        session.close()

    # Closing ------------------------------------------------------------------------------------

    def test_closing_and_going_on(self) -> None:
        """Closing stops the workers, may be repeated, and the next task starts them again."""
        before = self.workers()
        session = self._open(Numbers())
        session.close()  # nothing has begun
        for _ in range(2):
            for number in range(5):
                _check_element(session.submit((number,)).result(), (number,))
            session.close()
            session.close()
            self._check_gone(before)

    def test_results_of_a_closed_session(self) -> None:
        """They are elements or errors; nothing waits for workers that are gone."""
        session = self._open(Numbers())
        tasks = _many(session)
        pendings = [session.submit(task) for task in tasks]
        _check_element(pendings[0].result(), tasks[0])
        session.close()
        for task, pending in zip(tasks[1:], pendings[1:], strict=True):
            check(pending.done(), "the session is closed, but done() is False.")
            found = InThread(pending.result).join("result() of a session that was closed")
            if found.error is None:
                _check_element(found, task)
        _check_element(session.submit((9,)).result(), (9,))
        for pending in pendings:
            pending.cancel()  # a task of the old workers does not disturb the new ones
        _check_element(session.submit((8,)).result(), (8,))
        session.close()

    def test_closing_while_a_result_is_waited_for(self) -> None:
        """Both return: the waiting ``result`` with the element or an error."""
        with Gate() as gate:
            session = self._open(Numbers(gate, waits=[(1,)]))
            waiting = InThread(session.submit((1,)).result)
            gate.wait_until_begun((1,))
            closing = InThread(session.close)
            gate.open()
            closing.join("close()")
            waiting.join("result(), after close() in another thread,")
            if waiting.error is None:
                _check_element(waiting, (1,))
            session.close()

    def test_a_dropped_session_leaves_nothing(self) -> None:
        """Its workers end, also if results were not asked for."""
        before = self.workers()
        session = self._open(Numbers())
        for number in range(5):
            _check_element(session.submit((number,)).result(), (number,))
        left = [session.submit((number,)) for number in range(5, 25)]
        del session, left
        self._check_gone(before)

    def test_a_session_starts_nothing_by_itself(self) -> None:
        """Workers start with the first task: many loaders are made, and few are used at once."""
        before = self.workers()
        session = self._open(Numbers())
        started = self.workers() - before
        check(not started, f"session() has started {', '.join(sorted(started))}.")
        session.close()

    # Steps in order -----------------------------------------------------------------------------

    def test_a_run(self) -> None:
        """A run gives consecutive steps in order, and can be closed in the middle."""
        work = Numbers()
        session = self._open(work)
        run = TaskRun(session, work, StepTasks(session, range(10, 50)))
        for step in range(10, 50):
            _check_element(run.next(), (step,))
        try:
            run.next()
        except StopIteration:
            pass
        else:
            raise AssertionError("next() of a run has given more than its steps.")
        run.close()
        run = TaskRun(session, work, StepTasks(session, range(5, 10**9)))
        _check_element(run.next(), (5,))
        run.close()
        session.close()

    def test_a_run_is_ready(self) -> None:
        """``ready`` is False while a worker makes the next step, and True once it is made."""
        with Gate() as gate:
            work = Numbers(gate, waits=[(1,)])
            session = self._open(work)
            run = TaskRun(session, work, StepTasks(session, range(100)))
            _check_element(run.next(), (0,))
            if session.window > 1:  # else step 1 begins when it is asked for
                gate.wait_until_begun((1,))
                check(not run.ready(), "ready() is True, but the next step is still being made.")
            elif not session.window:
                check(
                    run.ready(), "ready() is False, but no worker will make the next: `window` is 0"
                )
            gate.open()
            wait_until(run.ready, "ready() to be True")
            _check_element(run.next(), (1,))
            run.close()
            session.close()

    def test_what_it_says(self) -> None:
        """``window`` is a number of tasks, ``describe`` what `loader.stats` shows."""
        session = self._open(Numbers())
        session.submit((0,)).result()
        window = session.window
        check(isinstance(window, int) and window >= 0, f"window must be 0 or more, is {window!r}.")
        told = session.describe()
        is_told = len(told) == 2 and all(isinstance(one, str) and one for one in told)
        check(is_told, f"describe() must give the engine and why it runs; got {told!r}.")
        session.close()

    # Helpers ------------------------------------------------------------------------------------

    def _open(self, work: Work) -> Session:
        session = self.make_engine().session(work)
        session.begin(None)  # as loaders do
        return session

    def _check_gone(self, before: set[str]) -> None:
        """The workers that were not there before go away; dropped ones are not waited for."""

        def are_gone() -> bool:
            gc.collect()
            return not self.workers() - before

        try:
            wait_until(are_gone, "the workers to end")
        except AssertionError as error:
            left = ", ".join(sorted(self.workers() - before))
            raise AssertionError(f"workers that are left behind: {left}.") from error


def _many(session: Session) -> Sequence[Task]:
    return [(number, 3) for number in range(4 * session.window + 20)]


def _check_element(found: object | InThread[object], task: Task) -> None:
    if isinstance(found, InThread):
        if found.error is not None:
            raise AssertionError(f"task {task} raised {found.error!r}.") from found.error
        found = found.value
    check_equal(found, {"values": numbers_of(task)}, f"the element of task {task}")
