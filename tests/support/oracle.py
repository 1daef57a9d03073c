"""A second implementation of the address algebra, as slow and plain as can be.

It follows the table in docs/design.md one row at a time, with none of the plan's operators,
blocks, cuts, gathers or buffers.  Whatever it says, the plan must say too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

import mix_oracle
from inside import node_of
from loaderx.chain.node import Node
from loaderx.chain.transforms import Map, MapWithIndex, RandomKeys, RandomMap
from loaderx.order.mixing import schedule
from loaderx.order.permutation import permute
from loaderx.rng import (
    BLOCK,
    BRANCH,
    EPOCH,
    ORDER,
    PART,
    REPLACE,
    ROW,
    STAGE,
    BatchGenerator,
    fold_int,
    key_words,
    record_generators,
)
from loaderx.stages import nodes as stages
from loaderx.stages.mix_weights import flat_phases
from loaderx.tree import as_array, flatten, map_leaves

Row = tuple[Any, int]  # a record, and its key


def elements(dataset: Any) -> list[Any]:
    """All elements of a finite dataset."""
    node = node_of(dataset)
    seed = node.default_seed()
    make = _batch if node.batched else record_at
    return [make(node, 0, p, seed)[0] for p in range(node.length)]


def _move(node: Node, epoch: int, p: int, seed: int) -> tuple[int, int] | None:
    """The address of an element in the node's input, for stages that only move elements."""
    match node:
        case stages.Seeded() | stages.Cached():
            return epoch, p
        case stages.Repeated():
            rounds, inside = divmod(p, node.input.length)
            return child_epoch(epoch, rounds, node.repeats), inside
        case stages.Without():
            return _another(node.removed, epoch, p)
        case stages.Shuffled():
            stage = fold_int(seed_of(node.own_seed, seed), node.random_stages, ORDER)
            return epoch, permuted(p, node.length, fold_int(epoch, stage, ORDER))
        case stages.WindowShuffled():
            window, inside = divmod(p, node.window)
            first = window * node.window
            rest = node.window if node.length is None else min(node.window, node.length - first)
            stage = fold_int(seed_of(node.own_seed, seed), node.random_stages, ORDER)
            key = fold_int(fold_int(epoch, stage, ORDER), window, ORDER)
            return epoch, first + permuted(inside, rest, key)
        case stages.BlockShuffled():
            return epoch, _in_blocks(node, epoch, p, seed)
        case stages.Part():
            if node.seed is None:
                return epoch, node.start + p
            stage = fold_int(node.seed, 0, PART)
            return epoch, permuted(node.start + p, node.input.length, fold_int(0, stage, PART))
        case stages.Sliced():
            return epoch, node.start + p * node.step
        case stages.Sampled():
            stage = fold_int(seed_of(node.own_seed, seed), node.random_stages, ORDER)
            word = fold_int(fold_int(epoch, stage, ORDER), p, ORDER)
            return child_epoch(epoch, p, node.repeats), drawn(node.weights.tolist(), word)
        case stages.Picked():
            seen = int((node.table[:p] == node.table[p]).sum())
            return child_epoch(epoch, seen, node.repeats), int(node.table[p])
    return None


def _another(removed: Any, epoch: int, p: int) -> tuple[int, int]:
    """The address of a record that is not removed, for one that may be."""
    gone, length = set(removed.ids.tolist()), removed.length
    if p not in gone:
        return epoch, p
    key = fold_int(epoch, p, REPLACE)
    drawn = [key, *(fold_int(key, n, REPLACE) for n in range(1, 64))]
    tried = [(p + 1 + each % (length - 1)) % length for each in drawn]
    left = [q for q in range(length) if q not in gone]
    return key, next((q for q in tried if q not in gone), left[key % len(left)])


def _filled(node: stages.Without, record: Any, is_removed: bool) -> Any:
    """A record of `without`, with zeros or nothing in the place of one that is removed."""
    if node.removed.fill == "mask":
        zero = map_leaves(lambda leaf: np.zeros_like(as_array(leaf)), record)
        mask = {node.transform.mask_key: np.array(not is_removed)}
        return {**(zero if is_removed else record), **mask}
    if node.removed.fill == "empty" and is_removed:
        return map_leaves(lambda leaf: np.zeros_like(as_array(leaf)[:0]), record)
    return record


