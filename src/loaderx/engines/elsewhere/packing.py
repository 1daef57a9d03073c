"""Elements as they travel between machines: what they are made of, and their plain bytes.

A worker packs an element into its *form* (the tree, and the dtype of each leaf), the shapes, and
the arrays.  The consumer lays the arrays out in one block of its own memory, so that they are
writable and aligned, and builds the same element.  Elements of one form follow each other by the
thousand, so both sides keep the pickled form.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from loaderx.engines.base import Element, Made, Measured, Timing
from loaderx.engines.processes import exceptions
from loaderx.engines.processes.pickling import ResetAttribute, dumps
from loaderx.engines.processes.slots import ElementLayout, LeafPlace, is_plain, views
from loaderx.engines.raised_ahead import RaisedAhead
from loaderx.memory import ALIGNMENT, Layout, Pool
from loaderx.tree import LEAF, Array, DType, Structure, flatten

MOST_KEPT = 1024  # forms and layouts

Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of the plain leaves."""

Form: TypeAlias = tuple[Structure, tuple[DType | None, ...]]
"""The tree, and the dtype of each leaf.  A leaf without a dtype is sent pickled."""


_NOTHING = pickle.dumps(((), (), None, None))


class Packed(NamedTuple):
    """An element, or the error in its place, in a form that any executor can pickle."""

    form: bytes = b""  # pickled; empty for an error
    shapes: Shapes = ()
    arrays: Sequence[Array] = ()  # plain leaves, each in C order
    times: tuple[dict[str, float], int] | None = None
    read: int | None = None  # None: the element was not measured
    rest: bytes = b""  # pickled: other leaves, failures, an error, a warning
    worker: str = ""  # its name, for messages and statistics
    making_s: float = 0.0  # how long it took
    held_s: float = 0.0  # the time from when its task came until it was ready to be sent

    @property
    def needs_work(self) -> bool:
        """True if the worker has nothing to make elements with."""
        return not self.form and not self.rest


class Packer:
    """Packs elements, in a worker."""

    def __init__(self) -> None:
        self._forms: dict[Form, bytes] = {}

    def pack(self, element: Element, warning: str | None) -> Packed:
        times, read, failures = None, None, ()
        if type(element) is Measured:
            timing, read, failures = element.times, element.read, tuple(element.failures)
            times = None if timing is None else (timing.stages, timing.weight)
            element = element.value
        leaves, structure = flatten(element) if is_plain(element) else ([element], LEAF)
        arrays: list[Array] = []
        dtypes: list[DType | None] = []
        others = []
        for leaf in leaves:
            if type(leaf) is not np.ndarray or leaf.dtype.hasobject or not leaf.dtype.itemsize:
                dtypes.append(None)
                others.append(leaf)
            else:
                dtypes.append(leaf.dtype)
                arrays.append(np.asarray(leaf, order="C"))
        rest = b""
        if others or failures or warning:
            rest = dumps((others, failures, None, warning))
        shapes = tuple(array.shape for array in arrays)
        return Packed(self._form(structure, tuple(dtypes)), shapes, arrays, times, read, rest)

    def _form(self, structure: Structure, dtypes: tuple[DType | None, ...]) -> bytes:
        known = self._forms.get((structure, dtypes))
        if known is None:
            if len(self._forms) >= MOST_KEPT:
                self._forms.clear()
            known = self._forms[structure, dtypes] = dumps((structure, dtypes))
        return known


def made_now(worker: str, packed: Packed) -> Made:
    """When an element that has just come was made, as if it had taken no time to travel."""
    now = perf_counter()
    return Made(worker, now - packed.making_s, now)


def packed_error(error: BaseException) -> Packed:
    """An error in the place of an element."""
    return Packed(rest=dumps(([], (), exceptions.pack(error), None)))


class Unpacker:
    """Makes elements of what was packed, in memory of a pool.  For one thread at a time."""

    def __init__(
        self, capacity: int, reset: Sequence[ResetAttribute], warnings: deque[str]
    ) -> None:
        self._pool = Pool(capacity)
        self._reset = reset
        self._warnings = warnings  # of workers, for the consumer
        self._layouts: dict[tuple[bytes, Shapes], ElementLayout] = {}

    def unpack(self, packed: Packed, step: int | None) -> Element:
        """The element; raises its error."""
        others, failures, error, warning = pickle.loads(packed.rest or _NOTHING)
        if warning is not None:
            self._warnings.append(warning)
        if error is not None:
            failed = exceptions.unpack(error, f"a worker on {packed.worker}", step)
            exceptions.note_reset_attributes(failed, self._reset)
            raise failed
        for other in others:
            if type(other) is RaisedAhead:
                exceptions.note_reset_attributes(other.error, self._reset)
        layout = self.layout(packed.form, packed.shapes)
        block = self.block(layout)
        arrays = iter(packed.arrays)
        for leaf in views(layout, block):
            if leaf is not None:
                leaf[...] = next(arrays)
        return self.element(layout, block, packed, others, failures)

    def layout(self, form: bytes, shapes: Shapes) -> ElementLayout:
        """Where the leaves lie in a block."""
        known = self._layouts.get((form, shapes))
        if known is None:
            if len(self._layouts) >= MOST_KEPT:
                self._layouts.clear()
            structure, dtypes = pickle.loads(form)
            places = _places(dtypes, shapes)
            known = self._layouts[form, shapes] = ElementLayout(structure, places)
        return known

    def block(self, layout: ElementLayout) -> Array:
        """Memory for the leaves of an element."""
        (block,) = self._pool.lend(
            Layout.of(((layout.nbytes + padding(layout.nbytes),), np.dtype(np.uint8)))
        )
        return block

    def element(
        self,
        layout: ElementLayout,
        block: Array,
        packed: Packed,
        others: Sequence[Any] = (),
        failures: Sequence[Any] = (),
    ) -> Element:
        """The element whose plain leaves are in a block."""
        rest = iter(others)
        leaves = [next(rest) if leaf is None else leaf for leaf in views(layout, block)]
        value = layout.structure.build(leaves)
        if packed.read is None:
            return value
        times = None if packed.times is None else Timing(*packed.times)
        return Measured(value, failures, times, packed.read)


def _places(dtypes: Sequence[DType | None], shapes: Shapes) -> tuple[LeafPlace | None, ...]:
    """One leaf after the other, each at a multiple of the alignment."""
    start, rest = 0, iter(shapes)
    places: list[LeafPlace | None] = []
    for dtype in dtypes:
        if dtype is None:
            places.append(None)
            continue
        shape = next(rest)
        places.append((start, shape, dtype, None))
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        start += nbytes + padding(nbytes)
    return tuple(places)


def padding(nbytes: int) -> int:
    """How many bytes follow a leaf, up to the next."""
    return -nbytes % ALIGNMENT
