"""The stages on one input, and the source below them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderx.chain.base import Node, checked_length, digest
from loaderx.errors import ArgumentError, ChainError
from loaderx.sources import Source
from loaderx.stages.stacking import NO_PADDING, Padding
from loaderx.stages.transforms import RandomKeys, RandomMap, Transform
from loaderx.tree import ArraySpec, Tree, flatten, map_leaves


class FromSource(Node):
    source: Source

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    @cached_property
    def length(self) -> int:
        return checked_length(len(self.source))

    @cached_property
    def batched(self) -> bool:
        return False

    @cached_property
    def batch_size(self) -> int | None:
        return None

    @cached_property
    def spec(self) -> Tree | None:
        return self.source.spec

    @property
    def stage(self) -> str:
        return f"Dataset.{self.source.label()}"

    def mark(self, seed: int) -> str:
        if self.spec is None:
            return f"source[{self.length}]"
        leaves, structure = flatten(self.spec)
        return f"source[{self.length}] {digest(structure.paths(), leaves)}"


class Single(Node):
    """A stage with one input."""

    input: Node

    @property
    def is_stage(self) -> bool:
        return True

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    @property
    def length(self) -> int | None:
        return self.input.length

    @cached_property
    def ends(self) -> bool:
        return self.input.ends if self.is_stream else self.length is not None

    @property
    def moves(self) -> bool:
        """Does the stage put elements in other places?"""
        return False

    @cached_property
    def only_last_is_short(self) -> bool:
        return self.uniform if self.moves else self.input.only_last_is_short

    @cached_property
    def rows_are_known(self) -> bool:
        return self.input.rows_are_known and (self.uniform or not self.moves)

    @cached_property
    def rows(self) -> int | None:
        if not self.moves:
            return self.input.rows
        if self.length is None or self.batch_size is None or not self.uniform:
            return None
        return self.length * self.batch_size


class Moved(Single):
    """The base of stages that put elements in other places."""

    @property
    def moves(self) -> bool:
        return True


class Transformed(Single):
    """map, random_map, map_with_index, random_keys"""

    kind: str
    transform: Transform
    name: str
    stacked: bool = False
    own_seed: int | None = None

    @property
    def is_random(self) -> bool:
        return isinstance(self.transform, (RandomMap, RandomKeys))

    def seed(self, default: int) -> int:
        return default if self.own_seed is None else self.own_seed

    @cached_property
    def spec(self) -> Tree | None:
        below = self.input.spec
        if not isinstance(self.transform, RandomKeys) or not isinstance(below, dict):
            return None
        leading = (_leading(self.input),) if self.batched else ()
        return {**below, self.transform.name: ArraySpec((*leading, 2), np.dtype(np.uint32))}

    @property
    def stage(self) -> str:
        name = repr(self.name) if isinstance(self.transform, RandomKeys) else self.name
        seed = "" if self.own_seed is None else f", seed={self.own_seed}"
        stacked = ", batched=True" if self.stacked else ""
        return f"{self.kind}({name}{seed}{stacked})"

    def mark(self, seed: int) -> str:
        inside = [str(self.seed(seed))] if self.is_random else []
        inside += ["batched"] if self.stacked else []
        return f"{self.kind}{'(' + ','.join(inside) + ')' if inside else ''} {self.name}"


class Shuffled(Moved):
    own_seed: int | None = None

    def __post_init__(self) -> None:
        if self.input.is_stream:
            raise ChainError(
                "shuffle of a stream needs a window: write .shuffle(window=1000), or put "
                ".shuffle() before the stage that makes it a stream."
            )
        if self.input.length is None:
            raise ChainError("shuffle needs a dataset that ends: put it before .repeat().")

    @property
    def is_random(self) -> bool:
        return True

    def seed(self, default: int) -> int:
        return default if self.own_seed is None else self.own_seed

    @property
    def stage(self) -> str:
        return "shuffle()" if self.own_seed is None else f"shuffle(seed={self.own_seed})"

    def mark(self, seed: int) -> str:
        return f"shuffle({self.seed(seed)})"


class WindowShuffled(Moved):
    """A new order within each window of consecutive records."""

    window: int
    own_seed: int | None = None

    def __post_init__(self) -> None:
        if self.input.is_stream and self.batched:
            raise ChainError(
                "shuffle after the batch of a stream: put .shuffle(window=...) before .batch(...)."
            )

    @property
    def is_random(self) -> bool:
        return True

    def seed(self, default: int) -> int:
        return default if self.own_seed is None else self.own_seed

    @property
    def stage(self) -> str:
        seed = "" if self.own_seed is None else f"seed={self.own_seed}, "
        return f"shuffle({seed}window={self.window})"

    def mark(self, seed: int) -> str:
        return f"shuffle({self.seed(seed)},{self.window})"


class Part(Moved):
    """One part of a split: a run of one order that is the same in every epoch."""

    call: str  # as the user wrote it
    start: int
    count: int
    seed: int | None  # None: not shuffled

    @property
    def length(self) -> int:
        return self.count

    @property
    def stage(self) -> str:
        return self.call

    def mark(self, seed: int) -> str:
        return f"split({self.start}+{self.count}) {self.seed}"


class Sliced(Moved):
    """Positions start, start + step, ...; ``count`` of them (None: endless)."""

    start: int
    step: int
    count: int | None

    @property
    def length(self) -> int | None:
        return None if self.is_stream else self.count

    @cached_property
    def ends(self) -> bool:
        return self.count is not None or (self.is_stream and self.input.ends)

    @cached_property
    def uniform(self) -> bool:
        return self.input.uniform or (self.input.only_last_is_short and not self._has_last)

    @property
    def _has_last(self) -> bool:
        """Does the slice take the input's last element, the one that may be short?"""
        if self.input.length is None or self.count is None or self.count == 0:
            return False
        ends = (self.start, self.start + (self.count - 1) * self.step)
        return self.input.length - 1 in ends

    @property
    def stage(self) -> str:
        if self.step == 1 and self.start == 0 and self.count is not None:
            return f"take({self.count})"
        if self.step == 1 and (self.count is None or self._has_last):
            return f"skip({self.start})"
        stop = "" if self.count is None else self.start + self.count * self.step
        return f"[{self.start}:{stop}:{self.step}]"


