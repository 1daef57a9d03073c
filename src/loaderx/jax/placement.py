"""Putting batches onto devices.

Every device takes its part of the arrays that this process has loaded: all of the batch on one
process, a slice of it where a sharding spans processes.  The global array is made of these parts
without any communication (`jax.make_array_from_callback`; see `leaf_devices`).

On CPU nothing is copied if possible: the arrays that loaderx makes are aligned, so JAX uses the
same memory, and that memory is not used again while a `jax.Array` refers to it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import jax
import numpy as np
from jax import transfer_guard_host_to_device
from jax.sharding import Sharding

from loaderx.chain.row_counts import RowCount
from loaderx.errors import ArgumentError, ArgumentTypeError, StackError
from loaderx.jax.leaf_devices import LeafDevices
from loaderx.jax.shards import as_sharding, check_divides, counts_for, misfit, shard_for
from loaderx.order.epochs import Positions
from loaderx.stages.narrow import Narrow
from loaderx.tree import DType, Structure, Tree, flatten
from loaderx.tree_prefix import Prefix, as_prefix, map_prefix, prefix_values, spread

try:
    from jax import enable_x64
except ImportError:  # an older jax
    from jax.experimental import enable_x64


class Placement:
    """Where the leaves of batches go: the ``sharding`` argument, parsed and checked."""

    def __init__(self, sharding: object) -> None:
        self._prefix: Prefix[Sharding | None] = as_prefix(sharding, as_sharding)
        self._shardings: list[Sharding] = [
            one for one in dict.fromkeys(prefix_values(self._prefix)) if one is not None
        ]
        if not self._shardings:
            raise ArgumentTypeError(
                f"`sharding` has no device: {sharding!r}. Leave it out to get NumPy batches."
            )
        self.spans_processes = not all(one.is_fully_addressable for one in self._shardings)
        self._slice = (0, 1)
        self.counts: list[int] = []  # numbers of slices into which processes cut a batch
        self._known: dict[Structure, list[LeafDevices | None]] = {}
        self._flat: dict[tuple[Hashable, ...], list[LeafDevices]] = {}  # by the keys of plain dicts
        self.x64 = bool(jax.config.jax_enable_x64)

    def shard(self, counts: Sequence[RowCount]) -> tuple[int, int]:
        """The slice of each batch that this process loads; raises if rows cannot be divided."""
        for count in counts:
            for sharding in self._shardings:
                check_divides(sharding, count.rows, count.stage, last=count.is_rest)
        if self.spans_processes:
            whole = {one.rows for one in counts if one.rows is not None and not one.is_rest}
            found = {shard_for(self._shardings, rows) for rows in whole}
            self._slice = found.pop() if len(found) == 1 else (0, 1)
            if len(whole) == 1 and not any(one.is_fully_addressable for one in self._shardings):
                self.counts = sorted(counts_for(self._shardings, *whole))
        return self._slice

    @property
    def spans_all_processes(self) -> bool:
        """Whether there are several, and each has devices of every sharding."""
        return jax.process_count() > 1 and all(
            len({device.process_index for device in one.device_set}) == jax.process_count()
            for one in self._shardings
        )

    @staticmethod
    def largest(numbers: Positions) -> Positions:
        """The largest of each number over all processes, each of which must call this."""
        from jax.experimental.multihost_utils import process_allgather  # late: rarely needed

        halves = process_allgather(numbers.astype(np.int64).view(np.uint32))  # jax may lack int64
        found: Positions = np.ascontiguousarray(halves).view(np.int64).max(axis=0)
        return found

    def check_spec(self, spec: object) -> None:
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
        """The transform that makes 64-bit leaves narrow; None if JAX keeps them."""
        if self.x64:
            return None
        return Narrow(map_prefix(lambda sharding: sharding is not None, self._prefix))

    def place(self, batch: object) -> Tree:
        """The batch on its devices.  Transfers run in the background.

        ``jax_enable_x64`` counts as it was when the loader was made.  These transfers are explicit,
        so a transfer guard of the caller does not forbid them.
        """
        with enable_x64(self.x64), transfer_guard_host_to_device("allow"):
            return self._place(batch)

    def _place(self, batch: object) -> Tree:
        if type(batch) is dict:
            targets = self._flat.get(tuple(batch))
            if targets is not None:  # no need to look at the tree again
                placed = {}
                for (name, leaf), target in zip(batch.items(), targets):  # noqa: B905 (a hot loop)
                    found = target.place_again(leaf)
                    if found is None:
                        break
                    placed[name] = found
                else:
                    return placed
        return self._place_tree(batch)

    def _place_tree(self, batch: object) -> Tree:
        leaves, structure = flatten(batch)
        targets = self._known.get(structure) or self._leaf_devices(structure)
        try:
            return structure.build(
                [
                    leaf if target is None else target.place(leaf)
                    for leaf, target in zip(leaves, targets, strict=True)
                ]
            )
        except Exception:
            self._raise_for_leaf(leaves, targets, structure.paths())
            raise

    def _leaf_devices(self, structure: Structure) -> list[LeafDevices | None]:
        found: list[LeafDevices | None] = [
            None if sharding is None else LeafDevices(sharding, self._slice)
            for sharding in spread(self._prefix, structure)
        ]
        self._known[structure] = found
        if structure.is_flat_dict and None not in found:
            self._flat[structure.keys] = found  # type: ignore[assignment]
        return found

    def _raise_for_leaf(
        self, leaves: list[object], targets: list[LeafDevices | None], paths: list[str]
    ) -> None:
        """Raises an error that names the leaf at fault, if it can be found."""
        for leaf, target, path in zip(leaves, targets, paths, strict=True):
            if target is None:
                continue
            if isinstance(leaf, np.ndarray):
                _check_dtype(leaf.dtype, path)
            if isinstance(leaf, list):
                shape: tuple[int, ...] | None = (len(leaf),)
            else:
                shape = () if isinstance(leaf, (int, float)) else getattr(leaf, "shape", None)
            what = f"{type(leaf).__name__}{'' if shape is None else f' of shape {shape}'}"
            problem = None if shape is None else misfit(target.sharding, shape)
            if problem is not None:
                raise _cannot_be_placed(path, what, problem, shape)
            try:  # `device_put` has clearer messages
                whole = target.sharding.is_fully_addressable
                jax.device_put(leaf, target.sharding) if whole else target.place(leaf)
            except Exception as cause:
                raise _cannot_be_placed(path, what, str(cause), shape) from cause


_FOREIGN = (np.void, np.longdouble, np.clongdouble)


def _check_dtype(dtype: DType, path: str) -> None:
    if dtype.kind not in "OSUMm" and dtype.isnative and dtype.type not in _FOREIGN:
        return
    what = "text or other Python objects" if dtype.kind == "O" else str(dtype)
    raise StackError(
        f"{_named(path)} holds {what}, which a device cannot hold. Leave it on the host (None in "
        "its place in a tree of shardings), or change or drop it in .map()."
    )


def _cannot_be_placed(
    path: str, what: str, problem: str, shape: tuple[int | None, ...] | None
) -> ArgumentError:
    hint = " Or did you forget .batch(...)?" if shape == () else ""
    return ArgumentError(
        f"{_named(path)} ({what}) cannot be placed: {problem.rstrip('. ')}. Give this leaf a "
        f"sharding that fits, or None to leave it on the host.{hint}"
    )


def _named(path: str) -> str:
    return f'leaf "{path}"' if path else "the batch"
