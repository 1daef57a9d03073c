"""Stages after which nobody knows which input makes output number n: streams.

A stream is read in *units*: fixed runs of input positions.  What comes out of a unit depends on its
number alone, so units can be made by any worker, and again if one is lost.
"""

from __future__ import annotations

from functools import cached_property

from loaderx.chain.base import Node, Single
from loaderx.chain.batches import Batched
from loaderx.chain.encoding import stage_text
from loaderx.chain.joined import Mixed
from loaderx.chain.moves import Sliced, WindowShuffled
from loaderx.chain.rules import Guarded, on_error_stage
from loaderx.chain.transforms import Transformed
from loaderx.errors import ChainError
from loaderx.stages.functions import Function
from loaderx.stages.options import Bucketing, Packing
from loaderx.tree import Tree


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
    if stream_bucket(node) is not None:
        raise ChainError(
            "several hosts cannot share the batches of .bucket(...): the next one may have another "
            "shape on each of them. Use .pack(...), or .batch(n, pad_to=...)."
        )


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


def window_of(node: Node) -> int | None:
    """The records that a stage works on together; None for those that take them one by one."""
    match node:
        case WindowShuffled():
            return node.window
        case PackedRecords() | Bucketed():
            return node.options.window
    return None


def check_windows(node: Node) -> None:
    """Windows of stages that share their units: each must divide the largest."""
    windows: dict[int, str] = {}
    while node.is_stage and node.is_stream and not isinstance(node, Sliced):
        window = window_of(node)
        if window is not None:
            windows[window] = node.stage
        node = node.inputs[0]
    largest = max(windows, default=1)
    for window, stage in windows.items():
        if largest % window:
            raise ChainError(
                f"{stage} and {windows[largest]} work on the same runs of {largest} records, and "
                f"{window} does not divide {largest}. Choose windows that do."
            )


def stream_batch(node: Node) -> Batched | None:
    """The batch stage of a stream, not one of the dataset that it is made of."""
    for below in node.below():
        if isinstance(below, Batched) and below.is_stream:
            return below
    return None


def stream_bucket(node: Node) -> Bucketed | None:
    """The bucket stage of a stream."""
    return next((below for below in node.below() if isinstance(below, Bucketed)), None)
