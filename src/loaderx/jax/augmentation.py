"""A function of one record, written in JAX, as a stage for batches on the host.

It is vmapped, and compiled for the CPU with XLA, which takes a fraction of NumPy's time for the
usual chain of crops, flips and arithmetic.  The same function runs inside a step on an accelerator:
then the host sends bytes and keys.

Memory: the results are arrays of XLA's, which a caller sees as NumPy arrays without a copy.  When
nothing refers to them any more, the next batch is computed into the same memory (they are *donated*
to it).  Fresh memory would be faulted in page by page for every batch, which takes as long as the
computation.  A result belongs to nobody else, so it may be written to, although JAX's own view of
it is read-only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from sys import getrefcount

import jax
import jax.numpy as jnp
import numpy as np

from loaderx.errors import ArgumentTypeError, ChainError
from loaderx.memory import COUNTS_REFERENCES, empty
from loaderx.rng import BatchGenerator
from loaderx.tree import Array, Tree, flatten, map_leaves

_KEPT = 6  # results that a thread keeps for use again

Function = Callable[[jax.Array, Tree], Tree]
"""``f(key, record)``"""


def augment(f: Function, *, key: str = "key") -> Augment:
    """``f(key, record)``, written in JAX for one record, for whole batches.

    On the host it is a stage after `batch`, and every record has a key of its own:

    >>> import jax, numpy as np
    >>> from loaderx import Dataset
    >>> def jitter(key, record):
    ...     return {**record, "x": record["x"] + jax.random.normal(key)}
    >>> ds = Dataset.from_arrays(x=np.zeros(4, np.float32)).batch(4)
    >>> on_host = ds.random_map(augment(jitter), seed=0)[0]["x"]

    On a device, the keys are sent instead, and the same object is called inside the step.  The
    draws are the same:

    >>> step = jax.jit(augment(jitter))
    >>> on_device = step(ds.random_keys(seed=0)[0])["x"]
    >>> bool(np.allclose(on_host, on_device))
    True

    Args:
        f: a function of a key of `jax.random` and of a record, whose leaves are JAX arrays.
        key: the leaf that holds the keys where the object is called in a step.
    """
    if not callable(f):
        raise ArgumentTypeError(f"`augment` needs a function f(key, record), got {f!r}.")
    return Augment(f, key)


class Augment:
    """The object that `augment` returns.  Compiled for the CPU when the first batch comes."""

    # Read by engine="auto".
    why_no_processes = (
        "threads do it without the GIL, and each process would import jax and compile it"
    )

    def __init__(self, f: Function, key: str) -> None:
        self._f, self._key = f, key
        self.__name__ = getattr(f, "__name__", type(f).__name__)
        self._start()

    def _start(self) -> None:
        # A spare result is an argument that is not read: XLA writes the new one over it.
        self._compiled = jax.jit(self._over_spare, donate_argnums=0, keep_unused=True)
        self._shapes: dict[Hashable, object] = {}
        self._lock = threading.Lock()
        self._kept = _KeptResults()

    def _over_spare(self, spare: object, keys: jax.Array, batch: object) -> object:
        return self._vmapped(keys, batch)

    def _vmapped(self, keys: jax.Array, batch: object) -> object:
        return jax.vmap(self._f)(jax.random.wrap_key_data(keys), batch)

    def __repr__(self) -> str:
        return f"augment({self.__name__})"

    def __getstate__(self) -> tuple[Function, str]:
        return self._f, self._key

    def __setstate__(self, state: tuple[Function, str]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def __call__(self, batch: Tree) -> Tree:
        """The batch augmented, inside a step: with the keys that `Dataset.random_keys` has sent."""
        if not isinstance(batch, dict) or self._key not in batch:
            raise ChainError(
                f"{self!r} in a step needs the keys of the records: a leaf {self._key!r}, which "
                f".random_keys({self._key!r}) adds. On the host, write .random_map({self!r})."
            )
        rest = {name: value for name, value in batch.items() if name != self._key}
        return self._vmapped(batch[self._key], rest)

    def random_map(self, batch: Tree, rng: BatchGenerator | np.random.Generator) -> Tree:
        """The batch augmented, on the host."""
        if not isinstance(rng, BatchGenerator):
            raise ChainError(
                f"{self!r} works on batches: put it after .batch(...), or write "
                f".random_map({self!r}, batched=True)."
            )
        rows = len(rng)
        keys = rng.key_data()
        _check_leaves(batch)
        missing = rng.full_rows - rows
        if missing > 0:  # so that a short batch needs no compilation of its own
            keys = _lengthened(keys, missing)
            batch = map_leaves(lambda leaf: _lengthened(leaf, missing), batch)
        made = self._on_cpu(_aligned(keys), batch)
        return made if missing <= 0 else jax.tree.map(lambda leaf: leaf[:rows], made)

    def _on_cpu(self, keys: Array, batch: object) -> object:
        device = _cpu()
        signature = _signature(batch)
        # Arrays go to XLA as they are.  Aligned ones are not copied, and with the spare result,
        # which belongs to the CPU, they are used there; `device_put` would cost 40 us a leaf.
        with jax.default_device(device):
            if signature not in self._shapes:
                with self._lock:  # the first of several threads compiles
                    if signature not in self._shapes:
                        shapes = jax.eval_shape(self._vmapped, keys, batch)
                        made = self._compute(_new(shapes, device), keys, batch)
                        self._shapes[signature] = shapes
                        return self._kept.add(signature, made)
            spare = self._kept.spare(signature)
            if spare is None:
                spare = _new(self._shapes[signature], device)
            return self._kept.add(signature, self._compute(spare, keys, batch))

    def _compute(self, spare: object, keys: Array, batch: object) -> object:
        return jax.block_until_ready(self._compiled(spare, keys, batch))


class _KeptResults(threading.local):
    """The latest results of a thread, for use again when nothing refers to them."""

    def __init__(self) -> None:
        self._results: list[_Result] = []

    def spare(self, signature: Hashable) -> object | None:
        """A result that may be overwritten: the latest, whose memory is still in the caches."""
        for number in range(len(self._results) - 1, -1, -1):
            result = self._results[number]
            if result.signature == signature and result.is_free():
                return self._results.pop(number).tree
        return None

    def add(self, signature: Hashable, tree: object) -> object:
        """The result as NumPy arrays."""
        if not COUNTS_REFERENCES:
            return jax.tree.map(np.array, tree)
        result = _Result(signature, tree)
        self._results.append(result)
        del self._results[:-_KEPT]
        return result.arrays()


class _Result:
    """Arrays of XLA's, and the owners of NumPy's views of them."""

    def __init__(self, signature: Hashable, tree: object) -> None:
        self.signature, self.tree = signature, tree
        leaves, self._structure = jax.tree.flatten(tree)
        self._owners = [_Owner(leaf) for leaf in leaves]
        self._idle = [getrefcount(owner) for owner in self._owners]

    def is_free(self) -> bool:
        return [getrefcount(owner) for owner in self._owners] == self._idle

    def arrays(self) -> object:
        return self._structure.unflatten([owner.array() for owner in self._owners])


class _Owner:
    """The base of the NumPy arrays that show an array of XLA's."""

    def __init__(self, leaf: jax.Array) -> None:
        self._leaf = leaf  # keeps the memory
        self._dtype = np.dtype(leaf.dtype)
        self.__array_interface__ = {
            "version": 3,
            "shape": leaf.shape,
            "typestr": self._dtype.str,
            "data": (leaf.unsafe_buffer_pointer(), False),
        }

    def array(self) -> Array:
        if not self._leaf.size:
            return np.empty(self._leaf.shape, self._dtype)
        made = np.asarray(self)
        return made if made.dtype == self._dtype else made.view(self._dtype)  # bfloat16


