"""How many records make a unit of a stream: computed here, once, for the plan and for its states.

Stages of a stream find their records in a dataset that is read by index, or in the ordered rows of
a mix, a take or skip, an iterable.  Such a `StreamInput` is read in units, or in windows, that hold
the windows of all stages above it, up to the next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from loaderx.chain.node import Node, ShuffledBlocks
from loaderx.chain.stream_stage import stream_cut
from loaderx.errors import ChainError
from loaderx.frozen import Frozen
from loaderx.reading.unit_plan import UnitBounds
from loaderx.tree import ArraySpec, flatten

UNIT_ROWS = 1024
MASKED_UNIT_ROWS = 8192  # if records are only masked
MANY_UNIT_ROWS = 64  # if many records are made of each
UNKNOWN_UNIT_ROWS = 256  # if the size of a record is not known
UNIT_BYTES = 8 << 20
DEAL_VERSION = 2  # how units and the positions of mixes are dealt to lanes


class StreamInput(Frozen):
    """The records that stages work on, and how many of them are read together."""

    node: Node
    rows: int | None  # None for ordered rows without a window above: any number is read together
    units: int | None  # None for ordered rows, and for a dataset that is endless
    inputs: tuple[StreamInput, ...]  # those of ordered rows
    lanes: int = 1
    blocks: ShuffledBlocks | None = None  # units are whole windows of it, of about ``rows`` rows

    def bounds(self, seed: int) -> UnitBounds | None:
        """Where units begin and end, if they are whole windows of shuffled blocks."""
        if self.blocks is None:
            return None
        assert self.rows is not None
        return self.blocks.unit_bounds(seed, self.rows)

    def below(self) -> Iterator[StreamInput]:
        """This input and those below it."""
        yield self
        for each in self.inputs:
            yield from each.below()


def stream_input_of(node: Node) -> StreamInput:
    """The topmost input of a whole stream: that of the stages below its batch, or bucket."""
    cut = stream_cut(node)
    return _topmost(node, 1) if cut is None else _topmost(cut.unit_records, cut.lanes)


def unit_fingerprint(top: StreamInput) -> str:
    """The units, for a saved state, whose positions count them."""
    sizes = [
        str(each.rows) if each.units is None or each.lanes == 1 else f"{each.rows}/{each.units}"
        for each in top.below()
        if each.rows is not None
    ]
    deal = f", deal {DEAL_VERSION}" if top.lanes > 1 else ""
    return f"units {','.join(sizes) or 'none'}{deal}"


def check_lanes(node: Node, lanes: int) -> None:
    """Raises if this stream of records cannot be cut into this many lanes."""
    if lanes == 1:
        return
    for below in node.below():
        below.check_lanes(lanes)
    for each in _topmost(node, lanes).below():
        length, units = each.node.length, each.units
        if length is not None and units is not None and min(length, units) < lanes:
            raise ChainError(
                f"{each.node.stage} has {length} records, too few for {lanes} lanes, each of which "
                f"needs one. Use at most {length} lanes, or put .repeat() right after it, before "
                "the stage that makes the stream."
            )


def lane_records(node: Node, lanes: int) -> str:
    """The records that a lane of this stream holds: a unit of each input."""
    inputs = [each.rows for each in _topmost(node, lanes).below() if each.rows is not None]
    of = f" of {len(inputs)} inputs" if len(inputs) > 1 else ""
    return f"about {sum(inputs):,} records{of}" if inputs else "its records"


def _topmost(records: Node, lanes: int) -> StreamInput:
    return _input(records, lanes, masked=_only_masks(records))


def _input(node: Node, lanes: int, *, masked: bool) -> StreamInput:
    windows: list[int] = []
    most = MASKED_UNIT_ROWS if masked else UNIT_ROWS
    while node.is_stream and not node.is_ordered:
        windows += [] if node.window is None else [node.window]
        most = MANY_UNIT_ROWS if node.unit_cost == "many" else most
        node = node.inputs[0]
    if not node.is_stream:
        blocks = _shuffled_chunks(node)
        if blocks is not None:
            least = 1 if blocks.span else _fair_share(node, lanes, most)
            rows = blocks.whole_windows(max(windows, default=least))
            if (node.length or 0) >= lanes * rows:
                return StreamInput(node, rows, -(-(node.length or 0) // rows), (), lanes, blocks)
        rows = max(windows) if windows else _fair_share(node, lanes, most)
        units = _unit_count(node.length, rows, lanes)
        if node.length is not None and units is not None:
            rows = max(rows, -(-node.length // units))
        return StreamInput(node, rows, units, (), lanes)
    inputs = [_input(below, lanes, masked=masked) for below in node.inputs]
    return StreamInput(node, max(windows, default=None), None, tuple(inputs), lanes)


def _unit_count(length: int | None, rows: int, lanes: int) -> int | None:
    """As many units for each lane, none of them empty.

    Those of several lanes are nearly equal, so an epoch ends at about the same row in all of them.
    """
    if length is None:
        return None
    return lanes * max(1, min(-(-length // (lanes * rows)), length // lanes))


def _fair_share(node: Node, lanes: int, most: int) -> int:
    """Records in a unit where no window decides: a power of two."""
    rows = min(most, UNKNOWN_UNIT_ROWS)
    if node.spec is not None:
        nbytes = sum(_nbytes(leaf) for leaf in flatten(node.spec)[0])
        rows = min(most, max(16, UNIT_BYTES // max(1, nbytes)))
    if node.length is not None:
        rows = min(rows, max(1, node.length // (4 * lanes)))
    return 1 << (rows.bit_length() - 1)


def _shuffled_chunks(node: Node) -> ShuffledBlocks | None:
    """The shuffle of a source's chunks.

    Any part of a window needs all of its chunks: if units shared a window, each of their workers
    would decode them.  So a unit is made of whole windows, and the windows of stages above end
    where units do.
    """
    if node.random_access:
        return None
    while node.keeps_places:
        node = node.inputs[0]
    return node.shuffled_blocks


def _nbytes(leaf: ArraySpec) -> int:
    return math.prod(size or 1 for size in leaf.shape) * leaf.dtype.itemsize


def _only_masks(node: Node) -> bool:
    """Whether the stages over one dataset only leave records out."""
    found = False
    while node.is_stream:
        if node.is_ordered or node.unit_cost in ("records", "many"):
            return False
        found = found or node.unit_cost == "mask"
        node = node.inputs[0]
    return found
