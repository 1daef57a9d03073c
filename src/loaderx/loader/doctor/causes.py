"""From evidence to causes: which part of the gap is whose, and what to change."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Mapping
from statistics import mean, median
from typing import Any, NamedTuple

from loaderx.chain.stream_stage import stream_cut
from loaderx.engines.base import Work
from loaderx.loader.doctor.diagnosis import Cause, Diagnosis, verdict_of
from loaderx.loader.doctor.evidence import Evidence
from loaderx.loader.tasks.units import UnitWork
from loaderx.sources import Source

SMALL_SHARE = 0.03  # of a step: smaller causes are not named
HIGH = 0.5  # share of making from which it is CPU-bound, blocked, delayed
DELAYED = 0.3
CONTENDED = 0.1  # share of a gap that what makes batches waits for a CPU, from which steps do, too
UNEVEN = 4.0  # times the usual: what takes longer is far from it
UNEVEN_SHARE = 0.3  # of the whole time, from which what is far from the usual is a cause
TURN_S = 0.1 * sys.getswitchinterval()  # a thread that waits so long waits for other threads
MOST_THREADS = 16
FIRST_S = 2.0  # a first batch that takes longer is worth a word
FIRST_STEPS = 20.0
DISK_BYTES_S = 1e6  # below that, what blocks is no disk


def user_stages(work: Work) -> frozenset[str]:
    """The stages that are functions of the user's."""
    return frozenset(name for name, part in work.parts() if not isinstance(part, Source))


def stages_in_loop(work: Work) -> frozenset[str]:
    """The stages of a stream that run in the loop's thread with any engine."""
    if not isinstance(work, UnitWork) or work._node is None:
        return frozenset()
    cut = None if work.is_in_order else stream_cut(work._node)
    above = itertools.takewhile(lambda node: node is not cut, work._node.below())
    return frozenset(node.stage for node in above)


def diagnose(evidence: Evidence) -> Diagnosis:
    """The verdict and its causes."""
    has_steps = evidence.step_s > 0
    verdict = verdict_of(evidence.step_s, evidence.gap_s) if has_steps else "unknown"
    causes: list[Cause] = []
    if verdict != "fine" and has_steps:
        causes = sorted(_causes_of_gap(evidence), key=lambda one: -one.share_ms)
        least = SMALL_SHARE * evidence.step_s * 1e3
        causes = [one for one in causes if one.share_ms >= least] or causes[:1]
    others = list(_other_causes(evidence))
    causes = [*causes, *others] if verdict in ("slow", "starved") else [*others, *causes]
    return Diagnosis(
        verdict=verdict,
        step_ms=evidence.step_s * 1e3,
        headspace_ms=evidence.gap_s * 1e3,
        is_measured=evidence.is_measured,
        engine=evidence.engine,
        causes=tuple(causes),
        missing=tuple(sorted(evidence.missing)),
    )


def _causes_of_gap(seen: Evidence) -> Iterator[Cause]:
    """Divides the gap: compiling, placing, the loop's own stages, handing over, making."""
    left = seen.gap_s
    if seen.compile_s > SMALL_SHARE * seen.step_s:
        share = min(left, seen.compile_s)
        left -= share
        yield _compilation(seen, share)
    if seen.place_s:
        behind = max(0.0, left - seen.place_s - sum(wait for _, wait in seen.waits) / seen.steps)
        # Transfers go on behind `next`; so do workers, which may take the CPUs of the step.
        share = min(left, seen.place_s + behind * (seen.delayed_s < CONTENDED * seen.gap_s))
        left -= share
        yield _placement(seen, share)
    for stage, seconds in seen.in_loop_s.items():
        share = min(left, seconds)
        left -= share
        yield _in_loop(seen, stage, share)
    if _holds_gil(seen):
        yield _gil(seen, left)
        return
    handing = min(left, seen.handing_s)
    if handing > HIGH * left:
        left -= handing
        yield _transport(seen, handing)
    starting = left * _share_of_first_steps(seen)
    if starting:
        left -= starting
        yield _epoch_start(seen, starting)
    peaks, peaking = _peaks(seen)
    if peaks:
        share = left * peaking
        left -= share
        yield _uneven(seen, share, peaks)
    yield from _making(seen, max(0.0, left))