def _cpu() -> jax.Device:
    """The CPU of this host, whatever the default device is."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise ChainError(
            "augment compiles for the CPU, which JAX was told not to use here. Add it to "
            f"JAX_PLATFORMS, as in JAX_PLATFORMS=cuda,cpu ({error})."
        ) from error


def _new(shapes: object, device: jax.Device) -> object:
    """Arrays for a first result."""
    for leaf in jax.tree.leaves(shapes):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise ArgumentTypeError(
                f"the function of `augment` returned a leaf of {leaf.dtype}; only arrays of "
                "numbers can leave it. Use the key inside, or return jax.random.key_data(key)."
            )
    made = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.device_put(made, device)


def _aligned(keys: Array) -> Array:
    """The keys in aligned memory, which XLA does not copy (another thread would make the copy)."""
    made = empty(keys.shape, keys.dtype)
    made[...] = keys
    return made


def _signature(batch: object) -> Hashable:
    leaves, structure = jax.tree.flatten(batch)
    return structure, tuple([(leaf.shape, leaf.dtype) for leaf in leaves])


def _check_leaves(batch: object) -> None:
    leaves, structure = flatten(batch)
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "OSUMm":
            continue
        kind = leaf.dtype if isinstance(leaf, np.ndarray) else type(leaf).__name__
        path = structure.paths()[number]
        raise ArgumentTypeError(
            "`augment` gives records to JAX, which takes arrays of numbers, and "
            f'leaf "{path}" is of {kind}. Leave it out in a .map() before.'
        )


def _lengthened(leaf: Array, rows: int) -> Array:
    """The leaf with its last row repeated ``missing`` times."""
    return np.concatenate([leaf, np.broadcast_to(leaf[-1:], (rows, *leaf.shape[1:]))])
