"""What a user learns about failures: messages, tracebacks, and which records failed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest

from chains import arrays
from loaderx import ChainError, DataLoader, Dataset, LoaderxError, LoaderxWarning, RecordError
from processes import environment

ENGINES = ["inline", "threads", "processes", "auto"]

# Half of the records fail here; where the warning itself is meant, it is caught.
pytestmark = pytest.mark.filterwarnings("ignore:.*records have failed")


def load(dataset, engine, **options):
    workers = {} if engine in ("inline", "auto") else {"num_workers": 2}
    return DataLoader(dataset, engine=engine, **workers, **options)


# Exceptions that cannot be shown ------------------------------------------------------------------


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class NoTextAtAll(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__

    @property
    def args(self):
        raise RuntimeError("no arguments")


class WrongText(Exception):
    def __str__(self):
        return 7  # noqa: PLE0307


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_an_exception_that_cannot_be_shown_keeps_record_and_stage(engine):
    said = {
        NoText: "NoText (its message cannot be shown: str() raised RuntimeError)",
        NoTextAtAll: "NoTextAtAll (its message cannot be shown: str() raised RuntimeError)",
        WrongText: "WrongText (its message cannot be shown: str() raised TypeError)",
    }
    kinds = list(said)

    def odd(record):
        if record["x"] >= 6:
            raise kinds[int(record["x"]) - 6]()
        return record

    with load(arrays(9).map(odd).batch(1), engine) as loader:
        iterator = iter(loader)
        for number, kind in enumerate(kinds, start=6):
            iterator.seek(number)
            with pytest.raises(RecordError) as caught:
                next(iterator)
            error = caught.value
            assert (error.index, error.stage, error.step) == (number, "map(odd)", number)
            assert str(error) == f"step {number}: map(odd) failed on record {number}: {said[kind]}"
            assert type(error.__cause__).__name__ in (kind.__name__, "LoaderxError")


def test_a_source_a_stream_and_a_collate_function_may_fail_with_such_an_exception():
    class Source:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            raise NoText

    def fail(_):
        raise NoText

    def broken():
        yield 1
        raise NoText

    for dataset in (
        Dataset.from_source(Source()),
        Dataset.range(3).filter(fail),
        Dataset.range(3).batch(2, collate_fn=fail),
        Dataset.range(3).batch(2).map(fail),
        Dataset.range(3).filter(bool).batch(2).map(fail),
        Dataset.from_iterable(broken),
    ):
        with pytest.raises(RecordError, match=r"NoText \(its message cannot be shown"):
            list(dataset)


# Tracebacks ---------------------------------------------------------------------------------------

SCRIPT = """
import sys
import numpy as np
import loaderx as lx

def check(value):
    if value == 5:
        raise ValueError("five")

def parse(record):
    check(record["x"])
    return record

class Files:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        check(index)
        return {"x": np.int64(index)}

def main(how, what):
    chain = lx.Dataset.from_arrays(x=np.arange(8))
    chain = {
        "map": lambda: chain.map(parse).batch(2),
        "stream": lambda: chain.filter(lambda r: True).map(parse).batch(2),
        "source": lambda: lx.Dataset.from_source(Files()).batch(2),
        "batch": lambda: chain.batch(2).map(lambda b: b["nothing"]),
        "builtin": lambda: lx.Dataset.from_source(["1", "x"]).map(int).batch(2),
    }[what]()
    if how == "dataset":
        for batch in chain:
            pass
    elif how == "index":
        chain[2]
    else:
        for batch in lx.DataLoader(chain, engine=how, num_workers=2):
            pass

