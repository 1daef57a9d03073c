"""Readers in the caller's thread: stages over the ordered rows of another reader, and iterables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loaderx.chain.base import LIMIT
from loaderx.errors import LoaderxError, RecordError, StateError
from loaderx.order.epochs import child as epoch_child
from loaderx.reading.chunks import Chunk, UnitStage, run_stages
from loaderx.reading.empty_epochs import EmptyEpochs
from loaderx.reading.error_text import say
from loaderx.reading.lookahead import Path
from loaderx.reading.monitor import Monitor
from loaderx.reading.pieces import Piece, joined_keys
from loaderx.reading.readers import Reader, listed
from loaderx.reading.state_numbers import entries, shown, whole
from loaderx.reading.units import READ, Finish
from loaderx.rng import ROOT, ROW, Keys, fold
from loaderx.sources.iterables import IterableSource, OpenIterable

MOST_READ = 1 << 40  # records of an iterable: to skip so many would take weeks
FEW_PASSES = 4  # before an endless input is judged: where a pass begins may not be seen


class ChunkReader(Reader):
    """Stages over the ordered rows of another reader, window by window, in the caller's thread.

    State: the window's number, the rows of it that were used, the position below at its start.
    """

    def __init__(
        self,
        below: Reader,
        stages: Sequence[UnitStage],
        finish: Finish,
        window: int | None,
        ordinals: Sequence[int],
        empty_epochs: EmptyEpochs,
        largest: int,
        monitor: Monitor,
    ) -> None:
        self.below, self.stages, self.finish = below, list(stages), finish
        self.window, self.ordinals = window, ordinals
        self.largest = largest  # rows asked for at once
        self.empty_epochs = empty_epochs
        self.monitor = monitor
        self._begin((0,) * len(ordinals))

    def _begin(self, path: Path) -> None:
        self.path = path
        self.number, self.used = -1, 0
        self.left = 0  # rows to be passed over before the next one: a state was restored
        self.spare = 0  # rows of the input among which they must be
        self.fresh = False  # was it restored into a mix of other weights?
        self.piece: Piece | None = None
        self.below_state: Any = None
        self.fruitful: int | None = None  # the pass below that gave the last row

    def start(self, path: Path) -> None:
        self._begin(path)
        self.below.start(path)
        self.below_state = self.below.state()

    def _epoch(self) -> Keys:
        key = ROOT
        for ordinal, number in zip(self.ordinals, self.path, strict=True):
            key = epoch_child(key, np.array([number]), ordinal)
        return key

    def ready(self, n: int) -> int:
        while self.left:  # without a window, runs may be cut in other places than before
            self._pass_over()
        while not (found := self._rest()):
            if not self._fill(self.window or max(n, 1)):
                return 0
        return min(n, found)

    def _rest(self) -> int:
        """The rows that are left of the window."""
        if self.piece is None:
            return 0
        left = self.piece.count - self.used
        if not left:
            self.piece, self.used = None, 0
        return left

    def _pass_over(self) -> None:
        """Passes over rows of the window that was begun when the state was taken."""
        if found := min(self.left, self._rest()):
            self.take(found)
            self.left -= found
            return
        # Without a window row by row: what comes after the rows that were used is new, and is read
        # as it would have been.
        want = self.window or 1
        if self.spare <= 0 or not self._refill(want):
            if not self.fresh:
                raise StateError(
                    f"the state has used {self.left} rows more than window {self.number} of its "
                    "lane has, or than there are: the state is damaged, or the data or the "
                    "functions have changed."
                )
            self.left = 0  # with other weights the window holds other rows
        self.spare -= want

    def _refill(self, want: int) -> bool:
        with self.monitor.muted():
            return self._fill(want)

    def _fill(self, want: int) -> bool:
        self.below_state = self.below.state()
        pieces: list[Piece] = []
        while want and (found := self.below.ready(want)):
            pieces.append(self.below.take(found))
            want -= found
        if not pieces:
            return False
        self.number += 1
        context = self.monitor.context()
        output = self.finish.output(run_stages(self.stages, self._chunk(pieces), context), context)
        self.piece = Piece.of(output, self.finish.padding)
        self.monitor.note(output)
        self._judge()
        return True

    def _judge(self) -> None:
        """Gives an endless input up of which nothing comes through."""
        now = self.below.passes()
        if self.fruitful is None or (self.piece is not None and self.piece.count):
            self.fruitful = now
        elif now > self.fruitful + FEW_PASSES:
            self.empty_epochs.check(now - self.fruitful - 1, listed(self.stages))

    def passes(self) -> int:
        return self.below.passes()

    def _chunk(self, pieces: list[Piece]) -> Chunk:
        named = any(piece.names for piece in pieces)
        names = [piece.name(i) for piece in pieces for i in range(piece.count) if named]
        count = sum(piece.count for piece in pieces)
        indices = [index for piece in pieces for index in piece.indices or [None] * piece.count]
        run = pieces[0].as_run()
        if len(pieces) > 1:
            run = [record for piece in pieces for record in piece.as_records()]

        def identify(number: int) -> tuple[int | None, str]:
            name = names[number] if names else f"row {number} of window {self.number}"
            index = indices[number]
            return number if index is None else index, name  # None is for what is no one record

        return Chunk(
            run,
            joined_keys(pieces),
            np.arange(count),
            np.arange(count),
            epoch=self._epoch(),
            first=self.number * (self.window or 0),
            identify=identify,
            meters={READ: (count, 0)} if isinstance(self.below, IterableReader) else {},
        )

    def take(self, n: int) -> Piece:
        assert self.piece is not None
        start, self.used = self.used, self.used + n
        return self.piece.cut(start, self.used)

    def state(self) -> Any:
        if self.piece is None or self.used >= self.piece.count:
            return [self.number + 1, self.left, self.below.state()]
        return [self.number, self.used, self.below_state]

    def restore(self, path: Path, state: Any, *, fresh: bool) -> None:
        number, used, below = entries(state, ("window", "rows used", "position at its start"))
        self._begin(path)
        self.below.restore(path, below, fresh=fresh)
        most = LIMIT // (self.window or 1)
        self.number = whole(number, "the window of a lane", most) - 1
        self.left, self.fresh = whole(used, "rows used"), fresh
        self.spare = self.window or self.largest
        if isinstance(self.below, IterableReader) and self.window:
            self.below.check_window(self.number + 1, self.window, self.left)


class IterableReader(Reader):
    """Records of an iterable.  State: records read, and the source's own state."""

    def __init__(
        self,
        source: IterableSource,
        stage: str,
        lane: int,
        lanes: int,
        ordinals: Sequence[int],
        keyed: bool,
    ) -> None:
        self.source, self.stage = source, stage
        self.lane, self.lanes = lane, lanes
        self.ordinals, self.keyed = ordinals, keyed
        self.path: Path = (0,) * len(ordinals)
        self.opened: OpenIterable | None = None
        self.position: Any = None
        self.records: list[Any] = []

    def start(self, path: Path) -> None:
        self._go(path, None)

    def _go(self, path: Path, position: Any) -> None:
        self.path, self.position = path, position
        self.opened, self.records = None, []

    def ready(self, n: int) -> int:
        if not self.records:
            try:
                if self.opened is None:
                    self.opened = self.source.open(self.lane, self.lanes, self.position)
                self.records = self.opened.read(n)
            except LoaderxError:
                raise
            except Exception as error:
                raise self._failure(error) from error
        return min(n, len(self.records))

    def _failure(self, error: Exception) -> RecordError:
        number = None if self.opened is None else self.opened.count
        where = "when it was opened" if number is None else f"on record {number}"
        text = f"{self.stage} failed {where}: {say(error, self.stage, is_batch=False)}"
        return RecordError(text, index=number, stage=self.stage)

    def take(self, n: int) -> Piece:
        assert self.opened is not None
        records, self.records = self.records[:n], self.records[n:]
        first = self.opened.count - len(self.records) - n
        numbers = np.arange(first, first + n)
        key = ROOT
        for ordinal, number in zip(self.ordinals, self.path, strict=True):
            key = epoch_child(key, np.array([number]), ordinal)
        keys = fold(key, numbers, ROW) if self.keyed else None
        names = [f"record {number}" for number in numbers.tolist()]
        return Piece(n, keys, None, None, records, names, indices=list(numbers.tolist()))

    def state(self) -> Any:
        """Where the next record is; asked for only when all that was read has been taken."""
        assert not self.records
        return self.position if self.opened is None else self.opened.position()

    def restore(self, path: Path, state: Any, *, fresh: bool) -> None:
        if state is not None:
            count, ended, own = entries(state, ("records read", "has it ended", "its own state"))
            whole(count, "records read", MOST_READ)
            if not isinstance(ended, bool) or (ended and own is not None):
                raise StateError(
                    f"the state has {shown(ended)} where True or False is expected: whether an "
                    "iterable has ended, which then has no state of its own."
                )
        self._go(path, state)

    def check_window(self, number: int, window: int, used: int) -> None:
        """Is this the position at the start of a window?"""
        count, ended, _ = self.position or (0, False, None)
        at_end = ended and not used and (number - 1) * window < count < number * window
        if count != number * window and not at_end:
            raise StateError(
                f"the state is in window {number}, which begins after {number * window} records, "
                f"and has read {count}."
            )