def _share_of_first_steps(seen: Evidence) -> float:
    """The share of all waits that first steps of epochs add to the usual wait."""
    others = [wait for is_first, wait in seen.waits if not is_first]
    if not others or len(others) < len(seen.waits) / 2:
        return 0.0  # the epochs are too short to tell
    usual, total = median(others), sum(wait for _, wait in seen.waits)
    added = sum(max(0.0, wait - usual) for is_first, wait in seen.waits if is_first)
    return added / total if added > UNEVEN_SHARE * total else 0.0


def _peaks(seen: Evidence) -> tuple[int, float]:
    """How many tasks take far longer than usual, and their share of the time of all."""
    total = sum(seen.task_s)
    if not total:
        return 0, 0.0
    usual = median(seen.task_s)
    peaks = [took - usual for took in seen.task_s if took > UNEVEN * usual]
    # A thread without a CPU makes any task look slow.
    share = (sum(peaks) - total * seen.delayed_s / (seen.made_s or 1.0)) / total
    return (len(peaks), share) if share > UNEVEN_SHARE else (0, 0.0)


def _making(seen: Evidence, share: float) -> Iterator[Cause]:
    """Why making elements takes long."""
    made = seen.made_s or 1e-12
    delayed = seen.delayed_s / made
    if delayed > DELAYED:
        yield _contended(seen, share * delayed)
        share *= 1.0 - delayed
    stages = {name: took for name, took in seen.stage_s.items() if name not in seen.in_loop_s}
    total = sum(stages.values())
    # From statistics alone there are waits, of which the start of workers may be a part.
    known = (share if seen.steps else min(share, total)) if total else 0.0
    for stage, seconds in sorted(stages.items() if total else (), key=lambda one: -one[1]):
        part = known * seconds / total
        if stage in seen.user_stages:
            yield _function(seen, stage, part)
        elif stage == "source":
            yield _source(seen, part)
        else:
            yield _stage(seen, stage, part)
    if share > known:
        yield _unknown(share - known)


def _holds_gil(seen: Evidence) -> bool:
    is_threads = seen.engine.startswith("threads(") and seen.workers > 1
    is_blocked = seen.blocked_s > 0.15 * seen.made_s
    # Else they wait for something else, and the loop is what is busy.
    is_busy = seen.workers * seen.cpu_s > HIGH * (seen.cpu_s + seen.blocked_s)
    return is_threads and is_blocked and is_busy and seen.turn_s > TURN_S


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms" if seconds < 0.01 else f"{seconds * 1e3:,.0f} ms"


def _after(seen: Evidence, share: float) -> float:
    """Milliseconds of a step without a share of its gap."""
    return max(seen.without_s, seen.step_s - share) * 1e3


def _with_workers(seen: Evidence, workers: float) -> float:
    """Milliseconds of a step with so many workers, and no more CPUs than there are."""
    own_s = seen.without_s + sum(seen.in_loop_s.values())
    return max(own_s, (seen.cpu_s + seen.blocked_s) / workers, seen.used_s / seen.cores) * 1e3


class _Fix(NamedTuple):
    """What to change."""

    words: str
    code: str = ""
    predicted_ms: float | None = None
    options: Mapping[str, Any] = {}

    def cause(self, kind: str, share: float, evidence: str) -> Cause:
        words, code, predicted, options = self
        return Cause(kind, share * 1e3, evidence, words, code, predicted, options)


def _loader(words: str, predicted_ms: float | None, **options: Any) -> _Fix:
    """A fix that changes arguments of the loader."""
    given = ", ".join(
        f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
        for name, value in options.items()
    )
    return _Fix(words, f"DataLoader(dataset, {given})", predicted_ms, options)


