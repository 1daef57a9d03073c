"""Which rows of the global batch a process has to load, found in the sharding.

A sharding says for every device which part of a global array it holds.  The rows that the devices
of this process hold are within one of *count* equal slices of the batch; the largest such *count*
is chosen, so that a process loads no more than it must.  Processes whose devices hold the same rows
get the same slice.  If the rows of a process are not together (an unusual order of devices), the
slice has more rows than needed, at worst all of them, and each device takes its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding

from loaderx.errors import ArgumentError, ArgumentTypeError, check_int

_MOST_AXES = 8  # tried for shardings that do not say how many axes they cut


def as_sharding(value: object, path: str = "") -> Sharding | None:
    """A leaf of the ``sharding`` argument as a sharding; None stays None."""
    abstract = type(getattr(value, "mesh", None)).__name__ == "AbstractMesh"
    if value is None or (isinstance(value, Sharding) and not abstract):
        return value
    if isinstance(value, jax.Device):
        return SingleDeviceSharding(value)
    where = f' at "{path}"' if path else ""
    hint = ""
    if abstract:
        hint = " An AbstractMesh has no devices: give the NamedSharding a Mesh."
    elif isinstance(value, jax.sharding.PartitionSpec):
        hint = " A PartitionSpec needs its mesh: write NamedSharding(mesh, spec)."
    elif isinstance(value, jax.sharding.Mesh):
        hint = " Write NamedSharding(mesh, PartitionSpec('data')) to split rows over an axis."
    elif isinstance(value, str):
        hint = " Write jax.devices()[0], or NamedSharding(mesh, PartitionSpec('data'))."
        if value in ("cpu", "cuda", "gpu", "rocm", "tpu"):
            hint = f" Write jax.devices({value!r})[0]."
    raise ArgumentTypeError(
        f"`sharding`{where} must be a jax Device or Sharding, or None to stay NumPy; "
        f"got {value!r} ({type(value).__name__}).{hint}"
    )


def shard_of(sharding: jax.Device | Sharding, batch_size: int) -> tuple[int, int]:
    """The ``shard=(index, count)`` that this process loads for a sharding of the global batch.

    ``DataLoader(sharding=...)`` finds it by itself; this is for loaders of NumPy rows.

    >>> import jax
    >>> shard_of(jax.devices()[0], 256)
    (0, 1)
    """
    found = as_sharding(sharding)
    if found is None:
        raise ArgumentTypeError("`sharding` must be a jax Device or Sharding, got None.")
    return shard_for([found], check_int("batch_size", batch_size, least=1))


def shard_for(shardings: list[Sharding], rows: int) -> tuple[int, int]:
    """The smallest equal slice of a batch that has all rows that this process needs."""
    low, high = rows, 0
    for sharding in shardings:
        mine = _own_rows(sharding, rows)
        low, high = min(low, *(start for start, _ in mine)), max(high, *(stop for _, stop in mine))
    count = _slices(low, high, rows, _divisors(rows))
    return low * count // rows, count


def counts_for(shardings: list[Sharding], rows: int) -> set[int]:
    """The numbers of slices into which the processes cut a batch.

    They may differ, and if one process refuses its number, all must: the others would wait for it.
    A sharding over the devices of one process is not known to the others, and is left out.
    """
    ends: dict[int, tuple[int, int]] = {}
    for sharding in shardings:
        for device, index in _indices(sharding, rows, everywhere=True).items():
            start, stop = _ends(index, rows)
            low, high = ends.get(device.process_index, (start, stop))
            ends[device.process_index] = (min(low, start), max(high, stop))
    counts = _divisors(rows)
    return {_slices(low, high, rows, counts) for low, high in ends.values()}


def _divisors(rows: int) -> list[int]:
    return [count for count in range(rows, 0, -1) if rows % count == 0]


def _slices(low: int, high: int, rows: int, counts: list[int]) -> int:
    """The largest number of equal slices of which one has all of these rows."""
    return next(n for n in counts if low * n // rows == (high - 1) * n // rows)


def check_divides(sharding: Sharding, rows: int | None, stage: str, *, last: bool = False) -> None:
    """Refuses batches whose rows cannot be spread evenly over the devices.

    ``rows`` is None if their number is not known.
    """
    parts = row_parts(sharding)
    if parts is None or parts == 1 or (rows is not None and rows % parts == 0):
        return
    if rows is None:
        what = f"the last batch of {stage} has the rest of a stream, a number of records that"
        todo = "Write drop_remainder=True or pad_remainder=True."
    elif last:
        what = f"the last batch of {stage} has {rows} records, which"
        todo = "Write drop_remainder=True or pad_remainder=True."
    else:
        what = f"{stage} makes batches of {rows} records, which"
        fewer, more = rows // parts * parts, -(-rows // parts) * parts
        todo = f"Make it a multiple of {parts}: {f'{fewer} or {more}' if fewer else more}."
    raise ArgumentError(
        f"{what} cannot be spread evenly over the {parts} parts of the sharding "
        f"({_text(sharding)}). {todo}"
    )


def misfit(sharding: Sharding, shape: Sequence[int | None]) -> str | None:
    """Why a sharding does not fit the axes of an array; None if it does, or if that is not known.

    The rows are left to `check_divides`.  A size of None may be any.
    """
    parts = _parts(sharding) if isinstance(sharding, NamedSharding) else []
    if len(parts) > len(shape):
        axes = f"{len(parts)} axis" if len(parts) == 1 else f"{len(parts)} axes"
        return f"{_text(sharding)} names {axes}, and it has {len(shape) or 'none'}"
    for axis, (size, count) in enumerate(zip(shape, parts, strict=False)):
        if axis and size is not None and size % count:
            return f"{_text(sharding)} cuts axis {axis}, of {size}, into {count} equal parts"
    return None


def row_parts(sharding: Sharding) -> int | None:
    """The number of parts into which a sharding cuts the first axis; None if not known."""
    if isinstance(sharding, SingleDeviceSharding) or sharding.is_fully_replicated:
        return 1
    if isinstance(sharding, NamedSharding):
        return _parts(sharding)[0] if _parts(sharding) else 1
    return None


def _parts(sharding: NamedSharding) -> list[int]:
    """Parts per axis that the spec names."""
    sizes = dict(sharding.mesh.shape)
    found = []
    for names in sharding.spec:
        count = 1
        if names is not None and names is not jax.sharding.PartitionSpec.UNCONSTRAINED:
            for name in (names,) if isinstance(names, str) else names:
                count *= sizes[name]
        found.append(count)
    return found


def _own_rows(sharding: Sharding, rows: int) -> list[tuple[int, int]]:
    """Where the rows of this process's devices begin and end."""
    indices = _indices(sharding, rows)
    if not indices:
        raise ArgumentError(
            f"this process (number {jax.process_index()} of {jax.process_count()}) has no device "
            f"in the sharding {_text(sharding)}. Every process that runs the loader needs one."
        )
    return [_ends(index, rows) for index in indices.values()]


def _ends(index: tuple[slice, ...], rows: int) -> tuple[int, int]:
    start, stop, _ = index[0].indices(rows) if index else (0, rows, 1)
    return start, stop


def _indices(
    sharding: Sharding, rows: int, *, everywhere: bool = False
) -> Mapping[jax.Device, tuple[slice, ...]]:
    """The part that each device holds, of this process or of all processes."""
    ask = sharding.devices_indices_map if everywhere else sharding.addressable_devices_indices_map
    if isinstance(sharding, NamedSharding):
        shapes = [(rows, *_parts(sharding)[1:])]  # other axes: the shortest that can be cut
    else:
        shapes = [(rows, *[1] * more) for more in range(_MOST_AXES)]
    problem: Exception | None = None
    for shape in shapes:
        try:
            found: Mapping[jax.Device, tuple[slice, ...]] = ask(shape)
            return found
        except Exception as error:
            problem = problem or error
    raise ArgumentError(
        f"batches of {rows} records cannot be spread over {_text(sharding)}: {problem}"
    ) from problem


def _text(sharding: Sharding) -> str:
    if isinstance(sharding, NamedSharding):
        axes = ", ".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
        return f"{sharding.spec} on a mesh of {axes}"
    return str(sharding)
