"""Progress of long work, with a clock that the tests set."""

from __future__ import annotations

import io
import sys

import pytest

from loaderx.sources import progress as module
from loaderx.sources.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def test_a_terminal_has_one_line(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress("reading x", 4_000_000) as shown:
        shown.add(500_000)
        assert sys.stderr.getvalue() == ""  # short work says nothing
        clock[0] += 2
        shown.add(500_000)
        shown.add(1)  # too soon for another
        clock[0] += 1
        shown.add(999_999)
    assert sys.stderr.getvalue().split("\r\x1b[K") == [
        "",
        "loaderx: reading x: 25% of 4.0 MB, 0:06 left",
        "loaderx: reading x: 50% of 4.0 MB, 0:03 left",
        "",
    ]


def test_a_log_file_has_few_lines(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress("checking", 10_000, unit="records") as shown:
        for _ in range(10_000):
            clock[0] += 0.125
            shown.add(1)
    lines = sys.stderr.getvalue().splitlines()
    assert lines[0] == "loaderx: checking: 1% of 10,000 records, 20:40 left"
    assert len(lines) == 8  # in twenty minutes


def test_an_unknown_total(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress("counting", None, " rows") as shown:
        clock[0] += 11
        shown.add(1234)
    assert sys.stderr.getvalue() == "loaderx: counting: 1,234 rows\n"
