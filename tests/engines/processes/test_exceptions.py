"""Exceptions that are raised in a worker."""

from __future__ import annotations

import re
import sys

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
    assert re.match(r"\nIn worker \d \(pid \d+\):\nTraceback", note)
    assert 'raise Picky("a", "b")' in note


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
        with pytest.raises(RecordError, match="step 2: map"):
            next(iterator)


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
