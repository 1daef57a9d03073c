"""The contract of engines, as tests."""

from __future__ import annotations

import base64
import functools
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import TypeAlias, TypeVar
from unittest import SkipTest

import cloudpickle
import numpy as np

from loaderx import DataLoader, Dataset, LoaderxError, RecordError
from loaderx.engines.processes.pickling import PicklingError
from loaderx.testing.comparing import check, check_all_equal, check_equal, check_raises
from loaderx.testing.engine_work import PATIENCE_S, Gate, InThread, Numbers
from loaderx.testing.session_contract import SessionContract
from loaderx.tree import Array

T = TypeVar("T")
Row: TypeAlias = dict[str, Array]


class EngineContract(SessionContract):
    """Tests of an engine; a subclass says how to make it.

    >>> from loaderx.engines import Threads
    >>> class TestTwoThreads(EngineContract):
    ...     def make_engine(self):
    ...         return Threads(2)

    In a file ``test_*.py``, that is all: pytest runs the tests that ``TestTwoThreads`` inherits.
    The first half of them uses the engine's session, the other half a `DataLoader`.

    >>> TestTwoThreads().test_the_stream_is_the_inline_stream()
    """

    # The data -----------------------------------------------------------------------------------

    def test_the_stream_is_the_inline_stream(self) -> None:
        """The engine is never visible in the data."""
        self._check_stream(_records(50).shuffle(1).random_map(_jitter).batch(4).repeat(3))

    def test_a_stream_with_filters(self) -> None:
        """Its tasks are units, of three numbers; each lane asks for them in its own order."""
        parts = [Dataset.range(96 * n, 96 * (n + 2)).filter(_is_odd) for n in range(3)]
        mix = Dataset.mix(parts, weights=[2, 1, 1], stop="repeat")
        self._check_stream(mix.batch(8, lanes=4))
        self._check_stream(mix.batch(8))

    def test_records_without_a_batch(self) -> None:
        """They are handed out singly, and so are their errors, however they are made."""
        self._check_stream(_records(300).shuffle(1).random_map(_jitter))
        self._check_stream(Dataset.range(300).filter(_is_odd))
        iterator = iter(self._loader(_records(200).map(functools.partial(_fail, 117))))
        found = [int(next(iterator)["x"]) for _ in range(117)]
        check(found == list(range(117)), f"the records before a failure are {found}.")
        error = _record_error(iterator)
        place = (error.index, error.step, iterator.step)
        check(place == (117, 117, 117), f"record 117 fails at step 117; the error has {place}.")

    def test_epochs(self) -> None:
        """Every epoch of a loader, and the same one again."""
        for dataset in (
            _records(24).shuffle(1).batch(4),
            Dataset.range(200).filter(_is_odd).shuffle(window=20).batch(7),
        ):
            with self._loader(dataset) as loader, DataLoader(dataset, engine="inline") as other:
                for epoch in (0, 1, 1, 0, 5):
                    expected = list(other.epoch(epoch))
                    check_all_equal(list(loader.epoch(epoch)), expected, f"epoch {epoch}: batch")

    def test_held_batches_are_never_overwritten(self) -> None:
        """Batches are the user's: writable, and each in memory of its own."""
        dataset = _records(400).shuffle(2).batch(3)
        held = list(self._loader(dataset))
        check_all_equal(held, list(dataset), "batch")
        for batch in held:
            batch["x"][...] = -1
        held[0]["x"][...] = 5
        check(bool((held[1]["x"] == -1).all()), "two batches share memory.")

    def test_the_end_is_the_end(self) -> None:
        """After the last batch, every ``next`` raises StopIteration."""
        iterator = iter(self._loader(_records(4).batch(2)))
        check(len(list(iterator)) == 2, "there are not 2 batches.")
        for _ in range(2):
            check_raises(StopIteration, lambda: next(iterator), "next() after the last batch")

    def test_two_iterators_do_not_disturb_each_other(self) -> None:
        """They share the workers; each has its own position."""
        dataset = _records(30).batch(3)
        loader = self._loader(dataset)
        pairs = list(zip(loader, loader, strict=True))
        for side in zip(*pairs, strict=True):
            check_all_equal(side, list(dataset), "batch")

    def test_two_iterators_in_two_threads(self) -> None:
        """Threads may use iterators of one loader at once."""
        dataset = _records(200).shuffle(0).batch(2)
        loader = self._loader(dataset)
        iterators = [iter(loader), iter(loader)]
        threads: list[InThread[list[object]]] = [
            InThread(functools.partial(list, iterator)) for iterator in iterators
        ]
        for one in threads:
            one.join("a loop over batches")
            if one.error is not None:
                raise one.error
            check_all_equal(one.value, list(dataset), "batch")

    # Failures -----------------------------------------------------------------------------------

    def test_a_failure_comes_at_its_own_step(self) -> None:
        """After all batches before it, with the record and the stage at fault."""
        iterator = iter(self._loader(_records(40).map(functools.partial(_fail, 17)).batch(4)))
        seen = []
        for _ in range(4):
            seen += next(iterator)["x"].tolist()
        check(seen == list(range(16)), f"the batches before the failure have {seen}.")
        error = _record_error(iterator)
        found = (error.index, error.step, str(error))
        expected = (17, 4, "step 4: map(_fail) failed on record 17: ValueError: bad record")
        check(found == expected, f"the error has {found}, expected are {expected}.")
        check(isinstance(error.__cause__, ValueError), f"its cause is {error.__cause__!r}.")

    def test_an_exit_is_a_failure(self) -> None:
        """``sys.exit()`` in a function of the user's does not end the consumer."""
        iterator = iter(self._loader(_records(8).map(functools.partial(_leave, 5)).batch(2)))
        for _ in range(2):
            next(iterator)
        error = _record_error(iterator)
        said = "step 2: map(_leave) failed on record 5: SystemExit: enough"
        check(str(error) == said, f"the error says {str(error)!r}, expected is {said!r}.")
        check(isinstance(error.__cause__, SystemExit), f"its cause is {error.__cause__!r}.")

    def test_after_a_failure_the_position_stays_and_can_be_moved(self) -> None:
        """The failing step fails again; the steps after it can be read."""
        iterator = iter(self._loader(_records(16).map(functools.partial(_fail, 9)).batch(4)))
        next(iterator)
        next(iterator)
        for _ in range(2):
            _record_error(iterator)
            check(iterator.step == 2, f"after a failure at step 2, the position is {iterator.step}")
        iterator.seek(3)
        check_equal(next(iterator), _records(16).batch(4)[3], "the batch after the failing one")
        check_raises(StopIteration, lambda: next(iterator), "next() after the last batch")

    def test_a_failure_in_a_stream(self) -> None:
        """It comes at the same batch as with the inline engine, and with its unit."""
        odd = Dataset.range(1000).filter(_is_odd).shuffle(window=50)
        dataset = odd.map(functools.partial(_fail_at, 417)).batch(4)
        expected = _until_failure(DataLoader(dataset, engine="inline"))
        check(len(expected) > 0, "the first unit has failed.")
        loader = self._loader(dataset)
        for _ in range(2):
            check_all_equal(_until_failure(loader), expected, "before the failure, batch")

    # Going on -----------------------------------------------------------------------------------

    def test_breaking_out_and_going_on(self) -> None:
        """An iterator goes on after a ``break``, and no batch is lost."""
        for dataset in _datasets():
            iterator = iter(self._loader(dataset))
            taken = []
            for batch in iterator:
                taken.append(batch)
                if len(taken) == 3:
                    break
            taken += list(iterator)
            check_all_equal(taken, list(dataset), "batch")

    def test_a_state(self) -> None:
        """Another loader goes on where a state was taken."""
        for dataset in _datasets():
            iterator = iter(self._loader(dataset))
            for _ in range(3):
                next(iterator)
            other = iter(self._loader(dataset))
            other.set_state(iterator.get_state())
            check_all_equal(list(other), list(dataset)[3:], "after a state, batch")

    def test_closing_and_going_on_with_an_iterator(self) -> None:
        """Closing is a pause, and may be repeated."""
        before = self.workers()
        for dataset in _datasets():
            loader = self._loader(dataset)
            iterator = iter(loader)
            first = next(iterator)
            loader.close()
            loader.close()
            iterator.close()
            self._check_gone(before)
            check_all_equal([first, *iterator], list(dataset), "after closing, batch")
            loader.close()

    def test_closing_while_a_batch_is_waited_for(self) -> None:
        """``next`` in another thread hands out its batch or raises; no batch is lost."""
        for made in (_records(12), Dataset.range(12).filter(_is_any)):
            with Gate() as gate:
                dataset = made.map(functools.partial(_wait, gate)).batch(2)
                loader = self._loader(dataset)
                iterator = iter(loader)
                waiting = InThread(functools.partial(next, iterator))
                gate.wait_until_begun((0,))
                closing = InThread(iterator.close)
                gate.open()
                closing.join("close()")
                waiting.join("next(), after close() in another thread,")
                closed = waiting.error
                check(
                    closed is None or isinstance(closed, LoaderxError),
                    f"next() of an iterator that was closed must raise LoaderxError: {closed!r}.",
                )
                taken = [] if closed is not None else [waiting.value]
                check_all_equal([*taken, *iterator], list(dataset), "batch")
                loader.close()

    # Nothing stays behind -----------------------------------------------------------------------

    def test_nothing_starts_before_the_first_next(self) -> None:
        """Neither workers nor the user's functions."""
        before = self.workers()
        with Gate() as gate:
            gate.open()
            loader = self._loader(_records(8).map(functools.partial(_wait, gate)).batch(2))
            iterator = iter(loader)
            started = self.workers() - before
            check(not started, f"iter(loader) has started {', '.join(sorted(started))}.")
            check(not gate.has_begun_any(), "iter(loader) has called a function of the dataset.")
            next(iterator)
            check(gate.has_begun_any(), "next() has not called a function of the dataset.")
            loader.close()

    def test_start_begins_before_the_first_next(self) -> None:
        """Workers begin with the first batches; without workers nothing happens."""
        has_workers = self._open(Numbers()).window > 0
        for made in (_records(12), Dataset.range(12).filter(_is_any)):
            with Gate() as gate:
                dataset = made.map(functools.partial(_wait, gate)).batch(2)
                loader = self._loader(dataset)
                iterator = iter(loader)
                iterator.start()
                iterator.start()
                if has_workers:
                    gate.wait_until_begun((0,))
                check(has_workers or not gate.has_begun_any(), "start() has waited for a batch.")
                check(iterator.step == 0, f"start() has moved the iterator to {iterator.step}.")
                gate.open()
                check_all_equal(list(iterator), list(dataset), "after start(), batch")
                loader.close()

    def test_what_was_started_can_be_moved_closed_and_dropped(self) -> None:
        """Batches that were never asked for leave nothing behind."""
        before = self.workers()
        for dataset in _datasets():
            expected = list(dataset)
            iterator = iter(self._loader(dataset))
            iterator.start()
            state = iterator.get_state()
            check_equal(next(iterator), expected[0], "the first batch after start()")
            iterator.set_state(state)
            iterator.start()
            iterator.close()
            check_all_equal(list(iterator), expected, "after start() and close(), batch")
            iterator.seek(0)
            iterator.start()
            del iterator
            self._check_gone(before)

    def test_dropping_the_iterator_in_the_middle_leaves_nothing(self) -> None:
        """A dropped loader ends its workers, closed or not."""
        before = self.workers()
        for dataset in (_records(200).map(_same).batch(2), Dataset.range(400).filter(_is_odd)):
            iterator = iter(self._loader(dataset))
            for _ in range(12):
                next(iterator)
            del iterator
            self._check_gone(before)

    def test_a_function_that_knows_the_loader_does_not_keep_it_alive(self) -> None:
        """Workers hold nothing of the user's between two tasks."""
        before = self.workers()
        trainer = _Trainer(self)
        for _ in range(5):
            next(trainer.iterator)
        del trainer
        self._check_gone(before)

    def test_dropping_the_loader_keeps_a_running_iterator_alive(self) -> None:
        """``iter(DataLoader(...))`` is enough."""
        loader = self._loader(_records(40).batch(2))
        iterator = iter(loader)
        next(iterator)
        del loader
        check(len(list(iterator)) == 19, "there are not 19 batches left.")

    def test_an_exception_in_the_training_step_leaves_nothing(self) -> None:
        """``with`` closes the loader."""
        before = self.workers()

        def train() -> None:
            with self._loader(_records(50).batch(2)) as loader:
                for step, _ in enumerate(loader):
                    check(step != 5, "stop here")

        check_raises(AssertionError, train, "the training")
        self._check_gone(before)

    def test_a_loader_is_pickled(self) -> None:
        """With its engine; if that cannot be, the error names it."""
        dataset = _records(20).batch(4)
        with self._loader(dataset) as loader:
            list(loader)
            if not self.can_be_pickled:
                self._check_not_pickled(loader)
                return
            pickled = cloudpickle.dumps(loader)
        with pickle.loads(pickled) as copy:
            check_all_equal(list(copy), list(dataset), "batch")

    def test_leaving_the_interpreter_in_the_middle(self) -> None:
        """A script ends by itself and prints nothing, even in the middle of an epoch."""
        if not self.can_be_pickled:
            raise SkipTest("another interpreter cannot be given an engine that is no value.")
        engine = base64.b64encode(cloudpickle.dumps(self.make_engine())).decode()
        script = (
            "import base64, pickle, sys\n"
            f"sys.path[:] = {sys.path!r}\n"
            "import loaderx as lx\n"
            f"engine = pickle.loads(base64.b64decode({engine!r}))\n"
            "loader = lx.DataLoader(lx.Dataset.range(10**6).map(lambda x: x).batch(8),"
            " engine=engine)\n"
            "it = iter(loader)\n"
            "for _ in range(20): next(it)\n"
            "print('done')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        found = (done.returncode, done.stdout, done.stderr)
        check(found == (0, "done\n", ""), f"the script ended with {found}.")

    # Helpers ------------------------------------------------------------------------------------

    def _loader(self, dataset: Dataset[T]) -> DataLoader[T]:
        return DataLoader(dataset, engine=self.make_engine())

    def _check_not_pickled(self, loader: DataLoader[object]) -> None:
        name = type(self.make_engine()).__name__
        try:
            cloudpickle.dumps(loader)
        except PicklingError as error:
            check(name in str(error), f"the error does not name {name}: {error}")
        else:
            raise AssertionError(f"a loader with {name} was pickled, but can_be_pickled is False.")

    def _check_stream(self, dataset: Dataset[object]) -> None:
        with self._loader(dataset) as loader:
            check_all_equal(list(loader), list(dataset), "batch")
            told = loader.stats().engine
            check(bool(told), "describe() gives no name of the engine.")


class _Trainer:
    def __init__(self, contract: EngineContract) -> None:
        self.loader = contract._loader(_records(400).map(self.augment).batch(2))
        self.iterator = iter(self.loader)

    def augment(self, record: Row) -> Row:
        return record


def _records(count: int) -> Dataset[Row]:
    x = np.arange(count, dtype=np.int64)
    return Dataset.from_arrays(x=x, y=np.stack([x * 0.25, -x * 1.0], 1))


def _datasets() -> list[Dataset[object]]:
    """One that is read by index, and a stream."""
    stream = Dataset.range(2500).filter(_is_odd).shuffle(window=50).batch(100)
    return [_records(60).shuffle(0).batch(5), stream]


def _record_error(iterator: Iterator[object]) -> RecordError:
    try:
        found = next(iterator)
    except RecordError as error:
        return error
    raise AssertionError(f"a record fails, and next() returned {found!r}.")


def _until_failure(loader: DataLoader[object]) -> list[object]:
    """The batches before the one that fails."""
    taken: list[object] = []
    try:
        for batch in loader.epoch(0):
            taken.append(batch)  # noqa: PERF402 - the batches before the error are wanted
    except RecordError as error:
        check(error.index == 417, f"record 417 fails; the error says {error.index}.")
        return taken
    raise AssertionError("a record fails, and no error was raised.")


def _jitter(record: Row, rng: np.random.Generator) -> Row:
    return {**record, "y": record["y"] + rng.random()}


def _same(record: Row) -> Row:
    return record


def _is_odd(number: int) -> bool:
    return number % 2 == 1


def _is_any(number: int) -> bool:
    return number >= 0


def _fail(bad: int, record: Row) -> Row:
    if record["x"] == bad:
        raise ValueError("bad record")
    return record


def _leave(bad: int, record: Row) -> Row:
    if record["x"] == bad:
        sys.exit("enough")
    return record


def _fail_at(bad: int, number: int) -> int:
    if number == bad:
        raise ValueError("bad record")
    return number


def _wait(gate: Gate, record: Row) -> Row:
    gate.has_begun((0,))
    gate.wait()
    return record
