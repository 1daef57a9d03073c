"""`ExampleSource`: records that are ``tf.Example``, wherever they are stored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from loaderx.memory import Lend
from loaderx.sources.base import BadRecordError, Indices, PadsLists
from loaderx.sources.columns.column import records_of
from loaderx.sources.columns.padded import PaddedColumns, padded_columns
from loaderx.sources.columns.table import ColumnarSource
from loaderx.sources.files.cold import ColdReads, Span
from loaderx.sources.files.record_files import RecordFiles
from loaderx.sources.formats.tf.decoders import Decoder, Leaves
from loaderx.tree import Tree, flatten

DecoderTree: TypeAlias = "Mapping[str, Decoder | DecoderTree]"
"""Decoders by name; nested as records are."""


class ExampleReader(RecordFiles):
    """Finds the features of records in files."""

    @abstractmethod
    def leaves(self, indices: Indices, names: Sequence[str]) -> Leaves:
        """These features of these records."""

    @abstractmethod
    def spans(self, indices: Indices, names: Sequence[str]) -> Iterator[Span]:
        """The bytes that are read for them."""


class ExampleSource(PadsLists, ColumnarSource):
    """Records of Examples: a reader finds their features, decoders make leaves of these."""

    _reader: ExampleReader

    def __init__(
        self,
        reader: ExampleReader,
        decoders: DecoderTree,
        *,
        label: str,
        classes: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        leaves, structure = flatten(decoders)
        super().__init__(leaves, structure, label, classes)
        self._reader = reader
        self._decoders: list[Decoder] = leaves
        self._names = list(dict.fromkeys(name for one in leaves for name in one.features))
        self._cold = ColdReads(find=self._spans)

    def _spans(self, indices: Indices) -> Iterator[Span]:
        return self._reader.spans(indices, self._names)

    def _leaves(self, indices: Indices) -> Leaves:
        if self._cold.is_needed:
            self._cold.before(indices)
        return self._reader.leaves(indices, self._names)

    def gather(self, indices: Indices, lend: Lend) -> Tree:
        out = self._lent(len(indices), lend)
        try:
            leaves = self._leaves(indices)
            for decoder, target in zip(self._decoders, out, strict=True):
                decoder.take(leaves, target)
        except BadRecordError as error:
            raise self._located(indices, error) from error
        return self._structure.build(out)

    def padded(self, lengths: Mapping[str, int]) -> PaddedColumns | None:
        specs = [decoder.spec for decoder in self._decoders]
        return padded_columns(self._decoders, self._structure, specs, lengths, self._leaves)

    def records(self, indices: Indices) -> list[Tree]:
        try:
            leaves = self._leaves(indices)
            columns = [decoder.values(leaves) for decoder in self._decoders]
        except BadRecordError as error:
            raise self._located(indices, error) from error
        return records_of(self._structure, columns)

    def _located(self, indices: Indices, error: BadRecordError) -> BadRecordError:
        if len(indices) > 1:  # the plan reads them again, one by one
            return error
        return BadRecordError(f"{self.where(int(indices[0]))}: {error}.")
