"""`WindowStage`: stages that users write.  What all stages must do is in `test_stage_contract`."""

from __future__ import annotations

import functools
import subprocess
import sys
import typing
from typing import ClassVar

import numpy as np
import pytest

import loaderx
from loaderx import (
    ArgumentError,
    ArgumentTypeError,
    ChainError,
    DataLoader,
    Dataset,
    LoaderxError,
    RecordError,
    StateError,
    stages,
)
from loaderx.stages import WindowStage
from plain import jitter
from window_stages import DropRepeated, Neighbours, Sample, SortBy

X = (5, 3, 9, 3, 8, 1, 1, 4, 7, 2)


def numbers(values=X):
    return Dataset.from_source([{"x": np.int64(x), "y": np.zeros(1)} for x in values])


def xs(stream):
    return [int(record["x"]) for record in stream]


class Calls(WindowStage):
    """Calls a function that the test has given it."""

    f: typing.Any
    window: int = 4

    def map_window(self, records):
        return self.f(records)


# Options ----------------------------------------------------------------------------------------


def test_options():
    stage = SortBy(leaf="x", window=np.int64(6))
    assert (stage.leaf, stage.largest_first, stage.window, stage.seed) == ("x", False, 6, None)
    assert type(stage.window) is int
    assert repr(stage) == "SortBy(leaf='x', window=6)"
    assert (
        repr(stage.replace(largest_first=True)) == "SortBy(leaf='x', largest_first=True, window=6)"
    )
    with pytest.raises(AttributeError, match="a SortBy is frozen; cannot set 'leaf'"):
        stage.leaf = "y"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SortBy(), ArgumentTypeError, r"SortBy needs `leaf`: write SortBy\(leaf=...\)"),
        (lambda: SortBy("x"), ArgumentTypeError, r"options by name, such as SortBy\(leaf='x'\)"),
        (
            lambda: SortBy(leaf="x", windw=3),
            ArgumentTypeError,
            "SortBy has no option `windw`; it has leaf, largest_first, window, seed",
        ),
        (lambda: SortBy(leaf="x", window=0), ArgumentError, "`window` must be at least 1, got 0"),
        (lambda: SortBy(leaf="x", window="8"), ArgumentTypeError, "`window` must be an int"),
        (lambda: SortBy(leaf="x", seed=1), ArgumentError, "no random_map_window, .* no `seed`"),
        (lambda: Sample(leaf="x", seed=-1), ArgumentError, "`seed` must be at least 0, got -1"),
        (lambda: Sample(leaf="x", share=2), ValueError, "`share` must be above 0"),
        (lambda: WindowStage(), ArgumentTypeError, r"map_window\(self, records\) or .*has neither"),
        (lambda: numbers().apply(SortBy), ArgumentTypeError, r"pass an instance: SortBy\(...\)"),
        (
            lambda: numbers().batch(2).apply(SortBy(leaf="x")),
            ChainError,
            r"SortBy after batch: it works on records. Apply it before .batch\(...\)",
        ),
        (
            lambda: numbers().apply(SortBy(leaf="x", window=6)).shuffle(window=4),
            ChainError,
            r"apply\(SortBy\(leaf='x', window=6\)\) work on the same runs of 6 records, and 4 does",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_one_method():
    class Both(Sample):
        def map_window(self, records):
            return []

    with pytest.raises(ArgumentTypeError, match="it has both"):
        Both(leaf="x")


@pytest.mark.parametrize("name", ["function", "input", "components"])
def test_names_that_states_use(name):
    with pytest.raises(ArgumentError, match=f"an option of Bad is called '{name}'"):
        type("Bad", (WindowStage,), {"__annotations__": {name: int}})


def test_class_variables_are_no_options():
    class Annotated(Calls):
        made: ClassVar[int] = 0

    annotations = {"made": ClassVar[int], "other": typing.ClassVar, "kept": int}
    plain = type("Plain", (Calls,), {"__annotations__": annotations, "made": 0, "kept": 1})
    assert "made" not in Annotated._fields
    assert plain._fields == (*Calls._fields, "kept")
    with pytest.raises(ArgumentTypeError, match="has no option `made`; it has f, window, seed"):
        Annotated(f=sorted, made=1)


def test_a_cached_property():
    class Costly(Calls):
        @functools.cached_property
        def table(self):
            return {"made": 1}

        def map_window(self, records):
            return [(0, self.table)]

    assert list(numbers().apply(Costly(f=None, window=5))) == [{"made": 1}] * 2


# In a chain -------------------------------------------------------------------------------------


def test_it_reads_as_it_was_written():
    dataset = numbers().apply([SortBy(leaf="x"), Sample(leaf="x", seed=3)]).batch(2)
    assert repr(dataset).splitlines()[1:-1] == [
        "  .apply(SortBy(leaf='x'))",
        "  .apply(Sample(leaf='x', seed=3))",
        "  .batch(2)",
    ]


def test_a_long_option_stays_on_a_line():
    stage = Calls(f=np.arange(10**5).reshape(10, -1))
    assert "\n" not in repr(stage)
    assert len(repr(stage)) < 100


def test_windows_are_positions_of_the_input():
    """What a filter has dropped leaves a gap in the window; nothing moves up."""
    odd = numbers(range(20)).filter(lambda record: record["x"] % 2 == 1)
    found = odd.apply(SortBy(leaf="x", largest_first=True, window=5))
    assert xs(found) == [3, 1, 9, 7, 5, 13, 11, 19, 17, 15]


def test_stages_in_a_row():
    dataset = numbers().apply(DropRepeated(leaf="x", window=10)).apply(SortBy(leaf="x", window=5))
    assert xs(dataset) == [3, 5, 8, 9, 1, 2, 4, 7]


# Draws ------------------------------------------------------------------------------------------


def draws(dataset):
    return {int(r["x"]): float(r["y"][0]) for r in dataset.random_map(jitter, seed=1)}


def test_a_record_keeps_its_draws():
    """Whatever the stage does with other records: as with filter and shuffle."""
    alone = draws(numbers(range(12)))
    assert draws(numbers(range(12)).apply(SortBy(leaf="x", largest_first=True))) == alone
    some = draws(numbers(range(12)).apply(DropRepeated(leaf="x", divisor=3)))
    assert some == {x: alone[x] for x in some}


def test_records_that_were_made_of_one_draw_apart():
    stage = Calls(f=lambda records: [(0, record) for record in records])
    found = [float(r["y"][0]) for r in numbers(range(12)).apply(stage).random_map(jitter)]
    assert len(set(found)) == 12


def drawn(dataset):
    return [float(record["drawn"]) for record in dataset]


def test_draws_of_a_stage():
    source = numbers(range(40))
    dataset = source.apply(Sample(leaf="x"))
    assert len(set(drawn(dataset.repeat(2)))) == 40, "each epoch has draws of its own"
    assert drawn(dataset.seed(1)) != drawn(dataset)
    assert drawn(source.apply(Sample(leaf="x", seed=1))) == drawn(dataset.seed(1))
    assert drawn(source.map(dict).apply(Sample(leaf="x"))) == drawn(dataset)
    assert drawn(source.apply(SortBy(leaf="x")).apply(Sample(leaf="x"))) == drawn(dataset)
    twice = source.apply(Sample(leaf="x", share=1.0)).apply(Sample(leaf="x", share=1.0))
    assert not set(drawn(twice)) & set(drawn(source.apply(Sample(leaf="x", share=1.0))))


def test_lanes_and_components_draw_apart():
    """Above a mix, each lane counts windows of its own; their numbers must not meet."""
    parts = [numbers(range(40)).filter(bool_of), numbers(range(40)).filter(bool_of)]
    mixed = Dataset.mix(parts).apply(Sample(leaf="x")).batch(4, lanes=2)
    found = [float(x) for batch in mixed for x in batch["drawn"]]
    assert len(set(found)) == len(found) > 30
    inside = Dataset.mix([part.apply(Sample(leaf="x")) for part in parts])
    own = drawn(parts[0].apply(Sample(leaf="x")))
    assert drawn(inside)[::2] == own, "a component's rows are its own stream"


def bool_of(record):
    return True


# States -----------------------------------------------------------------------------------------


def test_a_state_names_the_option_that_differs():
    def state_of(stage):
        return iter(DataLoader(numbers().apply(stage).batch(2), engine="inline")).get_state()

    state = state_of(SortBy(leaf="x"))
    for other, message in (
        (SortBy(leaf="y"), r"stage 2 \(SortBy\): leaf was 'x' and is 'y' now"),
        (SortBy(leaf="x", largest_first=True), r"\(SortBy\): largest_first was .* is True now"),
        (Neighbours(leaf="x"), r"stage 2 was SortBy\(leaf='x'\) and is Neighbours\(leaf='x'\) now"),
    ):
        iterator = iter(DataLoader(numbers().apply(other).batch(2), engine="inline"))
        with pytest.raises(StateError, match=message):
            iterator.set_state(state)
    later = type("SortBy", (SortBy,), {"__annotations__": {"new": int}, "new": 0})
    assert state_of(later(leaf="x")) == state, "a new option with a default changes no state"


# Failures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda records: None, r"pairs \(number in `records`, record\); got a NoneType"),
        (lambda records: records[0], "got a dict"),
        (lambda records: records, r"one of them is \{'x'"),
        (lambda records: [(0,)], r"one of them is \(0,\)"),
        (lambda records: [(True, 1)], r"one of them is \(True, 1\)"),
        (lambda records: [("0", 1)], r"one of them is \('0', 1\)"),
        (lambda records: [(9, 1)], "it returned a record of number 9, of 1 in the window"),
        (lambda records: [(-1, 1)], "it returned a record of number -1, of 1 in the window"),
        (lambda records: [(0, None)], "one of the records that it returned is None"),
        (lambda: 1, "takes 0 positional arguments but 1 was given"),
    ],
)
def test_what_it_must_not_return(made, message):
    with pytest.raises(RecordError, match=f"failed on record 0: .*{message}"):
        list(numbers().apply(Calls(f=made)))


