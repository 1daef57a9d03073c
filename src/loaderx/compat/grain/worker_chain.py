"""A whole pipeline in one worker process: chunks of consecutive elements, each with its state.

The worker keeps the iterator between two chunks.  A new worker that replaces a dead one makes the
earlier chunks again.  The number of elements in a chunk depends on the time they take, so a chunk
has the number of its first element, and the consumer drops elements that it has had already.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from time import perf_counter
from typing import NamedTuple

from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.protocols import Element, State
from loaderx.compat.grain.stacking import buffers
from loaderx.compat.grain.trees import nbytes
from loaderx.engines import Task, Work
from loaderx.sources import Lend

MOST_ELEMENTS = 32
MOST_BYTES = 1 << 20
MOST_S = 2e-3  # the time of a chunk of several elements
SINGLES = 16  # the first chunks have one element each, so that a slow one delays no other


class Chunk(NamedTuple):
    """Consecutive elements, and the state after each."""

    elements: list[Element]
    states: list[State]
    first: int  # the number of the first of them, from the beginning of the run
    is_last: bool


class ChainWork(Work):
    """Makes chunk ``k`` of a run for task ``(run, beginning, k)``.

    Beginning 0 is that of the dataset, 1 that of ``state``.
    """

    noun = "element"

    def __init__(self, ds: IterDataset[Element], state: State | None) -> None:
        self._ds = ds
        self._state = state
        self._iterator: DatasetIterator[Element] | None = None
        self._at: tuple[int, int, int] = (-1, 0, 0)  # the next task, if tasks come in order
        self._error: BaseException | None = None  # of the element after the last chunk
        self._made = 0  # elements of this run

    def __getstate__(self) -> dict[str, object]:
        return {"_ds": self._ds, "_state": self._state}

    def __setstate__(self, state: dict[str, Element]) -> None:
        self.__init__(state["_ds"], state["_state"])  # type: ignore[misc]

    def __call__(self, task: Task, lend: Lend) -> Chunk:
        run, beginning, number = task
        if (run, beginning, number) != self._at:
            self._begin(beginning)
            for before in range(number):  # made by a worker that has ended
                with contextlib.suppress(Exception):  # raised in the consumer already
                    self._chunk(before)
        buffers.lend = lend  # type: ignore[assignment]
        self._at = (run, beginning, number + 1)
        return self._chunk(number)

    def _begin(self, beginning: int) -> None:
        if self._iterator is not None:
            self._iterator.close()
        self._error = None
        self._made = 0
        self._iterator = self._ds.__iter__()
        if beginning:
            assert self._state is not None
            self._iterator.set_state(self._state)

    def _chunk(self, number: int) -> Chunk:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        assert self._iterator is not None
        elements: list[Element] = []
        states: list[State] = []
        left = MOST_BYTES
        most = 1 if number < SINGLES else MOST_ELEMENTS
        until = perf_counter() + MOST_S
        while len(elements) < most and left > 0 and (not elements or perf_counter() < until):
            try:
                element = next(self._iterator)
            except StopIteration:
                return self._finished(elements, states, is_last=True)
            except Exception as error:
                if not elements:
                    raise
                self._error = error
                break
            elements.append(element)
            states.append(copy.deepcopy(self._iterator.get_state()))
            left -= nbytes(element)
        return self._finished(elements, states, is_last=False)

    def _finished(self, elements: list[Element], states: list[State], *, is_last: bool) -> Chunk:
        self._made += len(elements)
        return Chunk(elements, states, self._made - len(elements), is_last)

    def describe(self, task: Task) -> str:
        """For messages."""
        return f"chunk {task[2]} of the elements"

    def parts(self) -> Iterator[tuple[str, object]]:
        """The dataset, for messages about what cannot be sent."""
        yield str(self._ds), self._ds
