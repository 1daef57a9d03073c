"""Shared slots: the worker makes an element in one, the consumer reads it there.

A slot is a stretch of the shared file.  The worker lends it out piece by piece (`SlotWriter`), says
where each leaf of the finished element lies (its `ElementLayout`), and the consumer builds the same
arrays over its own mapping of the slot (`Slot`).  As in `loaderx.memory`, a slot is free when the
reference count of the root array of that mapping is back at its idle value.

Elements of one layout follow each other by the thousand, so a layout is described once and then
named by its number.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from sys import getrefcount
from typing import Any

import numpy as np

from loaderx.engines.processes.mapped_ranges import LARGE_PAGE, MappedRange
from loaderx.engines.processes.protocol import SLOT_BYTES, slot_start
from loaderx.errors import LoaderxError
from loaderx.frozen import Frozen
from loaderx.memory import ALIGNMENT, COUNTS_REFERENCES, Layout, Pool
from loaderx.tree import LEAF, Array, Structure, flatten

_MAP_STEP = 1 << 16
MOST_LAYOUTS = 1024

LeafPlace = tuple[int, tuple[int, ...], np.dtype[Any], tuple[int, ...] | None]
"""Where a leaf begins in its slot, its shape, its dtype, and its strides if not in C order."""


class ElementLayout(Frozen):
    """An element without its data.  A leaf without a place is sent pickled."""

    structure: Structure
    places: tuple[LeafPlace | None, ...]

    @property
    def nbytes(self) -> int:
        """The end of the last leaf in its slot."""
        return max((_end(place) for place in self.places if place is not None), default=0)

    @property
    def in_slot(self) -> bool:
        return any(place is not None for place in self.places)


def _end(place: LeafPlace) -> int:
    start, shape, dtype, strides = place
    if 0 in shape:
        return start
    if strides is None:
        return start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    return (
        start
        + dtype.itemsize
        + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    )


class Slot:
    """The consumer's side of a slot."""

    __slots__ = (
        "_descriptor", "_layout", "_range", "_views", "_written", "idle", "is_kept", "number",
        "root",
    )  # fmt: skip

    def __init__(self, descriptor: int, number: int) -> None:
        self._descriptor = descriptor
        self.number = number
        self.is_kept = False  # a function in a worker holds one of its arrays
        self._unmap()

    def _unmap(self) -> None:
        self._range: MappedRange | None = None
        self._layout: ElementLayout | None = None
        self._views: list[Array | None] = []
        self.root: Array = np.empty(0, np.uint8)  # the bytes that are mapped
        self.idle = getrefcount(self.root)  # reference count of a free slot

    @property
    def is_free(self) -> bool:
        # Where references cannot be counted, everything is copied out.
        return getrefcount(self.root) == self.idle or not COUNTS_REFERENCES

    def read_bytes(self, start: int, length: int) -> bytes:
        """Bytes that a worker left in the slot."""
        self.map_at_least(start + length)
        assert self._range is not None
        return self._range.read(start, length)

    def leaves(self, layout: ElementLayout) -> list[Array | None]:
        """The leaves in the slot; holding one holds the slot."""
        if layout is not self._layout:
            self._arrange(layout)
        return [None if view is None else view.view() for view in self._views]

    def copies(self, layout: ElementLayout, pool: Pool) -> list[Array | None]:
        """The same in memory of their own: the slot is free again at once."""
        self.map_at_least(layout.nbytes)
        block: Any
        (block,) = pool.lend(Layout.of(((layout.nbytes,), np.dtype(np.uint8))))
        block[...] = self.root[: layout.nbytes]  # in one piece: leaves may share memory
        return views(layout, block)

    def _arrange(self, layout: ElementLayout) -> None:
        self.map_at_least(layout.nbytes)
        self._layout = layout
        self._views = views(layout, self.root)
        self.idle = getrefcount(self.root)

    def map_at_least(self, nbytes: int) -> None:
        """Maps at least ``nbytes`` of the slot; the old mapping is not in use."""
        mapped = 0 if self._range is None else self._range.size
        if self._range is not None and mapped >= nbytes:
            return
        self._views, self._layout = [], None
        size = _map_size(nbytes, mapped)
        self._range = MappedRange(self._descriptor, slot_start(self.number), size)
        self.root = self._range.root
        self.idle = getrefcount(self.root)

    def free_memory(self) -> None:
        """Returns the memory of a free slot to the system, where that is possible."""
        if self._range is not None and self.is_free:
            self._range.free_memory()
        self._unmap()


