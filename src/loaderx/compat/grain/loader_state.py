"""The state of a `DataLoader`'s iterator, as Grain writes it.

Grain counts, for each worker, the last position that it has handed out.  Here the stream is that
of no workers whatever their number, so a state has one such position, and is written as one of no
workers, or of one, which means the same.  With two or more workers Grain has another stream, and
its state cannot be continued.
"""

from __future__ import annotations

import numpy as np

from loaderx.compat.grain.protocols import RandomAccessDataSource, State
from loaderx.compat.grain.samplers import Sampler
from loaderx.compat.grain.sharding import ShardOptions
from loaderx.errors import StateError

_VERSION = 2
_WHICH = "Both are named by `repr`: give a class of your own a `__repr__` that stays the same."


class NotAStateError(StateError, KeyError):
    """Something lacks what a state has; Grain's is a KeyError."""

    __str__ = StateError.__str__


def source_name(source: object) -> str:
    """What a state says about a source: never the data itself."""
    if isinstance(source, (list, tuple, np.ndarray)):
        return str(type(source))
    return repr(source)


def loader_state(
    records: int,
    shard: ShardOptions,
    sampler: Sampler,
    source: RandomAccessDataSource[object],
    workers: int,
) -> State:
    """The state after so many records of this part."""
    last = shard.shard_index + (records - 1) * shard.shard_count
    return {
        "version": _VERSION,
        "last_seen_indices": {"0": last},
        "last_worker_index": -1,
        "worker_count": workers if workers < 2 else 0,  # Grain compares it
        "sampler": repr(sampler),
        "data_source": source_name(source),
    }


def records_before(
    state: State,
    shard: ShardOptions,
    sampler: Sampler,
    source: RandomAccessDataSource[object],
) -> int:
    """The number of records of this part that were used before the state was taken."""
    if not isinstance(state, dict) or "last_seen_indices" not in state:
        raise NotAStateError(f"this is not a state of a DataLoader: {state!r}.")
    if state["worker_count"] > 1:
        raise StateError(
            f"This state was saved by Grain with worker_count={state['worker_count']}. The order "
            "there depends on the number of workers; here it is that of worker_count=0 for "
            "every number of them. Save a state with worker_count=0 or 1, or start over."
        )
    if state["sampler"] != repr(sampler):
        raise StateError(
            f"the state was saved with the sampler {state['sampler']}, and this loader has "
            f"{sampler!r}. {_WHICH}"
        )
    if state["data_source"] != source_name(source):
        raise StateError(
            f"the state was saved with the source {state['data_source']}, and this loader has "
            f"{source_name(source)}. {_WHICH}"
        )
    last = int(state["last_seen_indices"]["0"])
    return (last - shard.shard_index) // shard.shard_count + 1
