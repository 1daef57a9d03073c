"""The first node of a `MapDataset`: a source, or a range of integers."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from loaderx import ArraySpec
from loaderx.compat.grain.indices import Indices, as_array, as_indices, as_ints, modulo
from loaderx.compat.grain.map_dataset import MapDataset
from loaderx.compat.grain.options import ReadOptions
from loaderx.compat.grain.protocols import Element, RandomAccessDataSource, ShapeDtypeStruct, Spec
from loaderx.compat.grain.read_threads import ManyReader
from loaderx.compat.grain.trees import flatten
from loaderx.sources import ArraySource, Lend, Source

if TYPE_CHECKING:
    from loaderx.compat.grain.iter_dataset import IterDataset

T = TypeVar("T")

_INT64 = np.iinfo(np.int64)


class SourceMapDataset(MapDataset[T]):
    """The records of a source, as the source gives them: a list's own objects, not copies."""

    def __init__(self, source: Sequence[T] | RandomAccessDataSource[T]) -> None:
        super().__init__()
        self._source: Element = source
        self._arrays = _arrays_of(source)
        self._reader = ManyReader()

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: builtins.slice | int) -> Element:
        if isinstance(index, slice):
            return self.slice(index)
        with contextlib.suppress(TypeError):  # a source without a length
            index %= len(self._source)
        return self._source[index]

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[T | None]:
        source = self._source
        inside = modulo(as_indices(indices), len(source))
        if isinstance(source, MapDataset):
            return source._getitems(inside)
        for bulk in ("_getitems", "__getitems__"):
            if hasattr(source, bulk):
                return getattr(source, bulk)(list(as_ints(inside)))  # type: ignore[no-any-return]
        found: list[T | None] = []
        self._reader.read(source, as_ints(inside), found)
        return found

    @property
    def _gathers(self) -> bool:
        source = self._source
        return source._gathers if isinstance(source, MapDataset) else self._arrays is not None

    def _gather(self, indices: Indices, lend: Lend) -> Element:
        source = self._source
        inside = modulo(indices, len(source))
        if isinstance(source, MapDataset):
            return source._gather(inside, lend)
        return None if self._arrays is None else self._arrays.gather(as_array(inside), lend)

    @property
    def paths(self) -> str | Sequence[str]:
        """The files of the source, if it names them."""
        return getattr(self._source, "paths", [])

    def __str__(self) -> str:
        return f"SourceMapDataset(source={type(self._source).__name__})"


def _arrays_of(source: object) -> Source | None:
    """A loaderx source that gathers rows as NumPy would stack them; None if there is none."""
    try:
        if isinstance(source, Source):
            found: Source = source
        elif _is_rows(source):
            found = ArraySource(source)
        else:
            return None
    except Exception:  # such a source is read record by record
        return None
    if not found.gathers or found.spec is None:
        return None
    # The width of text depends on the batch, and objects are not copied.
    are_plain = all(map(_is_plain, flatten(found.spec)))
    return found if are_plain else None


def _is_plain(spec: object) -> bool:
    if not isinstance(spec, ArraySpec):  # a dataclass that JAX does not know is a leaf here
        return False
    return spec.dtype.kind in "biufcmM" and spec.dtype.isnative


def _is_rows(source: object) -> bool:
    """Whether it is an array whose elements are its rows.  (A pandas series is read by label.)"""
    if isinstance(source, np.ndarray):
        return type(source) in (np.ndarray, np.memmap) and len(source) > 0
    module = type(source).__module__.partition(".")[0]
    is_array = all(hasattr(source, name) for name in ("__array__", "shape", "dtype"))
    return is_array and module not in ("pandas", "polars")


class RangeMapDataset(MapDataset[int]):
    """The integers of Python's `range`."""

    def __init__(self, start: int, stop: int | None = None, step: int = 1) -> None:
        super().__init__()
        self.start = 0 if stop is None else start
        self.stop = start if stop is None else stop
        self.step = step
        self._values = range(self.start, self.stop, step)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: builtins.slice | int) -> Element:
        if isinstance(index, slice):
            return self.slice(index)
        return self.start + (index % len(self._values)) * self.step

    def _getitems(self, indices: Sequence[int] | Indices) -> Sequence[int]:
        start, step, length = self.start, self.step, len(self._values)
        return [start + i % length * step for i in as_ints(indices)]

    @property
    def _gathers(self) -> bool:
        ends = (self.start, self.stop)
        return min(ends) >= _INT64.min // 2 and max(ends) <= _INT64.max // 2

    def _gather(self, indices: Indices, lend: Lend) -> Element:
        inside = as_array(modulo(indices, len(self._values)))
        return self.start + inside * self.step

    def to_iter_dataset(
        self, read_options: ReadOptions | None = None, *, allow_nones: bool = False
    ) -> IterDataset[int]:
        """As for other datasets, but read in the caller's thread by default."""
        return super().to_iter_dataset(
            read_options or ReadOptions(prefetch_buffer_size=0), allow_nones=allow_nones
        )

    @property
    def _element_spec(self) -> Spec:
        return ShapeDtypeStruct((), np.int64)

    def __str__(self) -> str:
        return f"RangeMapDataset(start={self.start}, stop={self.stop}, step={self.step})"