def _more_workers(seen: Evidence) -> _Fix:
    """So that more is made at once."""
    blocked = seen.blocked_s > HIGH * seen.made_s
    if blocked:  # it waits: threads can wait for many things at once
        needed = math.ceil(1.25 * seen.made_s / max(seen.without_s, 1e-4))
        workers = int(max(seen.workers + 1, min(MOST_THREADS, needed)))
        words = "It waits most of the time, so let more of it wait at once."
        predicted = _with_workers(seen, workers)
        return _loader(words, predicted, engine="threads", num_workers=workers)
    if seen.workers < seen.cores:
        words, predicted = f"Use all {seen.cores} cores.", _with_workers(seen, seen.cores)
        return _loader(words, predicted, engine="processes", num_workers=seen.cores)
    if not seen.steps:
        return _loader(
            f"All {seen.cores} cores have a worker. If it waits (for a network, a lock), use more "
            "threads than cores; if it works, make it cheaper.",
            None,
            engine="threads",
            num_workers=MOST_THREADS,
        )
    return _Fix(
        f"All {seen.cores} cores are in use: make it cheaper (whole arrays after .batch() instead "
        "of single records), or keep what it makes.",
        "dataset.cache(folder)  # before what is random; or dataset.save(folder), once",
    )


def _function(seen: Evidence, stage: str, share: float) -> Cause:
    evidence = (
        f"{stage} takes {_ms(seen.stage_s[stage])} of the {_ms(seen.made_s)} that a batch takes"
    )
    if seen.steps:
        evidence += ", and waits" if seen.blocked_s > HIGH * seen.made_s else ", and works"
    return _more_workers(seen).cause("function", share, f"{evidence}.")


def _in_loop(seen: Evidence, stage: str, share: float) -> Cause:
    fix = _Fix(
        "No engine takes that off the loop: of a stream, workers run what is before .batch(...), "
        "if its data are read by index.",
        "dataset.map(f, batched=True).batch(n)  # not .batch(n).map(f)",
    )
    kind = "function" if stage in seen.user_stages else stage.partition("(")[0]
    evidence = f"{stage} takes {_ms(seen.in_loop_s[stage])} of each step, in the loop's own thread."
    return fix.cause(kind, share, evidence)


def _stage(seen: Evidence, stage: str, share: float) -> Cause:
    evidence = f"{stage} takes {_ms(seen.stage_s[stage])} of the {_ms(seen.made_s)} of a batch."
    return _more_workers(seen).cause(stage.partition("(")[0], share, evidence)


def _source(seen: Evidence, share: float) -> Cause:
    took = seen.stage_s["source"]
    said = f"Reading takes {_ms(took)} of the {_ms(seen.made_s)} that a batch takes"
    if not seen.steps:
        return _more_workers(seen).cause("source", share, f"{said}.")
    if seen.blocked_s < HIGH * seen.made_s:
        return _more_workers(seen).cause("source", share, f"{said}, and works.")
    if seen.disk_bytes / max(seen.step_s, 1e-9) > DISK_BYTES_S:
        return Cause(
            "disk",
            share * 1e3,
            f"{said}, and waits for the disk ({seen.disk_bytes / 1e6:,.1f} MB a step).",
            "Read in blocks, or save the data once as plain columns; more threads read more at "
            "once.",
            "dataset.shuffle(seed=0, block=...)  # or dataset.save(folder)",
        )
    if seen.fetches:
        return Cause(
            "network",
            share * 1e3,
            f"{said}, and waits for the network.",
            "Copy the data once, or fetch more at once.",
            "dataset.save(folder)  # or LOADERX_AHEAD_BYTES=1000000000",
        )
    said += ", and waits: for a network, a lock or a device, but not for this machine's disk."
    return _more_workers(seen).cause("source", share, said)


def _gil(seen: Evidence, share: float) -> Cause:
    predicted = max(seen.without_s, seen.cpu_s / seen.cores, seen.used_s / seen.cores) * 1e3
    fix = _loader("Use worker processes.", predicted, engine="processes", num_workers=seen.cores)
    evidence = (
        f"{seen.workers:.0f} threads wait for each other, since Python runs one thread at a time: "
        f"one more waits {_ms(seen.turn_s)} for its turn."
    )
    return fix.cause("GIL", share, evidence)


def _contended(seen: Evidence, share: float) -> Cause:
    ready = seen.delayed_s / (seen.made_s or 1.0)
    evidence = f"{ready:.0%} of the time of a batch is waiting for a free CPU of {seen.cores}."
    if seen.workers > seen.cores:
        words = f"There are {seen.workers:.0f} workers for {seen.cores} cores: take fewer."
        return _loader(words, None, num_workers=seen.cores).cause("contended CPU", share, evidence)
    words = (
        "Other programs, or the training step, use the cores: give the loader cores of its own, or "
        "make batches elsewhere (engines.Ray) or once (dataset.save(folder))."
    )
    return _Fix(words).cause("contended CPU", share, evidence)


