"""A second implementation of streams, record at a time, in plain Python.

It follows docs/design.md with none of the plan's units, feeds, readers or pieces.  Whatever it
says, the plan must say too, for every engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

import oracle
from inside import node_of
from loaderx.chain.node import Node
from loaderx.rng import BRANCH, CHILD, ORDER, PIECE, ROW, STAGE, fold_int, record_generators
from loaderx.stages import nodes as stages
from loaderx.tree import flatten, map_leaves

Row = tuple[Any, int]  # a record, and its key
Placed = tuple[int, Any, int]  # with its place in the unit before it
Epoch = tuple[int, int]  # its key, and how many epochs came before it


def elements(dataset: Any) -> Iterator[Any]:
    """The elements of a stream, one after the other."""
    node = node_of(dataset)
    seed = node.default_seed()
    if node.batched:
        for batch, _ in _batches(node, (0, 0), seed):
            yield batch
    else:
        for record, _ in _lane(node, (0, 0), 0, 1, seed, _only_masks(node)):
            yield record


def _epochs(epoch: Epoch, node: stages.Repeated) -> Iterator[Epoch]:
    """The epochs of a repeat."""
    for q in itertools.count() if node.epochs is None else range(node.epochs):
        key = oracle.child_epoch(epoch[0], q, node.repeats)
        yield key, epoch[1] * (node.epochs or 1) + q


def _batches(node: Node, epoch: Epoch, seed: int) -> Iterator[tuple[Any, list[int]]]:
    match node:
        case stages.Batched():
            yield from _cut(node, epoch, seed)
        case stages.Repeated():
            for inner in _epochs(epoch, node):
                yield from _batches(node.input, inner, seed)
        case stages.Sliced():
            stop = None if node.count is None else node.start + node.count
            yield from itertools.islice(_batches(node.input, epoch, seed), node.start, stop)
        case stages.Transformed():
            for number, (batch, keys) in enumerate(_batches(node.input, epoch, seed)):
                yield oracle.on_batch(node, batch, keys, number, seed)
        case _:
            yield from _batches(node.inputs[0], epoch, seed)


def _cut(node: stages.Batched, epoch: Epoch, seed: int) -> Iterator[tuple[Any, list[int]]]:
    masked = _only_masks(node.input)
    lanes = [_lane(node.input, epoch, lane, node.lanes, seed, masked) for lane in range(node.lanes)]
    while True:
        each = node.size // node.lanes
        found = [list(itertools.islice(lane, each)) for lane in lanes]
        rows = [row for lane in found for row in lane]
        if not rows or (node.drop_remainder and len(rows) < node.size):
            return
        batch, keys = oracle.stack([value for value, _ in rows]), [key for _, key in rows]
        if node.pad_remainder:  # each lane by itself
            zero = map_leaves(lambda leaf: np.zeros_like(leaf[0]), batch)
            rows = []
            for lane in found:
                last = lane[-1][1] if lane else 0
                rows += lane + [(zero, last)] * (each - len(lane))
            batch, keys = oracle.stack([value for value, _ in rows]), [key for _, key in rows]
            real = [number < len(lane) for lane in found for number in range(each)]
            batch = {**batch, node.mask_key: np.array(real)}
        yield batch, keys


def _lane(
    node: Node, epoch: Epoch, lane: int, lanes: int, seed: int, masked: bool = False
) -> Iterator[Row]:
    """The rows of one lane; ``masked``: of a stream that only masks."""
    node, above = _found_below(node)
    for inner in _passes(above, epoch):
        yield from _one_pass(node, inner, above, lane, lanes, seed, masked)


def _found_below(node: Node) -> tuple[Node, list[Node]]:
    """Where the stages up to this node find their records, and these stages, the lowest first."""
    above: list[Node] = []
    while node.is_stream and not isinstance(
        node, (stages.Mixed, stages.FromIterable, stages.Sliced)
    ):
        if not isinstance(node, stages.Seeded):
            above.insert(0, node)
        node = node.inputs[0]
    return node, above


def _passes(above: list[Node], epoch: Epoch) -> Iterator[Epoch]:
    """The epochs of the repeats above, outermost first."""
    repeats = [node for node in reversed(above) if isinstance(node, stages.Repeated)]

    def nested(number: int, outer: Epoch) -> Iterator[Epoch]:
        if number == len(repeats):
            yield outer
            return
        for inner in _epochs(outer, repeats[number]):
            yield from nested(number + 1, inner)

    yield from nested(0, epoch)


def _one_pass(
    node: Node, epoch: Epoch, above: list[Node], lane: int, lanes: int, seed: int, masked: bool
) -> Iterator[Row]:
    above = [stage for stage in above if not isinstance(stage, stages.Repeated)]
    windows = [w for w in map(_window, above) if w is not None]
    if not node.is_stream:
        size = _unit_size(node, above, lanes, masked)
        for number, first, stop in _own_units(node.length, size, epoch[1], lane, lanes):
            rows: list[Placed] = [
                (p - first, *oracle.record_at(node, epoch[0], p, seed)) for p in range(first, stop)
            ]
            yield from _through(above, rows, epoch[0], number, seed)
        return
    source = _ordered(node, epoch, lane, lanes, seed)
    size = max(windows, default=1)
    for number in itertools.count():
        taken = list(itertools.islice(source, size))
        if not taken:
            return
        placed = [(place, value, key) for place, (value, key) in enumerate(taken)]
        yield from _through(above, placed, epoch[0], number, seed)


def _own_units(
    length: int | None, size: int, before: int, lane: int, lanes: int
) -> Iterator[tuple[int, int, int]]:
    """The units of a lane in an epoch: number, first record, and the one after the last."""
    if length is None:
        for number in itertools.count(lane, lanes):
            yield number, number * size, (number + 1) * size
    count = _unit_count(length, size, lanes)
    for number in range(count):
        if (before + number) % lanes == lane:  # one lane further in every epoch
            bounds = number * length // count, (number + 1) * length // count
            if lanes == 1:
                bounds = number * size, min(length, (number + 1) * size)
            yield number, *bounds


def _ordered(node: Node, epoch: Epoch, lane: int, lanes: int, seed: int) -> Iterator[Row]:
    match node:
        case stages.Sliced():
            stop = None if node.count is None else node.start + node.count
            inner = _lane(node.input, epoch, lane, lanes, seed)
            yield from itertools.islice(inner, node.start, stop)
        case stages.FromIterable():
            for number, record in enumerate(node.source.make(lane, lanes)):
                yield record, fold_int(epoch[0], number, ROW)
        case stages.Mixed():
            yield from _mixed(node, epoch, lane, lanes, seed)


def _mixed(node: Any, epoch: Epoch, lane: int, lanes: int, seed: int) -> Iterator[Row]:
    def component(number: int, q: int) -> Iterator[Row]:
        part = node.components[number]
        inner = epoch
        if number in again:
            inner = (oracle.child_epoch(epoch[0], q, node.repeats), epoch[1] + q)
        return _lane(part, inner, lane, lanes, oracle.seed_in(node, number, seed))

    several = range(len(node.components))
    capped = {c for c in several if node.epochs and node.epochs[c] is not None}
    again = set(several) if node.stop == "repeat" else capped
    at_last = node.changes[-1][1] if node.changes else node.tickets
    rounds = [0] * len(node.components)
    ended = [c in capped or not at_last[c] for c in several]
    is_flat = not (node.changes or capped or 0 in node.tickets)
    planned = [] if is_flat else list(itertools.islice(oracle.planned_components(node), 4000))
    readers = [component(number, 0) for number in range(len(rounds))]
    for number in itertools.count():
        turn = (number * 0x9E3779B97F4A7C15 % 2**64 >> 32) * lanes >> 32
        position = number * lanes + (lane + turn) % lanes
        if is_flat:
            c = int(node.schedule.component[position % len(node.schedule.component)])
        elif position < len(planned):
            c = planned[position]
        else:
            return  # the plan ends, or the test does not look further
        row = next(readers[c], None)
        if row is None:
            ended[c] = True
            if c not in again or (node.stop == "repeat" and all(ended) and c not in capped):
                return
            rounds[c] += 1
            readers[c] = component(c, rounds[c])
            row = next(readers[c])
        value, key = row
        yield value, fold_int(key, c, BRANCH)


# Units: the rules of docs/design.md, "Streams" ----------------------------------------------------


def _unit_count(length: int, size: int, lanes: int) -> int:
    count = lanes
    while count * size < length and count + lanes <= length:
        count += lanes
    return count


def units(node: Node) -> list[tuple[str, int, str]]:
    """Units of datasets ("unit") and windows over ordered rows ("window"), from the top down.

    Each has its size, and the text that a state has for it.
    """
    cut = next(
        (
            n
            for n in node.below()
            if isinstance(n, (stages.Batched, stages.Bucketed)) and n.is_stream
        ),
        None,
    )
    lanes = cut.lanes if isinstance(cut, stages.Batched) else 1
    records = cut.input if isinstance(cut, stages.Batched) else cut or node
    return _units(records, lanes, _only_masks(records))


def _units(node: Node, lanes: int, masked: bool) -> list[tuple[str, int, str]]:
    node, above = _found_below(node)
    windows = [w for w in map(_window, above) if w is not None]
    if not node.is_stream:
        size = _unit_size(node, above, lanes, masked)
        if node.length is None or lanes == 1:
            return [("unit", size, str(size))]
        count = _unit_count(node.length, size, lanes)
        size = max(size, -(-node.length // count))
        return [("unit", size, f"{size}/{count}")]
    found = [("window", max(windows), str(max(windows)))] if windows else []
    for below in node.inputs:
        found += _units(below, lanes, False)
    return found


def _unit_size(node: Node, above: list[Node], lanes: int, masked: bool) -> int:
    windows = [w for w in map(_window, above) if w is not None]
    if windows:
        return max(windows)
    has_children = any(isinstance(stage, stages.FlatMapped) for stage in above)
    most = 64 if has_children else 8192 if masked else 1024
    size = min(256, most)
    if node.spec is not None:
        record = 0
        for leaf in flatten(node.spec)[0]:
            entries = 1
            for axis in leaf.shape:
                entries *= axis or 1
            record += entries * leaf.dtype.itemsize
        size = min(most, max(16, 8 * 2**20 // max(1, record)))
    if node.length is not None:
        size = min(size, max(1, node.length // (4 * lanes)))
    power = 1
    while 2 * power <= size:
        power *= 2
    return power


def _only_masks(node: Node) -> bool:
    """Does a stream of records nothing but leave records out, asking for many at once?"""
    above = []
    while node.is_stream and node.inputs:
        above.append(node)
        node = node.inputs[0]
    above = [stage for stage in above if not isinstance(stage, (stages.Repeated, stages.Seeded))]
    filters = [isinstance(stage, stages.Filtered) and stage.stacked for stage in above]
    return bool(filters) and all(filters) and not node.is_stream


def _window(node: Node) -> int | None:
    if isinstance(node, (stages.WindowShuffled, stages.WindowMapped, stages.FlatMapped)):
        return node.window
    if isinstance(node, (stages.PackedRecords, stages.Bucketed)):
        return node.options.window
    return None


def _through(
    above: list[Node], rows: list[Placed], epoch: int, number: int, seed: int
) -> Iterator[Row]:
    for node in above:
        rows = list(_stage(node, above, rows, epoch, number, seed))
    for _, value, key in rows:
        yield value, key


def _stage(
    node: Node, above: list[Node], rows: list[Placed], epoch: int, number: int, seed: int
) -> Iterator[Placed]:
    match node:
        case stages.Transformed():
            for place, value, key in rows:
                yield place, oracle.transformed(node, value, key, 0, seed), key
        case stages.Filtered():
            for place, value, key in rows:
                argument = oracle.stack([value]) if node.stacked else value
                if np.all(node.function.call(argument)):
                    yield place, value, key
        case stages.FlatMapped():
            for place, value, key in rows:
                for child, made in enumerate(node.function.call(value)):
                    yield place, made, fold_int(key, child, CHILD)
        case stages.WindowShuffled():
            stage = fold_int(
                epoch,
                fold_int(oracle.seed_of(node.own_seed, seed), node.random_stages, ORDER),
                ORDER,
            )
            largest = max(w for w in map(_window, above) if w is not None)
            for inside, group in _windows(rows, node.window):
                key = fold_int(stage, number * (largest // node.window) + inside, ORDER)
                for i, (place, _, _) in enumerate(group):
                    moved = group[oracle.permuted(i, len(group), key)]
                    yield place, moved[1], moved[2]
        case stages.PackedRecords():
            for _, group in _windows(rows, node.options.window):
                for value, key in packed([(v, k) for _, v, k in group], node.options):
                    yield group[0][0], value, key
        case stages.WindowMapped():
            for _, group in _windows(rows, node.window):
                yield from _window_mapped(node, group, seed)
        case stages.Guarded() | stages.Skipping():
            yield from rows


def _window_mapped(node: stages.WindowMapped, group: list[Placed], seed: int) -> list[Placed]:
    arguments = []
    if node.is_random:
        stage = fold_int(oracle.seed_of(node.custom.seed, seed), node.random_stages, STAGE)
        key = np.array([fold_int(group[0][2], stage, STAGE)], np.uint64)
        arguments = list(record_generators(key))
    made: list[tuple[int, Any]] = []
    keys: list[int] = []
    for number, value in node.function.call([value for _, value, _ in group], *arguments):
        earlier = sum(source == number for source, _ in made)
        made.append((number, value))
        own = group[number][2]
        keys.append(fold_int(own, earlier, CHILD) if earlier else own)
    places = sorted(group[number][0] for number, _ in made)
    return [(place, value, key) for place, (_, value), key in zip(places, made, keys, strict=True)]


def _windows(rows: list[Placed], window: int) -> Iterator[tuple[int, list[Placed]]]:
    for number, group in itertools.groupby(rows, lambda row: row[0] // window):
        yield number, list(group)


def packed(rows: list[Row], options: Any) -> Iterator[Row]:
    """The rows of a window, for records whose leaves are all packed, or kept per segment."""
    segments = list(_segments(rows, options))  # (row, begin per leaf, end per leaf)
    if not segments:
        return
    bins = _bins(segments, options)
    if options.balance:
        cost = []
        for members in bins:
            sizes = [[e[p] - b[p] for p in b] for _, b, e in (segments[m] for m in members)]
            each = (
                options.balance if callable(options.balance) else lambda *n: sum(i * i for i in n)
            )
            cost.append(float(sum(each(*one) for one in sizes)))
        bins = [bins[i] for i in balanced(cost, options.balance_rows)]
    for members in bins:
        yield _packed_row([segments[m] for m in members], rows, options)


def squares(*lengths: int) -> int:
    return sum(n * n for n in lengths)


def balanced(cost: list[float], size: int) -> list[int]:
    """The order of rows: groups of ``size``, one row of each class of cost in every group."""
    mean = float(np.mean(cost))
    nearest = sorted(range(len(cost)), key=lambda i: abs(cost[i] - mean))
    left = nearest[: len(cost) % size]
    dear = sorted((i for i in range(len(cost)) if i not in left), key=lambda i: -cost[i])
    groups: list[list[int]] = [[] for _ in range(len(dear) // size)]
    for number in range(size):
        members = dear[number * len(groups) : (number + 1) * len(groups)]
        cheapest = sorted(range(len(groups)), key=lambda g: sum(cost[i] for i in groups[g]))
        for group, member in zip(cheapest, members):
            groups[group].append(member)
    rising = sorted(groups, key=lambda group: cost[group[0]])
    return [i for group in rising[::2] + rising[1::2][::-1] for i in group] + left


def _segments(rows: list[Row], options: Any) -> Iterator[Any]:
    room = {path: n - options.heads for path, n in options.rows.items()}
    tail = {path: options.last_token(path) is not None for path in room}
    if options.strategy == "concat" and not options.whole_documents:
        (limit,) = set(room.values())
        free, held = limit, 0
        for number, (value, _) in enumerate(rows):
            begin, total = 0, len(value[next(iter(room))])
            total += bool(total) and tail[next(iter(room))]
            while begin < total:
                if free == 0 or held == options.max_segments:
                    free, held = limit, 0
                end = min(total, begin + free)
                yield number, dict.fromkeys(room, begin), dict.fromkeys(room, end)
                free, held, begin = free - (end - begin), held + 1, end
        return
    for number, (value, _) in enumerate(rows):
        sizes = {path: len(value[path]) for path in room}
        if not any(sizes.values()):
            continue
        sizes = {path: sizes[path] + tail[path] for path in room}
        if any(sizes[path] > room[path] for path in room):
            assert options.overflow != "error"
            if options.overflow == "drop":
                continue
            if options.overflow == "truncate":
                sizes = {path: min(sizes[path], room[path]) for path in room}
        pieces = max(-(-sizes[path] // room[path]) for path in room)
        for piece in range(pieces):
            begin = {p: min(piece * room[p], sizes[p]) for p in room}
            end = {p: min((piece + 1) * room[p], sizes[p]) for p in room}
            yield number, begin, end


def _bins(segments: list[Any], options: Any) -> list[list[int]]:
    paths = list(options.rows)
    limits = {path: n - options.heads for path, n in options.rows.items()}
    most = options.max_segments or len(segments) + 1
    sizes = [{p: end[p] - begin[p] for p in paths} for _, begin, end in segments]
    bins: list[list[int]] = []
    touched: list[int] = []
    order = list(range(len(segments)))
    if options.strategy == "best_fit":
        order.sort(key=lambda s: -max(sizes[s][p] / limits[p] for p in paths))
    for clock, s in enumerate(order):
        room = [{p: limits[p] - sum(sizes[m][p] for m in b) for p in paths} for b in bins]
        fits = [
            b for b in range(len(bins))
            if len(bins[b]) < most and all(room[b][p] >= sizes[s][p] for p in paths)
        ]  # fmt: skip
        if options.strategy == "concat":
            cut = not options.whole_documents
            fits = [b for b in fits if b == len(bins) - 1]
            if cut and fits and sum(sizes[m][paths[0]] for m in bins[-1]) == limits[paths[0]]:
                fits = []
        if not fits:
            bins.append([])
            touched.append(clock)
            chosen = len(bins) - 1
        elif options.strategy == "best_fit" and len(paths) == 1:
            chosen = min(fits, key=lambda b: (room[b][paths[0]], -touched[b]))
        elif options.strategy == "best_fit":
            chosen = min(fits, key=lambda b: (sum(room[b][p] / limits[p] for p in paths), b))
        else:
            chosen = fits[0]
        bins[chosen].append(s)
        touched[chosen] = clock
    return sorted((sorted(b) for b in bins), key=lambda b: b[0])


def _packed_row(members: list[Any], rows: list[Row], options: Any) -> Row:
    first, begin, _ = members[0]
    path = next(iter(options.rows))
    key = fold_int(rows[first][1], begin[path], PIECE)
    out: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for path, leaf in rows[first][0].items():
        values = [rows[number][0][path] for number, _, _ in members]
        if path not in options.lengths:
            pad = np.full_like(np.asarray(values[0]), options.padding(path))
            full = values + [pad] * (options.max_segments - len(values))
            out[path] = np.stack([np.asarray(v) for v in full])
            continue
        leader = options.leader(path)
        tokens: list[Any] = [options.first_token(path)] * options.heads
        ids, positions = [1] * options.heads, []
        for number, (value, (_, b, e)) in enumerate(zip(values, members), 1):
            start = b[leader] if options.continue_positions else 0
            text = [*value, options.last_token(path)]
            tokens += text[b[leader] : e[leader]]
            ids += [number] * (e[leader] - b[leader])
            positions += range(start, start + len(ids) - len(positions))
        missing = options.rows[leader] - len(tokens)
        out[path] = np.array(tokens + [options.padding(path)] * missing, np.asarray(leaf).dtype)
        if leader != path:
            continue
        if options.segment_ids:
            extra[options.segment_ids.format(path)] = np.array(ids + [0] * missing, np.int32)
        if options.positions:
            extra[options.positions.format(path)] = np.array(positions + [0] * missing, np.int32)
    return {**out, **extra}, key
