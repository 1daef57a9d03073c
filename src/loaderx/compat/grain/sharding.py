"""The part of a source that this process reads."""

from __future__ import annotations

import dataclasses
import logging
from importlib import import_module

__all__ = ["NoSharding", "ShardByJaxProcess", "ShardOptions", "even_split"]


def __dir__() -> list[str]:
    return __all__


@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """Part ``shard_index`` of ``shard_count``; parts are equal with ``drop_remainder``."""

    shard_index: int
    shard_count: int
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        if self.shard_count <= 0:
            raise ValueError(f"`shard_count` must be at least 1, got {self.shard_count}.")
        if not 0 <= self.shard_index < self.shard_count:
            raise ValueError(
                f"`shard_index` must be from 0 to {self.shard_count - 1}, since `shard_count` is "
                f"{self.shard_count}; got {self.shard_index}."
            )


class NoSharding(ShardOptions):
    """Every process reads all records."""

    def __init__(self) -> None:
        super().__init__(shard_index=0, shard_count=1)


class ShardByJaxProcess(ShardOptions):
    """A part for each JAX process; all records if JAX is not installed."""

    def __init__(self, drop_remainder: bool = False) -> None:
        index, count = process_index_and_count()
        super().__init__(index, count, drop_remainder)


def even_split(num_examples: int, options: ShardOptions) -> tuple[int, int]:
    """The first record of a part, and the one after its last.

    >>> even_split(10, ShardOptions(0, 3)), even_split(10, ShardOptions(2, 3))
    ((0, 4), (7, 10))
    """
    size, rest = divmod(num_examples, options.shard_count)
    index = options.shard_index
    start, stop = size * index, size * (index + 1)
    if rest and options.drop_remainder:
        logging.getLogger(__package__).warning(
            "%d of %d records are left out, so that all %d shards are equal.",
            rest, num_examples, options.shard_count,
        )  # fmt: skip
    elif rest:
        start, stop = start + min(index, rest), stop + min(index + 1, rest)
    return start, stop


def process_index_and_count() -> tuple[int, int]:
    """The index of this JAX process, and the number of processes."""
    try:
        jax = import_module("jax")
    except ImportError:
        return 0, 1
    return jax.process_index(), jax.process_count()
