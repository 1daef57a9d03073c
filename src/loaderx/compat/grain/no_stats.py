"""Statistics that do nothing: datasets of users' own call them, as Grain's own do."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


class _NoTime:
    def __enter__(self) -> None:
        """Nothing is measured."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Exceptions pass."""


class NoStats:
    """Takes what is reported, and keeps nothing."""

    _no_time = _NoTime()

    def record_self_time(self, offset_ns: float = 0, num_elements: int = 1) -> _NoTime:
        """For ``with``."""
        return self._no_time

    def record_output_spec(self, element: T) -> T:
        """The element itself."""
        return element

    record_output_spec_for_batch = record_output_spec
    record_bytes_consumed = record_output_spec
    record_bytes_produced = record_output_spec

    def report(self) -> None:
        """There is nothing to report."""
