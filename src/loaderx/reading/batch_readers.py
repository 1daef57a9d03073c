"""Batches of a stream: rows of all lanes, cut and stacked, and the stages above.

Readers of batches have a position, too: a list of counters, one for each take, skip, repeat and
index above the batch (the same on every host), and the positions of the lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loaderx import chain
from loaderx.chain.base import LIMIT
from loaderx.errors import ChainError, LoaderxError, RecordError, StateError
from loaderx.memory import Pool
from loaderx.reading.empty_epochs import EmptyEpochs
from loaderx.reading.error_text import say
from loaderx.reading.lookahead import Path
from loaderx.reading.pieces import Piece, as_batch, joined_keys
from loaderx.reading.readers import Reader
from loaderx.reading.state_numbers import whole as whole_number
from loaderx.rng import Keys, stage_keys
from loaderx.stages.stacking import pad_rows
from loaderx.stages.transforms import Transform, whole
from loaderx.tree import Tree, flatten, map_leaves


class MadeBatch:
    """A batch (or a record), the keys of its rows, and how many of them are real."""

    __slots__ = ("count", "keys", "tree")

    def __init__(self, tree: Tree, keys: Keys | None, count: int) -> None:
        self.tree, self.keys, self.count = tree, keys, count


class BatchReader:
    """The base."""

    def start(self, path: Path) -> None:
        raise NotImplementedError

    def next(self) -> MadeBatch | None:
        """The next batch; None at the end."""
        raise NotImplementedError

    def counters(self) -> list[int]:
        raise NotImplementedError

    def restore(self, path: Path, counters: Iterator[int], lanes: Any, *, fresh: bool) -> None:
        raise NotImplementedError


class Lanes(BatchReader):
    """The base of what reads from lanes."""

    first_lane = 0  # the number of the first of them

    def __init__(self, lanes: Sequence[Reader]) -> None:
        self.lanes = lanes

    def start(self, path: Path) -> None:
        for lane in self.lanes:
            lane.start(path)

    def counters(self) -> list[int]:
        return []

    def positions(self) -> list[Any]:
        return [lane.state() for lane in self.lanes]

    def restore(self, path: Path, counters: Iterator[int], lanes: Any, *, fresh: bool) -> None:
        for number, (lane, position) in enumerate(zip(self.lanes, lanes, strict=True)):
            try:
                lane.restore(path, position, fresh=fresh)
            except StateError as error:
                raise StateError(f"lane {self.first_lane + number}: {error}") from None


class Cut(Lanes):
    """batch: as many rows from every lane, in the order of the lanes."""

    def __init__(
        self, lanes: Sequence[Reader], node: chain.Batched, pool: Pool, *, alone: bool
    ) -> None:
        super().__init__(lanes)
        self.node, self.pool = node, pool
        self.alone = alone  # is this host the only one?
        self.rows = node.size // node.lanes

    def next(self) -> MadeBatch | None:
        pieces: list[Piece] = []
        for lane in self.lanes:
            pieces += _rows(lane, self.rows)
        count = sum(piece.count for piece in pieces)
        full = self.rows * len(self.lanes)
        if count < full:
            if not self.alone:
                raise ChainError(
                    "the stream ended on this host before the .take(...) above .batch(...) did, "
                    "and the other hosts may go on. Take fewer steps, or put .repeat() before "
                    ".batch(...)."
                )
            if not count or self.node.drop_remainder:
                return None
        keys = joined_keys(pieces)
        tree = self._batch(pieces)
        if self.node.pad_remainder:
            if keys is not None and count < full:
                keys = keys[[*range(count), *([count - 1] * (full - count))]]
            tree = pad_rows(
                tree, count, full, self.node.mask_key, self.node.padding, self.pool.lend
            )
        return MadeBatch(tree, keys, count)

    def _batch(self, pieces: list[Piece]) -> Tree:
        node = self.node
        if node.collate is None:
            return as_batch(pieces, self.pool.lend, node.padding)
        records = [record for piece in pieces for record in piece.as_records()]
        stage = f"{node.stage}'s collate_fn"

        def fail(_: int | None, error: Exception) -> RecordError:
            reason = say(error, stage, is_batch=True)
            text = f"{stage} failed on a run of {len(records)} records: {reason}"
            return RecordError(text, stage=stage)

        return whole(fail, node.collate, records)


def _rows(lane: Reader, count: int) -> list[Piece]:
    pieces = []
    while count and (found := lane.ready(count)):
        pieces.append(lane.take(found))
        count -= found
    return pieces


class CutRecords(Lanes):
    """A stream without batches: one record after the other."""

    def next(self) -> MadeBatch | None:
        pieces = _rows(self.lanes[0], 1)
        if not pieces:
            return None
        record = pieces[0].as_records()[0]
        return MadeBatch(map_leaves(_owned, record), joined_keys(pieces), 1)


class CutBuckets(Lanes):
    """A stream of finished batches."""

    def next(self) -> MadeBatch | None:
        pieces = _rows(self.lanes[0], 1)
        if not pieces:
            return None
        tree, keys, count = pieces[0].as_records()[0]
        missing = 0 if keys is None else len(flatten(tree)[0][0]) - count
        if keys is not None and missing:
            keys = keys[[*range(count), *([count - 1] * missing)]]
        return MadeBatch(tree, keys, count)


def _owned(leaf: Any) -> Any:
    """A record is the user's own, not a row of something larger."""
    return leaf.copy() if hasattr(leaf, "flags") and hasattr(leaf, "copy") else leaf