def views(layout: ElementLayout, root: Any) -> list[Array | None]:
    return [
        None if place is None else np.ndarray(place[1], place[2], root, place[0], place[3])
        for place in layout.places
    ]


class SlotWriter:
    """The worker's side: lends pieces of the slot of a task.

    Buffers that do not end up in the element (a batch that a function turned into another one) are
    not worth a place in the slot.  Their layouts are learned step by step.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._maps: dict[int, _Mapping] = {}
        self._own = Pool()
        self._private: set[Layout] = set()
        self._lends = COUNTS_REFERENCES  # until a function keeps a buffer of a slot
        self._mapping: _Mapping
        self._lent: list[tuple[Layout, int, int]] = []
        self._used = 0
        self._number = 0
        self._size = _MAP_STEP  # mapped size of the last slot; the next will need as much

    def begin(self, number: int) -> None:
        """Lends and writes this slot from here on."""
        self._number = number
        self._used = 0
        self._lent = []
        mapping = self._maps.get(number)
        if mapping is None:
            mapping = self._maps[number] = _Mapping(self._descriptor, number, self._size)
        elif mapping.used - mapping.large >= LARGE_PAGE:
            mapping.use_large_pages()
        self._mapping = mapping

    def lend(self, layout: Layout) -> list[Array]:
        """Arrays for a layout: in the slot, unless such arrays did not stay in the element."""
        if layout.objects:
            return layout.with_objects(self.lend)
        if not self._lends or layout in self._private:
            return self._own.lend(layout)
        first = self._reserve(layout.nbytes)
        self._lent.append((layout, first, first + layout.nbytes))
        root: Any = self._mapping.root
        return [
            np.ndarray(shape, dtype, root, first + offset) for shape, dtype, offset in layout.leaves
        ]

    def _reserve(self, nbytes: int) -> int:
        """Where the next ``nbytes`` of the slot begin; maps more of it if needed."""
        first = self._used
        end = first + -(-nbytes // ALIGNMENT) * ALIGNMENT
        if end > SLOT_BYTES:
            raise LoaderxError(
                f"a batch takes {end / 1e9:.1f} GB; worker processes can make batches of up to "
                f"{SLOT_BYTES / 1e9:.0f} GB. Use smaller batches, or another engine."
            )
        if end > self._mapping.size:
            self._size = _map_size(end, self._mapping.size)
            larger = _Mapping(self._descriptor, self._number, self._size, self._mapping)
            self._mapping = self._maps[self._number] = larger
        self._used = self._mapping.used = end
        return first

    def write(self, element: Any) -> tuple[ElementLayout, list[Any]]:
        """Writes an element to the slot; returns its layout, and leaves that cannot lie there."""
        leaves, structure = flatten(element) if is_plain(element) else ([element], LEAF)
        places: list[LeafPlace | None] = []
        others: list[Any] = []
        stayed: set[int] = set()
        for leaf in leaves:
            if type(leaf) is not np.ndarray or leaf.dtype.hasobject:
                places.append(None)
                others.append(leaf)
                continue
            in_order = leaf.flags.c_contiguous
            where = self._offset_of(leaf) if in_order or not _overlaps(leaf) else None
            if where is None:
                first = self._reserve(leaf.nbytes)
                root: Any = self._mapping.root
                np.ndarray(leaf.shape, leaf.dtype, root, first)[...] = leaf
                places.append((first, leaf.shape, leaf.dtype, None))
            else:
                strides = None if in_order else leaf.strides
                places.append((where, leaf.shape, leaf.dtype, strides))
                stayed.add(where)
        self._note_unused_layouts(stayed)
        return ElementLayout(structure, tuple(places)), others

    def _note_unused_layouts(self, stayed: set[int]) -> None:
        """Notes layouts of which nothing stayed in the element: they need no slot next time."""
        useful = {
            layout
            for layout, first, end in self._lent
            if any(first <= where < end for where in stayed)
        }
        for layout, _, _ in self._lent:
            if layout not in useful and layout.nbytes:
                if len(self._private) >= MOST_LAYOUTS:  # ragged data: none comes twice
                    self._private.clear()
                self._private.add(layout)

    def _offset_of(self, leaf: Array) -> int | None:
        """The offset of a leaf in the slot; None if it lies elsewhere."""
        if not leaf.size:
            return None
        address = leaf.__array_interface__["data"][0]
        mapping: _Mapping | None = self._mapping
        while mapping is not None:
            offset = int(address - mapping.address)
            if 0 <= offset < mapping.size:
                return offset
            mapping = mapping.smaller
        return None

    def clear(self) -> None:
        """Discards the contents of the slot."""
        self._used = 0
        self._lent = []

    def write_bytes(self, data: bytes) -> int:
        """Writes bytes after the leaves, and returns where."""
        start = self._reserve(len(data))
        self._mapping.range.write(start, data)
        return start

    def keeps_slot(self) -> bool:
        """True if code in this process still holds memory of the slot.

        Then the slot must not be used again, and from now on nothing is lent from slots.
        """
        mapping = self._mapping
        mapping.drop_unused()
        for generation in (0, 2):
            if not mapping.is_held():
                return False
            gc.collect(generation)
            mapping.drop_unused()
        if not mapping.is_held():
            return False
        self._lends = False
        del self._maps[self._number]
        return True


class _Mapping:
    """A worker's mapping of a slot, and earlier ones that became too small during this task."""

    __slots__ = ("address", "idle", "large", "range", "root", "size", "smaller", "used")

    def __init__(
        self, descriptor: int, number: int, size: int, smaller: _Mapping | None = None
    ) -> None:
        self.range = MappedRange(descriptor, slot_start(number), size)
        self.size = size
        self.root = self.range.root
        self.address = self.range.address
        self.smaller = smaller
        self.used = 0  # bytes of the last element
        self.large = 0  # bytes that are in large pages, or cannot be
        self.idle = getrefcount(self.root)

    def use_large_pages(self) -> None:
        """For reused slots only: for a single element large pages cost more than they save."""
        self.range.use_large_pages(self.large, self.used - self.large)
        self.large = self.used // LARGE_PAGE * LARGE_PAGE

    def is_held(self) -> bool:
        return getrefcount(self.root) != self.idle or self.smaller is not None

    def drop_unused(self) -> None:
        if self.smaller is not None:
            self.smaller.drop_unused()
            if not self.smaller.is_held():
                self.smaller = None


