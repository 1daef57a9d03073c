"""Does a contender make what it should: the bytes of the reference, or the rest of an epoch?"""

from __future__ import annotations

from typing import Any

from suite.augmented import wrong_effects
from suite.checks import MASK, disagreement
from suite.entry import Entry
from suite.training import SUM_MASK

NOT_SHUFFLED = "NOT SHUFFLED: the records come as they lie in the data"


def agree(entry: Entry, answer: dict[str, Any], expected: dict[str, Any]) -> None:
    """Are these the bytes of the reference?"""
    tolerance = 0.05 if entry.workload.own_draws else 0.01 if entry.own_decoder else None
    wrong = disagreement(answer["digest"], expected["digest"], tolerance)
    if wrong is None and entry.workload.shuffled and not answer["shuffled"]:
        entry.fail("error", NOT_SHUFFLED)
        return
    if wrong is None and entry.workload.own_draws:
        wrong = wrong_effects(answer["effects"], entry.workload.does)
    if wrong is None and tolerance is None and answer["epoch_sum"] != expected["epoch_sum"]:
        wrong = f"sum {answer['epoch_sum']}, expected {expected['epoch_sum']}"
    if wrong:
        entry.fail("error", f"CHECKSUM DISAGREES: {wrong}")


def agree_on_rest(entry: Entry, answer: dict[str, Any]) -> None:
    """Is what follows after restoring the rest of the epoch?"""
    if not answer["permutation"]:
        entry.fail("error", "an epoch is not every record once")
    elif not answer["shuffled"]:
        entry.fail("error", NOT_SHUFFLED)
    elif not answer["exact"]:
        entry.fail("error", "what follows after restoring is not the rest of the epoch")


def wrong_round(entry: Entry, answer: dict[str, Any]) -> str | None:
    """What is wrong with a timed round, or None."""
    if answer["records"] != entry.size * entry.epochs:
        return f"a timed round made {answer['records']} records"
    mask = SUM_MASK if entry.workload.does == "step" else MASK
    same = answer["sum"] == entry.epoch_sum * entry.epochs & mask
    if not (same or entry.workload.own_draws):
        return "CHECKSUM DISAGREES: a timed round made other bytes"
    return None
