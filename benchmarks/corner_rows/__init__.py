"""A corner: a shape of data or of a chain that could be slow, beside the loop a user would write.

Both sides are measured in CPU seconds of the process and its children, making the stream included,
so that neither threads nor a busy machine hide a cost.  The ratio is ours by the plain loop's, at
the larger of two sizes; the growth is what a batch costs there by what it costs at the smaller one.
"""

from __future__ import annotations

import gc
import resource
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from figures import Bar, Row, row

from loaderx import DataLoader, Dataset
from loaderx.tree import flatten

Batches = Iterable[Any]
Side = Callable[[], Batches]
"""Makes a new stream of batches; making it counts."""

Make = Callable[[int, Path], tuple[Side, Side]]
"""Of a size and a folder for files: our side and the plain loop, which hand out the same shapes."""

BAR = Bar("<=", 2.0)


@dataclass(frozen=True, slots=True)
class Corner:
    """One row: ``Corner("name", make, sizes=(small, large))``.

    ``batches`` are taken of each stream; 1 for what is about opening, or the first batch.  Where
    the bar cannot be met, ``reason`` says why.
    """

    name: str
    make: Make
    sizes: tuple[int, int]
    batches: int = 256
    reason: str = ""

    def rows(self, quick: bool) -> list[Row]:
        small, large = self.sizes
        rounds, batches = (1, min(4, self.batches)) if quick else (5, self.batches)
        if quick:
            large = 2 * small
        few = self._costs(small, batches, rounds)
        many = self._costs(large, batches, rounds)
        ratios = [ours / plain for ours, plain in many]
        ours, plain = medians(many)
        before, plain_before = medians(few)
        note = (
            f"{ours * 1e6:,.0f} µs a batch, plain {plain * 1e6:,.0f}; from {small:,} to {large:,} "
            f"{ours / before:.2f}x, plain {plain / plain_before:.2f}x"
        )
        value = median(ratios)
        if self.reason and not BAR.met(value):
            note += f"; {self.reason}"
        return [row(self.name, BAR, value, ratios, note)]

    def _costs(self, size: int, batches: int, rounds: int) -> list[tuple[float, float]]:
        """The CPU seconds of a batch of both sides, round by round."""
        with tempfile.TemporaryDirectory() as folder:
            ours, plain = self.make(size, Path(folder))
            if looks(ours()) != looks(plain()):
                raise RuntimeError(f"the sides differ: {looks(ours())} and {looks(plain())}")
            return [(cost(ours, batches), cost(plain, batches)) for _ in range(rounds)]


def medians(costs: list[tuple[float, float]]) -> tuple[float, float]:
    return median(ours for ours, _ in costs), median(plain for _, plain in costs)


def cost(side: Side, batches: int) -> float:
    """The CPU seconds of a batch, of so many that are taken from a new stream."""
    gc.collect()
    begun = cpu_seconds()
    stream = iter(side())
    for batch in islice(stream, batches):  # noqa: B007 (a consumer holds its batch until the next)
        pass
    if hasattr(stream, "close"):
        stream.close()  # the time of children counts when they have ended
    return max(cpu_seconds() - begun, 1e-7) / batches


def cpu_seconds() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def looks(batches: Batches) -> list[tuple[str, tuple[int, ...]]]:
    """The dtype and shape of each leaf of the first batch."""
    leaves, _ = flatten(next(iter(batches)))
    return [(str(leaf.dtype), leaf.shape) for leaf in leaves]


def inline(dataset: Dataset[Any]) -> Side:
    """Our side of most corners: a loader in this thread."""

    def side() -> Iterator[Any]:
        with DataLoader(dataset, engine="inline") as loader:
            yield from loader

    return side