def _map_size(needed: int, have: int) -> int:
    """How much to map: at least a quarter more than before, so that slots grow seldom."""
    size = max(needed, have + have // 4, _MAP_STEP)
    return min(-(-size // _MAP_STEP) * _MAP_STEP, SLOT_BYTES)


def _overlaps(array: Array) -> bool:
    """True if elements of an array share memory: its extent is smaller than its size."""
    steps = zip(array.shape, array.strides, strict=True)
    extent = array.itemsize + sum((size - 1) * abs(stride) for size, stride in steps)
    return bool(extent < array.nbytes)


def is_plain(tree: Any) -> bool:
    """True if the tree can be rebuilt exactly from its leaves.  Else it is pickled whole."""
    kind = type(tree)
    if kind is dict:
        kinds = set(map(type, tree.values()))
        return kinds == {np.ndarray} or all(map(is_plain, tree.values()))
    is_named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    if kind is tuple or kind is list or is_named:
        return all(map(is_plain, tree))
    if hasattr(kind, "__dataclass_fields__"):
        fields = vars(tree) if hasattr(tree, "__dict__") else {}
        inits = {name for name, field in kind.__dataclass_fields__.items() if field.init}
        return set(fields) == inits and all(map(is_plain, fields.values()))
    return not isinstance(tree, (Mapping, tuple, list))
