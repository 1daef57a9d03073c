"""What users write and read of a planned mix: ramps and plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from loaderx.errors import ArgumentError, check_choice, check_int
from loaderx.frozen import Frozen
from loaderx.order.epochs import LIMIT

Weights: TypeAlias = Sequence[float] | Mapping[str, float]
"""A number for each dataset, in their order or by name."""


class Ramp(Frozen):
    """What `ramp` returns."""

    start: int
    stop: int
    to: Weights
    shape: Literal["linear", "cosine"] = "linear"


def ramp(start: int, stop: int, to: Weights, shape: Literal["linear", "cosine"] = "linear") -> Ramp:
    """Weights that change little by little, as an entry of the ``weights`` of `Dataset.mix`.

    From position ``start`` of the mix on, the share of every dataset goes from what it was to what
    ``to`` says, which it has from position ``stop`` on: in a straight line, or along half a cosine,
    which begins and ends slowly.  It does so in at most 256 steps.

    >>> from loaderx import Dataset, ramp
    >>> web, code = Dataset.range(0, 900), Dataset.range(1000, 1900)
    >>> mix = Dataset.mix({"web": web, "code": code}, [
    ...     (0, {"web": 1}),
    ...     ramp(100, 300, to={"web": 1, "code": 1}),
    ... ])
    >>> [mix.plan(n)["code"].rows for n in (100, 200, 300, 400)]
    [0, 12, 50, 100]
    """
    start, stop = check_int("start", start, least=0), check_int("stop", stop, least=1)
    if stop <= start or stop > LIMIT:
        raise ArgumentError(f"a ramp from {start} to {stop}: `stop` must be larger than `start`.")
    check_choice("shape", shape, ("linear", "cosine"))
    return Ramp(start, stop, to, shape)


class PartPlan(Frozen):
    """One part of a mix, up to a position: a row of `MixPlan`.

    Attributes:
        name: its name, or "0", "1", ... where the datasets of the mix have none.
        rows: its elements up to there.
        share: its share of all rows, or of all tokens where the weights count these.
        epochs: how often it has been read, as a fraction; None for a stream, or if it is endless.
        tokens: what the weights count, estimated by the mean length; None if they count rows.
        cap_at: the position of the mix where it has given all of its epochs and would be due
            again; None if that does not happen.
    """

    name: str
    rows: int
    share: float
    epochs: float | None
    tokens: int | None
    cap_at: int | None


class MixPlan(Frozen):
    """What `Dataset.plan` returns: the parts of a mix up to a position.

    Attributes:
        position: the number of elements of the mix up to there.
        parts: a `PartPlan` for each dataset; ``plan["name"]`` is that of one.
    """

    position: int
    parts: tuple[PartPlan, ...]

    def __getitem__(self, name: str) -> PartPlan:
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(name)

    def __repr__(self) -> str:
        names = [name for name in PartPlan._fields if any(_cell(p, name) for p in self.parts)]
        rows = [names, *[[_cell(part, name) for name in names] for part in self.parts]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in rows
        ]
        return "\n".join([f"the first {self.position:,} elements of the mix", *lines])


def _cell(part: PartPlan, name: str) -> str:
    value = getattr(part, name)
    if name == "share":
        return f"{value:.2%}"
    if name == "epochs" and value is not None:
        return f"{value:.3f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
