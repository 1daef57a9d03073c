"""The contract of all stages, read by index or in a stream, as tests."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence

import cloudpickle

from loaderx import DataLoader, Dataset, StateError
from loaderx.chain.node import Node
from loaderx.testing.comparing import check, check_all_equal, check_equal, check_raises
from loaderx.testing.stage_work import first
from loaderx.tree import Tree

_WINDOWS = 4  # that the records fill, and a part of another
_FEWEST = 20  # records


class AnyStageContract:
    """The tests that `StageContract` and `IndexStageContract` share."""

    def apply(self, dataset: Dataset[Tree]) -> Dataset[Tree]:
        """The dataset with the stage, which may be several; windows of at most 64 records."""
        raise NotImplementedError(f"{type(self).__name__} needs apply(self, dataset).")

    def example_records(self) -> Sequence[Tree]:
        """Records that the stage can work on.  If they are few, they are used several times."""
        raise NotImplementedError(f"{type(self).__name__} needs example_records(self).")

    def apply_with_other_options(self, dataset: Dataset[Tree]) -> Dataset[Tree] | None:
        """The dataset with the same stage and other options, which other states belong to."""
        return None

    def test_read_again_it_is_the_same(self) -> None:
        """Nothing is kept from one reading to the next; made again, the stage does the same."""
        dataset = self._applied()
        expected = list(dataset)
        check_all_equal(list(dataset), expected, "read again, output")
        check_all_equal(list(self._applied()), expected, "made again, output")

    def test_engines(self) -> None:
        """The same stream in threads and in worker processes."""
        dataset = self._applied().repeat(2)
        expected = list(dataset)
        for engine in ("inline", "threads", "processes"):
            workers = None if engine == "inline" else 2
            with DataLoader(dataset, engine=engine, num_workers=workers) as loader:
                check_all_equal(list(loader), expected, f"with {engine}, output")

    def test_pickled(self) -> None:
        """A pickle of the dataset gives the same, made before it is read or after."""
        dataset = self._applied()
        unread = cloudpickle.dumps(dataset)
        expected = list(dataset)
        for pickled in (unread, cloudpickle.dumps(dataset)):
            check_all_equal(list(pickle.loads(pickled)), expected, "unpickled, output")

    def test_epochs(self) -> None:
        """Epochs 0 and 1 of a loader are the two epochs of ``repeat(2)``."""
        dataset = self._applied()
        with DataLoader(dataset, engine="inline") as loader:
            epochs = [list(loader.epoch(number)) for number in (0, 1)]
        check_all_equal(epochs[0], list(dataset), "in epoch 0, output")
        check_all_equal(epochs[0] + epochs[1], list(dataset.repeat(2)), "in two epochs, output")

    def test_states(self) -> None:
        """A state taken at any step, and kept as JSON, goes on at that step, on any engine."""
        dataset = self._applied().repeat(2)
        self._check_states(dataset, list(dataset), ["inline", "inline", "threads"])

    def test_states_know_the_options(self) -> None:
        """The stage made again takes the state; with other options it does not."""
        dataset, source = self._applied(), self._source()
        state = state_after(dataset, 1)
        going_on(self.apply(source), state)
        other = self.apply_with_other_options(source)
        if other is None:
            return
        check_raises(StateError, lambda: going_on(other, state), "a state of other options")
        back = state_after(other, 1)
        check_raises(StateError, lambda: going_on(dataset, back), "a state of other options")

    # Messages -----------------------------------------------------------------------------------

    def test_repr(self) -> None:
        """The dataset's ``repr`` has one line for each stage."""
        lines = repr(self._applied()).splitlines()
        expected = len(self._stages()) + 2  # the source, and what it amounts to
        check(len(lines) == expected, f"there are {len(lines)} lines, not {expected}: {lines}")

    # Helpers ------------------------------------------------------------------------------------

    def _stages(self) -> list[Node]:
        dataset = self.apply(Dataset.from_source(list(self.example_records())))
        return dataset._node.chain()[1:]

    def _window(self) -> int:
        """The most records that the stage works on together."""
        return 1

    def _records(self) -> list[object]:
        given = list(self.example_records())
        check(len(given) > 0, "example_records has no records.")
        count = max(len(given), _WINDOWS * self._window() + 1, _FEWEST)
        return [given[number % len(given)] for number in range(count)]

    def _source(self) -> Dataset[object]:
        return Dataset.from_source(self._records())

    def _applied(self) -> Dataset[object]:
        return self.apply(self._source())

    def _check_states(
        self, dataset: Dataset[object], expected: list[object], engines: Sequence[str]
    ) -> None:
        for step, state in enumerate(states_of(dataset)):
            with DataLoader(dataset, engine=engines[step % len(engines)]) as loader:
                iterator = iter(loader)
                iterator.set_state(json.loads(json.dumps(state)))
                what = f"after the state of step {step}, output"
                check_all_equal(list(iterator), expected[step:], what)


def states_of(dataset: Dataset[object]) -> Iterator[dict[str, object]]:
    """The states before the first element, and after each."""
    iterator = iter(DataLoader(dataset, engine="inline"))
    yield iterator.get_state()
    for _ in iterator:
        yield iterator.get_state()


def state_after(dataset: Dataset[object], steps: int) -> dict[str, object]:
    iterator = iter(DataLoader(dataset, engine="inline"))
    first(iterator, steps)
    return iterator.get_state()


def going_on(dataset: Dataset[object], state: dict[str, object]) -> None:
    """A dataset must give the element after a state of its own."""
    iterator = iter(DataLoader(dataset, engine="inline"))
    iterator.set_state(state)
    check_equal(next(iterator), first(dataset, 2)[1], "after a state, output 1")