class AfterBatch(BatchReader):
    """A stage on the batches of another reader."""

    def __init__(self, below: BatchReader) -> None:
        self.below = below

    def start(self, path: Path) -> None:
        self.below.start(path)

    def counters(self) -> list[int]:
        return self.below.counters()

    def restore(self, path: Path, counters: Iterator[int], lanes: Any, *, fresh: bool) -> None:
        self.below.restore(path, counters, lanes, fresh=fresh)


class ApplyAfterBatch(AfterBatch):
    """map, random_map, random_keys after batch."""

    def __init__(
        self, below: BatchReader, stage: str, transform: Transform, seed: int, ordinal: int
    ) -> None:
        super().__init__(below)
        self.stage, self.transform = stage, transform
        self.seed, self.ordinal = seed, ordinal

    def next(self) -> MadeBatch | None:
        made = self.below.next()
        if made is not None:
            made.tree = self.transform.on_batch(made.tree, self._extra(made), self._fail)
        return made

    def _extra(self, made: MadeBatch) -> Any:
        if self.transform.needs == "nothing":
            return None
        assert made.keys is not None
        return stage_keys(made.keys, self.seed, self.ordinal)

    def _fail(self, number: int | None, error: Exception) -> LoaderxError:
        reason = say(error, self.stage, is_batch=True)
        return RecordError(f"{self.stage} failed on a batch: {reason}", stage=self.stage)


class Counted(AfterBatch):
    """The base of stages that count the batches since their start."""

    count = 0
    most_counted = LIMIT

    def start(self, path: Path) -> None:
        self.count = 0
        self.below.start(path)

    def counters(self) -> list[int]:
        return [self.count, *self.below.counters()]

    def restore(self, path: Path, counters: Iterator[int], lanes: Any, *, fresh: bool) -> None:
        self.count = _counter(counters, self.most_counted)
        self.below.restore(path, counters, lanes, fresh=fresh)


class IndexAfterBatch(Counted):
    """map_with_index after batch."""

    def __init__(self, below: BatchReader, stage: str, transform: Transform) -> None:
        super().__init__(below)
        self.apply = ApplyAfterBatch(below, stage, transform, 0, 0)

    def next(self) -> MadeBatch | None:
        made = self.below.next()
        if made is not None:
            made.tree = self.apply.transform.on_batch(made.tree, self.count, self.apply._fail)
            self.count += 1
        return made


class SliceAfterBatch(Counted):
    """take and skip after batch."""

    def __init__(self, below: BatchReader, begin: int, most: int | None) -> None:
        super().__init__(below)
        self.begin, self.most = begin, most
        self.most_counted = LIMIT if most is None else begin + most

    def next(self) -> MadeBatch | None:
        while self.count < self.begin:
            if self.below.next() is None:
                return None
            self.count += 1
        if self.most is not None and self.count >= self.begin + self.most:
            return None
        made = self.below.next()
        self.count += made is not None
        return made


class RepeatAfterBatch(Counted):
    """repeat after batch: passes ``first`` to ``stop``; its counter is the pass."""

    def __init__(
        self,
        below: BatchReader,
        stage: str,
        empty_epochs: EmptyEpochs,
        first: int = 0,
        stop: int | None = None,
    ) -> None:
        super().__init__(below)
        self.stage, self.first, self.stop = stage, first, stop
        self.most_counted = LIMIT if stop is None else stop - 1
        self.empty_epochs = empty_epochs
        self.given, self.barren = False, 0

    def start(self, path: Path) -> None:
        self.path, self.count, self.given, self.barren = path, self.first, False, 0
        self.below.start((*path, self.count))

    def next(self) -> MadeBatch | None:
        while True:
            made = self.below.next()
            if made is not None:
                self.given = True
                return made
            if self.stop is not None and self.count + 1 >= self.stop:
                return None
            self.barren = 0 if self.given else self.barren + 1
            if self.barren and self.stop is None:
                self.empty_epochs.check(self.barren, self.stage, "batch")
            self.count, self.given = self.count + 1, False
            self.below.start((*self.path, self.count))

    def restore(self, path: Path, counters: Iterator[int], lanes: Any, *, fresh: bool) -> None:
        self.path, self.count = path, _counter(counters, self.most_counted)
        self.given, self.barren = True, 0  # whether this pass gave a batch is not known
        self.below.restore((*path, self.count), counters, lanes, fresh=fresh)


def _counter(counters: Iterator[int], most: int) -> int:
    value = next(counters, None)
    if value is None:
        raise StateError(
            "the state does not fit this chain: it has too few counters of takes, skips, repeats "
            "and indices after batch."
        )
    return whole_number(value, "a counter of a take, skip, repeat or index after batch", most)
