"""What ``sharding`` means for the chain and the engine of a loader.

Only `loaderx.jax` imports jax, and it is imported only if a sharding is given.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING

from loaderx.chain.node import Node
from loaderx.chain.row_counts import RowCount
from loaderx.engines.base import Run
from loaderx.errors import ArgumentError, ChainError, LoaderxError, check_int, warn_user
from loaderx.loader.stats import Listening
from loaderx.order.epochs import Positions
from loaderx.tree import Tree

if TYPE_CHECKING:
    from loaderx.jax.placement import Placement


class Devices:
    """How the batches of one loader are placed on devices."""

    def __init__(
        self, placement: Placement, depth: int, shard: tuple[int, int], spec: Tree | None
    ) -> None:
        from loaderx.stages.narrow import has_wide  # late, as below: only devices need it

        self._placement: Placement | None = placement
        self._depth = depth
        self._narrow = placement.narrow() if has_wide(spec) else None
        self.shard = shard
        self.counts = placement.counts
        self.spans_processes = placement.spans_processes

    @staticmethod
    def of(
        sharding: Tree, device_prefetch: int, shard: tuple[int, int] | None, node: Node
    ) -> Devices | None:
        """The `Devices` for the arguments of a loader; None if there is nothing to place."""
        depth = check_int("device_prefetch", device_prefetch, least=0)
        if sharding is None:
            return None
        if shard is not None:
            raise ArgumentError(
                "`shard` and `sharding` cannot be used together: `shard` gives this host's rows as "
                "NumPy arrays, `sharding` gives global jax arrays and finds this host's rows "
                "itself."
            )
        from loaderx.jax.placement import Placement

        placement = Placement(sharding)
        if placement.spans_processes and not node.batched:
            raise ChainError(
                "a sharding over several processes splits batches: the dataset needs a .batch(...)."
            )
        if node.spec is not None:
            placement.check_spec(node.spec)
        return Devices(placement, depth, placement.shard(_row_counts(node)), node.spec)

    @property
    def can_exchange(self) -> bool:
        """Whether every process of the program has this loader."""
        return self._placement is not None and self._placement.spans_all_processes

    def exchange(self, numbers: Positions) -> Positions:
        """The largest of each number over all processes."""
        return self._here().largest(numbers)

    def narrowed(self, node: Node) -> Node:
        """The chain, with 64-bit numbers narrowed where the devices need that."""
        if self._narrow is None:
            return node
        from loaderx.stages.narrow import Narrowed

        return Narrowed(node, self._narrow)

    def place(self, run: Run, listening: Listening) -> Run:
        """A run whose batches are on the devices."""
        from loaderx.jax.prefetch import PlacedRun

        return PlacedRun(run, TracedPlacing(self._here(), listening), self._depth)

    def place_stream(self, run: Run, listening: Listening) -> Run:
        """The same for a stream, whose batches are made in this process."""
        from loaderx.jax.prefetch import PlacedRun
        from loaderx.loader.stream_iterator import REMEMBERED

        # Positions must be remembered for all batches ahead and for the one handed out.
        return PlacedRun(
            run, TracedPlacing(self._here(), listening), min(self._depth, REMEMBERED - 2)
        )

    def _here(self) -> Placement:
        """The placement, in the process that has the devices."""
        if self._placement is None:
            raise LoaderxError(
                "this loader was unpickled, and a pickle has no `sharding`: its devices belong to "
                "the process that made it. Make a new loader in this process."
            )
        return self._placement

    def __getstate__(self) -> dict[str, object]:
        """Without the devices: a function that holds its loader can be sent to a worker process."""
        return {**self.__dict__, "_placement": None}

    def __deepcopy__(self, memo: dict[int, object]) -> Devices:
        return self  # a copy in this process has the same devices


class TracedPlacing:
    """Places batches, and tells a trace, if there is one, how long it takes."""

    def __init__(self, placement: Placement, listening: Listening) -> None:
        self._placement, self._listening = placement, listening

    def place(self, batch: object) -> Tree:
        trace = self._listening.trace
        if trace is None:
            return self._placement.place(batch)
        begun = perf_counter()
        placed = self._placement.place(batch)
        trace.placed(begun, perf_counter())
        return placed


def _row_counts(node: Node) -> list[RowCount]:
    """The possible numbers of records in a batch."""
    return [count for stage in node.batch_stages() for count in stage.row_counts(node.uniform)]


def processes() -> tuple[int, int]:
    """The index of this process and the number of processes, where `jax.distributed` runs.

    It imports nothing and starts no backend: a program with several processes has imported jax.
    """
    # Not `jax.process_index()`: that would start the backend, and take the accelerator.
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if state is not None and hasattr(state, "num_processes"):
        if state.client is None:
            return (0, 1)
        return (int(state.process_id), int(state.num_processes))
    jax = sys.modules.get("jax")  # this version of jax keeps the state elsewhere
    if jax is None or not jax.distributed.is_initialized():
        return (0, 1)
    return (jax.process_index(), jax.process_count())


def warn_if_processes_repeat(devices: Devices | None) -> None:
    """Warns if several processes would all load the same rows."""
    _, count = processes()
    if count == 1 or (devices is not None and devices.spans_processes):
        return
    what = (
        "neither `shard` nor `sharding` is given"
        if devices is None
        else "`sharding` has devices of this process only"
    )
    warn_user(
        f"jax.distributed runs {count} processes, and {what}: every process will load all rows of "
        "every batch and train on the same data. Pass a sharding over the devices of all "
        "processes, or shard=(jax.process_index(), jax.process_count()) for NumPy rows. Pass "
        "shard=(0, 1) if every process is meant to load all rows."
    )
