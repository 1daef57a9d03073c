"""What the doctor says."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from loaderx.frozen import Frozen
from loaderx.loader.stats import LITTLE, MUCH

FINE, SLOW, STARVED = LITTLE, MUCH, 2 * MUCH  # shares of a step that is spent on data
SHOWN_CAUSES = 3
ROUNDS = 3  # pairs of blocks that make a verdict


class Cause(Frozen):
    """One reason why steps take longer than they have to: an entry of `Diagnosis.causes`.

    Attributes:
        kind: one word or two, such as ``function``, ``GIL``, ``disk``, ``placement``.
        share_ms: how much of each step it takes.
        evidence: what was measured.
        fix: what to change.
        code: the same as code to write; empty if there is none.
        predicted_ms: how long a step is expected to take afterwards; None if that is not known.
        options: the arguments of `DataLoader` in the code, if these are all that changes.
    """

    kind: str
    share_ms: float
    evidence: str
    fix: str
    code: str = ""
    predicted_ms: float | None = None
    options: Mapping[str, Any] = {}


class Diagnosis(Frozen):
    """Whether a loop waits for its data, and why: what `DataLoader.doctor` returns.

    Attributes:
        verdict: ``fine`` (below 3 % of a step), ``unclear``, ``slow`` (from 10 % on), ``starved``
            (from 20 % on), or ``unknown`` without any steps.
        step_ms: how long a step takes.
        headspace_ms: how much of it the data cost.
        is_measured: True if steps with replayed batches were measured as well; else the headspace
            is the time that the loop has waited.
        engine: the engine that ran.
        causes: the largest first.
        missing: signals that could not be had, so that causes may be missing, too.
        tried_ms: how long a step took with the first fix, if that was tried.
        pairs: how many pairs of blocks were measured, one with new and one with repeated batches.
        repeated: how many batches were handed out again: what such a run has saved is worthless.
    """

    verdict: str
    step_ms: float
    headspace_ms: float
    is_measured: bool
    engine: str
    causes: tuple[Cause, ...] = ()
    missing: tuple[str, ...] = ()
    tried_ms: float | None = None
    pairs: int = 0
    repeated: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Everything as numbers, strings, lists and dicts: for JSON, or a logger of metrics."""
        found = {name: getattr(self, name) for name in self._fields}
        found["causes"] = [
            {**{name: getattr(cause, name) for name in cause._fields}, "options": {**cause.options}}
            for cause in self.causes
        ]
        return {**found, "missing": list(self.missing)}

    @property
    def _headline(self) -> str:
        if self.verdict == "unknown":
            return "unknown: too few steps were seen."
        share = self.headspace_ms / self.step_ms if self.step_ms else 0.0
        how = "replayed batches" if self.is_measured else "waits"
        said = {
            "fine": "the data is not the bottleneck",
            "unclear": "the data may cost some time",
            "slow": "the data slow training down",
            "starved": "training waits for its data",
        }[self.verdict]
        few = f" From {self.pairs} of {ROUNDS} pairs of blocks: a guess."
        return (
            f"{self.verdict}: {said}. A step takes {_ms(self.step_ms)}, of which data cost "
            f"{_ms(max(0.0, self.headspace_ms))} ({max(0.0, share):.0%}, by {how}). "
            f"Engine: {self.engine}.{few if 0 < self.pairs < ROUNDS else ''}"
        )

    def __str__(self) -> str:
        lines = textwrap.wrap(self._headline, 100)
        for number, cause in enumerate(self.causes[:SHOWN_CAUSES], 1):
            told = f"{number}. {cause.kind} ({_ms(cause.share_ms)}): {cause.evidence} {cause.fix}"
            lines += textwrap.wrap(told + _predicted(cause), 100, subsequent_indent="   ")
            if cause.code:
                lines.append(f"       {cause.code}")
        if self.tried_ms is not None:
            worse = ", so it does not help" * (self.tried_ms > 0.95 * self.step_ms)
            lines.append(f"Tried the first fix: a step took {_ms(self.tried_ms)}{worse}.")
        if self.repeated:
            said = f"{self.repeated:,} batches were repeated: do not keep what this run has saved."
            lines.append(said)
        if self.missing:
            lines += textwrap.wrap(f"Not known here: {', '.join(self.missing)}.", 100)
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape  # for notebooks only

        rows = ["<tr><th>cause</th><th>a step</th><th>evidence</th><th>fix</th><th></th></tr>"]
        for cause in self.causes:
            cells = cause.kind, _ms(cause.share_ms), cause.evidence, cause.fix + _predicted(cause)
            told = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            rows.append(f"<tr>{told}<td><code>{escape(cause.code)}</code></td></tr>")
        table = f"<table>{''.join(rows)}</table>" if self.causes else ""
        return f"<p>{escape(self._headline)}</p>{table}"


def verdict_of(step_s: float, headspace_s: float) -> str:
    """The verdict for a share of a step.

    >>> verdict_of(0.1, 0.002), verdict_of(0.1, 0.05)
    ('fine', 'starved')
    """
    share = headspace_s / step_s if step_s > 0 else 0.0
    if share < FINE:
        return "fine"
    if share < SLOW:
        return "unclear"
    return "slow" if share < STARVED else "starved"


def _predicted(cause: Cause) -> str:
    if cause.predicted_ms is None:
        return ""
    return f" A step is then expected to take {_ms(cause.predicted_ms)}."


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.2g} ms" if milliseconds < 10 else f"{milliseconds:,.0f} ms"