class Picked(Moved):
    """The elements at given positions."""

    table: npt.NDArray[np.int64]

    @property
    def length(self) -> int:
        return len(self.table)

    @cached_property
    def seen(self) -> npt.NDArray[np.int64] | None:
        """How often each entry stood in the table before; None if never."""
        order = np.argsort(self.table, kind="stable")
        ordered = self.table[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        if len(starts) == len(ordered):
            return None
        run = np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
        seen = np.empty_like(self.table)
        seen[order] = np.arange(len(ordered)) - run
        return seen

    @property
    def repeats_here(self) -> int:
        return int(self.seen is not None)

    @cached_property
    def uniform(self) -> bool:
        last = -1 if self.input.length is None else self.input.length - 1
        return self.input.uniform or (self.input.only_last_is_short and last not in self.table)

    @property
    def stage(self) -> str:
        return f"[{len(self.table)} chosen]"

    def mark(self, seed: int) -> str:
        return f"pick[{len(self.table)}] {digest(self.table.tobytes())}"


class Repeated(Moved):
    epochs: int | None

    def __post_init__(self) -> None:
        if not self.input.ends:
            raise ChainError("repeat needs a dataset that ends; this one is endless already.")
        checked_length((self.input.length or 1) * (self.epochs or 1))

    @property
    def length(self) -> int | None:
        if self.epochs is None or self.input.length is None:
            return None
        return self.input.length * self.epochs

    @cached_property
    def ends(self) -> bool:
        return self.epochs is not None

    @cached_property
    def rows(self) -> int | None:
        if self.epochs is None or self.input.rows is None:
            return None
        return self.input.rows * self.epochs

    @cached_property
    def rows_are_known(self) -> bool:
        return self.input.rows_are_known and self.input.rows is not None

    @property
    def repeats_here(self) -> int:
        return 1

    @property
    def stage(self) -> str:
        return "repeat()" if self.epochs is None else f"repeat({self.epochs})"


class Seeded(Single):
    """The default seed of the chain that it stands in, above and below."""

    number: int

    @property
    def stage(self) -> str:
        return f"seed({self.number})"


class Guarded(Single):
    policy: Any  # "replace", or a function of the error

    def __post_init__(self) -> None:
        for node in self.input.below():
            whole = isinstance(node, Unbatched) or (len(node.inputs) > 1 and node.is_aligned)
            if whole and not node.ends:
                raise ChainError(
                    f"on_error after .{node.stage.removeprefix('Dataset.')} of an endless dataset: "
                    "there is no end to choose another record from. Put .repeat() after it."
                )

    @property
    def stage(self) -> str:
        name = self.policy if isinstance(self.policy, str) else "function"
        return f"on_error({name!r})"

    def mark(self, seed: int) -> str:
        return f"{self.stage} {seed}"


class Batched(Single):
    size: int
    drop_remainder: bool = False
    pad_remainder: bool = False
    mask_key: str = "mask"
    padding: Padding = NO_PADDING
    collate: Any = None
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.size % self.lanes:
            raise ArgumentError(
                f"batch({self.size}, lanes={self.lanes}): the lanes must divide the batch, since "
                "each gives the same number of rows."
            )
        if self.lanes > 1 and not self.input.is_stream:
            raise ChainError(
                f"lanes={self.lanes} is for streams (after filter, flat_map, pack, ...). This "
                "dataset can be cut for any number of hosts as it is: leave `lanes` out."
            )
        if self.input.batched:
            advice = "Write .unbatch() before .batch(...) to cut them anew."
            if self.input.is_stream:
                advice = "Leave one of the two out."
            raise ChainError(f"batch after batch: the elements are batches already. {advice}")
        if self.length == 0:
            raise ArgumentError(
                f"batch({self.size}, drop_remainder=True) over {self.input.length} records leaves "
                "an empty stream. Use a smaller batch, pad_remainder=True, or .repeat() before it."
            )

    @cached_property
    def length(self) -> int | None:
        records = self.input.length
        if records is None:
            return None
        return records // self.size if self.drop_remainder else -(-records // self.size)

    @cached_property
    def batched(self) -> bool:
        return True

    @cached_property
    def batch_size(self) -> int:
        return self.size

    @cached_property
    def uniform(self) -> bool:
        records = self.input.length
        if records is None:
            return self.drop_remainder or not self.input.ends
        return self.drop_remainder or records % self.size == 0

    @cached_property
    def only_last_is_short(self) -> bool:
        return True

    @cached_property
    def rows_are_known(self) -> bool:
        return True

    @property
    def can_be_short(self) -> bool:
        return not (self.uniform or self.pad_remainder)

    @cached_property
    def rows(self) -> int | None:
        records = self.input.length
        if records is None or not self.drop_remainder:
            return records
        return records // self.size * self.size

    @cached_property
    def spec(self) -> Tree | None:
        if self.input.spec is None or self.collate or self.padding.lengths:
            return None
        rows = None if self.can_be_short else self.size
        spec = map_leaves(lambda leaf: ArraySpec((rows, *leaf.shape), leaf.dtype), self.input.spec)
        if self.pad_remainder and isinstance(spec, dict):
            spec = {**spec, self.mask_key: ArraySpec((rows,), np.dtype(np.bool_))}
        return spec

    @property
    def stage(self) -> str:
        more = [
            f"{name}={value!r}"
            for name, value in (
                ("drop_remainder", self.drop_remainder),
                ("pad_remainder", self.pad_remainder),
                ("pad_to", dict(self.padding.lengths)),
                ("collate_fn", getattr(self.collate, "__name__", self.collate)),
                ("lanes", self.lanes if self.lanes > 1 else None),
            )
            if value
        ]
        return f"batch({', '.join([str(self.size), *more])})"

    def mark(self, seed: int) -> str:
        ending = "drop" if self.drop_remainder else "pad" if self.pad_remainder else ""
        details = (sorted(self.padding.lengths.items()), self.padding.value, self.mask_key)
        padded = digest(details) if details != ([], 0, "mask") else ""
        lanes = f"{self.size}/{self.lanes}" if self.lanes > 1 else str(self.size)
        return f"batch({lanes}) {ending}{padded}".rstrip()


class Unbatched(Single):
    def __post_init__(self) -> None:
        if not self.input.batched:
            raise ChainError("unbatch needs batches: there is no .batch(...) before it.")
        if self.input.is_stream:
            raise ChainError(
                "unbatch of a stream: leave .batch(...) out. Functions get stacked runs of records "
                "with batched=True."
            )
        for node in self.input.below():
            if node is self.input or node.batched:
                self._check(node)
        if not self.input.rows_are_known:
            raise ChainError(
                "unbatch: a short last batch was moved from its place. Use batch(..., "
                "drop_remainder=True) before reordering batches, or unbatch first."
            )

    @staticmethod
    def _check(node: Node) -> None:
        if len(node.inputs) > 1 or not node.is_stage:
            raise ChainError(
                "unbatch after joining batched datasets: write .unbatch() on each of them, "
                "then join the records."
            )
        if isinstance(node, Transformed) and node.kind == "map_with_index":
            raise ChainError(
                "unbatch after map_with_index on batches: records have no batch index. "
                "Put map_with_index before .batch(...)."
            )

    @property
    def length(self) -> int | None:
        return self.input.rows

    @cached_property
    def batched(self) -> bool:
        return False

    @cached_property
    def batch_size(self) -> int | None:
        return None

    @cached_property
    def uniform(self) -> bool:
        return False

    @cached_property
    def spec(self) -> Tree | None:
        below = self.input.spec
        return below and map_leaves(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype), below)

    @property
    def stage(self) -> str:
        return "unbatch()"


def _leading(node: Node) -> int | None:
    leaves, _ = flatten(node.spec)
    first = leaves[0].shape[0] if leaves and leaves[0].shape else None
    return first if first is None or isinstance(first, int) else None
