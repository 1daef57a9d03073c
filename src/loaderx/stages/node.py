"""The frozen description: one node per stage, each holding the node that it reads from.

A node is checked when it is made, and answers every question about its stage: what is known
without reading a record (length, batch size, ...), how it reads in a ``repr`` (`stage`) and in a
saved state (`fingerprint`), and how it is carried out (operators for datasets that are read by
index, readers and unit stages for streams).

The questions under "Every stage answers" have no answer here.  A class of stages may answer for its
members where that is right for all of them; `tests/stages/test_nodes.py` asks every node class.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from loaderx.errors import ArgumentError
from loaderx.frozen import Frozen
from loaderx.order.epochs import LIMIT
from loaderx.reading.batch_readers import BatchReader
from loaderx.reading.operators import Anchor, BatchOperator, Policy, RecordOperator, Request
from loaderx.reading.unit_stage import UnitStage
from loaderx.stages.encoding import stage_text
from loaderx.tree import Tree

if TYPE_CHECKING:
    from loaderx.stages.stream_build import Above, MakeReader, StreamBuild

UnitCost = Literal["nothing", "mask", "records"]
"""What a stage does to the records of a unit: nothing, mask them as columns, or more."""


class ShortBatches(NamedTuple):
    """Batches number ``first``, ``first + every``, ... have only ``rows`` rows, or are padded."""

    first: int
    every: int | None  # None: it is the only one
    rows: int
    padded: bool

    def among(self, start: int, count: int | None) -> tuple[ShortBatches, ...]:
        """Those that are left of ``count`` batches from ``start`` on (None: of all)."""
        first = self.first - start
        if first < 0:
            if self.every is None:
                return ()
            first %= self.every
        if count is not None and first >= count:
            return ()
        is_last = self.every is None or (count is not None and first + self.every >= count)
        return (self._replace(first=first, every=None if is_last else self.every),)


class RowCount(NamedTuple):
    """A number of records that a batch of a stage can have."""

    rows: int | None  # None: how many are left of a stream is seen at its end
    stage: str
    is_rest: bool


class Node(Frozen):
    """The base of all nodes.  Subclasses are final."""

    # Every stage answers ----------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[Node, ...]:
        raise NotImplementedError

    @property
    def length(self) -> int | None:
        """The number of elements; None if endless, and for streams."""
        raise NotImplementedError

    @property
    def stage(self) -> str:
        """The stage as a user would write it."""
        raise NotImplementedError

    @property
    def window(self) -> int | None:
        """The records that the stage works on together; None if it takes them one by one."""
        raise NotImplementedError

    @property
    def unit_cost(self) -> UnitCost:
        """What the stage does to the records of a unit: units are larger where it is little."""
        raise NotImplementedError

    @property
    def can_drop(self) -> bool:
        """May fewer records come out of the stage than went in, by what they are?"""
        raise NotImplementedError

    @property
    def keeps_places(self) -> bool:
        """Does every element stay, at its position?"""
        raise NotImplementedError

    @property
    def is_ordered(self) -> bool:
        """Are the rows of this stage, in a stream, read in order in the caller's thread?"""
        raise NotImplementedError

    @property
    def is_one_dataset(self) -> bool:
        """Is this one dataset, seen once: nothing repeated or joined on the way to its source?"""
        raise NotImplementedError

    def user_objects(self) -> Iterator[tuple[str, object]]:
        """The sources and functions of the stage, with the names that messages call them by."""
        raise NotImplementedError

    def batch_rows_before(self, step: int) -> int:
        """Records in the batches before a step: exact unless short batches were moved about."""
        raise NotImplementedError

    def epoch_of(self, step: int) -> int:
        """The epoch of the outermost repeat at a step; 0 where there is none."""
        raise NotImplementedError

    def make_record_operator(self, request: Request) -> RecordOperator:
        """How records are read by index; nodes of streams have no operators."""
        raise NotImplementedError

    def batch_operator(self, request: Request) -> BatchOperator:
        """How batches are read by index."""
        raise NotImplementedError

    def reader(self, build: StreamBuild, above: Above) -> MakeReader:
        """How the records of a stream are read, with the stages that stand above them."""
        raise NotImplementedError

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        """The batches of a stream after this stage, which stands above the batch."""
        raise NotImplementedError

    # What most stages answer alike ------------------------------------------------------------

    def fingerprint(self, seed: int) -> str:
        """The stage in a saved state: what changes the stream, and nothing else.

        ``seed`` is for stages without one.  Empty, if the stage itself changes nothing.
        """
        return stage_text(self.stage.partition("(")[0], {}, self)

    @cached_property
    def is_stream(self) -> bool:
        """Is it unknown which input makes which output, and how many there are?"""
        return any(node.is_stream for node in self.inputs)

    @cached_property
    def limit(self) -> int:
        """How many elements can be numbered: all; of an endless dataset those whose rows can be.

        The elements of a stream are only counted.
        """
        return LIMIT if self.length is None else self.length

    @cached_property
    def ends(self) -> bool:
        """Does it end?  A stream does where its input does, after an unknown number of elements."""
        return self.length is not None

    @cached_property
    def batched(self) -> bool:
        """Are the elements batches?"""
        return self.inputs[0].batched

    @cached_property
    def batch_size(self) -> int | None:
        """Rows per batch (of the global batch), if they are batches of one size."""
        sizes = {node.batch_size for node in self.inputs}
        return sizes.pop() if len(sizes) == 1 else None

    @cached_property
    def uniform(self) -> bool:
        """Has every batch the full size?"""
        return self.batch_size is not None and all(node.uniform for node in self.inputs)

    @cached_property
    def only_last_is_short(self) -> bool:
        """Can no batch but the last be short?"""
        return self.uniform

    @cached_property
    def rows(self) -> int | None:
        """The number of records in all batches; None if endless or not known."""
        return None

    @cached_property
    def rows_are_known(self) -> bool:
        """Can the place of every row in its batch be told from its number?"""
        return False

    @cached_property
    def short_batches(self) -> tuple[ShortBatches, ...] | None:
        """Which batches are not full: none, or those of one rule; None if that is not known."""
        return () if self.uniform else None

    def batch_stages(self) -> Iterator[Node]:
        """The stages that cut the batches of this chain, one of each joined dataset."""
        for node in self.inputs if self.batched else ():
            yield from node.batch_stages()

    def row_counts(self, uniform: bool) -> list[RowCount]:
        """The numbers of records that the batches of a stage which cuts them can have."""
        return []

    @property
    def keeps_order(self) -> bool:
        """Does every record stay, and in its order, be it in a batch?"""
        return self.keeps_places

    @property
    def random_access(self) -> bool:
        """Are records in any order read as fast as in their own?"""
        return all(node.random_access for node in self.inputs)

    @property
    def is_stage(self) -> bool:
        """Is it a stage on one input, rather than a source or a join?"""
        return False

    @property
    def is_aligned(self) -> bool:
        """Does it take the same position from all of its inputs, as zip does?"""
        return False

    @property
    def moves(self) -> bool:
        """Does the stage put elements in other places?"""
        return False

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
        """Does the stage hand its function the position of each element?"""
        return False

    @property
    def order_varies(self) -> bool:
        """May the stage give its records in another order in each epoch?"""
        return self.is_random

    @property
    def fill_depends_on_order(self) -> bool:
        """Does the order of the records decide which of them the stage leaves out?"""
        return False

    @cached_property
    def random_stages(self) -> int:
        """Random stages up to and with this one."""
        return self.is_random + sum(node.random_stages for node in self.inputs)

    @cached_property
    def repeats(self) -> int:
        """Stages up to and with this one that can show a record again."""
        return self.repeats_here + sum(node.repeats for node in self.inputs)

    @property
    def repeats_here(self) -> int:
        return 0

    @property
    def begins_epochs(self) -> bool:
        """Does the stage read its input again, in further epochs?"""
        return False

    @property
    def is_repeat(self) -> bool:
        """Is it a repeat, of however many epochs?"""
        return False

    @property
    def shuffle_span(self) -> int | None:
        """How many consecutive elements the stage shuffles among each other; None: it does not."""
        return None

    @property
    def is_part(self) -> bool:
        """Does the stage keep some elements, by their position, and leave out others?"""
        return False

    @property
    def ends_of_part(self) -> list[int] | None:
        """Where a part begins and ends in its input; None if it has gaps."""
        return None

    @property
    def is_take(self) -> bool:
        """Does the stage only say after how many elements to stop?"""
        return False

    @property
    def default_seed_here(self) -> int | None:
        """The seed that the stage sets for others of its chain."""
        return None

    @property
    def error_policy(self) -> Policy | None:
        """What the stage does with records that fail."""
        return None

    @property
    def most_failures(self) -> int | None:
        """How many different records may fail before the stage raises."""
        return None

    @property
    def epoch_steps(self) -> int | None:
        """Elements in an epoch of the outermost repeat; None where there is none."""
        return None

    @property
    def largest_request(self) -> int:
        """The most rows that the stage asks for at once, in a stream."""
        return self.window or 0

    @cached_property
    def once_through(self) -> int:
        """The records after which each of a dataset, also of an endless one, has come once."""
        if self.length is not None:
            return self.length
        return sum(node.once_through for node in self.inputs)

    @cached_property
    def spec(self) -> Tree | None:
        """The spec of an element, where it is known without reading one."""
        return self.inputs[0].spec

    def one_epoch(self) -> Node:
        """The node without its outermost repeat, or itself if it has none."""
        return self

    def above_cut(self, build: StreamBuild, above: Above) -> Above:
        """What a stage above the batch of a stream changes for the units below it."""
        return above

    def check_lanes(self, lanes: int) -> None:
        """Raises if a stream with this stage cannot be cut into so many lanes."""

    # Going through the chain ------------------------------------------------------------------

    def record_operator(self, request: Request) -> RecordOperator:
        """How records are read by index."""
        if not request.guarded or not self.is_one_dataset or self.length is None:
            return self.make_record_operator(request)
        inner = self.make_record_operator(request.replace(guarded=False))
        return Anchor(inner, self.length, request.seed)

    def rows_before(self, step: int) -> int:
        """Records handed out before a step."""
        return self.batch_rows_before(step) if self.batched else step

    def below(self) -> Iterator[Node]:
        """This node and all that it reads from."""
        yield self
        for node in self.inputs:
            yield from node.below()

    def chain(self) -> list[Node]:
        """From the source, or from the node that joins several, up to this node."""
        nodes: list[Node] = [self]
        while nodes[-1].is_stage:
            nodes.append(nodes[-1].inputs[0])
        return nodes[::-1]

    def default_seed(self, inherited: int = 0) -> int:
        """The seed of stages that have none of their own: the last ``.seed(n)`` of this chain."""
        for stage in reversed(self.chain()):
            if stage.default_seed_here is not None:
                return stage.default_seed_here
        return inherited


