"""From description to operators.

Stages that only move rows become `Move`s of the operator below them, so that reading never meets
them. Going down, two wishes travel along: ``stacked`` (the stage above wants arrays, not single
records) and ``guard`` (an `on_error` stands above, so the place where rows can be replaced must be
marked).
"""

from __future__ import annotations

from typing import Any

from loaderx import chain
from loaderx.chain.base import Node
from loaderx.chain.fingerprint import default_seed
from loaderx.reading import batches, guards, moves, records, routing
from loaderx.stages.transforms import RandomKeys, with_full


class Compiler:
    """Compiles one chain; ``seed`` is for stages without one, ``shard`` is (host, hosts).

    ``full`` is how many records are read at a time, but for the last: None where that varies.
    ``whole`` says whether batches are read as they are cut, rather than row by row.
    """

    def __init__(
        self,
        seed: int,
        shard: tuple[int, int] = (0, 1),
        *,
        full: int | None = None,
        whole: bool = True,
    ) -> None:
        self.seed = seed
        self.shard = shard
        self.full = full
        self.whole = whole

    def component(self, node: Node) -> Compiler:
        """The compiler for a component, which may have a default seed of its own."""
        return Compiler(default_seed(node, self.seed), self.shard, whole=self.whole)

    def of_records(
        self, node: Node, *, stacked: bool, guard: bool = False
    ) -> records.RecordOperator:
        if guard and _is_single(node):
            assert node.length is not None
            inner = self.of_records(node, stacked=stacked)
            return guards.Anchor(inner, node.length, self.seed)
        move = self._move(node)
        if move is not None:
            below = self.of_records(node.inputs[0], stacked=stacked, guard=guard)
            below.moves.insert(0, move)
            return below
        match node:
            case chain.FromSource():
                return records.ReadSource(node.source, stacked=stacked)
            case chain.Seeded():
                return self.of_records(node.input, stacked=stacked, guard=guard)
            case chain.Guarded():
                below = self.of_records(node.input, stacked=stacked, guard=True)
                return guards.Guard(node.stage, below, node.policy)
            case chain.Transformed():
                return self._transform(node, stacked, guard)
            case chain.Unbatched():
                below_it = Compiler(self.seed, self.shard, whole=False)
                return batches.Unbatch(below_it.of_batches(node.input))
            case chain.Zipped():
                children = [
                    self.component(part).of_records(part, stacked=stacked)
                    for part in node.components
                ]
                return records.Zip(node.stage, children, node.structure)
            case chain.Concatenated() | chain.Mixed():
                children = [
                    self.component(part).of_records(part, stacked=stacked, guard=guard)
                    for part in node.components
                ]
                return records.Merge(node.stage, children, _router(node))
        raise AssertionError(f"no operator for {type(node).__name__}")

    def of_batches(self, node: Node, *, policy: Any = None) -> batches.BatchOperator:
        move = self._move(node)
        if move is not None:
            below = self.of_batches(node.inputs[0], policy=policy)
            below.moves.insert(0, move)
            return below
        match node:
            case chain.Batched():
                return self._cut(node, policy)
            case chain.Seeded():
                return self.of_batches(node.input, policy=policy)
            case chain.Guarded():
                return self.of_batches(node.input, policy=node.policy)
            case chain.Transformed():
                child = self.of_batches(node.input, policy=policy)
                transform = with_full(node.transform, self._rows(node.batch_size, node.rows))
                if node.transform.needs == "nothing":
                    return batches.ApplyBatch(node.stage, child, node.transform)
                return batches.ApplyBatchTagged(
                    node.stage,
                    child,
                    transform,
                    seed=node.seed(self.seed),
                    ordinal=node.random_stages,
                )
            case chain.Zipped():
                children = [
                    self.component(part).of_batches(part, policy=policy) for part in node.components
                ]
                return batches.ZipBatches(node.stage, children, node.structure, node.batch_size)
            case chain.Concatenated() | chain.Mixed():
                children = [
                    self.component(part).of_batches(part, policy=policy) for part in node.components
                ]
                return batches.MergeBatches(node.stage, children, _router(node), node.batch_size)
        raise AssertionError(f"no operator for {type(node).__name__}")

    def _rows(self, size: int | None, available: int | None) -> int | None:
        """Rows of every batch on this host, but for a short last one; None where that varies."""
        if size is None or not self.whole:
            return None
        rows = size // self.shard[1]
        return rows if available is None else min(rows, available)

    def _cut(self, node: chain.Batched, policy: Any) -> batches.Cut:
        stacked = node.collate is None and not node.padding.lengths
        full = self._rows(node.size, node.input.length)
        below = Compiler(self.seed, self.shard, full=full)
        child = below.of_records(node.input, stacked=stacked, guard=policy is not None)
        if policy is not None:
            child = guards.Guard("on_error", child, policy)
        return batches.Cut(node, child, self.shard)

    def _transform(
        self, node: chain.Transformed, stacked: bool, guard: bool
    ) -> records.RecordOperator:
        if not isinstance(node.transform, RandomKeys):  # keys are added to whatever comes
            stacked = node.stacked
        child = self.of_records(node.input, stacked=stacked, guard=guard)
        if node.transform.needs == "nothing":
            return records.Apply(node.stage, child, node.transform, stacked=stacked)
        return records.ApplyTagged(
            node.stage,
            child,
            with_full(node.transform, self.full),
            stacked=stacked,
            seed=node.seed(self.seed),
            ordinal=node.random_stages,
        )

    def _move(self, node: Node) -> moves.Move | None:
        match node:
            case chain.Shuffled():
                assert node.length is not None
                return moves.Shuffle(node.length, node.seed(self.seed), node.random_stages)
            case chain.WindowShuffled():
                return moves.WindowShuffle(
                    node.length, node.window, node.seed(self.seed), node.random_stages
                )
            case chain.Part():
                assert node.input.length is not None
                return moves.Part(node.input.length, node.seed, node.start)
            case chain.Sliced():
                return moves.Slice(node.start, node.step)
            case chain.Picked():
                return moves.Pick(node.table, node.seen, node.repeats)
            case chain.Repeated():
                assert node.input.length is not None
                return moves.Repeat(node.input.length, node.input.rows, node.repeats)
        return None


def _router(node: chain.Concatenated | chain.Mixed) -> routing.Router:
    lengths = [part.length for part in node.components]
    if isinstance(node, chain.Concatenated):
        return routing.ByOffset(lengths)
    if node.stop == "all_exhausted":
        return routing.ByPhases(node.phases)
    ordinal = node.repeats if node.stop == "repeat" else None
    return routing.ByTickets(node.schedule, lengths, ordinal)


def _is_single(node: Node) -> bool:
    """Is this one dataset, seen once: nothing repeated or joined on the way to its source?"""
    single = True
    for stage in node.chain():
        if isinstance(stage, chain.Unbatched):
            single = stage.length is not None  # a dataset of its own, whatever is below it
        elif isinstance(stage, (chain.Concatenated, chain.Mixed)) or (
            stage.repeats_here and not isinstance(stage, chain.Joined)
        ):
            single = False
    return single and node.length is not None