def _placement(seen: Evidence, share: float) -> Cause:
    return Cause(
        "placement",
        share * 1e3,
        f"Placing a batch on the devices takes {_ms(share)}, of which the loop is in `next` for "
        f"{_ms(min(share, seen.place_s))}.",
        "Send less: bytes (uint8) instead of floats, converted inside the step; or a smaller type.",
        "",
        _after(seen, share),
    )


def _transport(seen: Evidence, share: float) -> Cause:
    evidence = f"A finished batch takes {_ms(seen.handing_s)} to come from its worker."
    words = "Return plain arrays of a fixed dtype instead of Python objects, or hold fewer batches."
    if seen.engine.startswith("threads("):
        return _Fix(words).cause("transport", share, evidence)
    fix = _loader(f"{words} Or use threads, which share memory.", None, engine="threads")
    return fix.cause("transport", share, evidence)


def _epoch_start(seen: Evidence, share: float) -> Cause:
    return Cause(
        "epoch start",
        share * 1e3,
        "The loop waits for the first batch of each epoch: nothing is made ahead while one ends.",
        "Run all epochs through one iterator, so that the next one is begun in time.",
        "DataLoader(dataset.repeat(num_epochs))",
        _after(seen, share),
    )


def _uneven(seen: Evidence, share: float, peaks: int) -> Cause:
    usual = median(seen.task_s) if seen.task_s else 0.0
    longest = max(seen.task_s, default=0.0)
    keeps_up = bool(seen.task_s) and mean(seen.task_s) / max(1.0, seen.workers) < seen.without_s
    evidence = (
        f"{peaks} of {len(seen.task_s)} batches took far longer than the others: {_ms(usual)} is "
        f"usual, {_ms(longest)} the longest."
    )
    if seen.workers and not keeps_up:
        return _more_workers(seen).cause("uneven records", share, evidence)
    # Without a worker there is nobody who keeps any ready.
    worker = {} if seen.workers else {"engine": "threads", "num_workers": 1}
    fix = _loader(
        "Keep more batches ready, so that a slow one holds up nobody.",
        _after(seen, share) if keeps_up else None,
        **worker,
        prefetch=int(max(8, 4 * max(1.0, seen.workers))),
    )
    return fix.cause("uneven records", share, evidence)


def _compilation(seen: Evidence, share: float) -> Cause:
    return Cause(
        "compilation",
        share * 1e3,
        f"JAX compiled during the steps, {_ms(seen.compile_s)} a step: shapes or types change.",
        "Give all batches one shape.",
        "dataset.batch(n, drop_remainder=True)  # or pad_remainder=True, pad_to=...",
        _after(seen, share),
    )


def _unknown(share: float) -> Cause:
    evidence = "It is in no stage that was timed: workers start, or batches wait to be handed over."
    fix = _Fix("Find out.", "loaderx doctor train.py")
    return fix.cause("unknown", share, evidence)


def _other_causes(seen: Evidence) -> Iterator[Cause]:
    """What is slow, and is not the data."""
    is_fine = seen.step_s > 0 and verdict_of(seen.step_s, seen.gap_s) == "fine"
    if is_fine and seen.compile_s > SMALL_SHARE * seen.step_s:
        yield _compilation(seen, seen.compile_s)
    if seen.first_s > max(FIRST_S, FIRST_STEPS * seen.step_s):
        yield Cause(
            "first batch",
            seen.first_s * 1e3,
            f"The first batch took {seen.first_s:.1f} s, once.",
            "Begin to load while the model is built.",
            "iterator = iter(loader); iterator.start()",
        )
    if is_fine and seen.is_measured and seen.loop_blocked_s > HIGH * seen.step_s:
        yield Cause(
            "device",
            seen.loop_blocked_s * 1e3,
            f"The loop waits {_ms(seen.loop_blocked_s)} of each step, not in the loader: for the "
            "device, or for whatever the step calls.",
            "If the loop reads a result in every step (print, float(loss)), read it every 100.",
        )
