"""Putting batches onto devices.

Every device takes its part of the arrays that this process has loaded: all of the batch on one
process, a slice of it where a sharding spans processes.  The global array is made of these parts
without any communication (`jax.make_array_from_callback`; see `spots`).

Nothing is copied on CPU if it need not be: the arrays that loaderx makes are aligned, JAX then
looks at the same memory, and that memory is not used again while a `jax.Array` looks at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import transfer_guard_host_to_device
from jax.sharding import Sharding

from loaderx.errors import ArgumentError, ArgumentTypeError, StackError
from loaderx.jax.leaf_devices import LeafDevices
from loaderx.jax.shards import as_sharding, check_divides, counts_for, misfit, shard_for
from loaderx.stages.narrowing import Narrow, Prefix, as_prefix, map_prefix, prefix_values, spread
from loaderx.tree import Structure, Tree, flatten

try:
    from jax import enable_x64
except ImportError:  # an older jax
    from jax.experimental import enable_x64


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
        self.counts: list[int] = []  # slices of a batch, as other processes may cut it
        self._known: dict[Structure, list[LeafDevices | None]] = {}
        self._flat: dict[tuple[Any, ...], list[LeafDevices]] = {}  # by the keys of plain dicts
        self.x64 = bool(jax.config.jax_enable_x64)

    def shard(self, sizes: Sequence[tuple[int | None, str, bool]]) -> tuple[int, int]:
        """The slice of each batch that this process loads.

        ``sizes`` are the numbers of records that batches can have: each with its stage, and whether
        only the last batch has so few (None: any number).
        """
        for rows, stage, last in sizes:
            for sharding in self._shardings:
                check_divides(sharding, rows, stage, last=last)
        if self.spans_processes:
            whole = {rows for rows, _, last in sizes if rows is not None and not last}
            found = {shard_for(self._shardings, rows) for rows in whole}
            self._slice = found.pop() if len(found) == 1 else (0, 1)
            if len(whole) == 1 and not any(one.is_fully_addressable for one in self._shardings):
                self.counts = sorted(counts_for(self._shardings, *whole))
        return self._slice

    def check_spec(self, spec: Tree) -> None:
        """Checks the leaves of a batch before there is one."""
        leaves, structure = flatten(spec)
        paths = structure.paths()
        for leaf, target, path in zip(leaves, spread(self._prefix, structure), paths, strict=True):
            if target is not None:
                _check_dtype(leaf.dtype, path)
                problem = misfit(target, leaf.shape)
                if problem is not None:
                    raise _cannot_be_placed(path, repr(leaf), problem, leaf.shape)

    def narrow(self) -> Narrow | None:
        """What makes 64-bit leaves narrow; None if JAX keeps them."""
        if self.x64:
            return None
        return Narrow(map_prefix(lambda sharding: sharding is not None, self._prefix))

    def place(self, batch: Tree) -> Tree:
        """The batch on its devices.  Transfers go on in the background.

        The caller may have changed ``jax_enable_x64`` since the loader was made, or have forbidden
        implicit transfers, which these are not.
        """
        with enable_x64(self.x64), transfer_guard_host_to_device("allow"):
            return self._place(batch)

    def _place(self, batch: Tree) -> Tree:
        if type(batch) is dict:
            spots = self._flat.get(tuple(batch))
            if spots is not None:  # no need to look at the tree again
                placed = {}
                for (name, leaf), spot in zip(batch.items(), spots):  # noqa: B905 (a hot loop)
                    found = spot.place_again(leaf)
                    if found is None:
                        break
                    placed[name] = found
                else:
                    return placed
        return self._place_tree(batch)

    def _place_tree(self, batch: Tree) -> Tree:
        leaves, structure = flatten(batch)
        spots = self._known.get(structure) or self._targets(structure)
        try:
            return structure.build(
                [
                    leaf if spot is None else spot.place(leaf)
                    for leaf, spot in zip(leaves, spots, strict=True)
                ]
            )
        except Exception:
            self._blame(leaves, spots, structure.paths())
            raise

    def _targets(self, structure: Structure) -> list[LeafDevices | None]:
        targets = spread(self._prefix, structure)
        found: list[LeafDevices | None] = [
            None if target is None else LeafDevices(target, self._slice) for target in targets
        ]
        self._known[structure] = found
        if structure.is_flat_dict and None not in found:
            self._flat[structure.keys] = found  # type: ignore[assignment]
        return found

    def _blame(self, leaves: list[Any], spots: list[LeafDevices | None], paths: list[str]) -> None:
        """Raises what a reader can use, if it can be told which leaf it was."""
        for leaf, spot, path in zip(leaves, spots, paths, strict=True):
            if spot is None:
                continue
            if isinstance(leaf, np.ndarray):
                _check_dtype(leaf.dtype, path)
            if isinstance(leaf, list):
                shape: Any = (len(leaf),)
            else:
                shape = () if isinstance(leaf, (int, float)) else getattr(leaf, "shape", None)
            what = f"{type(leaf).__name__}{'' if shape is None else f' of shape {shape}'}"
            problem = None if shape is None else misfit(spot.sharding, shape)
            if problem is not None:
                raise _cannot_be_placed(path, what, problem, shape)
            try:  # `device_put` has the better words
                whole = spot.sharding.is_fully_addressable
                jax.device_put(leaf, spot.sharding) if whole else spot.place(leaf)
            except Exception as cause:
                raise _cannot_be_placed(path, what, str(cause), shape) from cause


_FOREIGN = (np.void, np.longdouble, np.clongdouble)


def _check_dtype(dtype: np.dtype[Any], path: str) -> None:
    if dtype.kind not in "OSUMm" and dtype.isnative and dtype.type not in _FOREIGN:
        return
    what = "text or other Python objects" if dtype.kind == "O" else str(dtype)
    raise StackError(
        f"{_named(path)} holds {what}, which no device can. Leave it on the host (None in its "
        "place in a tree of shardings), or change or drop it in .map()."
    )


def _cannot_be_placed(path: str, what: str, problem: str, shape: Any) -> ArgumentError:
    hint = " Or did you forget .batch(...)?" if shape == () else ""
    return ArgumentError(
        f"{_named(path)} ({what}) cannot be placed: {problem.rstrip('. ')}. Give this leaf a "
        f"sharding that fits, or None to leave it on the host.{hint}"
    )


def _named(path: str) -> str:
    return f'leaf "{path}"' if path else "the batch"
