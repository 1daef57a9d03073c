"""Packing: records of variable length laid end to end into rows of a fixed one.

A window of records becomes rows in four steps.  Each record is a *segment*, or several where it is
cut.  Every segment is given a row (`_best_fit`, `_fit_by_looking`, `_in_turn`, `_cut_anywhere`).
Rows are put in the order of their earliest record (or, with `balance`, so that neighbours together
cost the same), and segments in the order of their records.  Then each leaf is written in one call:
the segments of all rows and the padding between them are a list of slices, and `np.concatenate`
lays that list into the buffer.

Best fit takes the longest segments first and gives each the fullest row that still has room.  Rows
are kept by their free space, and one large integer has a bit for every free space that some row
has; the lowest bit from the segment's length upward names the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderx.errors import StackError
from loaderx.frozen import Frozen
from loaderx.memory import Layout, Lend
from loaderx.reading.error_text import USER_ERRORS
from loaderx.reading.stacking import Value, add_leaf, columns_of, filler
from loaderx.stages.pack import Packing
from loaderx.tree import Array, Structure, Tree, as_array, flatten

Counts = npt.NDArray[np.int64]
Name = Callable[[int], str]


class Packed(Frozen):
    """The rows of a window, each with its first record and its offset in that record.

    Offsets count the entries of all leaves, so that no two rows have the same.
    """

    tree: Tree
    first: Counts
    start: Counts
    tokens: int  # of all leaves, as is the capacity
    capacity: int
    records: Counts  # of all segments, in the order of their rows
    rows: Counts  # of all segments

    @property
    def count(self) -> int:
        return len(self.first)


class _Segments:
    """Pieces of records: the record of each, and its begin and end in every leaf."""

    __slots__ = ("begin", "end", "record")

    def __init__(self, record: Counts, begin: Counts, end: Counts) -> None:
        self.record = record
        self.begin, self.end = begin, end  # of shape (leaves, segments)

    def pick(self, index: Counts) -> _Segments:
        return _Segments(self.record[index], self.begin[:, index], self.end[:, index])


def pack(records: list[object], options: Packing, name: Name, lend: Lend) -> Packed | None:
    """The rows of one window; None if there is nothing to pack."""
    _, structure = flatten(records[0])
    columns = columns_of(records, structure, name)
    paths = structure.paths()
    leaves = _packed_leaves(columns, paths, options, name)
    others = [path for path in paths if path not in leaves]
    if others and options.max_segments is None:
        raise StackError(
            f'leaf "{others[0]}" is not in `lengths`, so it is kept once per segment, and '
            "`max_segments` must say for how many there is room. Give it, or leave the leaf out "
            "in .map()."
        )
    lengths = _lengths(leaves, options, name)
    limits = np.array(list(options.rows.values()), np.int64) - options.heads
    segments, rows = _arrange(lengths, limits, options, list(options.rows), name)
    if not len(rows):
        return None
    segments, rows = _in_order(segments, rows)
    if options.balance is not None:
        segments, rows = _balanced(segments, rows, options)
    return _write(structure, columns, leaves, segments, rows, options, lend)


def _packed_leaves(
    columns: list[list[Any]], paths: list[str], options: Packing, name: Name
) -> dict[str, list[Array]]:
    leaves = {}
    for path in options.lengths:
        if path not in paths:
            have = ", ".join(map(repr, paths)) if paths != [""] else "no names: make them dicts"
            raise StackError(f"`lengths` names a leaf {path!r}; records have {have}.")
        column = columns[paths.index(path)]
        if set(map(type, column)) != {np.ndarray}:
            column = [as_array(value) for value in column]
        looks = {(array.ndim, array.shape[1:], array.dtype) for array in column if array.size}
        if len(looks) > 1 or 0 in {array.ndim for array in column}:
            _complain(column, path, name)
        leaves[path] = column
    return leaves


def _lengths(leaves: dict[str, list[Array]], options: Packing, name: Name) -> Counts:
    """The lengths of all records in the leaves that have rows of their own, with `eos`."""
    found = {path: np.array([len(value) for value in leaves[path]], np.int64) for path in leaves}
    for path, have in found.items():
        other = options.leader(path)
        wrong = np.flatnonzero(have != found[other])
        if wrong.size:
            number = int(wrong[0])
            raise StackError(
                f'leaf "{path}" is packed alike with "{other}", and in {name(number)} it has '
                f"length {have[number]}, the other {found[other][number]}. Make them equal in "
                ".map(), or give it a length of its own."
            )
    lengths = np.stack([found[path] for path in options.rows])
    ends = np.array([options.last_token(path) is not None for path in options.rows], np.int64)
    return lengths + ends[:, None] * lengths.any(axis=0)


def _complain(column: list[Array], path: str, name: Name) -> None:
    first = next(array for array in column if array.size)
    for number, array in enumerate(column):
        if array.ndim == 0:
            if isinstance(array.item(), str):
                advice = "text. Make arrays of numbers of it first, in .map(tokenize)"
            else:
                advice = "a single value. Leave it out of `lengths` to keep it once per segment"
            raise StackError(f'cannot pack leaf "{path}": in {name(number)} it is {advice}.')
        if array.size and (array.shape[1:], array.dtype) != (first.shape[1:], first.dtype):
            raise StackError(
                f'cannot pack leaf "{path}": {name(number)} has {array.dtype}{list(array.shape)}, '
                f"others {first.dtype}{list(first.shape)}. Make them alike in .map()."
            )


# Rows for segments ----------------------------------------------------------------------------


def _arrange(
    lengths: Counts, limits: Counts, options: Packing, paths: list[str], name: Name
) -> tuple[_Segments, Counts]:
    """The segments of a window, and the row of each."""
    if options.strategy == "concat" and not options.whole_documents:
        return _cut_anywhere(lengths, limits, options, paths, name)
    segments = _fitted(lengths, limits, options, paths, name)
    sizes = segments.end - segments.begin
    most = options.max_segments or len(segments.record) + 1
    if options.strategy == "concat":
        return segments, _in_turn(sizes, limits, most)
    if len(limits) == 1 and options.strategy == "best_fit":
        return segments, _best_fit(sizes[0], int(limits[0]), most)
    return segments, _fit_by_looking(sizes, limits, most, best=options.strategy == "best_fit")


def _fitted(
    lengths: Counts, limits: Counts, options: Packing, paths: list[str], name: Name
) -> _Segments:
    """One segment per record that has any tokens, with ``overflow`` applied."""
    record = np.flatnonzero(lengths.any(axis=0))
    begin = np.zeros((len(limits), len(record)), np.int64)
    end = lengths[:, record]
    too_long = (end > limits[:, None]).any(axis=0)
    if not too_long.any():
        return _Segments(record, begin, end)
    if options.overflow == "error":
        number = int(np.flatnonzero(too_long)[0])
        leaf = int(np.flatnonzero(end[:, number] > limits)[0])
        told = f'in leaf "{paths[leaf]}"'
        if options.last_token(paths[leaf]) is not None:
            told += " (`eos` is one of them)"
        raise StackError(
            f"{name(int(record[number]))} has {end[leaf, number]} entries {told}, "
            f"a row has room for {limits[leaf]}. Say what to do with overflow='truncate', 'split' "
            "or 'drop', or give a longer row."
        )
    if options.overflow == "truncate":
        return _Segments(record, begin, np.minimum(end, limits[:, None]))
    if options.overflow == "drop":
        return _Segments(record, begin, end).pick(np.flatnonzero(~too_long))
    pieces = (-(-end // limits[:, None])).max(axis=0)
    which = np.repeat(np.arange(len(record)), pieces)
    piece = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = np.minimum(piece * limits[:, None], end[:, which])
    return _Segments(record[which], begin, np.minimum((piece + 1) * limits[:, None], end[:, which]))


def _best_fit(sizes: Counts, limit: int, most: int) -> Counts:
    """The fullest row that has room, the longest segments first."""
    order = np.argsort(-sizes, kind="stable").tolist()
    lengths = sizes.tolist()
    rows = [0] * len(lengths)
    by_room: dict[int, list[int]] = {}
    held: list[int] = []  # segments in each row
    rooms = 0  # bit r is set if a row has room for exactly r
    for number in order:
        length = lengths[number]
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            waiting = by_room[room]
            row = waiting.pop()
            if not waiting:
                rooms ^= 1 << room
            held[row] += 1
        else:
            room, row = limit, len(held)
            held.append(1)
        rows[number] = row
        room -= length
        if room and held[row] < most:
            by_room.setdefault(room, []).append(row)
            rooms |= 1 << room
    return np.array(rows, np.int64)


def _fit_by_looking(sizes: Counts, limits: Counts, most: int, *, best: bool) -> Counts:
    """The first row with room, or the fullest one where there are several leaves to fit."""
    leaves, count = sizes.shape
    room = np.empty((leaves, count), np.int64)
    held = np.zeros(count, np.int64)
    rows = np.empty(count, np.int64)
    shares = sizes / limits[:, None]
    order = np.argsort(-shares.max(axis=0), kind="stable") if best else np.arange(count)
    made = 0
    for number in order.tolist():
        need = sizes[:, number]
        fits = (room[:, :made] >= need[:, None]).all(axis=0)
        fits &= held[:made] < most
        found = np.flatnonzero(fits)
        if not found.size:
            row, made = made, made + 1
            room[:, row] = limits
        elif best:
            left = (room[:, found] / limits[:, None]).sum(axis=0)
            row = int(found[np.argmin(left)])
        else:
            row = int(found[0])
        room[:, row] -= need
        held[row] += 1
        rows[number] = row
    return rows


def _in_turn(sizes: Counts, limits: Counts, most: int) -> Counts:
    """Segments in order; a row ends where the next segment does not fit."""
    rows = []
    row, held, room = -1, most, limits.copy()
    for need in sizes.T:
        if held >= most or (need > room).any():
            row, held, room = row + 1, 0, limits.copy()
        room -= need
        held += 1
        rows.append(row)
    return np.array(rows, np.int64)


def _cut_anywhere(
    lengths: Counts, limits: Counts, options: Packing, paths: list[str], name: Name
) -> tuple[_Segments, Counts]:
    """All records end to end, cut wherever a row is full."""
    for leaf in range(1, len(limits)):
        wrong = np.flatnonzero(lengths[leaf] != lengths[0])
        if wrong.size:
            number = int(wrong[0])
            raise StackError(
                f"strategy='concat' cuts all leaves at the same places, but in {name(number)} leaf "
                f'"{paths[0]}" has length {lengths[0, number]} and leaf "{paths[leaf]}" has '
                f"{lengths[leaf, number]}. Make them equal in .map(), or use whole_documents=True."
            )
    limit, most = int(limits.min()), options.max_segments
    if most is None:
        record, begin, end, rows = _cut_where_full(lengths[0], limit)
    else:
        record, begin, end, rows = _cut_in_turn(lengths[0], limit, most)
    many = (len(limits), 1)
    return _Segments(record, np.tile(begin, many), np.tile(end, many)), rows


def _cut_where_full(lengths: Counts, limit: int) -> tuple[Counts, Counts, Counts, Counts]:
    """The record, begin, end and row of each piece, where only tokens fill a row."""
    ends = np.cumsum(lengths)
    starts = ends - lengths
    total = int(ends[-1])
    cuts = np.union1d(starts[lengths > 0], np.arange(0, total, limit))
    record = np.searchsorted(ends, cuts, side="right")
    begin = cuts - starts[record]
    return record, begin, np.append(cuts[1:], total) - starts[record], cuts // limit


def _cut_in_turn(lengths: Counts, limit: int, most: int) -> tuple[Counts, Counts, Counts, Counts]:
    """The same, where a row is full of tokens or of segments."""
    pieces: list[tuple[int, int, int, int]] = []
    row, room, held = -1, 0, 0
    for number, length in enumerate(lengths.tolist()):
        begin = 0
        while begin < length:
            if not room or held == most:
                row, room, held = row + 1, limit, 0
            end = min(length, begin + room)
            pieces.append((number, begin, end, row))
            room, held, begin = room - (end - begin), held + 1, end
    found = np.array(pieces, np.int64).reshape(-1, 4).T
    return found[0], found[1], found[2], found[3]


def _in_order(segments: _Segments, rows: Counts) -> tuple[_Segments, Counts]:
    """Rows by their earliest segment, segments by their record; rows are numbered from 0."""
    earliest = np.full(int(rows.max()) + 1, len(rows))
    np.minimum.at(earliest, rows, np.arange(len(rows)))
    rank = np.empty(len(earliest), np.int64)
    rank[np.argsort(earliest, kind="stable")] = np.arange(len(earliest))
    rows = rank[rows]
    order = np.argsort(rows, kind="stable")
    return segments.pick(order), rows[order]


def _balanced(segments: _Segments, rows: Counts, options: Packing) -> tuple[_Segments, Counts]:
    """Rows in an order in which groups of ``balance_rows`` cost the same as their neighbours."""
    sizes = segments.end - segments.begin
    cost = (sizes.astype(np.float64) ** 2).sum(axis=0)
    if callable(options.balance):
        cost = _cost_by(options.balance, sizes)
    of_rows = np.bincount(rows, weights=cost).astype(np.float64, copy=False)
    order = _spread_out(of_rows, options.balance_rows)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    rows = rank[rows]
    order = np.argsort(rows, kind="stable")
    return segments.pick(order), rows[order]


def _cost_by(function: Callable[..., object], sizes: Counts) -> npt.NDArray[np.float64]:
    try:
        cost = np.asarray(function(*sizes), np.float64)
    except USER_ERRORS as error:
        raise StackError(f"the function of `balance` failed: {error!r}") from error
    if cost.shape != sizes.shape[1:] or not np.isfinite(cost).all():
        raise StackError(
            f"the function of `balance` must return a finite number for each of {sizes.shape[1]} "
            f"lengths; it returned {list(cost.shape)} numbers."
        )
    return cost


def _spread_out(cost: npt.NDArray[np.float64], size: int) -> Counts:
    """An order of rows in which groups of ``size`` cost the same, as nearly as rows allow.

    The rows are sorted by cost and cut into ``size`` classes, of which each group gets one row:
    the dearest row of a class goes to the group that has cost least so far.  Groups stand in the
    order of their dearest rows, first rising, then falling.  So neighbours are alike, and also
    those ``size`` rows cost the same of which some are in one group and some in the next.  Single
    rows (``size`` 1) cannot cost the same, and only cost what their neighbours do.  Rows that are
    left over, those nearest to the mean, come last.
    """
    left = np.argsort(np.abs(cost - cost.mean()), kind="stable")[: len(cost) % size]
    dear = np.argsort(-cost, kind="stable")
    classes = dear[~np.isin(dear, left)].reshape(size, -1)
    groups = np.empty((classes.shape[1], size), np.int64)
    sums = np.zeros(len(groups))
    for number, members in enumerate(classes):
        cheapest = np.argsort(sums, kind="stable")
        groups[cheapest, number] = members
        sums[cheapest] += cost[members]
    rising = np.argsort(cost[groups[:, 0]], kind="stable")
    order = np.concatenate([rising[::2], rising[1::2][::-1]])
    return np.concatenate([groups[order].reshape(-1), left])


# Writing --------------------------------------------------------------------------------------


class _Grid:
    """Where the segments of all rows stand: row, number within the row."""

    __slots__ = ("count", "first", "number", "rows")

    def __init__(self, rows: Counts) -> None:
        self.rows = rows
        self.count = int(rows[-1]) + 1
        self.first = np.searchsorted(rows, np.arange(self.count))  # of each row
        self.number = np.arange(len(rows)) - self.first[rows]


def _write(
    structure: Structure,
    columns: list[list[object]],
    leaves: dict[str, list[Array]],
    segments: _Segments,
    rows: Counts,
    options: Packing,
    lend: Lend,
) -> Packed:
    grid = _Grid(rows)
    sizes = segments.end - segments.begin
    out: dict[str, Array] = {}
    extra: list[tuple[str, Array]] = []
    for leaf, (path, length) in enumerate(options.rows.items()):
        pieces = _Pieces(grid, sizes[leaf], segments.begin[leaf], length, options)
        alike = [one for one in leaves if options.leader(one) == path]
        likes = [next((a for a in leaves[one] if a.size), leaves[one][0]) for one in alike]
        shapes = [((grid.count, length, *like.shape[1:]), like.dtype) for like in likes]
        names = [template for template in (options.segment_ids, options.positions) if template]
        shapes += [((grid.count, length), np.dtype(np.int32))] * len(names)
        made = lend(Layout.of(*shapes))
        for one, target in zip(alike, made, strict=False):
            pieces.write_values(target, leaves[one], segments.record, one)
            out[one] = target
        for template, mark in zip(names, made[len(alike) :], strict=True):
            if template is options.segment_ids:
                pieces.write_ids(mark)
            else:
                pieces.write_positions(mark)
            extra.append((template.replace("{}", path), mark))
    paths = structure.paths()
    for path, values in zip(paths, columns, strict=True):
        if path not in out:
            out[path] = _per_segment(values, segments.record, grid, path, options)
    tree = structure.build([out[path] for path in paths])
    for path, mark in extra:
        tree = add_leaf(tree, path, mark, "pack")
    capacity = grid.count * sum(options.rows.values())
    tokens = int(sizes.sum()) + grid.count * options.heads * len(sizes)
    # Each piece of a record begins after the one before it in at least one leaf.
    start = segments.begin[:, grid.first].sum(axis=0)
    first = segments.record[grid.first]
    return Packed(tree, first, start, tokens, capacity, segments.record, rows)


class _Pieces:
    """The rows of leaves that are packed alike as a list of pieces, in order.

    Pieces are segments, and the padding after each row.
    """

    __slots__ = ("begin", "head", "heads", "length", "options", "pads", "segments")

    def __init__(
        self, grid: _Grid, sizes: Counts, begin: Counts, length: int, options: Packing
    ) -> None:
        self.length, self.heads, self.options = length, options.heads, options
        filled = np.add.reduceat(sizes, grid.first) + self.heads
        last = np.zeros(len(sizes), np.bool_)
        last[np.append(grid.first[1:], len(sizes)) - 1] = True
        pads = np.where(last, length - filled[grid.rows], 0)
        self.pads = pads.tolist()  # after each segment, 0 within a row
        self.head = (grid.number == 0).tolist()
        self.begin = begin.tolist()  # of each segment in its record
        self.segments = list(zip((grid.number + 1).tolist(), sizes.tolist(), strict=True))

    def write_values(self, target: Array, column: list[Array], records: Counts, path: str) -> None:
        rest, dtype, options = target.shape[2:], target.dtype, self.options

        def block(count: int, value: Value, name: str) -> Array:
            return np.full((count, *rest), filler(dtype, value, path, name), dtype)

        padding = block(self.length, options.padding(path), "pad_value")
        first = block(1, options.first_token(path), "bos") if self.heads else None
        eos = options.last_token(path)
        last = None if eos is None else block(1, eos, "eos")
        pieces: list[Array] = []
        where = zip(records.tolist(), self.begin, self.segments, self.head, self.pads, strict=True)
        for record, begin, (_, size), head, pad in where:
            if head and first is not None:
                pieces.append(first)
            if size:
                pieces.append(column[record][begin : begin + size])
                if last is not None and begin + size > len(column[record]):
                    pieces.append(last)
            if pad:
                pieces.append(padding[:pad])
        np.concatenate(pieces, out=target.reshape(-1, *rest), casting="same_kind")

    def write_ids(self, target: Array) -> None:
        nothing = np.zeros(self.length, np.int32)
        blocks: dict[int, Array] = {}
        pieces = []
        for (number, size), head, pad in zip(self.segments, self.head, self.pads, strict=True):
            block = blocks.get(number)
            if block is None:
                block = blocks[number] = np.full(self.length, number, np.int32)
            pieces.append(block[: size + self.heads if head else size])
            if pad:
                pieces.append(nothing[:pad])
        np.concatenate(pieces, out=target.reshape(-1))

    def write_positions(self, target: Array) -> None:
        starts = self.begin if self.options.continue_positions else [0] * len(self.begin)
        nothing = np.zeros(self.length, np.int32)
        numbers = np.arange(self.length + max(starts), dtype=np.int32)
        pieces = []
        where = zip(starts, self.segments, self.head, self.pads, strict=True)
        for start, (_, size), head, pad in where:
            pieces.append(numbers[start : start + (size + self.heads if head else size)])
            if pad:
                pieces.append(nothing[:pad])
        np.concatenate(pieces, out=target.reshape(-1))


def _per_segment(
    column: Sequence[object], record: Counts, grid: _Grid, path: str, options: Packing
) -> Array:
    """A leaf that is not packed: one entry for each segment of a row."""
    values = [as_array(column[number]) for number in record.tolist()]
    if len({(value.shape, value.dtype) for value in values}) > 1:
        raise StackError(
            f'leaf "{path}" is not in `lengths`, so it must have one shape and dtype in all '
            "records. Name its length too, or make it alike in .map()."
        )
    assert options.max_segments is not None
    shape = (grid.count, options.max_segments, *values[0].shape)
    out = np.full(shape, filler(values[0].dtype, options.padding(path), path), values[0].dtype)
    out[grid.rows, grid.number] = np.stack(values)
    return out
