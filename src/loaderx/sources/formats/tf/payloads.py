"""`PayloadSource`: records as the bytes that are stored, ``{"data": bytes}``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from loaderx.memory import Layout, Lend
from loaderx.sources.base import BadRecordError, FileSource, Indices
from loaderx.sources.columns.column import OBJECT
from loaderx.sources.files.cold import ColdReads, Span
from loaderx.sources.files.record_files import RecordFiles
from loaderx.tree import Tree

NAME = "data"


class PayloadReader(RecordFiles):
    """Finds the bytes of records in files."""

    @abstractmethod
    def payloads(self, indices: Indices) -> Sequence[bytes]:
        """The bytes of these records."""

    @abstractmethod
    def spans(self, indices: Indices) -> Iterator[Span]:
        """The bytes that are read for them."""


class PayloadSource(FileSource):
    """Records of one leaf, their bytes."""

    _reader: PayloadReader

    def __init__(self, reader: PayloadReader, label: str) -> None:
        self._reader, self._label = reader, label
        self._cold = ColdReads(find=reader.spans)

    @property
    def spec(self) -> Tree:
        return {NAME: OBJECT}

    def label(self) -> str:
        return f"open({self._label}: {NAME})"

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