def test_a_failure_of_one_record():
    dataset = numbers().map_with_index(lambda i, r: r if i != 6 else {"z": 1})
    with pytest.raises(RecordError) as caught:
        list(dataset.apply(SortBy(leaf="x", window=4)))
    expected = "apply(SortBy(leaf='x', window=4)) failed on record 6: KeyError: 'x'"
    assert caught.value.detail == expected
    assert caught.value.index == 6
    assert caught.value.stage == "apply(SortBy(leaf='x', window=4))"
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_failure_of_records_together():
    def fail(records):
        if len(records) > 1:
            raise ValueError("too many")
        return enumerate(records)

    dataset = numbers().skip(1).apply(Calls(f=fail))
    for guarded in (dataset, dataset.on_error("skip")):
        with pytest.raises(RecordError) as caught:
            list(guarded)
        assert caught.value.detail == (
            f"{caught.value.stage} failed on 4 records together (record 1 to record 4): "
            "ValueError: too many"
        )
        assert caught.value.index is None


def test_failures_that_are_skipped_are_counted():
    bad = {1, 2, 8}
    dataset = numbers().map_with_index(lambda i, r: r if i not in bad else {"z": 1})
    guarded = dataset.apply(SortBy(leaf="x", window=4)).on_error("skip")
    with DataLoader(guarded, engine="threads", num_workers=2) as loader:
        assert xs(loader) == [3, 5, 1, 1, 4, 8, 2]
        failures = loader.stats().failures
    assert [failure.index for failure in failures] == [1, 2, 8]
    with pytest.raises(LoaderxError, match="limit"):
        list(DataLoader(dataset.apply(SortBy(leaf="x")).on_error("skip", limit=2)))


