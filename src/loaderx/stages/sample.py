"""sample: elements drawn by weight, with replacement, anew in every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from loaderx.chain.encoding import Encoded, encode, stage_text
from loaderx.chain.families import Below, MovedByIndex
from loaderx.chain.node import Node
from loaderx.errors import ArgumentError, ArgumentTypeError, ChainError
from loaderx.order.alias import AliasTable, alias_table
from loaderx.order.epochs import child
from loaderx.reading.operators import Move
from loaderx.reading.rows import Positions
from loaderx.reading.trails import SIDES, Find, Found, Sought, Traced, Trail, numbered
from loaderx.rng import ORDER, Keys, fold, fold_int
from loaderx.stages.seed import seed_of
from loaderx.tree import Leaf

_AT_ONCE = 1 << 18  # draws that are looked at together


class Sampled(MovedByIndex):
    """``count`` elements, each drawn by weight from all of the input."""

    weights: npt.NDArray[np.float64]  # the largest is 1
    count: int
    own_seed: int | None = None

    is_random = True
    repeats_here = 1

    def __post_init__(self) -> None:
        check_drawable(self.input)

    @property
    def length(self) -> int:
        return self.count

    @property
    def stage(self) -> str:
        count = "" if self.count == self.input.length else f", {self.count}"
        seed = "" if self.own_seed is None else f", seed={self.own_seed}"
        return f"sample(weights{count}{seed})"

    def fingerprint(self, seed: int) -> str:
        named = {"weights": self._weights, "n": self.count, "seed": seed_of(self.own_seed, seed)}
        return stage_text("sample", named)

    @cached_property
    def _weights(self) -> Encoded:
        """The text of the weights, cached: there may be millions, and every epoch needs it."""
        return Encoded(encode(self.weights))

    @cached_property
    def uniform(self) -> bool:
        return self.input.uniform or (self.input.only_last_is_short and not self.weights[-1])

    @property
    def is_one_dataset(self) -> bool:
        # A record that cannot be read is replaced by another draw, so weights still hold.
        return self.input.is_one_dataset

    @property
    def shuffle_span(self) -> int | None:
        return self.count

    @cached_property
    def table(self) -> AliasTable:
        return alias_table(self.weights)

    def move(self, seed: int) -> Move:
        own = seed_of(self.own_seed, seed)
        return Sample(self.table, self.count, own, self.random_stages, self.repeats)

    def _moved(self, below: Below, seed: int) -> Below:
        undrawn = object.__new__(type(below))  # not `copy`, which may prepare it to be pickled
        undrawn.__dict__.update(below.__dict__, moves=[*below.moves])
        made = super()._moved(below, seed)
        move = made.moves[0]
        assert isinstance(move, Sample)
        move.undrawn = undrawn
        return made


class Sample(Move):
    """Draws from an alias table, addressed by epoch and position.

    Every draw is read under a child key of its epoch: a record that is drawn again has other random
    numbers.
    """

    undrawn: Traced  # the operator without this move, and those above it

    def __init__(
        self, table: AliasTable, count: int, seed: int, ordinal: int, repeats: int
    ) -> None:
        self.table, self.count, self.repeats = table, count, repeats
        self.stage = np.array([fold_int(seed, ordinal, ORDER)], np.uint64)

    def steps(self, epochs: Keys, positions: Positions) -> tuple[Keys, Positions]:
        words = fold(fold(epochs, self.stage, ORDER), positions, ORDER)
        return child(epochs, positions, self.repeats), self.table.draw(words)

    def find(self, sought: Sought, below: Find) -> Found:
        """Follows all draws of each epoch: below, removed records depend on the child epoch."""
        nothing = np.empty(0, np.intp)
        parts = [Found(nothing, nothing, nothing)]
        for epoch in np.unique(sought.epochs):
            mine = np.flatnonzero(sought.epochs == epoch)
            mine = mine[np.argsort(sought.records[mine], kind="stable")]
            records = sought.records[mine]
            for trail in self._trails(np.array([epoch]), int(sought.limits[mine].max())):
                if trail.path == sought.path:
                    first, stop = (np.searchsorted(records, trail.positions, s) for s in SIDES)
                    number, places = numbered(stop - first)
                    found = Found(mine[first[places] + number], places, trail.rows[places])
                    parts.append(found.at(trail.which[places], sought.limits))
        return Found(*map(np.concatenate, zip(*parts, strict=True)))

    def _trails(self, epoch: Keys, limit: int) -> Iterator[Trail]:
        """The records of the draws before a limit."""
        for first in range(0, min(self.count, limit), _AT_ONCE):
            numbers = np.arange(first, min(self.count, limit, first + _AT_ONCE))
            epochs, positions = self.steps(epoch, numbers)
            yield from self.undrawn.trails(Trail.of(positions, epochs)._replace(which=numbers))


def check_drawable(node: Node) -> None:
    """Raises if the elements of a dataset cannot be drawn in any order, by fixed weights."""
    if node.is_stream:
        raise ChainError(
            "sample of a stream: the number of its records is not known. Put .sample(weights) "
            "before the stage that makes the stream (filter, flat_map, pack, ...)."
        )
    if node.length is None:
        raise ChainError("sample needs a dataset that ends: put it before .repeat().")
    if not node.batched and not node.random_access:
        raise ChainError(
            "sample needs a source that reads records in any order, and this one decodes large "
            "blocks. Leave cache=False out where it is opened: a copy is made once."
        )
    for below in node.below():
        if below.shuffle_span is not None:
            raise ChainError(
                f"sample after .{below.stage}: weights belong to positions, and that stage puts "
                f"other records there in every epoch. Leave it out: draws are in random order."
            )


def sample_weights(weights: Leaf, length: int) -> npt.NDArray[np.float64]:
    """Checked weights, divided by the largest."""
    try:
        found: npt.NDArray[np.float64] = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"`weights` must be an array of numbers, one per element, got {weights!r:.80}."
        ) from None
    if found.ndim == 0:
        raise ArgumentTypeError(
            f"`weights` must have one number for each of the {length} elements, got {weights!r}. "
            "For n different elements without weights write ds.shuffle(seed=0).take(n)."
        )
    if found.shape != (length,):
        raise ArgumentError(
            f"`weights` must have one number for each of the {length} elements, got an array of "
            f"shape {found.shape}."
        )
    wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if wrong.size:
        raise ArgumentError(
            f"`weights` must be finite and not negative, got {found[wrong[0]]} for element "
            f"{wrong[0]}."
        )
    if not found.any():
        raise ArgumentError("`weights` are all 0: no element can be drawn.")
    shares = _rounded(found / found.max())
    shares.flags.writeable = False
    return shares


def _rounded(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Rounded to 40 bits, so that weights which differ by a factor draw alike."""
    mantissa, exponent = np.frexp(shares)
    return np.ldexp(np.round(mantissa * 2.0**40) * 2.0**-40, exponent)
