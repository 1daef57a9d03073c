"""The parts of a pipeline whose elements have numbers, in several worker processes.

A *root* is a `MapDataset` that is read in order, with the maps and filters that follow: elements of
a block of indices depend on nothing before it.  Workers make blocks of all roots of a pipeline.
Stages that depend on earlier elements (a batch after a filter, packing, a count) take the elements
in order, in the consumer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple, TypeVar

import numpy as np

from loaderx.compat.grain.function_nodes import FilterIterDataset, MapIterDataset
from loaderx.compat.grain.indices import Int64s
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import DatasetIterator, IndexedIterator
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.protocols import Element
from loaderx.compat.grain.read_iterator import PrefetchIterDataset
from loaderx.compat.grain.read_threads import reading
from loaderx.compat.grain.stacking import buffers, make_batch
from loaderx.compat.grain.trees import StructureError, flatten, map_structure
from loaderx.engines import Pending, Session, Task, Work
from loaderx.extend import PicklingError, TryAgainError
from loaderx.sources import Lend

T = TypeVar("T")

_MOST_ELEMENTS = 16
_BLOCK_S = 2e-3  # the approximate time of a block of several elements
# A block that mostly waits for its source is larger: at the end of a block, threads are idle.
_MOST_WAITING = 256
_WAITING_S = 0.1


class Block(NamedTuple):
    """The elements of a block of indices."""

    elements: list[Element]
    rows: Element  # the elements stacked, if a batch needs them so and they allow it; else None
    after: Int64s  # for each element, the index to continue from
    end: int  # the index after the last one read; earlier than requested if the next one fails
    seconds: float = 0.0  # the time it took, without waiting for a source
    waited_s: float = 0.0  # the time spent waiting for a source


class Root:
    """A dataset by index, and the functions that follow."""

    def __init__(self, top: IterDataset[Element], batch_size: int = 0) -> None:
        steps: list[tuple[bool, Callable[..., Element]]] = []
        below = top
        while not isinstance(below, PrefetchIterDataset):
            if isinstance(below, (MapIterDataset, FilterIterDataset)):
                steps.append((isinstance(below, FilterIterDataset), below._function))
            below = below._parent
        self.ds: MapDataset[Element] = below.map_dataset
        self.length = len(self.ds)
        self.batch_size = batch_size  # of the batch above; 0 if there is none
        self._allow_nones = below._allow_nones
        options = below._read_options
        self.threads = options.num_threads if options.prefetch_buffer_size else 0
        self._steps = steps[::-1]

    def block(self, start: int, stop: int) -> Block:
        """The elements of some indices, up to the first that fails."""
        try:
            found = list(enumerate(self.ds._getitems(range(start, stop)), start))
            kept = [one for numbered in found if (one := self._follow(numbered))]
            return self._finished(kept, stop)
        except Exception:
            if stop == start + 1:
                raise
        kept = []
        for index in range(start, stop):
            try:
                one = self._follow((index, self.ds[index]))
            except Exception:
                stop = index
                break
            if one:
                kept.append(one)
        if stop == start:
            return self.block(start, start + 1)  # raises
        return self._finished(kept, stop)

    def _follow(self, numbered: tuple[int, Element]) -> tuple[int, Element] | None:
        index, element = numbered
        if element is None and not self._allow_nones:
            return None
        for is_filter, function in self._steps:
            if is_filter:
                if not function(element):
                    return None
            elif element is not None:
                element = function(element)
        return index, element

    def _finished(self, kept: list[tuple[int, Element]], stop: int) -> Block:
        after = np.array([index + 1 for index, _ in kept], np.int64)
        elements = [element for _, element in kept]
        rows = _stacked(elements) if self.batch_size and elements else None
        return Block([] if rows is not None else elements, rows, after, stop)


def _stacked(elements: list[Element]) -> Element:
    """The elements stacked; None unless every part of them would stack to the same values."""
    try:
        rows = make_batch(elements)
    except (ValueError, TypeError):
        return None  # the batch above raises an error that names the reason
    leaves = flatten(rows)
    is_plain = all(isinstance(x, np.ndarray) and x.dtype.kind in "biufcmM" for x in leaves)
    return rows if leaves and is_plain else None


class BlocksWork(Work):
    """Makes a block for task ``(root, start, stop)``."""

    noun = "element"

    def __init__(self, roots: Sequence[Root]) -> None:
        self._roots = roots

    def __call__(self, task: Task, lend: Lend) -> Block:
        buffers.lend = lend  # type: ignore[assignment]
        root, start, stop = task
        begun = perf_counter()
        with reading(self._roots[root].threads) as reads:
            block = self._roots[root].block(start, stop)
        seconds = perf_counter() - begun - reads.waited_s
        return block._replace(seconds=seconds, waited_s=reads.waited_s)

    def describe(self, task: Task) -> str:
        """For messages."""
        return f"elements {task[1]} to {task[2] - 1}"

    def parts(self) -> Iterator[tuple[str, object]]:
        """The datasets, for messages about what cannot be sent."""
        for root in self._roots:
            yield str(root.ds), root.ds


class BlockIterDataset(IterDataset[T]):
    """The elements of a root, from workers."""

    def __init__(self, top: IterDataset[T], root: Root, number: int, session: Session) -> None:
        super().__init__(top.parents)
        self._name = str(top)
        self._root, self._number, self._session = root, number, session

    def __iter__(self) -> DatasetIterator[T]:
        return BlockIterator(self._name, self._root, self._number, self._session)


class BlockIterator(IndexedIterator[T]):
    """Hands out the elements of blocks that workers make."""

    def __init__(self, name: str, root: Root, number: int, session: Session) -> None:
        super().__init__()
        self._name = name
        self._root = root
        self._number = number
        self._session = session
        self._length = root.length
        self._pending: deque[tuple[int, int, Pending]] = deque()
        self._go_to(0)

    def _go_to(self, index: int) -> None:
        self._cancel()
        self._next_index = index
        self._submitted = index  # the first index that was not submitted to a worker
        self._size = 1
        self._block: Block | None = None
        self._used = 0  # elements of the block

    def _advance(self) -> Block:
        """The next block that has elements; StopIteration after the last."""
        while True:
            self._fill_window()
            if not self._pending:
                self._next_index = self._root.length
                raise StopIteration
            start, stop, pending = self._pending[0]
            try:
                block: Block = pending.result()
            except StopIteration:
                self._go_to(start)  # the source has ended, and the position stays there
                raise
            except BaseException as error:
                self._go_to(start if may_succeed(error) else start + 1)
                raise
            self._pending.popleft()
            if block.end < stop:  # the next one fails: it is submitted alone, in its turn
                self._cancel()
                self._submitted, self._size = block.end, 1
            self._filter_check.count(len(block.after), block.end - start - len(block.after))
            self._adapt(block, block.end - start)
            if len(block.after):
                self._block, self._used = block, 0
                return block
            self._next_index = block.end

    def _adapt(self, block: Block, count: int) -> None:
        """Makes blocks larger while elements are cheap; a slow element delays its whole block."""
        most, more = min(_MOST_ELEMENTS, _fitting(_BLOCK_S, block.seconds, count)), 1
        if block.waited_s > block.seconds:
            most = max(most, min(_MOST_WAITING, _fitting(_WAITING_S, block.waited_s, count)))
            more = self._size
        self._size = max(1, min(self._size + more, most))

    def __str__(self) -> str:
        return self._name

    def _fill_window(self) -> None:
        root = self._root
        while self._submitted < root.length and len(self._pending) < max(1, self._session.window):
            stop = min(root.length, self._submitted + self._block_size())
            task = (self._number, self._submitted, stop)
            self._pending.append((self._submitted, stop, self._session.submit(task)))
            self._submitted = stop

    def _block_size(self) -> int:
        size = self._root.batch_size
        if size:
            return size * max(1, max(self._size, _MOST_ELEMENTS) // size)
        return self._size

    def __next__(self) -> T:
        block = self._block
        if block is None or self._used == len(block.after):
            block = self._advance()
        used = self._used
        self._used = used + 1
        self._next_index = int(block.after[used])
        if block.rows is not None:
            return map_structure(lambda leaf: leaf[used], block.rows)  # type: ignore[no-any-return]
        return block.elements[used]  # type: ignore[no-any-return]

    gathers = True

    def take_rows(self, count: int, drop_remainder: bool) -> Element:
        """A batch of the next elements."""
        parts: list[Block] = []
        missing = count
        while missing:
            block = self._block
            if block is None or self._used == len(block.after):
                try:
                    block = self._advance()
                except StopIteration:
                    if drop_remainder or not parts:
                        raise
                    break
            taken = min(missing, len(block.after) - self._used)
            parts.append(_part(block, self._used, self._used + taken))
            self._used += taken
            missing -= taken
            self._next_index = int(block.after[self._used - 1])
        return _joined(parts)

    def _cancel(self) -> None:
        for _, _, pending in self._pending:
            pending.cancel()
        self._pending.clear()

    def start_prefetch(self) -> None:
        """Submits the first blocks to the workers."""
        self._fill_window()

    def close(self) -> None:
        """Ends the tasks under way."""
        if not self._closed:
            super().close()
            self._cancel()


def _fitting(within_s: float, took_s: float, count: int) -> int:
    """The number of elements for ``within_s`` seconds, if ``count`` of them took ``took_s``."""
    return int(within_s * count / max(took_s, 1e-6))


def may_succeed(error: BaseException) -> bool:
    """Whether the same task may succeed later; otherwise the stream continues after it."""
    return isinstance(error, (TryAgainError, PicklingError)) or not isinstance(error, Exception)


def _part(block: Block, first: int, stop: int) -> Block:
    if block.rows is None:
        return Block(block.elements[first:stop], None, block.after, 0)
    if first == 0 and stop == len(block.after):
        return block
    return Block([], map_structure(lambda leaf: leaf[first:stop], block.rows), block.after, 0)


def _joined(parts: list[Block]) -> Element:
    if len(parts) == 1 and parts[0].rows is not None:
        return parts[0].rows
    if all(part.rows is not None for part in parts):
        try:
            return map_structure(lambda *leaves: np.concatenate(leaves), *[p.rows for p in parts])
        except (StructureError, ValueError):
            pass  # `make_batch` raises an error that names the reason
    return make_batch([element for part in parts for element in _elements(part)])


def _elements(part: Block) -> list[Element]:
    if part.rows is None:
        return part.elements
    count = len(flatten(part.rows)[0])
    return [map_structure(lambda leaf, n=n: leaf[n], part.rows) for n in range(count)]
