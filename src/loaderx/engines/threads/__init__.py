"""Worker threads, for work that releases the GIL: NumPy, image decoding, reading files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderx.engines.base import Work, check_counts, cores, warn_if_in_order
from loaderx.errors import ArgumentError, check_bool, check_name
from loaderx.frozen import Frozen

if TYPE_CHECKING:
    from loaderx.engines.threads.session import ThreadsSession


class Threads(Frozen):
    """Worker threads, which live as long as their loader.

    Args:
        num_workers: threads; by default one per core.
        prefetch: finished elements to keep ready; by default as many as threads, at least 2.
        name: of the threads, with ``{}`` in place of their numbers.
        in_order: for a source that must be read in order, such as an iterator behind an index: one
            thread reads its records in the order of the stream and, as long as nothing fails and
            the iterator is not moved, each of them once.  If the source raises `StopIteration`, the
            stream ends before the element that needs that record.
    """

    num_workers: int | None = None
    prefetch: int | None = None
    name: str = "loaderx-{}"
    in_order: bool = False

    def __post_init__(self) -> None:
        check_counts("num_workers", self.num_workers, self.prefetch)
        _check_thread_name(self.name)
        if check_bool("in_order", self.in_order) and self.num_workers not in (None, 1):
            raise ArgumentError(
                f"in_order=True reads with one thread, and num_workers={self.num_workers} was "
                "given. Leave one of them out."
            )

    def session(self, work: Work) -> ThreadsSession:
        # Late: most loaders have no threads, or none at first.
        from loaderx.engines.threads.session import ThreadsSession, Turns

        warn_if_in_order(work, "engine='threads'")
        workers = cores() if self.num_workers is None else self.num_workers
        workers = 1 if self.in_order else workers
        prefetch = max(2, workers) if self.prefetch is None else self.prefetch
        turns = Turns(work.unsure) if work.unsure and self.num_workers != 1 else None
        return ThreadsSession(
            work, workers, prefetch, turns, name=self.name, in_order=self.in_order
        )


def _check_thread_name(name: str) -> None:
    try:
        is_numbered = check_name("name", name).format(0) != name.format(1)
    except (IndexError, KeyError, ValueError):
        is_numbered = False
    if not is_numbered:
        raise ArgumentError(
            f"`name` must have one {{}} for the number of the thread, such as 'reader_{{}}', got "
            f"{name!r}."
        )