main(*sys.argv[1:])
"""

NEXT, ITER = ("iterator.py", "__next__"), ("dataset.py", "__iter__")
MAIN = [("script.py", "<module>"), ("script.py", "main")]


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("tracebacks") / "script.py"
    path.write_text(SCRIPT)
    return path


def printed(script, *arguments, **environ):
    """What Python prints for the script: frames per traceback, in order, and all of the text."""
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(**environ),
    )
    assert done.returncode == 1
    blocks = done.stderr.split("Traceback (most recent call last):\n")[1:]
    found = re.compile(r'^ *File "(?:.*/)?([^/"]+)", line \d+, in (.+)$', re.MULTILINE)
    return [found.findall(block) for block in blocks], done.stderr


@pytest.mark.parametrize(
    ("how", "what", "user"),
    [
        ("inline", "map", ["parse", "check"]),
        ("inline", "source", ["__getitem__", "check"]),
        ("inline", "stream", ["parse", "check"]),
        ("inline", "batch", ["<lambda>"]),
        ("threads", "map", ["parse", "check"]),
        ("dataset", "map", ["parse", "check"]),
        ("dataset", "stream", ["parse", "check"]),
    ],
)
def test_a_traceback_shows_the_users_frames(script, how, what, user):
    (cause, raised), text = printed(script, how, what)
    assert cause == [("script.py", name) for name in user]
    assert raised == [*MAIN, ITER if how == "dataset" else NEXT]
    assert text.count("During handling of the above") == 0
    assert text.count("The above exception was the direct cause") == 1
    assert text.splitlines()[-1].startswith("loaderx.errors.RecordError: step ")


def test_an_element_by_its_index_shows_the_users_frames(script):
    (cause, raised), _ = printed(script, "index", "map")
    assert cause == [("script.py", "parse"), ("script.py", "check")]
    assert raised == [*MAIN, ("dataset.py", "__getitem__")]


def test_a_worker_process_shows_the_users_frames(script):
    (remote, raised), text = printed(script, "processes", "map")
    assert remote == [("script.py", "parse"), ("script.py", "check")]
    assert re.search(r"^ValueError: five\n\nIn worker \d \(pid \d+\):\nTraceback", text, re.M)
    assert raised == [*MAIN, NEXT]


def test_a_function_without_frames_has_its_message_alone(script):
    (raised,), text = printed(script, "inline", "builtin")
    assert raised == [*MAIN, NEXT]
    assert text.startswith("ValueError: invalid literal for int() with base 10: 'x'\n\nThe above")
    (raised,), text = printed(script, "processes", "builtin")
    assert raised == [*MAIN, NEXT]
    assert re.match(r"ValueError: invalid .*: 'x'\n\nIn worker \d \(pid \d+\)\.\n\nThe abo", text)


@pytest.mark.parametrize("how", ["inline", "threads", "processes"])
def test_all_frames_are_shown_if_asked_for(script, how):
    blocks, _ = printed(script, how, "map", LOADERX_TRACEBACK="full")
    cause = next(block for block in blocks if block[0][0] == "transforms.py")
    assert cause[1:] == [("script.py", "parse"), ("script.py", "check")]
    assert ("records.py", "read") in [frame for block in blocks for frame in block]


def test_what_a_user_function_raised_from_keeps_its_frames_in_a_worker_process():
    def inner():
        raise KeyError("inner")

    def outer(record):
        try:
            inner()
        except KeyError as error:
            raise ValueError("outer") from error

    loader = load(arrays(4).map(outer).batch(2), "processes")
    with loader, pytest.raises(RecordError) as caught:
        next(iter(loader))
    first = caught.value.__cause__
    assert (type(first), type(first.__cause__)) == (ValueError, KeyError)
    assert re.findall(r", in (\w+)", first.__notes__[0]) == ["outer"]
    assert re.findall(r", in (\w+)", first.__cause__.__notes__[0]) == ["outer", "inner"]


def test_pytest_shows_the_line_of_the_loop():
    with pytest.raises(RecordError) as caught:
        for _ in DataLoader(arrays(4).batch(2).map(lambda batch: 1 / 0), engine="inline"):
            pass
    shown = [entry.name for entry in caught.traceback.filter(caught)]
    assert shown == ["test_pytest_shows_the_line_of_the_loop"]


# Functions that take other arguments -------------------------------------------------------------

PAIRS = Dataset.from_arrays(np.arange(8.0), np.arange(8))


def calls_wrongly(record):
    return everything(record, 1)


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (
            PAIRS.map(lambda x, y: x),
            r"argument: 'y' \(map calls f\(element\), where a tuple is one element\)$",
        ),
        (
            PAIRS.filter(lambda x, y: x),
            r"\(filter calls f\(record\), where a tuple is one rec",
        ),
        (PAIRS.random_map(lambda r: r), r"2 were given \(random_map calls f\(element, rng\)\)$"),
        (
            PAIRS.random_map(lambda r, rng: r, seed_globals=True),
            r"argument: 'rng' \(random_map calls f\(element\)\)$",
        ),
        (
            PAIRS.map_with_index(lambda r: r),
            r"2 were given \(map_with_index calls f\(index, element\)\)$",
        ),
        (PAIRS.map(calls_wrongly), r"takes 1 positional argument but 2 were given$"),
        (
            PAIRS.random_map(lambda b, rng: b if rng.random() < 0.5 else b[::-1], batched=True),
            r"ambiguous.* \(f gets the rows of many records at once, and rng gives one draw for "
            r"each: use np\.where\(...\) for `if`\)$",
        ),
    ],
)
def test_a_function_that_is_called_in_another_way(chain, message):
    with pytest.raises(RecordError, match=message):
        list(chain.batch(4))


def test_a_condition_on_a_batch():
    batches = PAIRS.batch(4)
    for chain, rng in (
        (
            batches.random_map(lambda b, rng: b if rng.random() < 0.5 else b[::-1]),
            ", and rng gives one",
        ),
        (batches.map(lambda b: b if b[0] < 3 else -b), ": use np.where"),
        (PAIRS.filter(everything).batch(4).map(lambda b: b if b[0] < 3 else -b), ": use np.where"),
    ):
        with pytest.raises(RecordError, match=rf"ambiguous.*many records at once{rng}"):
            list(chain)


# Which records failed -----------------------------------------------------------------------------


def fragile(record):
    if record["x"] % 5 == 3:
        raise ValueError(f"bad {record['x']}")
    return record


def everything(record):
    return True


def listed(loader):
    return [(f.index, f.stage, f.error, f.step) for f in loader.stats().failures]


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
            "on_error. Nothing was left: the loader gave no batch. The first: map(none) failed on "
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


def test_without_a_log_nothing_is_printed(script):
    code = (
        "import loaderx as lx\n"
        "chain = lx.Dataset.from_source(['1', 'x']).map(int).on_error('replace').batch(2)\n"
        "assert [b.tolist() for b in lx.DataLoader(chain, engine='inline')] == [[1, 1]]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# A limit ------------------------------------------------------------------------------------------


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


# Giving up, deciding, skipping --------------------------------------------------------------------


def test_replace_says_how_often_it_tried():
    def never(record):
        raise ValueError(f"no {record['x']}")

    with pytest.raises(RecordError) as caught:
        list(arrays(9).map(never).on_error("replace").batch(3))
    assert re.fullmatch(
        r"step 0: map\(never\) failed on record 0: ValueError: no 0\. on_error tried 64 other "
        r"records in its place, and none could be read\. The first of them: map\(never\) failed on "
        r"record (\d): ValueError: no \1",
        str(caught.value),
    )
    assert caught.value.index == 0
    assert str(caught.value.__cause__) == "no 0"


def test_a_function_is_asked_once_for_each_record():
    asked = []

    def decide(error):
        asked.append((error.index, error.record, error.reason))
        return "replace"

    expected = [(i, f"record {i}", f"ValueError: bad {i}") for i in (3, 8, 13, 18)]
    base = arrays(20).map(fragile)
    for chain in (base.on_error(decide), base.filter(everything).on_error(decide)):
        asked.clear()
        list(load(chain.batch(5), "inline"))
        assert asked == expected
    asked.clear()
    with load(base.on_error(decide).batch(5), "processes") as loader:
        list(loader)
        assert asked == []  # it was asked in the workers
        assert [(f.index, f.record, f.error) for f in loader.stats().failures] == expected


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_a_function_of_on_error_that_fails_itself(engine):
    def confused(error):
        return {}["no such key"]

    def passes_on(error):
        raise error

    for chain in (arrays(20).map(fragile), arrays(20).map(fragile).filter(everything)):
        twice = chain.on_error(confused).on_error("replace").batch(5)  # never hidden
        with load(twice, engine) as loader, pytest.raises(RecordError) as caught:
            list(loader)
        assert str(caught.value) == (
            "step 0: the function given to on_error failed (KeyError: 'no such key') on: "
            "map(fragile) failed on record 3: ValueError: bad 3. It must return 'raise' or "
            "'replace'."
        )
        assert type(caught.value.__cause__) is KeyError
        said = r"^step 0: map\(fragile\) failed on record 3"
        given_back = load(chain.on_error(passes_on).batch(5), engine)
        with given_back, pytest.raises(RecordError, match=said):
            list(given_back)


def test_a_function_must_answer_with_one_of_two_words():
    said = (
        "the function given to on_error must return 'raise' or 'replace', got 'skip'. To leave "
        r'records out write on_error\("skip"\)\.$'
    )
    base = arrays(20).map(fragile)
    for chain in (base, base.filter(everything)):
        with pytest.raises(LoaderxError, match=said):
            list(chain.on_error(lambda error: "skip").batch(5))


@pytest.mark.parametrize("engine", ENGINES)
def test_skip_leaves_records_out_and_makes_a_stream(engine):
    base = arrays(40).shuffle(3).map(fragile)
    expected = [int(r["x"]) for r in arrays(40).shuffle(3) if r["x"] % 5 != 3]
    chain = base.on_error("skip").batch(4)
    with pytest.raises(TypeError, match="a stream has no length"):
        len(chain)
    with load(chain, engine) as loader:
        iterator = iter(loader)
        whole = [next(iterator)["x"].tolist()]
        state = iterator.get_state()
        whole += [batch["x"].tolist() for batch in iterator]
        assert [x for batch in whole for x in batch] == expected
        other = iter(loader.epoch(0))
        other.set_state(state)
        assert [batch["x"].tolist() for batch in other] == whole[1:]


def test_skip_covers_the_source_and_fits_between_other_stages():
    class Broken:
        def __len__(self):
            return 12

        def __getitem__(self, index):
            if index % 4 == 2:
                raise OSError("unreadable")
            return {"x": np.int64(index)}

    def numbers(dataset):
        return [int(record["x"]) for record in dataset]

    kept = [i for i in range(12) if i % 4 != 2]
    chain = Dataset.from_source(Broken()).on_error("skip")
    assert numbers(chain) == kept
    assert numbers(chain.take(3)) == kept[:3]
    assert numbers(chain.repeat(2)) == kept * 2
    assert numbers(chain.filter(lambda r: r["x"] % 2 == 0).on_error("skip")) == [0, 4, 8]
    assert chain.map(fragile).on_error("skip").element_spec["x"].shape == ()
    loader = load(chain.batch(3), "inline")
    list(loader)
    assert listed(loader)[0][:3] == (2, "reading the source", "OSError: unreadable")
    with pytest.raises(ChainError, match="global|window"):
        chain.shuffle(0)


def test_skip_on_two_hosts():
    chain = arrays(64).map(fragile).on_error("skip").repeat().batch(4, lanes=2)
    whole = load(chain, "inline")
    batches = [b["x"].tolist() for b, _ in zip(whole, range(20))]
    parts = [iter(load(chain, "inline", shard=(host, 2))) for host in (0, 1)]
    for batch in batches:
        assert [x for part in parts for x in next(part)["x"].tolist()] == batch


def odd_ones(n):
    if n % 5 == 4:
        raise ValueError(f"bad {n}")
    return [n] * 3


def kept(n):
    return n % 3 != 0


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
