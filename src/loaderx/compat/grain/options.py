"""Options for reading and for workers, which never change the data; a configuration."""

from __future__ import annotations

import dataclasses
import enum
import logging
from typing import Generic, TypeVar

from loaderx import ArgumentError

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class ReadOptions:
    """How elements of a `MapDataset` are read.

    ``num_threads=0`` or ``prefetch_buffer_size=0`` means in the caller's thread, ``num_threads=1``
    one thread that reads in order.  With more, the number of threads that is measured to be
    fastest, up to ``num_threads``.
    """

    num_threads: int = 16
    prefetch_buffer_size: int = 500

    def __post_init__(self) -> None:
        if self.num_threads < 0:
            raise ValueError(f"num_threads must be non-negative, got {self.num_threads}.")
        if self.prefetch_buffer_size < 0:
            raise ValueError(
                f"prefetch_buffer_size must be non-negative, got {self.prefetch_buffer_size}."
            )
        if 0 < self.prefetch_buffer_size < self.num_threads:
            logging.getLogger(__package__).warning(
                "prefetch_buffer_size=%d is less than num_threads=%d: no more than %d threads can "
                "be at work at once. Set prefetch_buffer_size to num_threads or more.",
                self.prefetch_buffer_size, self.num_threads, self.prefetch_buffer_size,
            )  # fmt: skip


@dataclasses.dataclass(slots=True)
class MultiprocessingOptions:
    """Worker processes; 0 for none.  The stream does not depend on their number."""

    num_workers: int = 0
    per_worker_buffer_size: int = 1
    enable_profiling: bool = False


@enum.unique
class ExecutionTrackingMode(enum.Enum):
    """The measurements while a pipeline runs: accepted, and none are made."""

    DISABLED = enum.auto()
    STAGE_TIMING = enum.auto()


@dataclasses.dataclass(slots=True, frozen=True)
class _Default(Generic[T]):
    """A value that the user has not set."""

    value: T


@dataclasses.dataclass(kw_only=True, frozen=True)
class DatasetOptions:
    """Options for all stages of a pipeline; in `merge`, set values override defaults."""

    filter_warn_threshold_ratio: float | _Default[float] | None = _Default(0.9)
    filter_raise_threshold_ratio: float | _Default[None] | None = _Default(None)
    execution_tracking_mode: ExecutionTrackingMode | _Default[ExecutionTrackingMode] = _Default(
        ExecutionTrackingMode.DISABLED
    )
    min_shm_size: int | _Default[int] = _Default(0)
    _user_set_fields: set[str] = dataclasses.field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(DatasetOptions):
            value = getattr(self, field.name)
            if isinstance(value, _Default):
                object.__setattr__(self, field.name, value.value)
            elif field.init:
                self._user_set_fields.add(field.name)

    def merge(self, other: DatasetOptions | None) -> DatasetOptions:
        """These options, and those of ``other`` where these were not set."""
        if other is None:
            return self
        chosen = {name: getattr(other, name) for name in other._user_set_fields}
        chosen.update((name, getattr(self, name)) for name in self._user_set_fields)
        return DatasetOptions(**chosen)

    def filter_limits(self) -> tuple[float, float]:
        """The shares of filtered elements at which to warn, and to raise."""
        warn, fail = self.filter_warn_threshold_ratio, self.filter_raise_threshold_ratio
        return (
            float("inf") if not isinstance(warn, (int, float)) or not warn else float(warn),
            float("inf") if not isinstance(fail, (int, float)) or not fail else float(fail),
        )


_DEFAULTS: dict[str, object] = {
    "py_dataset_visualization_output_dir": None,
    "py_debug_mode": False,
    "py_relay_sigterm_to_main": False,
    "py_traceback_filtering": "auto",
    "tf_interleaved_shuffle": False,
    "tf_interleaved_shuffle_block_size": 10,
    "tf_interleaved_shuffle_parallel_blocks": 10,
    "tf_lookup_batch_size": 100,
    "tf_lookup_fast_warmup": False,
    "tf_lookup_num_parallel_calls": -1,
    "tf_optimized_sequential_read": False,
    "tf_prefetch_buffer_size": -1,
}


class Config:
    """Stores values: ``config.update("py_debug_mode", True)``, ``config.py_debug_mode``."""

    def __getattr__(self, name: str) -> object:
        return self.get_or_default(name)

    def __setattr__(self, name: str, value: object) -> None:
        raise ArgumentError(f"write config.update({name!r}, {value!r}).")

    def update(self, name: str, value: object) -> None:
        """Sets a value, which has no effect."""
        self.get_or_default(name)
        vars(self)[name] = value

    def get_or_default(self, name: str) -> object:
        """A value that was set, or Grain's default."""
        if name not in _DEFAULTS:
            raise ArgumentError(f"Grain has no option {name!r}; it has {', '.join(_DEFAULTS)}.")
        return vars(self).get(name, _DEFAULTS[name])


config = Config()
