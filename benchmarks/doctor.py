"""Does the doctor find what is slow, and what does listening cost?  Read `figures.py` first.

    python benchmarks/doctor.py [--quick] [--only NAME ...] [--json FILE]

causes          20 programs with one planted cause each: in how many it is the first that is named
healthy         5 programs that do not wait for their data: how many are called fine
headspace       how far the measured headspace is from the difference of two whole runs, one of
                which has its batches at hand, as a share of a step
tracing         what a trace adds to a batch of shuffled arrays of MNIST's shape

The programs are in `tests/support/slow_programs.py`.  All of it takes about three minutes, and
needs a machine with nothing else to do.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from core import images
from figures import Bar, Figures, Row, main, row

from loaderx import DataLoader, Dataset
from loaderx.loader.doctor.diagnosis import Diagnosis
from loaderx.loader.doctor.replay import Examination, Examined

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import slow_programs
from slow_programs import Program

ROUNDS = 7
STEPS = 60


def examined(program: Program) -> Diagnosis:
    examination = Examination()
    with examination.running(), contextlib.suppress(Examined):
        program.run()
    return examination.diagnosis()


def causes(quick: bool) -> list[Row]:
    makers = [*slow_programs.STEADY, *slow_programs.NEED_A_MACHINE][: 2 if quick else None]
    missed, waits = [], 0
    for make in makers:
        program = make()
        found = examined(program)
        first = found.causes[0].kind if found.causes else "nothing"
        if first != program.cause:
            missed.append(f"{make.__name__}: {first}")
        waits += found.verdict == "fine" and program.cause not in ("device", "first batch")
    named = len(makers) - len(missed)
    note = f"of {len(makers)}; missed: {', '.join(missed) or 'none'}; falsely fine: {waits}"
    return [row("causes", Bar(">=", 18, ""), named, [named], note)]


def healthy(quick: bool) -> list[Row]:
    makers = slow_programs.HEALTHY[: 1 if quick else None]
    found = [examined(make()) for make in makers]
    fine = sum(one.verdict == "fine" for one in found)
    shares = [one.headspace_ms / one.step_ms for one in found]
    note = "headspaces " + ", ".join(f"{share:.1%}" for share in shares)
    return [row("healthy", Bar(">=", 5, ""), fine, [fine], f"of {len(makers)}; {note}")]


def headspace(quick: bool) -> list[Row]:
    """A function that sleeps 2.5 ms for each of 8 records, and a step of 30 ms."""
    errors = []
    for _ in range(1 if quick else 3):
        found = examined(slow_program())
        program = slow_program()
        batches = list(islice(program.loader, 4))
        own = rate(islice(iter(program.loader), STEPS), program)
        replayed = rate((batches[n % 4] for n in range(STEPS)), program)
        true_ms = (own - replayed) * 1e3
        errors.append(abs(found.headspace_ms - true_ms) / found.step_ms * 100)
    note = f"{found.headspace_ms:.2f} ms of {found.step_ms:.2f} ms; by whole runs {true_ms:.2f} ms"
    return [row("headspace", Bar("<=", 3, "%"), median(errors), errors, note)]


def slow_program() -> Program:
    program = slow_programs.function_that_waits()
    return Program(program.loader, slow_programs.device_step(3), "function")


def rate(batches: Any, program: Program) -> float:
    begun = time.perf_counter()
    for batch in batches:
        program.step(batch)
    return (time.perf_counter() - begun) / STEPS


def tracing(quick: bool) -> list[Row]:
    x, y = images(3_000 if quick else 60_000)
    dataset = Dataset.from_arrays(image=x, label=y).shuffle(seed=0).batch(128).repeat()
    steps, added, share = 500 if quick else 10_000, [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            took = {}
            for is_traced in (False, True):
                with DataLoader(dataset, engine="inline") as loader:
                    iterator = iter(loader)
                    next(iterator)
                    if is_traced:
                        loader.trace(Path(folder, "trace.json"), steps=10 * steps)
                    begun = time.perf_counter()
                    for _ in range(steps):
                        next(iterator)
                    took[is_traced] = (time.perf_counter() - begun) / steps
            added.append((took[True] - took[False]) * 1e6)
            share.append(took[True] / took[False] - 1)
    note = f"{median(share):.1%} of a batch"
    return [row("tracing", Bar("<=", 3, "us"), median(added), added, note)]


FIGURES: Figures = {
    "causes": causes,
    "healthy": healthy,
    "headspace": headspace,
    "tracing": tracing,
}


if __name__ == "__main__":
    main(FIGURES, "the doctor")
