"""The doctor: real programs with planted causes, and the rules by which causes are found.

Real programs sleep rather than work, so that a busy machine changes little; those which need a
quiet one are in `benchmarks/doctor.py`.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys
import types

import numpy as np
import pytest

import slow_programs
from loaderx import DataLoader, Dataset, LoaderxWarning, StateError
from loaderx.engines import Threads
from loaderx.engines.base import Made
from loaderx.loader.doctor import replay
from loaderx.loader.doctor.causes import diagnose, stages_in_loop
from loaderx.loader.doctor.evidence import Block, Evidence, Heard, gather
from loaderx.loader.doctor.replay import Examination, Examined
from loaderx.loader.doctor.usage import Times, Usage, Used, used_between
from loaderx.loader.trace import LOOP, NEXT, Event
from measured import measured
from slow_programs import Program, device_step, rows, sleepy_batch, sleepy_record

BUSY = "contended CPU"  # on a busy machine true, and not what was planted


def examine(program, **options):
    examination = Examination(48, **options)
    with examination.running(), pytest.raises(Examined):
        program.run()
    return examination.diagnosis()


@pytest.mark.parametrize("make", slow_programs.STEADY, ids=lambda make: make.__name__)
@measured
def test_a_planted_cause_is_named_first(make):
    program = make()
    found = examine(program)
    causes = [one for one in found.causes if one.kind != BUSY]
    assert causes, str(found)
    assert causes[0].kind == program.cause, str(found)
    if program.cause not in ("device", "first batch"):
        assert found.verdict in ("slow", "starved"), str(found)


@pytest.mark.parametrize("make", slow_programs.HEALTHY, ids=lambda make: make.__name__)
@measured
def test_healthy_programs_do_not_wait(make):
    found = examine(make())
    assert found.verdict in ("fine", "unclear"), str(found)


@measured
def test_a_predicted_fix_is_tried():
    found = examine(slow_programs.function_that_waits(), tries=True)
    assert found.causes[0].options["engine"] == "threads"
    assert found.tried_ms < 0.7 * found.step_ms
    assert "Tried the first fix: a step took" in str(found)


@measured
def test_a_fix_that_is_no_argument_is_not_tried():
    found = examine(slow_programs.waiting_for_a_device(), tries=True)
    assert (found.causes[0].kind, found.tried_ms) == ("device", None)


# Replaying ----------------------------------------------------------------------------------------


@pytest.fixture
def train():
    """Runs a loop over batches until the doctor ends it, and returns the examination."""

    def run(batches, step=lambda batch: None):
        examination = Examination(48)
        with examination.running(), pytest.raises(Examined):
            for batch in batches(examination):
                step(batch)
        return examination

    return run


def test_a_step_may_change_its_batch(train):
    def step(batch):
        x = batch.pop("x")
        assert x[0, 0] % 32 == 0
        x += 1
        batch["list"].append(1)
        assert batch["list"] == [0, 1]

    chain = rows().batch(8).map(lambda batch: {**batch, "list": [0]})
    assert train(lambda _: DataLoader(chain.repeat(), engine="inline"), step).repeated


def test_a_batch_that_cannot_be_copied_is_copied_leaf_by_leaf(train):
    file = open(__file__, encoding="utf-8")  # noqa: SIM115

    def step(batch):
        assert batch.pop("file") is file
        assert batch["x"][0, 0] % 32 == 0
        batch["x"] += 1

    chain = rows().batch(8).map(lambda batch: {**batch, "file": file})
    with file:
        train(lambda _: DataLoader(chain.repeat(), engine="inline"), step)


def test_a_loop_that_is_one_batch_ahead_may_give_its_batches_away(train):
    import jax

    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    loader = DataLoader(rows().batch(8).repeat(), engine="inline", sharding=jax.devices()[0])

    def ahead(_):
        iterator = iter(loader)
        batch = next(iterator)
        for following in iterator:
            yield batch
            batch = following

    train(ahead, lambda batch: add(batch["x"]))


def test_an_evaluation_before_the_training_is_given_up(train):
    test = DataLoader(rows().take(200).batch(8), engine="inline")
    loader = DataLoader(rows().batch(8).repeat(), engine="inline")

    def batches(_):
        yield from test
        yield from iter(loader)

    train(batches)


def test_a_loader_that_is_made_anew_in_each_epoch_is_one_loop(train):
    def batches(_):
        for epoch in range(100):
            yield from DataLoader(rows().take(200).shuffle(seed=epoch).batch(8), engine="inline")

    assert train(batches).diagnosis().pairs == 3


@measured
def test_the_first_fix_is_tried_on_loaders_that_are_made_anew():
    examination, seen = Examination(48, tries=True), []
    with examination.running(), pytest.raises(Examined):
        for epoch in range(100):
            chain = rows().take(64).map(sleepy_record).map(lambda _, epoch=epoch: epoch)
            for batch in DataLoader(chain.batch(8), engine="inline"):
                seen.append((epoch, int(batch[0])))
    assert examination.diagnosis().tried_ms is not None
    last = seen[-16:]  # all of them in the trial
    assert [of for of, _ in last] == [epoch for _, epoch in last]


def test_a_move_ends_the_replay(train):
    moved = []

    def batches(examination):
        iterator = iter(DataLoader(rows().batch(8).repeat(), engine="inline"))
        state = iterator.get_state()
        for _ in range(1000):
            yield next(iterator)
            if len(moved) < 2 and examination.repeated > len(moved):
                if moved:
                    iterator.set_state(state)
                else:
                    iterator.seek(5)
                moved.append(int(next(iterator)["x"][0, 0]) // 32)

    assert train(batches).diagnosis().pairs == 3
    assert moved == [5, 0]


def test_closing_the_loader_loses_no_evidence(train):
    loader = DataLoader(rows().take(64).batch(8), engine="inline")

    def batches(_):
        while True:
            yield from loader
            loader.close()

    for block in train(batches).real:
        assert sum(event.name == NEXT for event in block.recording.events) == block.steps


def test_a_trace_is_not_written_and_that_is_said(train, tmp_path):
    loader = DataLoader(rows().batch(8).repeat(), engine="inline")

    def batches(_):
        with pytest.warns(LoaderxWarning, match="no file is written"):
            loader.trace(tmp_path / "steps.json")
        return iter(loader)

    train(batches)
    assert not (tmp_path / "steps.json").exists()


def test_several_processes_are_refused(train, monkeypatch):
    monkeypatch.setattr(replay, "processes", lambda: (0, 2))
    examination = train(lambda _: DataLoader(rows().batch(8), engine="inline"))
    assert "loaderx.jax.fleet(loader)" in examination.refusal
    assert not examination.repeated


def test_checkpoints_of_orbax_are_refused_once_batches_were_repeated(train, monkeypatch):
    class CheckpointManager:
        def save(self, step):
            return step

    orbax = types.SimpleNamespace(CheckpointManager=CheckpointManager)
    manager, refused = CheckpointManager(), []

    def batches(examination):
        for batch in DataLoader(rows().batch(8).repeat(), engine="inline"):
            monkeypatch.setitem(sys.modules, "orbax.checkpoint", orbax)  # imported late
            yield batch
            try:
                assert manager.save(step=1) == 1
                assert not examination.repeated
            except StateError:
                refused.append(examination.repeated)

    train(batches)
    assert refused[0] == 1
    assert manager.save(1) == 1  # afterwards


def test_a_program_that_ends_by_itself_hears_of_few_blocks_and_of_repeated_batches():
    examination = Examination(48)
    with examination.running():
        assert len(list(DataLoader(rows().batch(8).take(50), engine="inline"))) > 50
    found = examination.diagnosis()
    assert found.pairs == 1
    assert found.repeated
    assert "From 1 of 3 pairs of blocks: a guess." in str(found).replace("\n", " ")
    said = f"{found.repeated} batches were repeated: do not keep what this run has saved."
    assert said in str(found)


def test_states_of_an_examined_run_are_refused_once_batches_were_repeated():
    loader = DataLoader(rows().batch(8), engine="inline")
    examination, told = Examination(48), []

    def train():
        while True:
            iterator = iter(loader)
            for _ in iterator:
                try:
                    (pickle.dumps if len(told) % 2 else type(iterator).get_state)(iterator)
                except StateError as error:
                    told.append(str(error))
                else:
                    assert not examination.repeated
                    pickle.dumps(iterator)

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


def test_arrays_of_jax_are_copied_only_if_steps_take_them_over(train):
    """Copies of large ones take time, on a CPU as much as placing them."""
    import jax

    loader, seen = DataLoader(rows().batch(8), engine="inline", sharding=jax.devices()[0]), []

    def batches(_):
        while True:
            yield from loader

    train(batches, lambda batch: seen.append(batch["x"]))
    assert len({id(one) for one in seen[-8:]}) == replay.KEPT


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
    used_s=0.030,
    cores=4,
)


UNEVEN = [0.001] * 99 + [2.0]


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
    changes = {"engine": "threads(2)", "cpu_s": 0.020, "blocked_s": 0.020, "turn_s": 0.005}
    assert kinds(**changes) == ["GIL"]
    assert kinds(**changes | {"turn_s": 0.0002})[0] == "function"
    asleep = changes | {"cpu_s": 0.001, "blocked_s": 0.039}
    assert kinds(**asleep)[0] == "function"  # the loop is what is busy


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


def test_transfers_go_on_behind_next():
    """What a step waits for, though `next` has returned long before."""
    quick = {"waits": [(False, 0.002)] * 100, "place_s": 0.003, "cpu_s": 0.002}
    placement, *_ = diagnose(dataclasses.replace(SEEN, **quick)).causes
    assert (placement.kind, placement.share_ms) == ("placement", pytest.approx(18))
    assert "takes 18 ms, of which the loop is in `next` for 3 ms" in placement.evidence
    assert kinds(**quick, delayed_s=0.004)[0] != "placement"  # but workers take the step's CPUs


def test_what_comes_late_from_a_worker_is_transport():
    assert kinds(engine="processes(2)", handing_s=0.018)[0] == "transport"


def test_threads_are_not_told_to_use_threads():
    said = {
        engine: diagnose(dataclasses.replace(SEEN, engine=engine, handing_s=0.018)).causes[0]
        for engine in ("processes(2)", "threads(2)")
    }
    assert [one.options.get("engine") for one in said.values()] == ["threads", None]
    assert "use threads" not in said["threads(2)"].fix


def test_a_stage_that_runs_in_the_loop_is_no_work_for_other_engines():
    for engine in ("inline", "threads(2)"):
        seen = dataclasses.replace(SEEN, engine=engine, in_loop_s={"map(f)": 0.018})
        first, *others = diagnose(seen).causes
        assert (first.kind, first.share_ms, first.options) == ("function", pytest.approx(18), {})
        assert first.evidence == "map(f) takes 18 ms of each step, in the loop's own thread."
        assert [one.kind for one in others] == ["source"]


def test_stages_of_a_stream_that_run_in_the_loop():
    def found(dataset):
        iterator = iter(DataLoader(dataset, engine="inline"))
        return stages_in_loop(replay.work_of(iterator))

    stream = rows().filter(lambda record: True).map(sleepy_record).batch(8).map(sleepy_batch)
    assert found(stream) == {"map(sleepy_batch)"}
    assert found(rows().batch(8).map(sleepy_batch)) == set()
    in_order = Dataset.from_iterable(lambda: [{"x": 1.0}]).map(sleepy_record)
    assert "map(sleepy_record)" in found(in_order.batch(1))


def test_compilation_is_named_also_if_the_data_is_fine():
    assert kinds(compile_s=0.015)[0] == "compilation"
    assert kinds(gap_s=0.0, compile_s=0.015)[0] == "compilation"


def test_waits_of_first_steps_are_the_start_of_epochs():
    waits = [(True, 0.2)] * 10 + [(False, 0.0)] * 90
    assert kinds(waits=waits) == ["epoch start"]


def test_some_tasks_that_take_far_longer():
    assert kinds(task_s=UNEVEN) == ["uneven records"]
    # A thread that had no CPU for long is no uneven record.
    delayed = kinds(task_s=UNEVEN, cpu_s=0.001, delayed_s=0.019)
    assert delayed[0] == BUSY


def test_uneven_records_have_their_whole_share():
    function, uneven, *_ = diagnose(dataclasses.replace(SEEN, task_s=[0.001] * 6 + [0.006])).causes
    assert uneven.share_ms == pytest.approx(20 * 5 / 12)
    assert uneven.kind == "uneven records"
    assert function.share_ms == pytest.approx((20 - uneven.share_ms) * 0.9)


def test_a_fix_for_an_engine_of_the_users_is_not_tried(monkeypatch):
    examination = Examination(48, tries=True)
    for engine, is_tried in (("executor(1)", False), ("threads(1)", True)):
        seen = dataclasses.replace(SEEN, engine=engine, task_s=[0.001] * 99 + [0.5])
        found = diagnose(seen)
        assert [*found.causes[0].options] == ["prefetch"]
        monkeypatch.setattr(examination, "diagnosis", lambda found=found: found)
        assert examination.begins_trial() == is_tried


def test_uneven_records_that_are_too_slow_on_average_need_more_workers():
    waits = {"engine": "threads(2)", "task_s": UNEVEN, "cpu_s": 0.001, "blocked_s": 0.020}
    uneven, *_ = diagnose(dataclasses.replace(SEEN, **waits)).causes
    assert uneven.kind == "uneven records"
    assert uneven.options == {"engine": "threads", "num_workers": 3}


def test_what_no_stage_explains_is_unknown():
    """Waits that are longer than all stages: of few batches, for example, while workers start."""
    seen = dataclasses.replace(SEEN, steps=0, is_measured=False, stage_s={"map(f)": 0.001})
    assert [one.kind for one in diagnose(seen).causes] == ["unknown", "function"]
    assert kinds(cpu_s=0.0, stage_s={"map(f)": 0.0}) == ["unknown"]


def test_without_workers_nobody_keeps_batches_ready():
    code = diagnose(dataclasses.replace(SEEN, task_s=UNEVEN)).causes[0].code
    assert code == 'DataLoader(dataset, engine="threads", num_workers=1, prefetch=8)'


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


# Evidence -----------------------------------------------------------------------------------------


def block(heard):
    """Two calls of `next`, from 0 to 1 and from 2 to 3."""
    heard.events += [Event(LOOP, NEXT, at, at + 1.0, {"step": at}) for at in (0, 2)]
    used = Used(Times(), Times(), Times(), Times(), 0, frozenset())
    return Block(2, 3.0, heard, used, frozenset(), 0.0, 3.0)


def heard(*tasks):
    """A recording of tasks, which ended and arrived at these times."""
    made = Heard()
    for ended, arrived in tasks:
        made.tasks.append((Made("worker 0", ended - 0.5, ended), (0,), None, None))
        made.arrivals.append(arrived)
    return made


@pytest.mark.parametrize(
    ("tasks", "handing_s"),
    [
        ([(0.25, 0.75)], 0.25),  # 0.5 s for two steps
        ([(1.5, 2.25)], 0.125),  # it was ready when `next` was called
        ([(0.25, 0.5), (0.25, 0.75)], 0.25),  # two in one call, one after the other
        ([(0.75, 0.75)], 0.0),  # then stages of the loop's own
    ],
)
def test_handing_over_is_from_the_end_of_a_task_until_it_arrives(tasks, handing_s):
    found = gather(Evidence("processes(1)", 1.5, 1.0, is_measured=True), [block(heard(*tasks))])
    assert found.handing_s == pytest.approx(handing_s)


def test_tasks_that_auto_has_tried_say_nothing_about_a_loop_without_workers():
    found = gather(Evidence("inline", 1.5, 1.0, is_measured=True), [block(heard((0.25, 0.75)))])
    assert found.handing_s == 0
    assert list(found.task_s) == []


def test_workers_that_ended_are_missing():
    before, after = Usage([]), Usage([])
    before.workers = {"a": Times(1.0), "b": Times(1.0), "c": Times(1.0)}
    after.workers = {"a": Times(3.0), "b": Times(0.5), "d": Times(4.0)}  # "b" is another one now
    used = used_between(before, after, Times())
    assert used.workers == Times(2.0)
    assert "CPU time of workers that ended meanwhile" in used.missing


# From statistics ----------------------------------------------------------------------------------


@measured
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


@measured
def test_stats_have_a_verdict():
    with DataLoader(rows().take(64).map(sleepy_record).batch(8), engine="inline") as loader:
        list(loader)
    assert loader.stats().verdict == "the data is the bottleneck, see loader.doctor()"


def test_watching_prints_to_terminals_only(monkeypatch, capsys):
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
