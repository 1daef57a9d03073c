"""Damaged input gives the right data or a `LoaderxError`, and nothing else: a short attack.

`fuzz.py` says how to run a long one.
"""

from __future__ import annotations

import pytest

import fuzz

MANY, FEW = 200, 60  # a case of a whole format takes longer


@pytest.mark.parametrize("target", list(fuzz.TARGETS))
def test_damaged_input_is_refused_or_read_correctly(target):
    cases = MANY if target in ("files", "states") else FEW
    outcome = fuzz.attack(target, 0, cases)
    assert not outcome.failures, "\n".join(
        f"seed {seed}: {what}" for seed, what in outcome.failures
    )
    assert sum(outcome.counts.values()) == cases
    assert outcome.counts["data"] > cases // 100, outcome  # not everything is refused ...
    if target != "cache":  # ... and the damage is real; what is cached is made again
        assert outcome.counts["refused"] > cases // 10, outcome