def _in_blocks(node: stages.BlockShuffled, epoch: int, p: int, seed: int) -> int:
    """All blocks of the epoch in a list, cut into windows; the window of a position is shuffled."""
    stage = fold_int(seed_of(node.own_seed, seed), node.random_stages, ORDER)
    key = fold_int(epoch, stage, BLOCK)
    records = list(range(node.length))
    if node.block == "source":
        starts = node.input.block_starts.tolist()
        natural = [records[a:b] for a, b in itertools.pairwise(starts)]
        blocks = [natural[permuted(k, len(natural), key)] for k in range(len(natural))]
    else:
        full = len(records) // node.block
        natural = [records[k * node.block : (k + 1) * node.block] for k in range(full)]
        blocks = [natural[permuted(k, full, key)] for k in range(full)]
        if rest := records[full * node.block :]:
            blocks.insert(fold_int(key, full, BLOCK) % (full + 1), rest)
    if node.span is None:
        return [record for block in blocks for record in block][p]
    windows: dict[int, list[int]] = {}
    begin = 0
    for block in blocks:  # a block belongs to the window in which it begins
        windows.setdefault(begin // node.span, []).extend(block)
        begin += len(block)
    for number, window in windows.items():
        if p < len(window):
            order = fold_int(fold_int(epoch, stage, ORDER), number, ORDER)
            return window[permuted(p, len(window), order)]
        p -= len(window)
    raise AssertionError(p)


def drawn(weights: list[float], word: int) -> int:
    """An alias table as Walker has it: heavy entries serve light ones, one after the other."""
    entries = [i for i, weight in enumerate(weights) if weight]
    rough = [max(1, int(weights[i] * 2 ** (61 - len(entries).bit_length()))) for i in entries]
    height = 2**61 // len(entries)
    scale = height * len(entries) / sum(rough)
    amounts = [max(1, int(amount * scale)) for amount in rough]
    amounts[amounts.index(max(amounts))] += height * len(entries) - sum(amounts)
    light = [c for c, amount in enumerate(amounts) if amount < height]
    heavy = [c for c, amount in enumerate(amounts) if amount >= height]
    alias = list(range(len(entries)))
    while light:
        alias[light[0]] = heavy[0]
        amounts[heavy[0]] -= height - amounts[light[0]]
        # One that has less than its own column holds is served next, before all others.
        light[:1] = [heavy.pop(0)] if amounts[heavy[0]] < height else []
    column, above = divmod((word >> 11) * 2.0**-53 * len(entries), 1)
    own = above < amounts[int(column)] / height
    return entries[int(column) if own else alias[int(column)]]


def child_epoch(epoch: int, rounds: int, ordinal: int) -> int:
    return epoch if rounds == 0 else fold_int(epoch, rounds, EPOCH + (ordinal << 8))


def permuted(p: int, length: int, key: int) -> int:
    return int(permute(np.array([p]), length, np.array([key], np.uint64))[0])


def route(node: Node, epoch: int, p: int) -> tuple[int, int, int]:
    """Component, epoch and position for concatenate and mix."""
    if isinstance(node, stages.Concatenated):
        for number, part in enumerate(node.components):
            if part.length is None or p < part.length:
                return number, epoch, p
            p -= part.length
    if node.changes or node.epochs or 0 in node.tickets:
        return _route_by_plan(node, epoch, p)
    if node.stop == "all_exhausted":
        return _route_to_the_end(node, epoch, p)
    counts = [0] * len(node.components)
    period = sum(node.tickets)
    for position in range(p + 1):  # no table: count who came before
        component = int(node.schedule.component[position % period])
        if position < p:
            counts[component] += 1
    inside = counts[component]
    if node.stop == "repeat" and node.components[component].length is not None:
        rounds, inside = divmod(inside, node.components[component].length)
        epoch = child_epoch(epoch, rounds, node.repeats)
    return component, epoch, inside


def _route_by_plan(node: stages.Mixed, epoch: int, p: int) -> tuple[int, int, int]:
    *before, component = itertools.islice(planned_components(node), p + 1)
    inside, length = before.count(component), node.components[component].length
    if length is not None and (node.stop == "repeat" or node.epochs):
        rounds, inside = divmod(inside, length)
        epoch = child_epoch(epoch, rounds, node.repeats)
    return component, epoch, inside


def planned_components(node: stages.Mixed) -> Iterator[int]:
    """The component of each position of a mix whose weights change, or whose parts have caps."""
    most: list[int | None] = []
    others_go_on = []
    for number, part in enumerate(node.components):
        epochs = node.epochs[number] if node.epochs else None
        if epochs is not None and part.length is not None:
            most.append(epochs * part.length)
            others_go_on.append(node.at_cap == "redistribute")
        else:
            free = node.stop == "repeat" or node.is_stream
            most.append(None if free else part.length)
            others_go_on.append(node.stop == "all_exhausted")
    return mix_oracle.components(flat_phases(node.tickets, node.changes), most, others_go_on)


def _route_to_the_end(node: stages.Mixed, epoch: int, p: int) -> tuple[int, int, int]:
    """One record after the other; whoever is due and has none leaves, and a new period begins."""
    counts = [0] * len(node.components)
    left, slot = list(range(len(counts))), 0
    while True:
        shared = math.gcd(*(node.tickets[c] for c in left))
        period = schedule(tuple(node.tickets[c] // shared for c in left)).component
        component = left[period[slot % len(period)]]
        if counts[component] == node.components[component].length:
            left = [c for c in left if counts[c] < node.components[c].length]
            slot = 0
            continue
        if sum(counts) == p:
            return component, epoch, counts[component]
        counts[component] += 1
        slot += 1


def seed_of(own: int | None, default: int) -> int:
    return default if own is None else own


def seed_in(node: Node, number: int, seed: int) -> int:
    """The default seed of a component: its number counts in every branch but the first."""
    nearest = None  # the last .seed(n) between the component and the joins below it
    inner = node.components[number]
    while nearest is None and len(inner.inputs) == 1 and not _is_join(inner):
        nearest = inner.number if isinstance(inner, stages.Seeded) else None
        (inner,) = inner.inputs
    if nearest is not None:
        return nearest
    return fold_int(seed, number, BRANCH + 256 * (1 + _joins(node))) if number > 0 else seed


def _is_join(node: Node) -> bool:
    return isinstance(node, (stages.Zipped, stages.Concatenated, stages.Mixed))


def _joins(node: Node) -> int:
    """The most joins on the way from a node down to a source, without itself."""
    return max([_is_join(below) + _joins(below) for below in node.inputs], default=0)


def _keyed(node: stages.Transformed, key: int, seed: int) -> int:
    return fold_int(key, fold_int(seed_of(node.own_seed, seed), node.random_stages, STAGE), STAGE)


def record_at(node: Node, epoch: int, p: int, seed: int) -> Row:
    moved = _move(node, epoch, p, seed)
    if isinstance(node, stages.Cached):  # made once, as in the first epoch
        value, _ = record_at(node.input, 0, p, seed)
        return value, record_at(node.input, epoch, p, seed)[1]
    if isinstance(node, stages.Without):
        value, key = record_at(node.input, *moved, seed)
        return _filled(node, value, p in node.removed.ids), key
    if moved is not None:
        return record_at(node.input, *moved, seed)
    match node:
        case stages.FromSource():
            value = node.source.records(np.array([p]))[0]
            return value, fold_int(epoch, p, ROW)
        case stages.Guarded():
            return record_at(node.input, epoch, p, seed)
        case stages.Transformed():
            value, key = record_at(node.input, epoch, p, seed)
            return transformed(node, value, key, p, seed), key
        case stages.Unbatched():
            return _unbatched(node.input, epoch, p, seed)
        case stages.Windowed():
            first = p * node.stride
            places = range(first, first + node.size * (node.gap + 1), node.gap + 1)
            rows = [record_at(node.input, epoch, place, seed) for place in places]
            return stack([value for value, _ in rows]), rows[0][1]
        case stages.Zipped():
            rows = [
                record_at(part, epoch, p, seed_in(node, number, seed))
                for number, part in enumerate(node.components)
            ]
            key = rows[0][1]
            for _, other in rows[1:]:
                key = fold_int(key, other, BRANCH)
            return node.structure.build([value for value, _ in rows]), key
        case stages.Concatenated() | stages.Mixed():
            component, inner, inside = route(node, epoch, p)
            part = node.components[component]
            value, key = record_at(part, inner, inside, seed_in(node, component, seed))
            return value, fold_int(key, component, BRANCH)
    raise AssertionError(type(node))


def transformed(node: stages.Transformed, value: Any, key: int, p: int, seed: int) -> Any:
    transform = node.transform
    if node.stacked:
        batch, _ = on_batch(node, stack([value]), [key], p, seed)
        return map_leaves(lambda leaf: leaf[0], batch)
    drawn = np.array([_keyed(node, key, seed)], np.uint64) if node.is_random else None
    match transform:
        case Map():
            return transform.function.call(value)
        case RandomMap():
            return transform.function.call(value, next(record_generators(drawn)))
        case MapWithIndex():
            return transform.function.call(p, value)
        case RandomKeys():
            return {**value, transform.name: key_words(drawn, 1).view(np.uint32)[0]}
    raise AssertionError(type(transform))


def on_batch(node: Any, batch: Any, keys: list[int], p: int, seed: int) -> tuple[Any, list[int]]:
    transform = node.transform
    match transform:
        case Map():
            return transform.function.call(batch), keys
        case MapWithIndex():
            return transform.function.call(p, batch), keys
    drawn = np.array([_keyed(node, key, seed) for key in keys], np.uint64)
    if isinstance(transform, RandomMap):
        return transform.function.call(batch, BatchGenerator(drawn)), keys
    return {**batch, transform.name: key_words(drawn, 1).view(np.uint32)}, keys


def _batch(node: Node, epoch: int, k: int, seed: int) -> tuple[Any, list[int]]:
    moved = _move(node, epoch, k, seed)
    if moved is not None:
        return _batch(node.input, *moved, seed)
    match node:
        case stages.Guarded():
            return _batch(node.input, epoch, k, seed)
        case stages.Transformed():
            batch, keys = _batch(node.input, epoch, k, seed)
            return on_batch(node, batch, keys, k, seed)
        case stages.Batched():
            return _cut(node, epoch, k, seed)
        case stages.Zipped():
            parts = [
                _batch(part, epoch, k, seed_in(node, number, seed))
                for number, part in enumerate(node.components)
            ]
            keys = parts[0][1]
            for _, others in parts[1:]:
                keys = [fold_int(a, b, BRANCH) for a, b in zip(keys, others)]
            return node.structure.build([batch for batch, _ in parts]), keys
        case stages.Concatenated() | stages.Mixed():
            component, inner, inside = route(node, epoch, k)
            part = node.components[component]
            batch, keys = _batch(part, inner, inside, seed_in(node, component, seed))
            return batch, [fold_int(key, component, BRANCH) for key in keys]
    raise AssertionError(type(node))


def _cut(node: stages.Batched, epoch: int, k: int, seed: int) -> tuple[Any, list[int]]:
    total = node.input.length
    wanted = range(k * node.size, (k + 1) * node.size)
    real = [p for p in wanted if total is None or p < total]
    rows = [record_at(node.input, epoch, p, seed) for p in real]
    keys = [key for _, key in rows]
    batch = stack([value for value, _ in rows])
    if node.pad_remainder:
        missing = node.size - len(real)
        batch = map_leaves(
            lambda leaf: np.concatenate([leaf, np.zeros((missing, *leaf.shape[1:]), leaf.dtype)]),
            batch,
        )
        batch = {**batch, node.mask_key: np.arange(node.size) < len(real)}
        keys += [record_at(node.input, epoch, total - 1, seed)[1]] * missing
    return batch, keys


def _unbatched(node: Node, epoch: int, p: int, seed: int) -> Row:
    k = 0
    while True:
        batch, keys = _batch(node, epoch, k, seed)
        count = len(flatten(batch)[0][0])
        padded = next((n for n in node.below() if isinstance(n, stages.Batched)), None)
        if padded.pad_remainder:
            count = int(batch[padded.mask_key].sum())
        if p < count:
            return map_leaves(lambda leaf, row=p: leaf[row], batch), keys[p]
        p -= count
        k += 1


def stack(records: list[Any]) -> Any:
    """np.stack, leaf by leaf."""
    columns = [[as_array(leaf) for leaf in flatten(record)[0]] for record in records]
    structure = flatten(records[0])[1]
    return structure.build([np.stack(column) for column in zip(*columns)])


def same(one: Any, other: Any) -> bool:
    """Equal trees, dtypes and bytes."""
    a, structure = flatten(one)
    b, other_structure = flatten(other)
    if structure is not other_structure:
        return False
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in zip(a, b)]
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in pairs)


def assert_same(ours: Any, expected: Any) -> None:
    """Equal streams, element by element."""
    ours, expected = list(ours), list(expected)
    assert len(ours) == len(expected)
    for number, (one, other) in enumerate(zip(ours, expected)):
        assert same(one, other), f"element {number}: {one!r} is not {other!r}"
