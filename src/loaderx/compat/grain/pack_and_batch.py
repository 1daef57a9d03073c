"""`PackAndBatchOperation`: packs records into a batch, first fit, for `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from loaderx.compat.grain.packing_bins import Lengths, PackedBatch, first_fit
from loaderx.compat.grain.protocols import Element
from loaderx.compat.grain.records import Record, RecordMetadata
from loaderx.compat.grain.trees import flatten, unflatten_as
from loaderx.errors import StackError

Packed = Record[tuple[Element, Element, Element]]


@dataclass
class PackAndBatchOperation:
    """Packs records into ``batch_size`` rows.

    The data of what comes out is a tuple of three trees like `length_struct`: the packed values,
    the number of the record in its row (from 1), and the position in the record.

    Args:
        length_struct: the length of a row, for each feature.
        batch_size: the number of rows.
        max_sequences_per_bin: the largest number of records in a row.
    """

    length_struct: Element
    batch_size: int
    max_sequences_per_bin: int | None = None
    _cur_batch: PackedBatch | None = field(default=None, repr=False)

    def __call__(self, input_iterator: Iterator[Record[Element]]) -> Iterator[Packed]:
        lengths = tuple(int(n) for n in flatten(self.length_struct))
        last: RecordMetadata | None = None
        for record in input_iterator:
            values = flatten(record.data)
            sizes = tuple(map(len, values))
            self._check(sizes, lengths)
            if self._cur_batch is None:
                self._cur_batch = self._empty(values, lengths)
            if self._cur_batch.add(values, sizes) < 0:
                if last is not None:
                    yield self._packed(self._cur_batch, last)
                self._cur_batch = self._empty(values, lengths)
                self._cur_batch.add(values, sizes)
            last = record.metadata.remove_record_key()
        if self._cur_batch is not None and last is not None:
            yield self._packed(self._cur_batch, last)

    def _check(self, sizes: Lengths, lengths: Lengths) -> None:
        if len(sizes) != len(lengths):
            raise StackError(
                f"a record has {len(sizes)} features, and `length_struct` has {len(lengths)}."
            )
        if any(size > length for size, length in zip(sizes, lengths, strict=True)):
            raise StackError(
                f"a record of lengths {sizes} does not fit into a row of lengths {lengths}: cut "
                "records before they are packed."
            )

    def _empty(self, values: list[Element], lengths: Lengths) -> PackedBatch:
        return PackedBatch(
            values,
            bins=first_fit(lengths, self.batch_size),
            count=self.batch_size,
            lengths=lengths,
            paddings=(None,) * len(lengths),
            alignments=(1,) * len(lengths),
            most=self.max_sequences_per_bin,
        )

    def _packed(self, batch: PackedBatch, metadata: RecordMetadata) -> Packed:
        segments = [feature.segments(self.batch_size) for feature in batch.features]
        trees = (
            [feature.values for feature in batch.features],
            [segment_ids for segment_ids, _ in segments],
            [positions for _, positions in segments],
        )
        values, segment_ids, positions = (unflatten_as(self.length_struct, tree) for tree in trees)
        return Record(metadata, (values, segment_ids, positions))
