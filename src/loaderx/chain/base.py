"""The frozen description: one node per stage, each holding the node that it reads from.

A node knows what can be known without reading a record: its length (None: endless), whether its
elements are records or batches, how many random stages and repeats stand below it.  It is checked
when it is made, and says how it reads in a ``repr`` (`stage`) and in a saved state (`fingerprint`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from loaderx.chain.encoding import stage_text
from loaderx.errors import ArgumentError
from loaderx.frozen import Frozen
from loaderx.tree import Tree

LIMIT = 1 << 62  # positions are int64, with room for arithmetic


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


class Node(Frozen):
    """The base of all nodes.  Subclasses are final."""

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

    def fingerprint(self, seed: int) -> str:
        """The stage in a saved state: what changes the stream, and nothing else.

        ``seed`` is for stages without one.
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
        """Does it end?  A stream does where its input does, after nobody knows how much."""
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

    @property
    def is_stage(self) -> bool:
        """Is it a stage on one input, rather than a source or a join?"""
        return False

    @property
    def is_aligned(self) -> bool:
        """Does it take the same position from all of its inputs, as zip does?"""
        return False

    @property
    def is_random(self) -> bool:
        """Does the stage draw random numbers?"""
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

    @cached_property
    def spec(self) -> Tree | None:
        """The spec of an element, where it is known without reading one."""
        return self.inputs[0].spec

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


class Leaf(Node):
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
    def limit(self) -> int:
        if self.is_stream:
            return LIMIT
        return self.input.limit if self.length is None else self.length

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
    def short_batches(self) -> tuple[ShortBatches, ...] | None:
        return () if self.uniform else None if self.moves else self.input.short_batches

    @cached_property
    def rows(self) -> int | None:
        if not self.moves:
            return self.input.rows
        if self.length is None or self.batch_size is None or not self.uniform:
            return None
        return self.length * self.batch_size


def checked_length(length: int, limit: int = LIMIT) -> int:
    if length > limit:
        most = "2**62" if limit == LIMIT else str(limit)
        raise ArgumentError(f"a dataset can have at most {most} elements, this one has {length}.")
    return length
