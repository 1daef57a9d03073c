"""Damaged input gives the right data or a `LoaderxError`, and nothing else: a short attack.

`fuzz.py` says how to run a long one.
"""

from __future__ import annotations

import pytest

import fuzz

CASES = 400


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_damaged_input_is_refused_or_read_correctly(target):
    outcome = fuzz.attack(target, 0, CASES)
    assert not outcome.failures, "\n".join(
        f"seed {seed}: {what}" for seed, what in outcome.failures
    )
    assert sum(outcome.counts.values()) == CASES
    assert outcome.counts["refused"] > CASES // 10, outcome  # the damage is real ...
    assert outcome.counts["data"] > CASES // 100, outcome  # ... and not everything is refused
