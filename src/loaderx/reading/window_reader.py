"""Stages over the ordered rows of another reader, in the caller's thread."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from loaderx.errors import StateError
from loaderx.order.epochs import LIMIT
from loaderx.reading.empty_epochs import EmptyEpochs
from loaderx.reading.lookahead import Lookahead, Path
from loaderx.reading.monitor import Monitor
from loaderx.reading.readers import Reader, listed
from loaderx.reading.rows import Rows, joined_keys
from loaderx.reading.saved_position import Changed, LanePosition, entries, whole
from loaderx.reading.unit_plan import READ, Finish, epoch_key, rows_from
from loaderx.reading.unit_stage import UnitStage, run_stages

FEW_EPOCHS = 4  # to read before an endless input is judged: an epoch's start may be missed


class WindowReader(Reader):
    """Stages over the ordered rows of another reader, window by window.

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
        self.largest = largest  # most rows asked for at once
        self.empty_epochs = empty_epochs
        self.monitor = monitor
        self._begin((0,) * len(ordinals))

    def _begin(self, path: Path) -> None:
        self.path = path
        self.number, self.used = -1, 0
        self.left = 0  # rows to skip, after a state was restored
        self.spare = 0  # rows of the input that these must be among
        self.fresh = False  # it was restored into a mix of other weights or datasets
        self.rows: Rows | None = None
        self.below_state: LanePosition = None
        self.last_epoch: int | None = None  # the epoch below that gave the last row

    def start(self, path: Path) -> None:
        self._begin(path)
        self.below.start(path)
        self.below_state = self.below.state()

    def ready(self, n: int) -> int:
        while self.left:  # without a window, runs may be cut in other places than before
            self._pass_over()
        while not (found := self._rest()):
            if not self._fill(self.window or max(n, 1)):
                return 0
        return min(n, found)

    def _rest(self) -> int:
        """The rows that are left of the window."""
        if self.rows is None:
            return 0
        left = self.rows.count - self.used
        if not left:
            self.rows, self.used = None, 0
        return left

    def _pass_over(self) -> None:
        """Skips the rows of the current window that were used before the state was saved."""
        if found := min(self.left, self._rest()):
            self.take(found)
            self.left -= found
            return
        # Without a window, row by row: the rows after the used ones must be read as if nothing
        # had been skipped.
        want = self.window or 1
        if self.spare <= 0 or not self._refill(want):
            if not self.fresh:
                raise StateError(
                    f"the state has used more rows than window {self.number} of its lane has (by "
                    f"{self.left}): the state is damaged, or the data or the functions have "
                    "changed."
                )
            self.left = 0  # with another mix the window holds other rows
        self.spare -= want

    def _refill(self, want: int) -> bool:
        with self.monitor.muted():
            return self._fill(want)

    def _fill(self, want: int) -> bool:
        self.below_state = self.below.state()
        parts: list[Rows] = []
        while want and (found := self.below.ready(want)):
            parts.append(self.below.take(found))
            want -= found
        if not parts:
            return False
        self.number += 1
        rows = self._joined(parts)
        context = self.monitor.context()
        context.epoch = epoch_key(self.ordinals, self.path)
        if self.below.reads_records:
            context.count(READ, len(rows), 0)
        output = self.finish.output(run_stages(self.stages, rows, context), context)
        self.rows = rows_from(output, self.finish.padding)
        self.monitor.note(output)
        self.monitor.weigh(self.finish, len(rows), output)
        self._give_up_if_empty()
        return True

    def _give_up_if_empty(self) -> None:
        """Gives up on an endless input that yields nothing."""
        now = self.below.epochs_read()
        if self.last_epoch is None or (self.rows is not None and self.rows.count):
            self.last_epoch = now
        elif now > self.last_epoch + FEW_EPOCHS:
            self.empty_epochs.check(now - self.last_epoch - 1, listed(self.stages))

    def needs(self, n: int) -> Iterator[Lookahead]:
        return self.below.needs(self.window or n)

    def epochs_read(self) -> int:
        return self.below.epochs_read()

    def _joined(self, parts: list[Rows]) -> Rows:
        """The rows of a window, with places and names."""
        count = sum(part.count for part in parts)
        if len(parts) == 1:
            rows = parts[0].cut(0, count, copy=True)
        else:
            records = [record for part in parts for record in part.records()]
            rows = Rows.of_records(records, joined_keys(parts))
        starts = list(itertools.accumulate((part.count for part in parts), initial=0))
        are_named = any(part.identify is not None for part in parts)
        window = self.number

        def identify(origin: int) -> tuple[int | None, str]:
            if not are_named:
                return origin, f"row {origin} of window {window}"
            part = bisect.bisect_right(starts, origin) - 1
            index, name = parts[part].identity(origin - starts[part])
            return origin if index is None else index, name  # None is for many records at once

        rows.origins, rows.identify = np.arange(count), identify
        rows.places = rows.origins + self.number * (self.window or 0)
        return rows

    def take(self, n: int) -> Rows:
        assert self.rows is not None
        start, self.used = self.used, self.used + n
        return self.rows.cut(start, self.used)

    def state(self) -> LanePosition:
        if self.rows is None or self.used >= self.rows.count:
            return [self.number + 1, self.left, self.below.state()]
        return [self.number, self.used, self.below_state]

    def restore(self, path: Path, state: LanePosition, *, changed: Changed) -> None:
        number, used, below = entries(state, ("window", "rows used", "position at its start"))
        self._begin(path)
        held = self.window or self.largest if whole(used, "rows used") else 0
        ahead = changed.replace(read_ahead=changed.read_ahead + held)
        self.below.restore(path, below, changed=ahead)
        most = LIMIT // (self.window or 1)
        self.number = whole(number, "the window of a lane", most) - 1
        self.left = whole(used, "rows used")
        if changed.rows:
            self.left = 0
        self.fresh = changed.schedule or bool(changed.datasets) or changed.removed
        self.spare = self.window or self.largest
        if self.window:
            self.below.check_window(self.number + 1, self.window, self.left)
