"""Exceptions that are raised in a worker."""

from __future__ import annotations

import re
import sys
import traceback

import pytest

from chains import arrays
from loaderx import DataLoader, LoaderxError, RecordError
from loaderx.engines import Processes


class Picky(Exception):
    """Cannot be unpickled: it wants two arguments and shows one."""

    def __init__(self, one, two):
        super().__init__(f"{one}-{two}")


def test_errors_that_cannot_travel_keep_their_message_and_traceback():
    def fail(record):
        if record["x"] == 5:
            raise Picky("a", "b")
        return record

    with DataLoader(arrays(12).map(fail).batch(2), engine=Processes(2)) as loader:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        with pytest.raises(RecordError) as caught:
            next(iterator)
    error = caught.value
    assert (error.index, error.stage, error.step) == (5, "map(fail)", 2)
    assert type(error.__cause__) is LoaderxError
    assert "Picky: a-b" in str(error.__cause__)
    (note,) = error.__cause__.__notes__
    assert re.fullmatch(r"\nIn worker \d \(pid \d+\)\.", note)
    (frame,) = traceback.extract_tb(error.__cause__.__traceback__)
    assert (frame.name, frame.line) == ("fail", 'raise Picky("a", "b")')


class Sealed(Exception):
    def __setattr__(self, name, value):
        raise AttributeError("sealed")


def test_exceptions_that_refuse_notes_still_arrive_at_their_step():
    def fail(record):
        if record["x"] == 5:
            raise Sealed("no")
        return record

    with DataLoader(arrays(12).map(fail).batch(2), engine=Processes(1)) as loader:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        with pytest.raises(RecordError, match="step 2: map") as caught:
            next(iterator)
    cause = caught.value.__cause__
    assert type(cause).__name__ == "Sealed"
    assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)] == ["fail"]
    assert "In worker" in cause.__notes__[0]


def test_the_traceback_of_a_cause_is_that_of_the_worker():
    def check(value):
        return {"x": (1 / (value - 3))}  # fails on 3

    def parse(record):
        return check(record["x"].item())

    loader = DataLoader(arrays(4).map(parse).batch(4), engine=Processes(1))
    with loader, pytest.raises(RecordError) as caught:
        next(iter(loader))
    cause = caught.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    frames = traceback.extract_tb(cause.__traceback__)
    assert [(frame.filename, frame.name) for frame in frames] == [
        (__file__, "parse"),
        (__file__, "check"),
    ]
    line = frames[1].line
    assert line == 'return {"x": (1 / (value - 3))}  # fails on 3'
    first = check.__code__.co_firstlineno
    assert frames[1].lineno == first + 1
    shown = "".join(traceback.format_exception(cause))
    marks = next(line for line in shown.splitlines() if set(line.strip()) == {"~", "^"})
    assert marks.strip() == "~~^~~~~~~~~~~~~"  # the division, as Python marks it
    with pytest.raises(ZeroDivisionError) as again:
        raise cause  # its frames stay below those of who raises it
    names = [frame.name for frame in traceback.extract_tb(again.value.__traceback__)]
    assert names[-2:] == ["parse", "check"]


def test_sys_exit_in_a_function_is_an_error_of_its_step():
    def leave(record):
        if record["x"] == 3:
            sys.exit("enough")
        return record

    with DataLoader(arrays(8).map(leave).batch(2), engine=Processes(1)) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(RecordError, match="failed on record 3: SystemExit: enough") as caught:
            next(iterator)
    assert isinstance(caught.value.__cause__, SystemExit)
