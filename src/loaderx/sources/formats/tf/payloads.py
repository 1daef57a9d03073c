"""`PayloadSource`: records as the bytes that are stored, ``{"data": bytes}``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from loaderx.memory import Layout, Lend
from loaderx.sources.base import BadRecordError, FileSource, Indices
from loaderx.sources.columns.columns import OBJECT
from loaderx.tree import Tree

NAME = "data"


class PayloadReader(Protocol):
    """Finds the bytes of records in files."""

    def __len__(self) -> int: ...

    @property
    def counts(self) -> Sequence[int]:
        """How many records each file has."""
        ...

    def payloads(self, indices: Indices) -> list[bytes]:
        """The bytes of these records."""
        ...

    def where(self, index: int) -> str:
        """The file of a record, and its number in it."""
        ...

    def check(self, index: int) -> str | None:
        """What is wrong with the bytes of a record; None if nothing."""
        ...


class PayloadSource(FileSource):
    """Records of one leaf, their bytes."""

    def __init__(self, reader: PayloadReader, label: str) -> None:
        self._reader, self._label = reader, label

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

    def _payloads(self, indices: Indices) -> list[bytes]:
        try:
            return self._reader.payloads(indices)
        except BadRecordError as error:
            if len(indices) > 1:  # the plan reads them again, one by one
                raise
            raise BadRecordError(f"{self.where(int(indices[0]))}: {error}.") from error

    def check(self, index: int) -> str | None:
        return self._reader.check(index)
