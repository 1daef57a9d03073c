"""`loaderx.testing.EngineContract` finds what is wrong with an engine."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar

import pytest

from loaderx.engines import Measured, PoolPerThread, Session
from loaderx.memory import Pool
from loaderx.testing import EngineContract, engine_work


class Good(Session):
    """Tasks in one thread."""

    window = 2
    executor = None

    def __init__(self, work):
        self.work, self.pools = work, PoolPerThread()

    def submit(self, task):
        if self.executor is None:
            self.executor = ThreadPoolExecutor(1)
        return self.executor.submit(self.make, self.work, task, self.pools)

    @staticmethod
    def make(work, task, pools):
        return work(task, pools.lend)

    def close(self):
        if self.executor is not None:
            self.executor.shutdown(cancel_futures=True)
            self.executor = None


class SmallNumbers(Good):
    def submit(self, task):
        return super().submit(tuple(number % 2**63 for number in task))


class OneElement(Good):
    """All elements have the same memory."""

    @staticmethod
    def make(work, task, pools):
        if not hasattr(pools, "lent"):
            pools.lent = {}

        def lend(layout):
            if layout not in pools.lent:
                pools.lent[layout] = Pool().lend(layout)
            return pools.lent[layout]

        return work(task, lend)


class KeepsEverything(Good):
    """Makes each task once."""

    def __init__(self, work):
        super().__init__(work)
        self.made = {}

    def submit(self, task):
        if task not in self.made:
            self.made[task] = super().submit(task)
        return self.made[task]


class InOrderOfRequests(Good):
    """The first result that is asked for is that of the first task."""

    def __init__(self, work):
        super().__init__(work)
        self.futures = []

    def submit(self, task):
        futures = self.futures
        futures.append(super().submit(task))

        class Next(Future):
            def result(self, timeout=None):
                return futures.pop(0).result()

        return Next()


class WithoutStatistics(Good):
    @staticmethod
    def make(work, task, pools):
        made = work(task, pools.lend)
        return made.value if type(made) is Measured else made


class WithoutErrors(Good):
    @staticmethod
    def make(work, task, pools):
        try:
            return work(task, pools.lend)
        except ValueError:
            return None


class AlwaysDone(Good):
    def submit(self, task):
        future = super().submit(task)
        future.done = lambda: True
        return future


class NeverDone(Good):
    def submit(self, task):
        future = super().submit(task)
        future.done = lambda: False
        return future


class LeavesQueued(Good):
    """Tasks that had not begun when it was closed are never made, nor cancelled."""

    futures: ClassVar[list[Future]] = []

    def submit(self, task):
        if self.executor is None:
            return super().submit(task)
        self.futures.append(Future())
        self.futures[-1].done = lambda: True
        return self.futures[-1]


class ClosedForGood(Good):
    def close(self):
        if self.executor is not None:
            self.executor.shutdown()


class StaysOpen(Good):
    def close(self):
        pass


class Eager(Good):
    def __init__(self, work):
        super().__init__(work)
        self.executor = ThreadPoolExecutor(1)
        self.executor.submit(int).result()


class Kept(Good):
    """Somebody else holds the session."""

    sessions: ClassVar[list[Session]] = []

    def submit(self, task):
        if self not in self.sessions:
            self.sessions.append(self)
        return super().submit(task)


class CancelWaits(Good):
    """`cancel` waits for the task."""

    def submit(self, task):
        future = super().submit(task)
        future.cancel = future.result
        return future


class Silent(Good):
    def describe(self):
        return "", ""


def contract_of(session):
    class Engine:
        def session(self, work):
            return session(work)

    class Contract(EngineContract):
        gives_up_when_cancelled = False

        def make_engine(self):
            return Engine()

    return Contract()


WRONG = [
    (SmallNumbers, "test_tasks_of_one_to_four_numbers"),
    (OneElement, "test_held_elements_are_never_overwritten"),
    (OneElement, "test_held_batches_are_never_overwritten"),
    (KeepsEverything, "test_the_same_task_twice"),
    (InOrderOfRequests, "test_results_in_any_order"),
    (InOrderOfRequests, "test_dropped_pendings"),
    (WithoutStatistics, "test_statistics_come_along"),
    (WithoutErrors, "test_an_error_is_raised_by_result"),
    (AlwaysDone, "test_done"),
    (NeverDone, "test_done"),
    (LeavesQueued, "test_results_of_a_closed_session"),
    (ClosedForGood, "test_closing_and_going_on"),
    (StaysOpen, "test_closing_and_going_on"),
    (StaysOpen, "test_closing_and_going_on_with_an_iterator"),
    (Eager, "test_a_session_starts_nothing_by_itself"),
    (Kept, "test_a_dropped_session_leaves_nothing"),
    (Kept, "test_dropping_the_iterator_in_the_middle_leaves_nothing"),
    (CancelWaits, "test_cancelled_before"),
    (Silent, "test_what_it_says"),
]


@pytest.mark.parametrize(("session", "test"), WRONG)
def test_what_is_wrong_is_found(session, test, monkeypatch):
    getattr(contract_of(Good), test)()
    monkeypatch.setattr(engine_work, "PATIENCE_S", 0.1)  # what hangs will hang after that as well
    with pytest.raises(Exception) as caught:
        getattr(contract_of(session), test)()
    assert str(caught.value)
    while Kept.sessions:
        Kept.sessions.pop().close()
    while LeavesQueued.futures:
        LeavesQueued.futures.pop().cancel()


def test_a_future_does_not_give_up(monkeypatch):
    class Impatient(Good):
        def submit(self, task):
            future = super().submit(task)
            future.cancel = lambda: monkeypatch.setattr(engine_work, "PATIENCE_S", 0.1)
            return future

    contract_of(Good).test_cancelled_while_it_is_waited_for()
    contract = contract_of(Impatient)
    contract.gives_up_when_cancelled = True
    with pytest.raises(
        AssertionError, match=r"result\(\), after cancel\(\) in another thread, has"
    ):
        contract.test_cancelled_while_it_is_waited_for()


def test_what_is_missing_is_said():
    with pytest.raises(NotImplementedError, match="EngineContract needs make_engine"):
        EngineContract().test_done()


def test_names():
    for name in dir(EngineContract):
        if not name.startswith("_") and callable(getattr(EngineContract, name)):
            assert getattr(EngineContract, name).__doc__, name
