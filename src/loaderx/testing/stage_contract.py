"""The contract of stages of a stream, as tests."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from loaderx import DataLoader, Dataset, LoaderxError, RecordError, StateError, merge_states
from loaderx.chain.node import Node
from loaderx.testing.any_stage_contract import AnyStageContract, state_after
from loaderx.testing.comparing import check, check_all_equal, check_raises
from loaderx.testing.stage_work import (
    damaged_states,
    digest,
    fail_at,
    first,
    hide_at,
    is_shown,
    is_wanted,
    until_failure,
    without_advice,
)
from loaderx.tree import Tree

LARGEST_WINDOW = 64  # a small one, since the tests read all records many times


class StageContract(AnyStageContract):
    """Tests of a stage of a stream; a subclass says how to apply it, and to what.

    >>> from loaderx.stages import WindowStage
    >>> class Reversed(WindowStage):
    ...     def map_window(self, records):
    ...         return list(enumerate(records))[::-1]
    >>> class TestReversed(StageContract):
    ...     def apply(self, dataset):
    ...         return dataset.apply(Reversed(window=3))
    ...
    ...     def example_records(self):
    ...         return [{"x": i} for i in range(7)]
    ...
    ...     def expected_records(self, records):
    ...         return records[::-1]
    ...
    ...     def apply_with_other_options(self, dataset):
    ...         return dataset.apply(Reversed(window=6))

    In a file ``test_*.py``, that is all: pytest runs the tests that ``TestReversed`` inherits.

    >>> TestReversed().test_windows_are_as_expected()
    """

    can_skip_failures: bool = True
    """False for a stage that cannot go on without a record on which it has failed."""

    def expected_records(self, records: list[Tree]) -> Sequence[Tree] | None:
        """The expected output for the records of a window, in plain Python; None: not tested."""
        return None

    # Output -------------------------------------------------------------------------------------

    def test_windows_are_as_expected(self) -> None:
        """Each window gives what `expected_records` says, in datasets of any length."""
        records, window = self._records(), self._window()
        for count in sorted({1, window, window + 1, 2 * window - 1, len(records)}):
            parts = [
                self.expected_records(records[start : min(start + window, count)])
                for start in range(0, count, window)
            ]
            if None in parts:
                return
            expected = [record for part in parts for record in part or ()]
            found = list(self.apply(Dataset.from_source(records[:count])))
            check_all_equal(found, expected, f"with {count} records, output")

    def test_windows_carry_nothing_across(self) -> None:
        """A window's output does not depend on the windows before it or after it."""
        records, window = self._records(), self._window()
        others = records[:window][::-1] + records[window:]
        whole, head = self._outputs(records), self._outputs(records, window)
        other, other_head = self._outputs(others), self._outputs(others, window)
        check_all_equal(whole[: len(head)], head, "with and without later windows, output")
        changed = "with another window before them, output"
        check_all_equal(other[len(other_head) :], whole[len(head) :], changed)

    def test_order_of_windows(self) -> None:
        """Read in several lanes, the windows of an epoch give the same."""
        if self._makes_batches():
            return
        records, window = self._records(), self._window()
        whole = (records * 4)[: 4 * window]  # so that lanes do not shorten the windows
        dataset = self.apply(Dataset.from_source(whole)).map(digest)
        expected = sorted(int(number) for number in dataset)
        for lanes in (2, 4):
            batches = dataset.batch(4, lanes=lanes)
            found = sorted(int(number) for batch in batches for number in batch)
            check(found == expected, f"with {lanes} lanes, other records come out.")

    def test_nothing_comes_in(self) -> None:
        """Where all records were dropped before, nothing comes out; an endless stream says so."""
        dataset = self.apply(self._source().filter(is_wanted))
        check(list(dataset) == [], "without any records, something comes out.")
        endless = iter(dataset.repeat())
        with without_advice():
            check_raises(LoaderxError, lambda: next(endless), "an endless stream of nothing")

    def test_records_of_an_iterable(self) -> None:
        """Over records that are read in order, the stage runs in the caller's thread."""
        records = self._records()
        dataset = self.apply(Dataset.from_iterable(records))
        found = list(dataset)
        if not any(node.is_random for node in self._stages()):
            check_all_equal(found, list(self._applied()), "over an iterable, output")
        check_all_equal(list(dataset), found, "over an iterable, read again, output")
        self._check_states(dataset, found, ["inline"])

    # Engines and hosts --------------------------------------------------------------------------

    def test_hosts(self) -> None:
        """1, 2 and 4 hosts read the same batches, and go on where another number stopped."""
        if self._makes_batches():
            return
        dataset = self._applied().map(digest).repeat().batch(8, lanes=4)
        with without_advice():
            self._check_hosts(dataset, first(dataset, 9))

    def _check_hosts(self, dataset: Dataset[object], expected: list[object]) -> None:
        state = None
        for start, hosts in ((0, 4), (3, 2), (6, 1)):
            parts, states = [], []
            for host in range(hosts):
                iterator = iter(DataLoader(dataset, engine="inline", shard=(host, hosts)))
                if state is not None:
                    iterator.set_state(state)
                parts.append(first(iterator, 3))
                states.append(iterator.get_state())
            state = merge_states(states)
            found = [np.concatenate(batch) for batch in zip(*parts, strict=True)]
            check_all_equal(found, expected[start : start + 3], f"with {hosts} hosts, batch")

    # Epochs and states --------------------------------------------------------------------------

    def test_damaged_states(self) -> None:
        """They raise a `StateError` when they are set, or when the next record is read."""
        dataset = self._applied()
        beginning = first(dataset, 1)
        for state in damaged_states(state_after(dataset, 1)):
            iterator = iter(DataLoader(dataset, engine="inline"))
            try:
                iterator.set_state(state)
            except StateError:
                check_all_equal(first(iterator, 1), beginning, "after a state was refused, output")
                continue
            what = f"the damaged state {state}"
            check_raises(StateError, functools.partial(next, iterator), what)

    # Failures -----------------------------------------------------------------------------------

    def test_a_failure_names_the_record_and_the_stage(self) -> None:
        """On every engine, after everything that comes out of the units before it."""
        dataset = self.apply(self._hidden())
        expected, error = until_failure(DataLoader(dataset, engine="inline"))
        if error is None:
            return  # it does not look at records
        self._check_error(error)
        with DataLoader(dataset, engine="processes", num_workers=1) as loader:
            found, same = until_failure(loader)
        check_all_equal(found, expected, "before the failure, output")
        check(str(same) == str(error), f"in a worker process, the error is {same}, not {error}.")

    def test_failures_can_be_skipped(self) -> None:
        """With ``on_error("skip")``, a record on which the stage fails is left out."""
        dataset = self.apply(self._hidden())
        if until_failure(DataLoader(dataset, engine="inline"))[1] is None:
            return
        guarded = dataset.on_error("skip")
        if not self.can_skip_failures:
            check_raises(RecordError, lambda: list(guarded), "a failure that cannot be skipped")
            return
        expected = list(self.apply(self._hidden().filter(is_shown)))
        check_all_equal(list(guarded), expected, "without the record that fails, output")

    def test_records_that_fail_before_the_stage(self) -> None:
        """With ``on_error("skip")``, the stage is given the other records of the window."""
        failing = self._source().map_with_index(functools.partial(fail_at, self._place()))
        expected = list(self.apply(self._hidden().filter(is_shown)))
        found = list(self.apply(failing).on_error("skip"))
        check_all_equal(found, expected, "without the record that fails, output")

    # Helpers ------------------------------------------------------------------------------------

    def _outputs(self, records: list[object], count: int | None = None) -> list[object]:
        source = Dataset.from_source(records)
        return list(self.apply(source if count is None else source.take(count)))

    def _stages(self) -> list[Node]:
        dataset = self.apply(Dataset.from_source(list(self.example_records())))
        check(dataset._node.is_stream, f"apply must give a stream; it gave\n{dataset!r}")
        return dataset._node.chain()[1:]

    def _window(self) -> int:
        windows = [node.window for node in self._stages() if node.window is not None]
        largest = max(windows, default=1)
        few = f"apply uses a window of {largest}; for these tests, one of at most {LARGEST_WINDOW}"
        check(largest <= LARGEST_WINDOW, f"{few} is enough.")
        return largest

    def _makes_batches(self) -> bool:
        """Whether batches differ in shape, as those of `bucket` do: hosts cannot share these."""
        return any(node.batched for node in self._stages())

    def _place(self) -> int:
        """The record that fails in these tests: in the second window, the last but one."""
        window = self._window()
        return max(window, 2 * window - 2)

    def _hidden(self) -> Dataset[object]:
        """The records, one of which is something that no stage can work on."""
        return self._source().map_with_index(functools.partial(hide_at, self._place()))

    def _check_error(self, error: RecordError) -> None:
        text, place = str(error), self._place()
        check(f"record {place}" in text, f"record {place} fails, and the error says: {text}")
        told = any(node.stage in text for node in self._stages())
        check(told, f"the error names no stage as the dataset's repr does: {text}")
        check(error.stage != "", f"the error has no `stage`: {text}")
        if self.can_skip_failures:
            check(error.index == place, f"record {place} fails; the error's index: {error.index}.")