class Input(Node):
    """Where a chain begins."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    @cached_property
    def batched(self) -> bool:
        return False

    @cached_property
    def batch_size(self) -> int | None:
        return None

    @property
    def window(self) -> int | None:
        return None

    @property
    def unit_cost(self) -> UnitCost:
        return "nothing"

    @property
    def can_drop(self) -> bool:
        return False

    @property
    def keeps_places(self) -> bool:
        return False

    @property
    def is_one_dataset(self) -> bool:
        return True

    def batch_rows_before(self, step: int) -> int:
        raise AssertionError("a source has no batches")

    def epoch_of(self, step: int) -> int:
        return 0

    def batch_operator(self, request: Request) -> BatchOperator:
        raise AssertionError("a source has no batches")

    def after_batch(self, below: BatchReader, build: StreamBuild) -> BatchReader:
        raise AssertionError("a source has no batches")


class OneInput(Node):
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
    def limit(self) -> int:
        if self.is_stream:
            return LIMIT
        return self.input.limit if self.length is None else self.length

    @cached_property
    def ends(self) -> bool:
        return self.input.ends if self.is_stream else self.length is not None

    @cached_property
    def only_last_is_short(self) -> bool:
        return self.uniform if self.moves else self.input.only_last_is_short

    @cached_property
    def rows_are_known(self) -> bool:
        return self.input.rows_are_known and (self.uniform or not self.moves)

    @cached_property
    def short_batches(self) -> tuple[ShortBatches, ...] | None:
        return () if self.uniform else None if self.moves else self.input.short_batches

    @cached_property
    def rows(self) -> int | None:
        if not self.moves:
            return self.input.rows
        if self.length is None or self.batch_size is None or not self.uniform:
            return None
        return self.length * self.batch_size

    @property
    def is_one_dataset(self) -> bool:
        return self.input.is_one_dataset and not self.repeats_here


class KeepsPlaces(OneInput):
    """The base of stages that leave every element where it is: map, on_error, seed."""

    @property
    def keeps_places(self) -> bool:
        return True

    @property
    def window(self) -> int | None:
        return None

    @property
    def is_ordered(self) -> bool:
        return False

    def batch_rows_before(self, step: int) -> int:
        return self.input.batch_rows_before(step)

    def epoch_of(self, step: int) -> int:
        return self.input.epoch_of(step)

    def one_epoch(self) -> Node:
        inner = self.input.one_epoch()
        return self if inner is self.input else self.replace(input=inner)


class MadeInUnits:
    """Mixed into stages that work on the records of one unit, where they are part of a stream."""

    input: Node

    def unit_stage(self, build: StreamBuild) -> UnitStage:
        """What the stage does to the rows of a unit."""
        raise NotImplementedError

    def reader(self, build: StreamBuild, above: Above) -> MakeReader:
        return build.reader(self.input, above.over(self.unit_stage(build)))


def checked_length(length: int, limit: int = LIMIT) -> int:
    if length > limit:
        most = "2**62" if limit == LIMIT else str(limit)
        raise ArgumentError(f"a dataset can have at most {most} elements, this one has {length}.")
    return length
