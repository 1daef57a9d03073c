"""Tests of what was measured: what is true of a quiet machine need not be true of a busy one."""

from __future__ import annotations

import functools
import os

import pytest

ATTEMPTS = 4


def measured(test):
    """Repeats a test that fails; if it fails every time on a busy machine, it is skipped.

    `benchmarks/doctor.py` measures the same programs on a quiet one.
    """

    @functools.wraps(test)
    def repeated(*given, **named):
        for _ in range(ATTEMPTS):
            try:
                return test(*given, **named)
            except AssertionError as error:
                failure = error
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
        if load > cores:
            pytest.skip(f"the machine is busy, with a load of {load:.1f} on {cores} cores")
        raise failure

    return repeated
