"""Stages after which it is not known which input makes output number n: streams.

A stream is read in *units*: fixed runs of input positions.  The output of a unit depends on its
number alone, so any worker can make it, and make it again if it is lost.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from loaderx.chain.encoding import stage_text
from loaderx.chain.families import ChangesPlaces, InOrder, MadeInUnits, OneInput
from loaderx.chain.node import Node, UnitCost
from loaderx.errors import ChainError
from loaderx.frozen import Frozen
from loaderx.memory import Pool
from loaderx.reading.batch_readers import BatchReader, Lanes
from loaderx.reading.readers import Reader
from loaderx.reading.unit_plan import Finish
from loaderx.reading.unit_stage import UnitStage
from loaderx.tree import Tree

if TYPE_CHECKING:
    from loaderx.chain.stream_build import StreamBuild


class StreamStage(ChangesPlaces, InOrder, MadeInUnits):
    """The base of stages that make a stream of records, unit by unit."""

    can_drop = True
    is_ordered = False

    def __post_init__(self) -> None:
        if self.input.batched:
            kind = self.stage.partition("(")[0]
            raise ChainError(f"{kind} after batch: it works on records. Put it before .batch(...).")
        check_windows(self)

    @cached_property
    def spec(self) -> Tree | None:
        return None

    @property
    def unit_cost(self) -> UnitCost:
        return "records"

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        raise AssertionError(f"{self.stage} stands below the batch")


class WindowOptions(Frozen):
    """The arguments of a stage that works on windows of records."""

    @property
    def window(self) -> int:
        """Every subclass has this as a field, with a default of its own."""
        raise NotImplementedError


class OptionsStage(StreamStage):
    """The base of stages that turn each window into new records, by their options."""

    options: WindowOptions

    @property
    def user_objects(self) -> tuple[tuple[str, object], ...]:
        return ()

    @property
    def window(self) -> int | None:
        return self.options.window

    def fingerprint(self, seed: int) -> str:
        return stage_text(
            self.stage.partition("(")[0], {}, self.options, self, without=("options",)
        )


class StreamCut(OneInput):
    """The base of stages that cut the records of a stream into batches."""

    @property
    @abstractmethod
    def cuts_stream(self) -> bool:
        """Whether the input is a stream, rather than a dataset that is read by index."""

    @property
    def lanes(self) -> int:
        """The number of lanes; a batch takes equally many rows from each."""
        return 1

    @property
    @abstractmethod
    def unit_records(self) -> Node:
        """The node whose elements are made in units: the input, or the stage itself."""

    def cut_in_units(self, build: StreamBuild) -> tuple[UnitStage, ...]:
        """The part of the stage that is done in units."""
        return ()

    @abstractmethod
    def finish(self) -> Finish:
        """The form in which units hand over their records."""

    @abstractmethod
    def cut_reader(self, lanes: Sequence[Reader], pool: Pool, *, is_alone: bool) -> Lanes:
        """Reads the batches of this host's lanes; ``is_alone``: it is the only host."""

    drop_remainder = False
    pad_remainder = False
    divides_batches = False
    """Whether hosts share the rows of each batch, and all read every lane."""

    @property
    def can_be_short(self) -> bool:
        """Whether the last batches may have fewer rows than others."""
        return False

    @property
    def rows_of_lane(self) -> int:
        """The rows that a batch takes from each lane."""
        return 1

    def rows_per_batch(self, lanes: int) -> int | None:
        """The rows of a full batch that come from ``lanes`` lanes; None where that varies."""
        return None

    def check_hosts(self, hosts: int) -> None:
        """Raises if this number of hosts cannot share the batches."""


def stream_cut(node: Node) -> StreamCut | None:
    """The stage that cuts a stream into batches; a batch stage below the stream does not count."""
    for below in node.below():
        if isinstance(below, StreamCut) and below.cuts_stream:
            return below
    return None


def check_windows(node: Node) -> None:
    """Raises unless each window of stages that share their units divides the largest."""
    windows: dict[int, str] = {}
    while node.is_stage and node.is_stream and not node.is_ordered:
        if node.window is not None:
            windows[node.window] = node.stage
        node = node.inputs[0]
    largest = max(windows, default=1)
    for window, stage in windows.items():
        if largest % window:
            raise ChainError(
                f"{stage} and {windows[largest]} work on the same runs of {largest} records, and "
                f"{window} does not divide {largest}. Choose windows that do."
            )