def test_a_policy_sees_the_record():
    seen = []

    def policy(error):
        seen.append((error.index, error.stage))
        return "replace"

    dataset = numbers().map_with_index(lambda i, r: r if i != 6 else {"z": 1})
    assert len(list(dataset.apply(SortBy(leaf="x")).on_error(policy))) == 9
    assert seen == [(6, "apply(SortBy(leaf='x'))")]


def test_a_window_of_which_all_records_fail():
    dataset = numbers().map_with_index(lambda i, r: r if i > 3 else {"z": 1})
    guarded = dataset.apply(SortBy(leaf="x", window=4)).on_error("skip")
    assert xs(guarded) == [1, 1, 4, 8, 2, 7]


def test_an_endless_stream_waits_where_draws_decide_what_comes_through():
    class Seldom(WindowStage):
        window: int = 10

        def random_map_window(self, records, rng):
            return enumerate(records) if rng.random() < 0.05 else ()

    assert len(xs(numbers().apply(Seldom()).repeat().take(30))) == 30
    with pytest.raises(LoaderxError, match="not one record came through"):
        next(iter(numbers().apply(Calls(f=lambda records: [])).repeat()))


# The package ------------------------------------------------------------------------------------


def test_public_names():
    assert stages.__all__ == ["WindowStage"]
    assert loaderx.stages.WindowStage is WindowStage


def test_a_script_of_its_own():
    """A class of the main module, in worker processes."""
    script = (
        "from loaderx import DataLoader, Dataset\n"
        "from loaderx.stages import WindowStage\n"
        "class Last(WindowStage):\n"
        "    count: int\n"
        "    def map_window(self, records):\n"
        "        return list(enumerate(records))[-self.count:]\n"
        "stream = Dataset.range(12).apply(Last(count=2, window=4)).batch(3)\n"
        "with DataLoader(stream, engine='processes', num_workers=2) as loader:\n"
        "    print([batch.tolist() for batch in loader])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[[2, 3, 6], [7, 10, 11]]\n"
