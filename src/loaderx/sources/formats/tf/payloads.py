"""`PayloadSource`: records as the bytes that are stored, ``{"data": bytes}``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loaderx.errors import FileError
from loaderx.memory import Layout, Lend
from loaderx.sources.base import BadRecordError, FileSource, Indices
from loaderx.sources.columns.columns import OBJECT
from loaderx.sources.files.cold import ColdReads, Span
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Parts
from loaderx.tree import Tree

NAME = "data"


class RecordFiles:
    """Records of files, by number: the base of those that find their bytes."""

    def __init__(self, files: FileSet, parts: Parts) -> None:
        self.files, self.parts = files, parts

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def counts(self) -> Sequence[int]:
        """How many records each file has."""
        counts: list[int] = self.parts.counts.tolist()
        return counts

    def where(self, index: int) -> str:
        """The file of a record, and its number in it."""
        part, number = self.parts.locate(index)
        return f"{self.files.paths[part]}, record {number}"

    def check(self, index: int) -> str | None:
        """What is wrong with the bytes of a record, if it has a checksum; None if nothing."""
        return None

    def outside(self, part: int) -> FileError:
        """The error for an index that is damaged: it must not make up records."""
        return FileError(
            f"{self.files.paths[part]}: the index has records outside the file. Remove the cache "
            "folder, so that it is made again."
        )


class PayloadFiles(RecordFiles):
    """Those whose bytes are the records."""

    def payloads(self, indices: Indices) -> Sequence[bytes]:
        """The bytes of these records."""
        raise NotImplementedError

    def spans(self, indices: Indices) -> Iterator[Span]:
        """What is read for them."""
        raise NotImplementedError


class PayloadSource(FileSource):
    """Records of one leaf, their bytes."""

    def __init__(self, reader: PayloadFiles, label: str) -> None:
        self._reader, self._label = reader, label
        self._cold = ColdReads(find=reader.spans)

    def __len__(self) -> int:
        return len(self._reader)

    @property
    def spec(self) -> Tree:
        return {NAME: OBJECT}

    @property
    def shard_counts(self) -> Sequence[int]:
        return self._reader.counts

    def label(self) -> str:
        return f"open({self._label}: {NAME})"

    def where(self, index: int) -> str:
        return self._reader.where(index)

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        (out,) = lend(Layout.of(((len(indices),), OBJECT.dtype)))
        out[:] = self._payloads(indices)
        return {NAME: out}

    def records(self, indices: Indices) -> list[Tree]:
        return [{NAME: data} for data in self._payloads(indices)]

    def _payloads(self, indices: Indices) -> Sequence[bytes]:
        if self._cold.is_needed:
            self._cold.before(indices)
        try:
            return self._reader.payloads(indices)
        except BadRecordError as error:
            if len(indices) > 1:  # the plan reads them again, one by one
                raise
            raise BadRecordError(f"{self.where(int(indices[0]))}: {error}.") from error

    def check(self, index: int) -> str | None:
        return self._reader.check(index)
