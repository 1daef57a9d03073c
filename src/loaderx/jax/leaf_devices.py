"""One leaf of the batches, and the devices that its parts go to.

`jax.make_array_from_callback` places an array in half the time of `jax.device_put`, which first
makes an operation of it.  Most of the rest is spent on facts that are the same for every batch:
which device holds which rows, and the shape and dtype of the result.  So they are computed once
for a shape, and the next arrays of that shape go straight to the function that both of them call
last.  That function is not public: where it is missing, or fails, the public one is used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from loaderx.jax.shards import misfit
from loaderx.tree import Array, DType, as_array

try:
    from jax._src.interpreters.pxla import batched_device_put
except ImportError:  # another version of jax
    put: Any = None
else:
    put = batched_device_put


class _Known(NamedTuple):
    """The facts that are the same for all arrays of a shape."""

    shape: tuple[int, ...]
    dtype: DType
    aval: jax.core.ShapedArray
    devices: list[jax.Device]
    parts: list[tuple[slice, ...]]


class LeafDevices:
    """Where one leaf goes; this process has slice ``i`` of ``n`` of its rows."""

    def __init__(self, sharding: Sharding, slice_: tuple[int, int]) -> None:
        self.sharding = sharding
        self._slice = slice_
        self._known: _Known | None = None
        self._direct = put is not None

    def place_again(self, leaf: object) -> jax.Array | None:
        """The leaf as a global array, if one like it has been placed before; else None."""
        known = self._known
        if (
            known is None
            or type(leaf) is not np.ndarray
            or leaf.shape != known.shape
            or leaf.dtype != known.dtype
        ):
            return None
        try:
            parts = [leaf[index] for index in known.parts]
            return put(known.aval, self.sharding, parts, known.devices)
        except Exception:  # another version of jax: use the public function from now on
            self._known, self._direct = None, False
            return None

    def place(self, leaf: object) -> jax.Array:
        """The leaf as a global array.  The transfer runs in the background."""
        placed = self.place_again(leaf)
        return self._place_first(leaf) if placed is None else placed

    def _place_first(self, leaf: object) -> jax.Array:
        if not isinstance(leaf, np.ndarray):
            ready = isinstance(leaf, (bool, int, float, complex, jax.Array))
            if ready and self.sharding.is_fully_addressable:
                return jax.device_put(leaf, self.sharding)
            leaf = as_array(leaf)  # several processes: these are the rows of this one
        number, count = self._slice
        if leaf.ndim == 0 and count > 1:
            raise ValueError("it is a single number, without rows to spread over processes.")
        shape = leaf.shape if count == 1 else (count * len(leaf), *leaf.shape[1:])
        problem = misfit(self.sharding, shape)  # JAX would make an array that fails later
        if problem is not None:
            raise ValueError(problem)
        first, total = (0, 0) if count == 1 else (number * len(leaf), shape[0])

        def own(index: tuple[slice, ...]) -> tuple[slice, ...]:
            """The same part of the global array, as an index into the rows of this process."""
            if count == 1:
                return index
            begin, end, _ = index[0].indices(total)
            return (slice(begin - first, end - first), *index[1:])

        def part(index: tuple[slice, ...]) -> Array:
            found: Array = leaf[own(index)]
            return found

        placed = jax.make_array_from_callback(shape, self.sharding, part)
        if self._direct and placed.dtype == leaf.dtype:
            where = self.sharding.addressable_devices_indices_map(shape)
            self._known = _Known(
                leaf.shape,
                leaf.dtype,
                placed.aval,
                list(where),
                [own(index) for index in where.values()],
            )
        return placed
