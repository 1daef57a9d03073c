"""The doctor: real programs with planted causes, and the rules by which causes are found.

Real programs sleep rather than work, so that a busy machine changes little; those which need a
quiet one are in `benchmarks/doctor.py`.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import slow_programs
from loaderx import DataLoader, Dataset, StateError
from loaderx.engines import Threads
from loaderx.loader.doctor.causes import diagnose
from loaderx.loader.doctor.evidence import Evidence
from loaderx.loader.doctor.replay import Examination, Examined
from slow_programs import Program, device_step, rows, sleepy_record

BUSY = "contended CPU"  # on a busy machine true, and not what was planted


def examine(program, **options):
    examination = Examination(48, **options)
    with examination.running(), pytest.raises(Examined):
        program.run()
    return examination.diagnosis()


@pytest.mark.parametrize("make", slow_programs.STEADY, ids=lambda make: make.__name__)
def test_a_planted_cause_is_named_first(make):
    program = make()
    found = examine(program)
    causes = [one for one in found.causes if one.kind != BUSY]
    assert causes, str(found)
    assert causes[0].kind == program.cause, str(found)
    if program.cause not in ("device", "first batch"):
        assert found.verdict in ("slow", "starved"), str(found)


@pytest.mark.parametrize("make", slow_programs.HEALTHY, ids=lambda make: make.__name__)
def test_healthy_programs_do_not_wait(make):
    found = examine(make())
    assert found.verdict in ("fine", "unclear"), str(found)


def test_a_predicted_fix_is_tried():
    found = examine(slow_programs.function_that_waits(), tries=True)
    assert found.causes[0].options["engine"] == "threads"
    assert found.tried_ms < 0.7 * found.step_ms
    assert "Tried the first fix: a step took" in str(found)


def test_a_fix_that_is_no_argument_is_not_tried():
    found = examine(slow_programs.waiting_for_a_device(), tries=True)
    assert (found.causes[0].kind, found.tried_ms) == ("device", None)


# Replaying ----------------------------------------------------------------------------------------


def test_states_of_an_examined_run_are_refused_once_batches_were_repeated():
    loader = DataLoader(rows().batch(8), engine="inline")
    examination, told = Examination(48), []

    def train():
        while True:
            iterator = iter(loader)
            for _ in iterator:
                try:
                    iterator.get_state()
                except StateError as error:
                    told.append(str(error))
                else:
                    assert not examination.repeated

    with examination.running(), pytest.raises(Examined):
        train()
    assert examination.repeated
    assert set(told) == {
        "this program is examined by the doctor, which repeats batches: states and checkpoints of "
        "such a run are worth nothing, and are not made."
    }


def test_replayed_batches_do_not_move_the_iterator():
    """In real blocks the stream goes on where it was; in replayed ones the last batches come."""
    loader, seen = DataLoader(rows().batch(8).repeat(), engine="inline"), []
    examination = Examination(48)

    def train():
        for batch in loader:
            seen.append((examination.repeated, int(batch["x"][0, 0]) // 32))

    with examination.running(), pytest.raises(Examined):
        train()
    steps = [step for _, step in seen]
    real = [step for number, step in enumerate(steps) if step == max(steps[: number + 1])]
    assert sorted(set(real)) == list(range(max(steps) + 1))  # none is left out
    assert len(steps) > len(set(steps))  # and some came again


def test_a_step_that_takes_over_its_batch_gets_copies():
    import jax

    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    loader = DataLoader(rows().batch(8), engine="inline", sharding=jax.devices()[0])
    examination = Examination(48)

    def train():
        while True:
            for batch in loader:
                step(batch["x"]).block_until_ready()

    with examination.running(), pytest.raises(Examined):
        train()
    assert examination.diagnosis().verdict != "unknown"


def test_other_loaders_run_as_ever():
    train, test = DataLoader(rows().batch(8), engine="inline"), rows().take(64).batch(8)
    examination, counts = Examination(48), []

    def run():
        while True:
            for step, _ in enumerate(train):
                if step % 30 == 0:
                    counts.append(len(list(DataLoader(test, engine="inline"))))

    with examination.running(), pytest.raises(Examined):
        run()
    assert set(counts) == {8}


def test_everything_is_as_before_afterwards():
    examine(Program(DataLoader(rows().batch(8), engine="inline"), device_step(0), ""))
    iterator = iter(DataLoader(rows().batch(8), engine="inline"))
    next(iterator)
    assert iterator.get_state()["step"] == 1


def test_too_few_steps_are_said():
    examination = Examination()
    with examination.running():
        list(DataLoader(rows().take(64).batch(8), engine="inline"))
    assert str(examination.diagnosis()) == "unknown: too few steps were seen."


# Rules --------------------------------------------------------------------------------------------

SEEN = Evidence(
    engine="inline",
    step_s=0.030,
    gap_s=0.020,
    is_measured=True,
    steps=100,
    waits=[(False, 0.020)] * 100,
    task_s=[0.020] * 100,
    stage_s={"source": 0.002, "map(f)": 0.018},
    cpu_s=0.020,
    user_stages=frozenset(["map(f)"]),
    process_busy=1.0,
    cores=4,
)


def kinds(**changes):
    return [cause.kind for cause in diagnose(dataclasses.replace(SEEN, **changes)).causes]


def test_a_function_that_works_needs_processes():
    cause = diagnose(SEEN).causes[0]
    assert cause.kind == "function"
    assert cause.evidence == "map(f) takes 18 ms of the 20 ms that a batch takes, and works."
    assert cause.code == 'DataLoader(dataset, engine="processes", num_workers=4)'
    assert cause.predicted_ms == pytest.approx(10)  # what a step takes without its data


def test_a_function_that_waits_needs_threads():
    cause = diagnose(dataclasses.replace(SEEN, cpu_s=0.001, blocked_s=0.019)).causes[0]
    assert cause.evidence.endswith("and waits.")
    assert cause.code == 'DataLoader(dataset, engine="threads", num_workers=3)'


def test_threads_that_wait_for_each_other_hold_the_gil():
    changes = {"engine": "threads(2)", "cpu_s": 0.020, "blocked_s": 0.020}
    assert kinds(**changes) == ["GIL"]
    assert kinds(**changes, process_busy=2.0)[0] == "function"
    assert kinds(**changes, process_busy=0.1)[0] == "function"


def test_a_cpu_that_is_not_free_is_no_fault_of_the_function():
    assert kinds(cpu_s=0.005, delayed_s=0.015)[0] == "contended CPU"
    assert kinds(cpu_s=0.018, delayed_s=0.002)[0] == "function"


def test_sources_that_wait():
    changes = {"stage_s": {"source": 0.020}, "cpu_s": 0.001, "blocked_s": 0.019}
    assert kinds(**changes) == ["source"]
    assert kinds(**changes, fetches=True) == ["network"]
    assert kinds(**changes, disk_bytes=1e6) == ["disk"]
    assert kinds(stage_s={"source": 0.020}) == ["source"]


def test_placing_comes_off_the_gap_first():
    assert kinds(place_s=0.015)[0] == "placement"
    assert kinds(place_s=0.002)[0] == "function"


def test_what_comes_late_from_a_worker_is_transport():
    assert kinds(engine="processes(2)", handing_s=0.018)[0] == "transport"


def test_compilation_is_named_also_if_the_data_is_fine():
    assert kinds(compile_s=0.015)[0] == "compilation"
    assert kinds(gap_s=0.0, compile_s=0.015)[0] == "compilation"


def test_waits_of_first_steps_are_the_start_of_epochs():
    waits = [(True, 0.2)] * 10 + [(False, 0.0)] * 90
    assert kinds(waits=waits) == ["epoch start"]


def test_some_tasks_that_take_far_longer():
    assert kinds(task_s=[0.001] * 99 + [2.0]) == ["uneven records"]
    # A thread that had no CPU for long is no uneven record.
    delayed = kinds(task_s=[0.001] * 99 + [2.0], cpu_s=0.001, delayed_s=0.019)
    assert delayed[0] == BUSY


def test_missing_signals_are_named():
    found = diagnose(dataclasses.replace(SEEN, missing=frozenset(["CPU time of threads"])))
    assert str(found).endswith("Not known here: CPU time of threads.")


@pytest.mark.parametrize(
    ("gap_s", "verdict"), [(0.0, "fine"), (0.0015, "unclear"), (0.004, "slow"), (0.02, "starved")]
)
def test_verdicts(gap_s, verdict):
    found = diagnose(dataclasses.replace(SEEN, gap_s=gap_s))
    assert found.verdict == verdict
    assert str(found).startswith(f"{verdict}: ")


def test_a_diagnosis_can_be_logged_and_shown():
    found = diagnose(SEEN)
    assert json.loads(json.dumps(found.as_dict()))["causes"][0]["kind"] == "function"
    assert "<table>" in found._repr_html_()
    assert "<b>" not in diagnose(dataclasses.replace(SEEN, engine="<b>"))._repr_html_()


# From statistics ----------------------------------------------------------------------------------


def test_a_loader_is_asked_without_any_replay():
    with DataLoader(rows().take(64).map(sleepy_record).batch(8), engine=Threads(1)) as loader:
        list(loader)
        found = loader.doctor()
    assert found.verdict == "starved"
    assert not found.is_measured
    assert found.causes[0].kind == "function"
    assert "Not known here" in str(found)


def test_a_loader_that_did_nothing_is_not_known():
    assert DataLoader(Dataset.range(10)).doctor().verdict == "unknown"


def test_stats_have_a_verdict():
    with DataLoader(rows().take(64).map(sleepy_record).batch(8), engine="inline") as loader:
        list(loader)
    assert loader.stats().verdict == "the data is the bottleneck, see loader.doctor()"


def test_watching_prints_to_terminals_only(monkeypatch, capsys):
    import sys

    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        with DataLoader(Dataset.from_arrays(np.arange(64)).batch(8), engine="inline") as loader:
            loader.watch(every=1e-9)
            list(loader)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == (8 if is_terminal else 0)
    assert lines[-1].startswith("loaderx: step 7, ")
    with pytest.raises(ValueError, match="`every` must be a number of seconds above 0, got 0"):
        loader.watch(every=0)
