"""Which records failed: listed, counted once, warned of, logged, and limited."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings

import pytest

from chains import arrays
from failing import ENGINES, fragile, kept, listed, load
from loaderx import Dataset, LoaderxWarning, RecordError
from processes import environment
from streams import everything

# Half of the records fail here; where the warning itself is meant, it is caught.
pytestmark = pytest.mark.filterwarnings("ignore:.*records have failed")


FAILING = "map(fragile)"


@pytest.mark.parametrize("engine", ENGINES)
def test_stats_list_the_records_that_were_replaced(engine):
    with load(arrays(20).map(fragile).on_error("replace").batch(4), engine) as loader:
        assert loader.stats().failures == ()
        assert len(list(loader)) == 5
        stats = loader.stats()
        assert stats.replaced == 4
        assert listed(loader) == [
            (i, FAILING, f"ValueError: bad {i}", i // 4) for i in range(3, 20, 5)
        ]
        assert [f.record for f in stats.failures] == [f"record {i}" for i in range(3, 20, 5)]
        assert (
            str(stats.failures[1]) == "step 2: map(fragile) failed on record 8: ValueError: bad 8"
        )
        assert "left out after errors: 4\nthe first of them: step 0: map(fragile) failed" in str(
            stats
        )


def test_on_error_is_one_row_of_the_statistics():
    loader = load(arrays(20).map(fragile).on_error("replace").batch(4), "inline")
    list(loader)
    stages = set(loader.stats().stage_s) - {"order"}
    assert stages == {"source", "map(fragile)", "on_error('replace')", "batch(4)"}


@pytest.mark.parametrize("engine", ENGINES)
def test_stats_list_the_records_that_a_stream_left_out(engine):
    # Units of 8 records; the last of them fail, so no batch comes after them.
    chain = arrays(34).filter(everything).map(fragile).on_error("replace").batch(5)
    with load(chain, engine) as loader:
        seen = [int(x) for batch in loader for x in batch["x"]]
        assert seen == [i for i in range(34) if i % 5 != 3]
        assert [f.index for f in loader.stats().failures] == list(range(3, 34, 5))
        assert loader.stats().replaced == 7
        assert {(f.stage, f.error) for f in loader.stats().failures} == {
            (FAILING, f"ValueError: bad {i}") for i in range(3, 34, 5)
        }


@pytest.mark.parametrize("engine", ENGINES)
def test_failures_after_the_last_batch_are_counted_once(engine):
    def late(record):
        if record["x"] >= 20:
            raise ValueError("late")
        return record

    with load(arrays(32).map(late).on_error("skip").batch(4), engine) as loader:
        iterator = iter(loader)
        assert len(list(iterator)) == 5
        assert [f.index for f in loader.stats().failures] == list(range(20, 32))
        assert list(iterator) == []
        assert loader.stats().replaced == 12
    with load(arrays(32).map(lambda r: 1 / 0).on_error("skip").batch(4), engine) as loader:
        assert list(loader) == []
        assert [f.index for f in loader.stats().failures] == list(range(32))


def test_a_step_that_is_made_again_counts_once(tmp_path):
    died = tmp_path / "died"

    def deadly(record):
        if record["x"] == 14 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return fragile(record)

    for chain in (
        arrays(20).map(deadly).on_error("replace").batch(5),
        arrays(20).map(deadly).on_error("skip").batch(4),
    ):
        died.unlink(missing_ok=True)
        with load(chain, "processes") as loader:
            with pytest.warns(LoaderxWarning, match="died"):
                list(loader)
            assert [f.index for f in loader.stats().failures] == [3, 8, 13, 18]


@pytest.mark.parametrize("engine", ["inline", "threads"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_failures_are_counted_once_wherever_the_stream_is_taken_up_again(engine, is_stream):
    chain = arrays(40).map(fragile).on_error("skip" if is_stream else "replace").batch(3)
    loader = load(chain, engine)
    iterator, states = iter(loader), []
    while next(iterator, None) is not None:
        iterator.close()  # ahead of the consumer, more had been made
        states.append((iterator.get_state(), loader.stats().replaced))
    assert [f.index for f in loader.stats().failures] == list(range(3, 40, 5))
    for state, before in states:
        rest = load(chain, engine)
        iterator = iter(rest)
        iterator.set_state(state)
        list(iterator)
        assert [f.index for f in rest.stats().failures] == list(range(3, 40, 5))[before:]


def test_nested_rules_count_each_record_once():
    def seven(record):
        if record["x"] % 7 == 0:
            raise KeyError("seven")
        return record

    once = arrays(12).map(fragile).on_error("replace").map(seven)
    for chain in (once.on_error("replace").batch(6), once.on_error("skip").batch(6)):
        loader = load(chain, "inline")
        list(loader)
        assert sorted(f.index for f in loader.stats().failures) == [0, 3, 7, 8]


def test_failures_name_their_dataset():
    parts = [arrays(10), arrays(10)]
    below = [part.map(fragile).on_error("replace") for part in parts]
    streams = [part.map(fragile).on_error("skip") for part in parts]
    for chain in (
        Dataset.mix(below).batch(4),
        Dataset.mix(parts).map(fragile).on_error("replace").batch(4),
        Dataset.concatenate(below).batch(4),
        Dataset.mix(streams).batch(4),
        Dataset.mix(parts).map(fragile).on_error("skip").batch(4),
        Dataset.mix([part.filter(everything) for part in parts]).map(fragile).on_error("skip"),
    ):
        loader = load(chain, "inline")
        list(loader)
        names = sorted(f.record for f in loader.stats().failures)
        assert names == [f"record {i} of dataset {d}" for i in (3, 8) for d in (0, 1)]


def test_a_long_message_is_cut_and_the_list_is_bounded():
    def fail(record):
        if record["x"] % 2:
            raise ValueError("x" * 10_000)
        return record

    loader = load(arrays(3000).map(fail).on_error("replace").batch(100), "inline")
    with pytest.warns(LoaderxWarning, match="records have failed"):
        list(loader)
    stats = loader.stats()
    assert (stats.replaced, len(stats.failures)) == (1500, 1000)
    assert stats.failures[0].error == "ValueError: " + "x" * 488 + " ..."


def test_a_large_share_of_failures_warns_once():
    def rarely(record):
        if record["x"] % 90 == 0:
            raise ValueError(f"bad {record['x']}")
        return record

    for policy, shown in (("replace", "12 of 1,000"), ("skip", "12 of 1,024")):
        loader = load(arrays(2000).map(rarely).on_error(policy).batch(100), "inline")
        with pytest.warns(LoaderxWarning) as caught:
            list(loader)
        (warning,) = caught
        assert str(warning.message) == (
            f"{shown} records have failed (1.2%) and were replaced or left out by on_error. The "
            "first: map(rarely) failed on record 0: ValueError: bad 0. loader.stats().failures "
            "lists them."
        )
        assert warning.filename == __file__


def test_a_large_share_of_a_short_stream_warns_at_its_end():
    def half(record):
        if record["x"] % 2:
            raise ValueError
        return record

    def none(record):
        raise ValueError

    for policy in ("replace", "skip"):
        loader = load(arrays(900).map(half).on_error(policy).batch(100), "inline")
        with pytest.warns(
            LoaderxWarning, match=r"^450 of 900 records have failed \(50.0%\)"
        ) as caught:
            list(loader)
        list(loader)
        assert [warning.filename for warning in caught] == [__file__]
    for count in (3, 500):
        loader = load(arrays(count).map(none).on_error("skip").batch(10), "inline")
        with pytest.warns(LoaderxWarning) as caught:
            assert list(loader) == []
        (warning,) = caught
        assert str(warning.message) == (
            f"{count} of {count} records have failed (100.0%) and were replaced or left out by "
            "on_error. No record is left: the loader gave no batch. The first: map(none) failed on "
            "record 0: ValueError. loader.stats().failures lists them."
        )


def test_a_warning_of_failures_that_is_an_error_has_no_other_cause():
    loader = load(arrays(30).map(fragile).on_error("skip").batch(3), "inline")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LoaderxWarning, match="6 of 30 records") as caught:
            list(loader)
    assert caught.value.__suppress_context__


def test_a_small_share_and_few_records_do_not_warn():
    def rarely(record):
        if record["x"] % 150 == 0:
            raise ValueError
        return record

    def half(record):
        if record["x"] % 2:
            raise ValueError
        return record

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # A filter that lets little through must not make few failures look like many.
        few = arrays(3000).map(rarely).on_error("skip").filter(lambda r: r["x"] % 50 == 1)
        for chain in (arrays(19).map(half).on_error("replace"), few):
            list(load(chain.batch(10), "inline"))


def test_failures_are_logged(caplog):
    chain = arrays(12).map(fragile).on_error("replace").batch(4)
    with load(chain, "processes") as loader:
        list(loader)
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("loaderx", "WARNING", "step 0: map(fragile) failed on record 3: ValueError: bad 3"),
        ("loaderx", "WARNING", "step 2: map(fragile) failed on record 8: ValueError: bad 8"),
    ]


def test_without_a_log_nothing_is_printed():
    code = (
        "import loaderx as lx\n"
        "chain = lx.Dataset.from_source(['1', 'x']).map(int).on_error('replace').batch(2)\n"
        "assert [b.tolist() for b in lx.DataLoader(chain, engine='inline')] == [[1, 1]]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", ["replace", "skip"])
def test_a_limit_raises_at_the_same_step_for_every_engine(engine, policy):
    chain = arrays(64).map(fragile).on_error(policy, limit=4).batch(4)
    with load(chain, engine) as loader:
        iterator, seen = iter(loader), 0
        with pytest.raises(RecordError) as caught:
            for _ in iterator:
                seen += 1
        # A unit of the stream has 16 records: the second of them comes at step 3.
        step, last = (5, 23) if policy == "replace" else (3, 28)
        assert (seen, caught.value.step) == (step, step)
        assert str(caught.value) == (
            f"step {step}: more than 4 different records have failed, the limit of on_error. The "
            f"last: map(fragile) failed on record {last}: ValueError: bad {last}. "
            "loader.stats().failures lists them."
        )
        assert (caught.value.index, caught.value.stage) == (last, FAILING)
        before = [f.index for f in loader.stats().failures]
        assert before == list(range(3, last + 1, 5))
        with pytest.raises(RecordError, match=f"step {step}: more than 4 different"):
            next(iterator)
        assert [f.index for f in loader.stats().failures] == before
        assert iterator.step == step


def test_a_limit_counts_different_records():
    chain = arrays(20).map(fragile).on_error("replace", limit=4).batch(4)
    loader = load(chain.repeat(5), "inline")
    assert len(list(loader)) == 25
    assert loader.stats().replaced == 20
    stream = load(arrays(20).map(fragile).on_error("skip", limit=4).batch(4).repeat(5), "inline")
    assert len(list(stream)) == 20
    two = Dataset.concatenate([arrays(20), arrays(20)]).map(fragile)
    with pytest.raises(RecordError, match="more than 7 different .* record 18 of dataset 1"):
        list(load(two.on_error("replace", limit=7).batch(4), "inline"))
    assert list(load(two.on_error("replace", limit=8).batch(4), "inline"))


def test_a_limit_holds_after_the_last_batch():
    def late(record):
        if record["x"] >= 20:
            raise ValueError("late")
        return record

    loader = load(arrays(32).map(late).on_error("skip", limit=5).batch(4), "inline")
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    for _ in range(2):
        with pytest.raises(RecordError, match="step 5: more than 5 different records"):
            next(iterator)


def test_a_limit_is_no_part_of_a_state():
    base = arrays(20).map(fragile)
    for policy in ("replace", "skip"):
        state = iter(load(base.on_error(policy).batch(4), "inline")).get_state()
        limited = base.on_error(policy, limit=9)
        assert f".on_error({policy!r}, limit=9)" in repr(limited)
        iter(load(limited.batch(4), "inline")).set_state(state)
        expected = "policy='replace', seed=0" if policy == "replace" else "policy='skip'"
        assert state["chain"][3] == f"on_error({expected})"


def odd_ones(n):
    if n % 5 == 4:
        raise ValueError(f"bad {n}")
    return [n] * 3


def above_a_mix(**options):
    parts = [Dataset.range(40).filter(kept), Dataset.range(40, 120).filter(kept)]
    return Dataset.mix(parts, [1, 2]).flat_map(odd_ones).on_error("skip", **options)


def test_records_of_a_mix_keep_their_names_in_stages_above_it():
    with load(above_a_mix().batch(4), "inline") as loader:
        list(loader)
        failures = loader.stats().failures
    assert {f.record for f in failures} == {
        f"record {f.index} of dataset {dataset}"
        for f in failures
        for dataset in [0 if f.error == f"ValueError: bad {f.index}" else 1]
    }
    assert len({f.record for f in failures}) == len(failures)


@pytest.mark.parametrize(
    "dataset",
    [
        Dataset.mix([Dataset.range(40).filter(kept), Dataset.range(40, 80).filter(kept)]),
        Dataset.range(60).filter(kept).take(35),
    ],
)
def test_a_record_that_fails_again_above_a_mix_or_a_take_counts_once(dataset):
    endless = dataset.flat_map(odd_ones).on_error("skip", limit=14).repeat(6).batch(7)
    with load(endless, "inline") as loader:
        assert len(list(loader)) > 6
        assert loader.stats().replaced > 14


def test_a_limit_above_a_mix_holds_after_closing():
    """The position is restored at every step, and what was passed over is not forgotten."""
    with load(above_a_mix(limit=8).batch(4), "inline") as loader:
        iterator = iter(loader)
        with pytest.raises(RecordError, match="more than 8 different records have failed"):
            while True:
                next(iterator)
                iterator.close()


def test_units_below_a_window_are_not_counted_again_after_closing():
    def fragile_mix():
        parts = [Dataset.range(80), Dataset.range(80, 200)]
        parts = [part.map(lambda n: odd_ones(n)[0]).on_error("skip") for part in parts]
        return Dataset.mix(parts, [1, 2]).shuffle(seed=0, window=16).batch(4)

    counted = []
    for closes in (False, True):
        with load(fragile_mix(), "inline") as loader:
            iterator = iter(loader)
            for _ in iterator:
                if closes:
                    iterator.close()
            counted.append(loader.stats().replaced)
    assert counted[0] == counted[1] > 10


def test_a_warning_of_a_stream_that_is_an_error_is_raised_once():
    dataset = Dataset.range(40_000).filter(lambda n: n % 200 == 0).batch(2)
    with load(dataset, "inline") as loader:
        iterator, seen, raised = iter(loader), [], 0
        while True:
            try:
                seen.append(next(iterator).tolist())
            except StopIteration:
                break
            except LoaderxWarning:
                raised += 1
    assert (raised, len(seen)) == (1, 100)
