"""``loaderx replay``."""

from __future__ import annotations

import asyncio
import json
import sys

import numpy as np
import pytest

from loaderx import DataLoader, cli

SCRIPT = """
import numpy as np
from loaderx import DataLoader, Dataset

def chain():
    images = np.arange(40.0).reshape(20, 2)
    return Dataset.from_arrays(x=images, label=np.arange(20)).shuffle(seed=0).batch(4)

def other():
    return chain().map(abs)

def host():
    return DataLoader(chain(), shard=(1, 2))

def stream():
    parts = {"a": Dataset.range(100), "b": Dataset.range(100, 150).shuffle(seed=1)}
    return Dataset.mix(parts, [2, 1]).filter(lambda x: x % 3 > 0).batch(8)

def number():
    return 5

def of_path(path):
    return path

def failing():
    raise KeyError("no such split")

def importing():
    import no_such_package
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The module of a user, in a folder with the states of its runs; and its functions."""
    (tmp_path / "script_to_replay.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    functions: dict[str, object] = {}
    exec(SCRIPT, functions)
    for name, steps in (("chain", 3), ("stream", 5)):
        iterator = iter(DataLoader(functions[name](), engine="inline"))
        for _ in range(steps):
            next(iterator)
        (tmp_path / f"{name}.json").write_text(json.dumps(iterator.get_state()))
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        asyncio.run(saved(iterator, tmp_path / "checkpoints" / name))
    (tmp_path / "broken_script.py").write_text("def chain(:\n")
    (tmp_path / "empty").mkdir()
    for step in (3, 4):  # as Orbax writes them with JsonSave
        for item in ("data", "params", "options/metadata"):
            (tmp_path / "orbax" / str(step) / item).mkdir(parents=True)
        place = tmp_path / "orbax" / str(step)
        (place / "data" / "metadata").write_text((tmp_path / "chain.json").read_text())
        (place / "params" / "metadata").write_text('{"rate": 0.1}')
    yield functions
    sys.modules.pop("script_to_replay", None)


async def saved(iterator, folder):
    await (await iterator.save(folder))


def replayed(capsys, function, state, step, *more):
    given = [f"script_to_replay:{function}", "--state", state, "--step", str(step), *more]
    code = cli.main(["replay", *given])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_batch_of_a_chain(script, capsys):
    code, out, err = replayed(capsys, "chain", "chain.json", 12, "--show", "--npz", "batch.npz")
    batch = list(DataLoader(script["chain"](), engine="inline").epoch(2))[2]
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == ["step 12: 4 records", "row  index  epoch"]
    assert [int(line.split()[1]) for line in lines[2:6]] == batch["label"].tolist()
    assert lines[6] == "the dataset has 5 steps: this one is in loop 3 over it"
    assert lines[7].startswith("x      float64[4,2]  from ")
    assert lines[9] == "written to batch.npz"
    with np.load("batch.npz") as found:
        assert all(np.array_equal(found[name], leaf) for name, leaf in batch.items())
        assert sorted(found) == ["label", "x"]


@pytest.mark.parametrize("place", ["orbax/3", "orbax/3/data", "orbax/3/data/metadata"])
def test_a_state_that_orbax_has_written_as_json(script, capsys, place):
    told = replayed(capsys, "chain", place, 4)
    assert told == replayed(capsys, "chain", "chain.json", 4)
    assert told[0] == 0
    assert told[1].startswith("step 4: 4 records\n")
    assert "loop" not in told[1]


@pytest.mark.parametrize("step", [2, 5, 7])
def test_a_batch_of_a_stream_from_its_state(script, capsys, step):
    code, out, _ = replayed(capsys, "stream", "checkpoints/stream", step, "--npz", "batch.npz")
    assert code == 0
    assert out.startswith(f"step {step}: 8 records\nrow  part  index  epoch\n")
    expected = list(script["stream"]())[step]
    assert np.array_equal(np.load("batch.npz")["batch"], expected)


def test_the_rows_of_a_host(script, capsys):
    _, out, _ = replayed(capsys, "host", "chain.json", 1, "--npz", "rows")
    expected = list(script["host"]())[1]
    assert np.array_equal(np.load("rows")["x"], expected["x"])
    assert out.startswith("step 1: 2 records\n")


def test_a_file_that_cannot_be_written(script, capsys):
    code, _, err = replayed(capsys, "chain", "chain.json", 1, "--npz", "missing/batch.npz")
    assert code == 2
    assert (
        err == "loaderx replay: missing/batch.npz cannot be written: No such file or directory.\n"
    )


@pytest.mark.parametrize(
    ("function", "state", "step", "message"),
    [
        (
            "script_to_replay:other",
            "chain.json",
            "1",
            "the state belongs to another chain: it did not have the stage map(function='abs'). "
            "script_to_replay:other must make the dataset as it was then.",
        ),
        (
            "script_to_replay:number",
            "chain.json",
            "1",
            "script_to_replay:number must return the Dataset or the DataLoader of the run, and it "
            "returned int.",
        ),
        (
            "script_to_replay.py:chain",
            "chain.json",
            "1",
            "'script_to_replay.py:chain' must be MODULE:FUNCTION, such as train:make_dataset for "
            "the function make_dataset of train.py in this folder.",
        ),
        (
            "no_such_script:chain",
            "chain.json",
            "1",
            "there is no module 'no_such_script' in this folder, nor is one installed: run the "
            "command in the folder of your script.",
        ),
        ("script_to_replay:missing", "chain.json", "1", "has no function 'missing'."),
        (
            "script_to_replay:chain",
            "nowhere",
            "1",
            "there is no file or folder nowhere.",
        ),
        (
            "script_to_replay:chain",
            "empty",
            "1",
            "empty has no state of a loader (no file like part-0-of-1.json).",
        ),
        ("script_to_replay:of_path", "chain.json", "1", "of_path must take no arguments."),
        (
            "script_to_replay:failing",
            "chain.json",
            "1",
            "script_to_replay:failing failed: KeyError: 'no such split' (script_to_replay.py, "
            "line 26)",
        ),
        (
            "script_to_replay:importing",
            "chain.json",
            "1",
            "script_to_replay:importing failed: ModuleNotFoundError: No module named "
            "'no_such_package' (script_to_replay.py, line 29)",
        ),
        ("broken_script:chain", "chain.json", "1", "broken_script failed: SyntaxError: "),
        (
            "script_to_replay:chain",
            "orbax",
            "1",
            "orbax has several states, choose one: orbax/3/data/metadata, orbax/4/data/metadata.",
        ),
        (
            "script_to_replay:chain",
            "checkpoints",
            "1",
            "checkpoints has several states, choose one: checkpoints/chain, checkpoints/stream.",
        ),
        ("script_to_replay:chain", "script_to_replay.py", "1", "script_to_replay.py is damaged: "),
        (
            "script_to_replay:stream",
            "stream.json",
            "900",
            "there is no step 900: the stream ends before it.",
        ),
    ],
)
def test_what_cannot_be_replayed(script, capsys, function, state, step, message):
    code = cli.main(["replay", function, "--state", state, "--step", step])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("loaderx replay: ")
    assert message in err
    assert err.count("\n") == 1
