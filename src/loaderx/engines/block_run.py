"""Single records from workers: made in blocks, handed out one by one.

To hand a task to a worker and to take its result costs 20 to 50 microseconds.  Where a step is one
record, that is more than most records need.  So a task is a *block* of consecutive steps, as many
as take about half a millisecond: one, at first, and where records take longer than that.  A slow
record delays those before it by no more than the time of a block, since a worker that has taken too
long hands over what it has.

A record that fails ends its block.  Those before it are handed out first, then the error is raised
at its own step.  If a block is lost as a whole (its workers died, one of its records cannot be
sent), its steps are made singly, so that the one at fault is known.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from loaderx.engines.base import (
    Element,
    Pending,
    Session,
    TryAgainError,
    cancel_all,
    close_generator,
    closed_error,
    wait_for,
)
from loaderx.errors import RecordError
from loaderx.reading.single_records import detached

BLOCK_S = 0.5e-3  # that a block is to take
LONGEST_S = 2e-3  # after which a worker hands over what it has
MOST = 64  # steps in a block


class RaisedAhead:
    """The error of a step, which is raised when the step is asked for.

    Between processes it keeps its cause and its frames, which a pickled exception does not.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> tuple[object, ...]:
        from loaderx.engines.processes import exceptions  # late: brings cloudpickle

        return _raised_in_worker, (exceptions.pack(self.error), os.getpid())


def _raised_in_worker(packed: bytes, pid: int) -> RaisedAhead:
    from loaderx.engines.processes import exceptions

    return RaisedAhead(exceptions.unpack(packed, f"a worker (pid {pid})", None))


class Block(TypedDict):
    """What a task of two numbers makes: the first step, and how many."""

    elements: list[Element]  # fewer than asked for after an error, and if they take long
    error: RaisedAhead | None  # of the step after them
    seconds: npt.NDArray[np.float64]  # one number: that they took


IsEnd = Callable[[BaseException], bool]
"""Does this error mean that the stream ends here?"""


class BlockRun:
    """The elements of consecutive steps, in order; blocks of them are under way."""

    def __init__(
        self, session: Session, steps: range, *, shares_memory: bool, is_end: IsEnd | None = None
    ) -> None:
        self._blocks = _Blocks(session, steps)
        self._elements = _elements(self._blocks, shares_memory, is_end)
        self.next = self._elements.__next__
        self.start = self._blocks.start
        self.ready = self._blocks.ready
        self.interrupt = self._blocks.interrupt
        self.describe = session.describe

    def close(self) -> None:
        close_generator(self._elements)
        self._blocks.close()


def _elements(blocks: _Blocks, shares_memory: bool, is_end: IsEnd | None) -> Iterator[Element]:
    while blocks.take():
        left = blocks.left
        if shares_memory and len(left) > 1:
            while left:
                yield detached(left.pop())  # one that is kept must not keep the others' memory
        while left:
            yield left.pop()
        error, blocks.error = blocks.error, None
        if error is None:
            continue
        if is_end is not None and is_end(error.error):
            return
        try:
            raise error.error
        finally:
            del error  # else it would hold this frame, and the frame the error


class _Blocks:
    """Blocks that were submitted, in order."""

    def __init__(self, session: Session, steps: range) -> None:
        self._session = session
        self._position, self._stop = steps.start, steps.stop  # of the next step to be submitted
        self._size = 1
        self._pending: deque[tuple[int, int, Pending]] = deque()  # first step, how many
        self.left: list[Element] = []  # of the block in use, the next one last
        self.error: RaisedAhead | None = None  # after these
        self.is_closing = False

    def start(self) -> None:
        while self._position < self._stop and not self.is_closing:
            if self._pending and len(self._pending) >= self._session.window:
                return
            count = min(self._size, self._stop - self._position)
            self._pending.append(self._submitted(self._position, count))
            self._position += count

    def _submitted(self, first: int, count: int) -> tuple[int, int, Pending]:
        return first, count, self._session.submit((first, count))

    def take(self) -> bool:
        """Waits for the next block; False if there is none."""
        while not self.left and self.error is None:
            if self.is_closing:
                raise closed_error()
            self.start()
            if not self._pending:
                return False
            if self.is_closing:  # `interrupt` has not seen the first of them
                raise closed_error()
            self._take_first()
        return True

    def _take_first(self) -> None:
        first, count, pending = self._pending[0]
        try:
            block: Block = wait_for(pending, self)
        except TryAgainError:
            raise
        except Exception as error:
            if count == 1:
                if isinstance(error, RecordError):
                    error.step = first
                raise
            self._pending.popleft()
            singly = [self._submitted(step, 1) for step in range(first, first + count)]
            self._pending.extendleft(reversed(singly))
            return
        self._pending.popleft()
        elements, self.error = block["elements"], block["error"]
        made = len(elements)
        self._resize(float(block["seconds"][0]), made)
        if made < count and self.error is None:
            self._pending.appendleft(self._submitted(first + made, count - made))
        self.left = elements[::-1]

    def _resize(self, seconds: float, made: int) -> None:
        fitting = int(BLOCK_S * made / max(seconds, 1e-9))
        self._size = max(1, min(2 * self._size, fitting, MOST))

    def ready(self) -> bool:
        if self.left or self.error is not None:
            return True
        if not self._pending and self._session.window and not self.is_closing:
            try:
                self.start()
            except Exception:
                return True  # `next` says what is wrong
        return not self._pending or self._pending[0][2].done()

    def close(self) -> None:
        self.is_closing = True
        pending = [one for _, _, one in self._pending]
        self._pending.clear()
        self.left.clear()
        cancel_all(pending)

    def interrupt(self) -> bool:
        self.is_closing = True
        for _, _, pending in list(self._pending)[:1]:
            pending.cancel()
        return self._session.window > 0

    def __del__(self) -> None:
        for _, _, pending in self.__dict__.get("_pending", ()):  # Ctrl-C may end `__init__` early
            pending.cancel()
