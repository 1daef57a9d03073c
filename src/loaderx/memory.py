"""Aligned batch buffers that are used again when nothing refers to them any more.

A *slot* is a root array of bytes; a batch is a set of views into one slot, each starting at a
multiple of 64 bytes, so that JAX on CPU uses them without a copy.  Every view (of NumPy, a
memoryview, a `jax.Array`) holds a reference to the root, because NumPy makes the root the base of
every view.  So a slot is free exactly when the root's reference count is back at the value it had
without views, and asking costs 50 ns; a finaliser per leaf would cost as much as the gather.

A pool keeps a few slots and lends the most recently freed one (its pages are in the caches).  When
all are held, it runs the young garbage collection once (JAX may hold a batch until then), then
makes a new slot and forgets the one that was lent longest ago: that memory is freed when its user
drops it.  A pool never waits.

Builds without the GIL count references in another way: there every batch gets fresh memory.
"""

from __future__ import annotations

import gc
import operator
import sys
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from sys import getrefcount
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

import numpy as np

from loaderx.errors import ArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

ALIGNMENT = 64

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[Any]]
DType: TypeAlias = np.dtype[Any]
LeafLayout: TypeAlias = tuple[tuple[int, ...], DType]

COUNTS_REFERENCES = "t" not in getattr(sys, "abiflags", "") and bool(
    getattr(sys, "_is_gil_enabled", lambda: True)()
)
"""False on builds without the GIL."""


class Layout:
    """The offsets of the leaves of a batch in a slot.  Python objects get arrays of their own."""

    __slots__ = ("leaves", "nbytes", "objects", "plain")

    def __init__(self, leaves: Sequence[LeafLayout]) -> None:
        self.objects = [(shape, dtype) if dtype.hasobject else None for shape, dtype in leaves]
        if any(self.objects):
            self.plain = Layout([leaf for leaf in leaves if not leaf[1].hasobject])
        else:
            self.objects = []
        offset = 0
        self.leaves: list[tuple[tuple[int, ...], DType, int]] = []
        for shape, dtype in leaves:
            self.leaves.append((shape, dtype, offset))
            size = dtype.itemsize
            for dimension in shape:
                size *= dimension
            offset += -(-size // ALIGNMENT) * ALIGNMENT
        self.nbytes = offset

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(*leaves: LeafLayout) -> Layout:
        """The layout of these leaves.  Equal ones are one object: slots compare identities."""
        return Layout(leaves)

    def with_objects(self, lend: Lend) -> list[Array]:
        plain = iter(lend(self.plain))
        return [next(plain) if leaf is None else np.empty(*leaf) for leaf in self.objects]


Lend: TypeAlias = Callable[[Layout], list[Array]]
"""Gives uninitialised arrays for a layout, from a pool of recycled buffers."""


class _Slot:
    __slots__ = ("idle", "layout", "nbytes", "offset", "root", "views")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.root = np.empty(nbytes + ALIGNMENT, np.uint8)
        self.offset = -self.root.ctypes.data % ALIGNMENT
        self.idle = 0
        self.layout: Layout | None = None
        self.views: list[Array] = []

    def arrange(self, layout: Layout) -> None:
        """Makes a view for each leaf.  Views of these are lent: they are the cheapest to make."""
        self.layout = layout
        self.views = [
            np.ndarray(shape, dtype, self.root, self.offset + start)
            for shape, dtype, start in layout.leaves
        ]
        self.idle = getrefcount(self.root) if COUNTS_REFERENCES else -1

    def lend(self) -> list[Array]:
        return [view.view() for view in self.views]


def aligned(array: Array) -> Array:
    """A copy that starts at a multiple of 64 bytes."""
    (out,) = Pool().lend(Layout.of((array.shape, array.dtype)))
    out[...] = array
    return out


class Pool:
    """Lends slots.  Each worker has a pool of its own, so that lending needs no lock."""

    __slots__ = ("_capacity", "_slots")

    def __init__(self, capacity: int = 4) -> None:
        self._capacity = capacity
        self._slots: list[_Slot] = []  # the most recently lent is last

    def lend(self, layout: Layout) -> list[Array]:
        """Uninitialised arrays for the layout; the caller owns them until it drops them."""
        slots, number = self._slots, len(self._slots)
        while number:  # the usual case, kept short: a free slot that had this layout before
            number -= 1
            slot = slots[number]
            if slot.layout is layout and getrefcount(slot.root) == slot.idle:
                del slots[number]
                slots.append(slot)
                return [view.view() for view in slot.views]
        return self._lend_other(layout)

    def _lend_other(self, layout: Layout) -> list[Array]:
        """The same with a slot of another layout, or a new one."""
        slots = self._slots
        if layout.objects:
            return layout.with_objects(self.lend)
        slot = self._free(layout.nbytes)
        if slot is None and len(slots) >= self._capacity:
            gc.collect(0)  # JAX may hold dropped batches in reference cycles
            slot = self._free(layout.nbytes)
        if slot is None:
            slot = _Slot(layout.nbytes)
            if len(slots) >= self._capacity:
                del slots[0]
        slot.arrange(layout)
        slots.append(slot)
        return slot.lend()

    def _free(self, nbytes: int) -> _Slot | None:
        """Removes and returns the most recently lent slot that is free and large enough."""
        slots = self._slots
        for number in range(len(slots) - 1, -1, -1):
            slot = slots[number]
            if getrefcount(slot.root) == slot.idle and slot.nbytes >= nbytes:
                return slots.pop(number)
        return None


class PoolPerThread(threading.local):
    """A pool for each thread, so that lending takes no lock.

    ``lend`` differs from thread to thread: look it up in the thread that uses it.
    """

    def __init__(self) -> None:
        self.lend = Pool().lend


_OUTPUTS = PoolPerThread()


def empty(shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike = float) -> Array:
    """`numpy.empty` for the results of functions: memory that is used again when they are dropped.

    A large new array costs more to get from the system, page by page, than to fill.  In a function
    that is called for batch after batch, this gives the memory of a batch that nobody holds any
    more.  It begins at a multiple of 64 bytes, so that JAX on CPU uses it without a copy.

    >>> import numpy as np
    >>> from loaderx import Dataset
    >>> def scaled(batch):
    ...     out = empty(batch["x"].shape, np.float32)
    ...     out[...] = batch["x"]
    ...     out *= 1 / 255
    ...     return {"x": out}
    >>> images = Dataset.from_arrays(x=np.zeros((4, 28, 28), np.uint8)).batch(2).map(scaled)
    >>> images[0]["x"].dtype
    dtype('float32')
    """
    axes = shape if isinstance(shape, (tuple, list)) else (shape,)
    lengths = tuple(map(operator.index, axes))
    if min(lengths, default=0) < 0:
        raise ArgumentError(f"`shape` must not have negative lengths, got {lengths}.")
    return _OUTPUTS.lend(Layout.of((lengths, np.dtype(dtype))))[0]
