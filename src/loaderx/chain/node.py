"""The frozen description: one node per stage, each holding the node that it reads from.

A node is checked when it is made, and answers every question about its stage: what is known
without reading a record (length, batch size, ...), its text in a ``repr`` (`stage`) and in a saved
state (`fingerprint`), and how it is executed (operators for datasets that are read by index,
readers and unit stages for streams).

An answer is a class attribute where it is the same for every node of the class, and a property or
method where it is not.  The questions under "Every stage answers" are abstract: a class that leaves
one open cannot be instantiated.  A base class answers for its members only where the answer is
right for all of them.  `tests/stages/test_nodes.py` asks every node class every question.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, final

from loaderx.chain.encoding import stage_text
from loaderx.chain.row_counts import RowCount, ShortBatches
from loaderx.frozen import Frozen
from loaderx.order.epochs import LIMIT, SkippedSteps
from loaderx.reading.batch_readers import BatchReader
from loaderx.reading.operators import Anchor, BatchOperator, Policy, RecordOperator, Request
from loaderx.reading.unit_plan import UnitBounds
from loaderx.sources.base import Indices
from loaderx.tree import Tree

if TYPE_CHECKING:
    from loaderx.chain.stream_build import Above, MakeReader, StreamBuild
    from loaderx.order.removed import Removed

UnitCost = Literal["nothing", "mask", "records", "many"]
"""The work of a stage on the records of a unit: nothing, mask them as columns, more than that, or
make many of each."""


class ShuffledBlocks(Protocol):
    """A shuffle of blocks, whose windows units of a stream can end with."""

    @property
    def span(self) -> int | None:
        """Elements in a window; None if elements stay in order within their block."""

    def whole_windows(self, least: int) -> int:
        """The approximate size of whole windows that hold ``least`` elements, and a block."""
        ...

    def unit_bounds(self, seed: int, rows: int) -> UnitBounds:
        """Where units of about ``rows`` elements begin and end."""


class Node(Frozen, ABC):
    """The base of all nodes."""

    # Every stage answers ----------------------------------------------------------------------

    @property
    @abstractmethod
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that the stage reads from."""

    @property
    @abstractmethod
    def length(self) -> int | None:
        """The number of elements; None if endless, and for streams."""

    @property
    @abstractmethod
    def spec(self) -> Tree | None:
        """The spec of an element; None if it is not known without reading one."""

    @property
    @abstractmethod
    def stage(self) -> str:
        """The stage as a user would write it."""

    @property
    @abstractmethod
    def window(self) -> int | None:
        """How many records the stage works on together; None if it takes them one by one."""

    @property
    @abstractmethod
    def unit_cost(self) -> UnitCost:
        """The work of the stage on the records of a unit.  The less it is, the larger units are."""

    @property
    @abstractmethod
    def can_drop(self) -> bool:
        """Can the stage leave out records because of what is in them?"""

    @property
    @abstractmethod
    def keeps_places(self) -> bool:
        """Does every element keep its position?"""

    @property
    @abstractmethod
    def is_ordered(self) -> bool:
        """In a stream, are the rows of this stage read in order, in the caller's thread?"""

    @property
    @abstractmethod
    def is_one_dataset(self) -> bool:
        """Is this one dataset, with nothing repeated or joined between here and its source?"""

    @property
    @abstractmethod
    def user_objects(self) -> tuple[tuple[str, object], ...]:
        """The sources and functions of the stage, each with its name in messages."""

    @abstractmethod
    def batch_rows_before(self, step: int) -> int:
        """Records in the batches before a step; an estimate where short batches were moved."""

    @abstractmethod
    def epoch_of(self, step: int) -> int:
        """The epoch of the outermost repeat at a step; 0 where there is none."""

    @abstractmethod
    def make_record_operator(self, request: Request) -> RecordOperator:
        """Reads records by index."""

    @abstractmethod
    def batch_operator(self, request: Request) -> BatchOperator:
        """Reads batches by index."""

    @abstractmethod
    def reader(self, build: StreamBuild, above: Above) -> MakeReader:
        """Makes readers of the records of a stream; ``above`` is what stands above this stage."""

    @abstractmethod
    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        """Reads the batches of a stream, with this stage above the one that cuts them."""

    # What most stages answer alike ------------------------------------------------------------

    is_stage = False
    """Does it have one input?  Sources and joins do not."""

    is_aligned = False
    """Does it take the same position from all of its inputs, as zip does?"""

    moves = False
    """Does the stage change the positions of elements?"""

    is_repeat = False
    """Is it a repeat, of any number of epochs?"""

    def fingerprint(self, seed: int) -> str:
        """The stage in a saved state: what changes the stream, and nothing else.

        ``seed`` is for stages without one.  Empty if the stage itself changes nothing.
        """
        return stage_text(self.stage.partition("(")[0], {}, self)

    @cached_property
    def is_stream(self) -> bool:
        """Is it unknown which input an output comes from, and how many outputs there are?"""
        return any(node.is_stream for node in self.inputs)

    @cached_property
    def limit(self) -> int:
        """The number of elements that have a position.

        In an endless dataset, positions end where those of its records do.
        """
        return LIMIT if self.length is None else self.length

    @cached_property
    def ends(self) -> bool:
        """Does it end?  A stream does if its input does, after an unknown number of elements."""
        return self.length is not None

    @cached_property
    def batched(self) -> bool:
        """Are the elements batches?"""
        return self.inputs[0].batched

    @cached_property
    def batch_size(self) -> int | None:
        """Rows of a global batch, if all batches have the same size."""
        sizes = {node.batch_size for node in self.inputs}
        return sizes.pop() if len(sizes) == 1 else None

    @cached_property
    def uniform(self) -> bool:
        """Does every batch have the full size?"""
        return self.batch_size is not None and all(node.uniform for node in self.inputs)

    @cached_property
    def only_last_is_short(self) -> bool:
        """Are all batches but the last full?"""
        return self.uniform

    @cached_property
    def rows(self) -> int | None:
        """The number of records in all batches; None if endless or not known."""
        return None

    @cached_property
    def rows_are_known(self) -> bool:
        """Does the number of a row tell its batch, and its place in it?"""
        return False

    @cached_property
    def short_batches(self) -> tuple[ShortBatches, ...] | None:
        """Which batches are not full: none, or those of one rule; None if that is not known."""
        return () if self.uniform else None

    def batch_stages(self) -> Iterator[Node]:
        """The stages that cut the batches of this chain, one for each joined dataset."""
        for node in self.inputs if self.batched else ():
            yield from node.batch_stages()

    def row_counts(self, uniform: bool) -> list[RowCount]:
        """If the stage cuts batches: the numbers of records that they can have."""
        return []

    @property
    def keeps_order(self) -> bool:
        """Do all records stay in their order?  They may be put into batches."""
        return self.keeps_places

    @property
    def random_access(self) -> bool:
        """Are records in any order read as fast as in their own?"""
        return all(node.random_access for node in self.inputs)

    @property
    def block_starts(self) -> Indices | None:
        """Where the blocks begin that the source is read in, and the length; None if not known."""
        return None

    @property
    def is_random(self) -> bool:
        """Does the stage draw random numbers?"""
        return False

    @property
    def needs_keys(self) -> bool:
        """Do the draws of the stage depend on the keys of the records?"""
        return False

    @property
    def needs_positions(self) -> bool:
        """Does the function of the stage get the position of each element?"""
        return False

    @property
    def order_varies(self) -> bool:
        """Can the stage give its records in a different order in each epoch?"""
        return self.is_random

    @property
    def fill_depends_on_order(self) -> bool:
        """Does the order of the records decide which of them the stage leaves out?"""
        return False

    @property
    def repeats_here(self) -> int:
        """1 if the stage can show a record more than once, else 0."""
        return 0

    @property
    def begins_epochs(self) -> bool:
        """Does the stage read its input again, in further epochs?"""
        return False

    @property
    def shuffle_span(self) -> int | None:
        """How many consecutive elements are shuffled together; None if the stage does not."""
        return None

    @property
    def shuffled_blocks(self) -> ShuffledBlocks | None:
        """The stage itself, if it shuffles blocks."""
        return None

    @property
    def is_part(self) -> bool:
        """Does the stage choose elements by their position and leave out the others?"""
        return False

    @property
    def ends_of_part(self) -> list[int] | None:
        """Where a part begins and ends in its input; None if it has gaps."""
        return None

    @property
    def is_take(self) -> bool:
        """Does the stage only set the number of elements after which to stop?"""
        return False

    @property
    def removed(self) -> Removed | None:
        """The records that the stage removes."""
        return None

    @property
    def skipped_steps(self) -> SkippedSteps | None:
        """The steps that a loader leaves out; None if the elements are not numbered as steps."""
        return None

    @property
    def default_seed_here(self) -> int | None:
        """The default seed that the stage sets for its chain."""
        return None

    def seed_below(self, seed: int) -> int:
        """The default seed of the stages below, where that of this stage is ``seed``."""
        return seed

    @property
    def error_policy(self) -> Policy | None:
        """The policy of the stage for records that fail."""
        return None

    @property
    def most_failures(self) -> int | None:
        """How many different records may fail before the stage raises."""
        return None

    @property
    def epoch_steps(self) -> int | None:
        """Elements in an epoch of the outermost repeat; None if the stage is not above one."""
        return None

    @property
    def largest_request(self) -> int:
        """The most rows that the stage asks for at once, in a stream."""
        return self.window or 0

    @cached_property
    def once_through(self) -> int:
        """The number of elements after which every record has come once, even if endless."""
        if self.length is not None:
            return self.length
        return sum(node.once_through for node in self.inputs)

    def one_epoch(self) -> Node:
        """The node without its outermost repeat, or itself if it has none."""
        return self

    def above_cut(self, build: StreamBuild, above: Above) -> Above:
        """``above``, with what this stage above the batch of a stream adds to it."""
        return above

    def check_lanes(self, lanes: int) -> None:
        """Raises if a stream with this stage cannot be cut into this many lanes."""

    # Walking the chain; the same for all ------------------------------------------------------

    @cached_property
    @final
    def random_stages(self) -> int:
        """The number of random stages in this chain, this one included."""
        return self.is_random + sum(node.random_stages for node in self.inputs)

    @cached_property
    @final
    def joins(self) -> int:
        """How many joins stand above each other in this chain, this one included."""
        is_join = bool(self.inputs) and not self.is_stage
        return is_join + max((node.joins for node in self.inputs), default=0)

    @cached_property
    @final
    def repeats(self) -> int:
        """The number of stages in this chain that can show a record again, this one included."""
        return self.repeats_here + sum(node.repeats for node in self.inputs)

    @final
    def record_operator(self, request: Request) -> RecordOperator:
        """Reads records by index, those of one dataset with others in place of failed ones."""
        if not request.guarded or not self.is_one_dataset or self.length is None:
            return self.make_record_operator(request)
        inner = self.make_record_operator(request.replace(guarded=False))
        return Anchor(inner, self.length, request.seed)

    @final
    def rows_before(self, step: int) -> int:
        """Records handed out before a step."""
        return self.batch_rows_before(step) if self.batched else step

    @final
    def below(self) -> Iterator[Node]:
        """This node and all nodes that it reads from, at any depth."""
        yield self
        for node in self.inputs:
            yield from node.below()

    @final
    def chain(self) -> list[Node]:
        """The nodes from the source, or from the last join, up to this one."""
        nodes: list[Node] = [self]
        while nodes[-1].is_stage:
            nodes.append(nodes[-1].inputs[0])
        return nodes[::-1]

    @final
    def default_seed(self, inherited: int = 0) -> int:
        """The seed of stages that have none of their own: the last ``.seed(n)`` of this chain."""
        for stage in reversed(self.chain()):
            if stage.default_seed_here is not None:
                return stage.default_seed_here
        return inherited
