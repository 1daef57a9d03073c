"""64-bit numbers as the 32-bit ones that JAX holds: a stage that a loader adds for devices.

Unless ``jax_enable_x64`` is set, JAX has no 64-bit numbers: it makes int64 to int32 and float64 to
float32 when an array is put on a device, in the thread that asks for it, and an integer that does
not fit comes out as another one.  Here the same is done by the worker that makes the batch, into a
recycled aligned buffer, and an integer that does not fit is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from loaderx.chain.one_to_one import OneToOne
from loaderx.chain.transforms import Fail, Transform
from loaderx.errors import StackError
from loaderx.memory import Layout, Lend
from loaderx.reading.operators import Gather
from loaderx.sources.base import Indices
from loaderx.tree import Array, DType, Structure, Tree, as_array, flatten, is_array_like
from loaderx.tree_prefix import Prefix, spread

_NARROW = {
    np.dtype(wide): np.dtype(narrow)
    for wide, narrow in (
        (np.int64, np.int32),
        (np.uint64, np.uint32),
        (np.float64, np.float32),
        (np.complex128, np.complex64),
    )
}


def has_wide(spec: Tree | None) -> bool:
    """Could batches of this description have leaves to be made narrow?"""
    return spec is None or any(leaf.dtype in _NARROW for leaf in flatten(spec)[0])


class Narrow(Transform):
    """Narrows the leaves that ``chosen``, a prefix of booleans, says."""

    chosen: Prefix[bool]

    needs = "memory"
    takes_either = True
    is_cheap = True

    def __post_init__(self) -> None:
        self.__dict__["_known"] = {}  # which leaves, by structure

    def on_records(self, records: list[object], extra: Lend, fail: Fail) -> list[object]:
        return [self(record, extra) for record in records]

    def on_batch(self, batch: Tree, extra: Lend, fail: Fail) -> Tree:
        return self(batch, extra)

    def on_each(self, records: Iterator[object], extra: Lend, fail: Fail) -> Iterator[object]:
        for record in records:
            yield self(record, extra)
            del record  # its memory may be used again

    def over_gather(self, gather: Gather) -> Gather | None:
        return partial(_narrow_gathered, gather, self)

    def __call__(self, batch: Tree, lend: Lend) -> Tree:
        """The batch, or record, with its chosen leaves in 32 bits."""
        leaves, structure = flatten(batch)
        known: dict[Structure, list[bool]] = self.__dict__["_known"]
        chosen = known.get(structure)
        if chosen is None:
            chosen = known[structure] = spread(self.chosen, structure)
        wide = {
            number: array
            for number, leaf in enumerate(leaves)
            if chosen[number] and (array := _wide(leaf)) is not None
        }
        if not wide:
            return batch
        out = lend(Layout.of(*[(one.shape, _NARROW[one.dtype]) for one in wide.values()]))
        for (number, array), target in zip(wide.items(), out, strict=True):
            if target.dtype.kind in "iu":
                _check_fits(array, target.dtype, structure.paths()[number])
            with np.errstate(over="ignore"):  # beyond float32 is infinite, as JAX has it
                np.copyto(target, array, casting="unsafe")
            leaves[number] = target
        return structure.build(leaves)

    def __reduce__(self) -> tuple[type[Narrow], tuple[Prefix[bool]]]:
        return Narrow, (self.chosen,)


def _narrow_gathered(gather: Gather, narrow: Narrow, indices: Indices, lend: Lend) -> Tree:
    return narrow(gather(indices, lend), lend)


def _wide(leaf: object) -> Array | None:
    """The leaf as an array, if JAX would make it narrow."""
    dtype = getattr(leaf, "dtype", None)
    if not isinstance(dtype, np.dtype):  # a list; a tensor of another library
        if not isinstance(leaf, list) and not is_array_like(leaf):
            return None
        try:
            leaf = as_array(leaf)
        except Exception:  # keys of JAX, say: placing knows them, or says what is wrong
            return None
        dtype = leaf.dtype
    return as_array(leaf) if dtype in _NARROW else None


def _check_fits(array: Array, dtype: DType, path: str) -> None:
    if not array.size:
        return
    limits, low, high = np.iinfo(dtype), int(array.min()), int(array.max())
    if limits.min <= low and high <= limits.max:
        return
    raise StackError(
        f"{f'leaf {path!r}' if path else 'the batch'} holds {low if low < limits.min else high}, "
        f"which does not fit into {dtype}, and JAX makes {array.dtype} to {dtype} unless "
        "jax_enable_x64 is set. Set it, or change the numbers in .map(), or leave them on the host "
        "(None in place of a sharding)."
    )


class Narrowed(OneToOne):
    """The topmost stage of a loader with ``sharding``; no state and no description has it."""

    unit_cost = "nothing"
    user_objects = ()
    stage = "32-bit numbers"
    spec = None  # a loader tells that of the chain below

    def fingerprint(self, seed: int) -> str:
        return ""
