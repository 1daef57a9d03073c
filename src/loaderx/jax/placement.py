"""Putting batches onto devices.

On one process a batch is handed to `jax.device_put` as a whole.  Where a sharding spans processes,
each has loaded a slice of the global batch, and every device of the process takes its part of that
slice; the global array is made of them without any communication.

Neither copies on CPU if it need not: the arrays that loaderx makes are aligned, JAX then looks at
the same memory, and that memory is not used again while a `jax.Array` looks at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from loaderx.errors import ArgumentError, ArgumentTypeError, StackError
from loaderx.jax.rows import as_sharding, check_divides, shard_for
from loaderx.stages.narrowing import Narrow, Prefix, as_prefix, map_prefix, prefix_values, spread
from loaderx.tree import Array, Structure, Tree, flatten


class _Targets:
    """Where the leaves of one structure go."""

    __slots__ = ("each", "going", "one", "wanted")

    def __init__(self, each: list[Sharding | None], devices: dict[Sharding, Any]) -> None:
        self.each = each
        self.going = [number for number, target in enumerate(each) if target is not None]
        self.wanted = [devices.get(target, target) for target in each if target is not None]
        every = len(self.going) == len(each) and len({id(target) for target in each}) == 1
        self.one = self.wanted[0] if every else None  # all leaves go to the same place


class Placement:
    """Where the leaves of batches go: the ``sharding`` argument, understood and checked."""

    def __init__(self, sharding: Any) -> None:
        self._prefix: Prefix = as_prefix(sharding, as_sharding)
        self._shardings: list[Sharding] = [
            one for one in dict.fromkeys(prefix_values(self._prefix)) if one is not None
        ]
        if not self._shardings:
            raise ArgumentTypeError(
                f"`sharding` names no device: {sharding!r}. Leave it out to get NumPy batches."
            )
        self.spans_processes = not all(one.is_fully_addressable for one in self._shardings)
        self._slice = (0, 1)
        # `device_put` takes a bare device faster than a sharding of one.
        self._devices: dict[Sharding, Any] = {
            one: next(iter(one.device_set))
            for one in self._shardings
            if isinstance(one, SingleDeviceSharding) and one.memory_kind in (None, "device")
        }
        self._known: dict[Structure, _Targets] = {}

    def shard(self, sizes: Sequence[tuple[int, str, bool]]) -> tuple[int, int]:
        """The slice of each batch that this process loads.

        ``sizes`` are the numbers of records that batches can have: each with its stage, and whether
        only the last batch has so few.
        """
        for rows, stage, last in sizes:
            for sharding in self._shardings:
                check_divides(sharding, rows, stage, last=last)
        if self.spans_processes:
            found = {shard_for(self._shardings, rows) for rows, _, last in sizes if not last}
            self._slice = found.pop() if len(found) == 1 else (0, 1)
        return self._slice

    def check_spec(self, spec: Tree) -> None:
        """Checks the leaves of a batch before there is one."""
        leaves, structure = flatten(spec)
        paths = structure.paths()
        for number in self._targets(structure).going:
            _check_dtype(leaves[number].dtype, paths[number])

    def narrow(self) -> Narrow | None:
        """What makes 64-bit leaves narrow; None if JAX keeps them."""
        if jax.config.jax_enable_x64:
            return None
        return Narrow(map_prefix(lambda sharding: sharding is not None, self._prefix))

    def place(self, batch: Tree) -> Tree:
        """The batch on its devices.  Transfers go on in the background."""
        leaves, structure = flatten(batch)
        targets = self._known.get(structure) or self._targets(structure)
        try:
            placed = self._place(leaves, targets)
        except Exception:
            self._blame(leaves, targets.each, structure.paths())
            raise
        return structure.build(placed)

    def _place(self, leaves: list[Any], targets: _Targets) -> list[Any]:
        if self.spans_processes:
            return [self._place_slice(*pair) for pair in zip(leaves, targets.each, strict=True)]
        if targets.one is not None:
            return jax.device_put(leaves, targets.one)  # type: ignore[no-any-return]
        placed = jax.device_put([leaves[number] for number in targets.going], targets.wanted)
        for number, array in zip(targets.going, placed, strict=True):
            leaves[number] = array
        return leaves

    def _place_slice(self, leaf: Any, target: Sharding | None) -> Any:
        """A global array of the slice that this process has loaded."""
        if target is None:
            return leaf
        if target.is_fully_addressable:
            return jax.device_put(leaf, target)
        number, count = self._slice
        local: Array = np.asarray(leaf)
        if count == 1:
            return jax.make_array_from_callback(local.shape, target, lambda index: local[index])
        if local.ndim == 0:
            raise ValueError("it is a single number, and has no rows to spread over processes")
        rows = local.shape[0]
        first, total = number * rows, count * rows

        def part(index: tuple[slice, ...]) -> Array:
            begin, end, _ = index[0].indices(total)
            return local[(slice(begin - first, end - first), *index[1:])]

        return jax.make_array_from_callback((total, *local.shape[1:]), target, part)

    def _targets(self, structure: Structure) -> _Targets:
        found = _Targets(spread(self._prefix, structure), self._devices)
        self._known[structure] = found
        return found

    def _blame(self, leaves: list[Any], targets: list[Sharding | None], paths: list[str]) -> None:
        """Raises what a reader can use, if it can be told which leaf it was."""
        for leaf, target, path in zip(leaves, targets, paths, strict=True):
            if target is None:
                continue
            if isinstance(leaf, np.ndarray):
                _check_dtype(leaf.dtype, path)
            try:
                self._place_slice(leaf, target)
            except Exception as cause:
                shape = getattr(leaf, "shape", None)
                raise ArgumentError(
                    f"{_named(path)} cannot be placed: {type(leaf).__name__}"
                    f"{'' if shape is None else f' of shape {shape}'} on {target}: {cause} "
                    "Give this leaf a sharding that fits, or None to leave it on the host."
                ) from cause


def _check_dtype(dtype: np.dtype[Any], path: str) -> None:
    if dtype.kind not in "OSUMm":
        return
    what = "text or other Python objects" if dtype.kind == "O" else str(dtype)
    raise StackError(
        f"{_named(path)} holds {what}, which no device can. Leave it on the host (None in its "
        "place in a tree of shardings), or drop it in .map()."
    )


def _named(path: str) -> str:
    return f'leaf "{path}"' if path else "the batch"
