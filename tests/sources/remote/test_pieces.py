"""Pieces of files: marks that cannot be mistaken, and each piece for one who fetches it."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderx.sources.remote import pieces
from loaderx.sources.remote.pieces import PieceMarks, covered, runs_of

COUNT = 40


@pytest.fixture
def folder(tmp_path):
    """A folder with an empty map of 40 pieces."""
    (tmp_path / ".ranges").write_bytes(bytes(marks().nbytes))
    opened = os.open(tmp_path, os.O_RDONLY)
    yield opened
    os.close(opened)


def open_map(folder):
    return contextlib.closing(pieces.open_map(folder))


def marks(key="key"):
    return PieceMarks(key, COUNT * pieces.PIECE_BYTES)


@given(st.sets(st.integers(0, 60)))
def test_runs(numbers):
    found = runs_of(sorted(numbers))
    assert [n for first, stop in found for n in range(first, stop)] == sorted(numbers)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(found))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=8))
def test_covered(ranges):
    first = np.array([one for one, _ in ranges], np.int64)
    last = first + np.array([length for _, length in ranges], np.int64)
    expected = {n for one, length in ranges for n in range(one, one + length + 1)}
    assert covered(first, last).tolist() == sorted(expected)


def test_requests_join_pieces_that_follow_each_other():
    one = marks()
    found = one.requests(np.array([0, 1, 5, 7, 8, 9]))
    assert found == [(0, 2), (5, 6), (7, 10)]
    assert one.requests(np.arange(COUNT)) == [(0, 32), (32, 40)]
    assert [one.range_of(run) for run in found][1] == (5 << 18, 6 << 18)
    assert PieceMarks("key", 300_000).range_of((1, 2)) == (1 << 18, 300_000)


# Marks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lasting", [True, False])
def test_marks_are_read_as_they_were_written(folder, lasting):
    with open_map(folder) as found:
        marks().write(found.opened, 3, 7, lasting=lasting)
        assert np.flatnonzero(marks().read(found.opened)).tolist() == [3, 4, 5, 6]
        assert marks().read(found.opened, 2, 4).tolist() == [False, True]
        assert not marks("another file").read(found.opened).any()


def test_marks_of_another_boot_do_not_count(folder, monkeypatch):
    monkeypatch.setattr(pieces, "boot_id", lambda: "before")
    with open_map(folder) as found:
        marks().write(found.opened, 3, 7, lasting=False)
        marks().write(found.opened, 20, 22, lasting=True)
        monkeypatch.setattr(pieces, "boot_id", lambda: "after")
        assert np.flatnonzero(marks().read(found.opened)).tolist() == [20, 21]


def test_where_no_boot_is_told_marks_must_last(folder, monkeypatch):
    monkeypatch.setattr(pieces, "boot_id", lambda: "")
    assert marks().must_sync
    with open_map(folder) as found:
        marks().write(found.opened, 3, 5, lasting=False)
        monkeypatch.setattr(pieces, "boot_id", lambda: "after")
        assert np.flatnonzero(marks().read(found.opened)).tolist() == [3, 4]


@pytest.mark.parametrize("damage", [b"", b"\1" * 17, b"\1" * 160, b"\xff" * 160, bytes(500)])
def test_a_damaged_map_has_no_marks(folder, tmp_path, damage):
    (tmp_path / ".ranges").write_bytes(damage)
    with open_map(folder) as found:
        assert not marks().read(found.opened).any()


# Claims -----------------------------------------------------------------------------------------


def test_a_piece_is_claimed_once(folder):
    with open_map(folder) as one, open_map(folder) as other:
        assert one is other
        assert one.claim(marks(), 0, 4) == [(0, 4)]
        assert other.claim(marks(), 2, 8) == [(4, 8)]
        assert other.claim(marks(), 0, 8) == []
        one.release(0, 2)
        assert other.claim(marks(), 0, 8) == [(0, 2)]


def test_pieces_that_are_here_are_not_claimed(folder):
    with open_map(folder) as found:
        marks().write(found.opened, 2, 4, lasting=True)
        assert found.claim(marks(), 0, 6) == [(0, 2), (4, 6)]


OTHER = """
import os, sys
from loaderx.sources.remote.pieces import PIECE_BYTES, PieceMarks, open_map
marks = PieceMarks("key", 40 * PIECE_BYTES)
found = open_map(os.open(sys.argv[1], os.O_RDONLY))
claimed = found.claim(marks, 5, 9)
marks.write(found.opened, 5, 6, lasting=False)
print(claimed, flush=True)
sys.stdin.read()
"""


def test_other_processes_and_their_end(folder, tmp_path):
    command = [sys.executable, "-c", OTHER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(open_map(folder))
        assert found.claim(marks(), 6, 7) == [(6, 7)]
        child = stack.enter_context(subprocess.Popen(command, **pipes))
        assert child.stdout.readline() == "[(5, 6), (7, 9)]\n"
        with open_map(folder):
            pass  # a descriptor that is closed must not take the locks with it
        found.release(6, 7)
        assert found.claim(marks(), 0, 10) == [(0, 5), (6, 7), (9, 10)]
        child.kill()
        child.wait()
        assert found.claim(marks(), 0, 10) == [(7, 9)]  # the fifth is here


def test_a_fork_has_no_claims(folder):
    with open_map(folder) as found:
        assert found.claim(marks(), 0, 4) == [(0, 4)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python and JAX warn of forks
            child = os.fork()
        if not child:
            os._exit(0 if found.claim(marks(), 0, 8) == [(4, 8)] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert found.claim(marks(), 0, 8) == [(4, 8)]


def test_no_map(tmp_path):
    opened = os.open(tmp_path, os.O_RDONLY)
    assert pieces.open_map(opened) is None
    os.close(opened)
