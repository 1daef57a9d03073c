"""`FileSource`: the base of sources that read a file format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from loaderx.errors import FileError, one_line
from loaderx.frozen import Frozen
from loaderx.sources.base import Indices, OwnSource


class Problem(Frozen):
    """A record that cannot be read."""

    record: int
    where: str  # its file, and its place in it
    reason: str


class BadRecordError(FileError):
    """One record cannot be read; the others can.

    Any other `LoaderxError` of a read of many records is taken for one of the whole source.  After
    this one the records are read one by one, and the bad one is a `RecordError`, which `on_error`
    may skip.
    """


class FileSource(OwnSource):
    """Records of files: what `Dataset.open` and the command line ask beyond `Source`."""

    @property
    def thread_safe(self) -> bool:
        return True

    one_file_per_record = False
    """Is each record a file of its own?  Messages name it, beside the index."""

    @property
    def large_records(self) -> bool:
        """Are records so large that those of a batch do not fit into the caches together?"""
        return False

    @property
    def shard_counts(self) -> Sequence[int] | None:
        """How many records each shard has; None where there are no shards."""
        return None

    def chunks(self) -> Indices | None:
        counts = self.shard_counts
        if counts is None or len(counts) < 2:
            return None
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])

    def where(self, index: int) -> str:
        """The file of a record and its place in it, for messages."""
        return f"record {index}"

    def check(self, index: int) -> str | None:
        """What the checksum of a record says of its bytes; None: nothing is wrong, or known."""
        return None

    def problems(self) -> Iterator[Problem | None]:
        """Reads and checks every record: for each a problem, or None."""
        for index in range(len(self)):
            try:
                reason = self.check(index)
                if reason is None:
                    self.records(np.array([index]))
            except Exception as error:
                reason = one_line(error)
                if isinstance(error, BadRecordError):  # which begins with where it is
                    reason = str(error).removeprefix(f"{self.where(index)}: ")
            yield None if reason is None else Problem(index, self.where(index), reason)
