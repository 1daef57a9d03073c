"""Stages after which nobody knows which input makes output number n: streams.

A stream is read in *units*: fixed runs of input positions.  What comes out of a unit depends on its
number alone, so units can be made by any worker, and again if one is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from loaderx.chain.base import Node, Single
from loaderx.chain.batches import Batched
from loaderx.chain.encoding import stage_text
from loaderx.chain.joined import Mixed
from loaderx.chain.leaves import FromIterable
from loaderx.chain.moves import Repeated, Sliced, WindowShuffled
from loaderx.chain.rules import Guarded, Seeded, on_error_stage
from loaderx.chain.transforms import Transformed
from loaderx.errors import ChainError
from loaderx.stages.functions import Function
from loaderx.stages.options import Bucketing, Packing
from loaderx.tree import Tree, flatten

UNIT_ROWS = 1024
MASKED_UNIT_ROWS = 8192  # where nothing is done to records but masking them
UNKNOWN_UNIT_ROWS = 256  # where nobody knows how large a record is
UNIT_BYTES = 8 << 20


class StreamStage(Single):
    """The base of stages that make a stream of records."""

    def __post_init__(self) -> None:
        if self.input.batched:
            raise ChainError(
                f"{self.kind} after batch: it works on records. Put it before .batch(...)."
            )

    @property
    def kind(self) -> str:
        return self.stage.partition("(")[0]

    @property
    def length(self) -> int | None:
        return None

    @cached_property
    def ends(self) -> bool:
        return self.input.ends

    @cached_property
    def is_stream(self) -> bool:
        return True

    @cached_property
    def spec(self) -> Tree | None:
        return None


class Filtered(StreamStage):
    function: Function
    stacked: bool = False

    @cached_property
    def spec(self) -> Tree | None:
        return self.input.spec

    @property
    def stage(self) -> str:
        return f"filter({self.function.name}{', batched=True' if self.stacked else ''})"

    def fingerprint(self, seed: int) -> str:
        named = {"function": self.function.name}
        return stage_text(
            "filter", named, self, without=("function",), renamed={"stacked": "batched"}
        )


class Skipping(StreamStage):
    """on_error("skip") of a dataset that is no stream: without the records that fail, it is one."""

    policy: str = "skip"
    max_failures: int | None = None

    @cached_property
    def spec(self) -> Tree | None:
        return self.input.spec

    @property
    def stage(self) -> str:
        return on_error_stage(self.policy, self.max_failures)

    def fingerprint(self, seed: int) -> str:
        named = {"policy": self.policy}
        return stage_text("on_error", named, self, without=("policy", "max_failures"))


class FlatMapped(StreamStage):
    function: Function

    @property
    def stage(self) -> str:
        return f"flat_map({self.function.name})"

    def fingerprint(self, seed: int) -> str:
        named = {"function": self.function.name}
        return stage_text("flat_map", named, self, without=("function",))


class PackedRecords(StreamStage):
    options: Packing

    def __post_init__(self) -> None:
        super().__post_init__()
        check_windows(self)

    @property
    def stage(self) -> str:
        options = self.options
        return f"pack({dict(options.lengths)}, {options.strategy!r}, window={options.window})"

    def fingerprint(self, seed: int) -> str:
        return stage_text("pack", {}, self.options, self, without=("options",))


class Bucketed(StreamStage):
    options: Bucketing

    def __post_init__(self) -> None:
        super().__post_init__()
        check_windows(self)

    @cached_property
    def batched(self) -> bool:
        return True

    @cached_property
    def batch_size(self) -> int | None:
        return None

    @property
    def stage(self) -> str:
        options = self.options
        shapes = zip(options.batch_sizes, options.boundaries, strict=True)
        return f"bucket({', '.join(f'{size}x{boundary}' for size, boundary in shapes)})"

    def fingerprint(self, seed: int) -> str:
        return stage_text("bucket", {}, self.options, self, without=("options",))


def check_no_buckets(node: Node) -> None:
    """Refuses buckets, for several hosts."""
    if any(isinstance(below, Bucketed) for below in node.below()):
        raise ChainError(
            "several hosts cannot share the batches of .bucket(...): the next one may have another "
            "shape on each of them. Use .pack(...), or .batch(n, pad_to=...)."
        )


def unit_rows(node: Node, windows: list[int], lanes: int, *, masked: bool) -> int:
    """Records in a unit of a dataset that is read by index: the largest window, or a fair share.

    ``masked``: see `only_masks`.
    """
    if windows:
        return max(windows)
    most = MASKED_UNIT_ROWS if masked else UNIT_ROWS
    rows: int = UNKNOWN_UNIT_ROWS
    if node.spec is not None:
        nbytes = sum(_nbytes(leaf) for leaf in flatten(node.spec)[0])
        rows = min(most, max(16, UNIT_BYTES // max(1, nbytes)))
    if node.length is not None:
        rows = min(rows, max(1, node.length // (4 * lanes)))
    return 1 << (rows.bit_length() - 1)


def _nbytes(leaf: Any) -> int:
    rows = int(np.prod([size or 1 for size in leaf.shape], dtype=np.int64))
    return rows * int(leaf.dtype.itemsize)


def once_through(node: Node) -> int:
    """The records after which each of a dataset, also of an endless one, has come once."""
    if node.length is not None:
        return node.length
    inner = [once_through(below) for below in node.inputs]
    if isinstance(node, Mixed):
        period = sum(node.tickets)
        return max(-(-n * period // own) for n, own in zip(inner, node.tickets, strict=True))
    return sum(inner)


def varies(node: Node) -> bool:
    """Can a pass of a stream let something through where the pass before let nothing?

    It can where random numbers decide what is dropped, or an order which records fill a batch.
    """
    for below in node.below():
        beneath = [stage for each in below.inputs for stage in each.below()]
        drops = isinstance(
            below, (Filtered, FlatMapped, PackedRecords, Bucketed, Guarded, Skipping)
        )
        if drops and any(isinstance(stage, Transformed) and stage.is_random for stage in beneath):
            return True
        if isinstance(below, Bucketed) and below.options.drop_remainder:
            return any(stage.is_random or isinstance(stage, Mixed) for stage in beneath)
    return False


def unit_leaves(node: Node) -> Iterator[tuple[Node, list[int]]]:
    """The datasets that are read in units, each with the windows that its units must hold."""
    return ((place, windows) for place, windows in _places(node) if not place.is_stream)


def _places(node: Node, windows: tuple[int, ...] = ()) -> Iterator[tuple[Node, list[int]]]:
    """Where stages find their records, each with the windows of these stages."""
    if not node.is_stream:
        yield node, list(windows)
        return
    match node:
        case WindowShuffled():
            windows = (*windows, node.window)
        case PackedRecords() | Bucketed():
            windows = (*windows, node.options.window)
        case Sliced() | Mixed() | FromIterable():  # what stands above runs on the ordered rows
            yield node, list(windows)
            windows = ()
    for below in node.inputs:
        yield from _places(below, windows)


def check_windows(node: Node) -> None:
    """Windows of stages that share their units: each must divide the largest."""
    windows: dict[int, str] = {}
    while node.is_stage and node.is_stream and not isinstance(node, Sliced):
        if isinstance(node, WindowShuffled):
            windows[node.window] = node.stage
        elif isinstance(node, (PackedRecords, Bucketed)):
            windows[node.options.window] = node.stage
        node = node.inputs[0]
    largest = max(windows, default=1)
    for window, stage in windows.items():
        if largest % window:
            raise ChainError(
                f"{stage} and {windows[largest]} work on the same runs of {largest} records, and "
                f"{window} does not divide {largest}. Choose windows that do."
            )


def check_lanes(node: Node, lanes: int) -> None:
    """Can this stream of records be cut into so many lanes?"""
    if lanes == 1:
        return
    for below in node.below():
        if isinstance(below, Sliced) and below.is_stream:
            raise ChainError(
                f".{below.stage} of a stream counts its records, which needs one lane, not "
                f"{lanes}. Put .take(steps) after .batch(...) instead, or take before the stream "
                "begins."
            )
        if isinstance(below, FromIterable) and not below.source.shards:
            raise ChainError(
                f"lanes={lanes} needs {lanes} parts of the iterable: give from_iterable a function "
                "of (shard, count) that reads one of them."
            )
    for leaf, windows in unit_leaves(node):
        rows = unit_rows(leaf, windows, lanes, masked=only_masks(node))
        units = lanes if leaf.length is None else -(-leaf.length // rows)
        if units < lanes:
            raise ChainError(
                f"{leaf.length} records in units of {rows} are {units} units, too few for {lanes} "
                "lanes. Use a smaller window, fewer lanes, or .repeat() before the stream begins."
            )


def stream_batch(node: Node) -> Batched | None:
    """The batch stage of a stream, not one of the dataset that it is made of."""
    for below in node.below():
        if isinstance(below, Batched) and below.is_stream:
            return below
    return None


def only_masks(node: Node) -> bool:
    """Is all that a stream does to the records of one dataset to leave some of them out?"""
    batch = stream_batch(node)
    node, found = node if batch is None else batch.input, False
    while node.is_stream:
        if isinstance(node, Filtered) and node.stacked:
            found = True
        elif not isinstance(node, (Repeated, Seeded)):
            return False
        node = node.inputs[0]
    return found


def unit_fingerprint(node: Node) -> str:
    """What a state says about the units that its positions count."""
    batch = stream_batch(node)
    lanes = 1 if batch is None else batch.lanes
    masked = only_masks(node)
    sizes = [
        max(windows) if place.is_stream else unit_rows(place, windows, lanes, masked=masked)
        for place, windows in _places(node)
        if windows or not place.is_stream
    ]
    return f"units {','.join(map(str, sizes)) or 'none'}"
