"""Tracebacks show the user's frames, and loaderx's own to those who ask."""

from __future__ import annotations

import re
import subprocess
import sys
import traceback

import pytest

from chains import arrays
from failing import load
from loaderx import DataLoader, RecordError
from processes import environment

# Half of the records fail here; where the warning itself is meant, it is caught.
pytestmark = pytest.mark.filterwarnings("ignore:.*records have failed")


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
    assert re.search(r"^ValueError: five\n\nIn worker \d \(pid \d+\)\.\n\nThe above", text, re.M)
    assert raised == [*MAIN, NEXT]


def test_an_interrupt_shows_the_users_frames():
    def pressed(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        next(iter(DataLoader(arrays(4).map(pressed).batch(2), engine="inline")))
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames == ["test_an_interrupt_shows_the_users_frames", "__next__", "pressed"]


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
    assert ("one_to_one.py", "read") in [frame for block in blocks for frame in block]


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
    names = [
        [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        for error in (first, first.__cause__)
    ]
    assert names == [["outer"], ["outer", "inner"]]


def test_pytest_shows_the_line_of_the_loop():
    with pytest.raises(RecordError) as caught:
        for _ in DataLoader(arrays(4).batch(2).map(lambda batch: 1 / 0), engine="inline"):
            pass
    shown = [entry.name for entry in caught.traceback.filter(caught)]
    assert shown == ["test_pytest_shows_the_line_of_the_loop"]
