"""`Dataset.cache(path)`: a folder that is filled as records are read, or one that has them all."""

from __future__ import annotations

import contextlib

import numpy as np

from loaderx.chain.node import Node
from loaderx.dataset import Dataset
from loaderx.errors import FileError, RecordError
from loaderx.loader.save.sample import (
    made_by,
    read_sample,
    record_bytes,
    sample_positions,
    sample_work,
)
from loaderx.memory import Pool
from loaderx.reading.context import ReadContext
from loaderx.reading.rows import Positions
from loaderx.sources.base import Source
from loaderx.sources.columns.pick import Piece, gathered
from loaderx.sources.columns.record_columns import Encoded
from loaderx.sources.columns.widening import widened
from loaderx.sources.native.row_folder import Begun, RowFolder, begin
from loaderx.sources.native.row_parts import open_saved, saved_source
from loaderx.sources.native.save_folder import check_begun, check_folder, folder_path, is_complete
from loaderx.sources.native.save_parts import merged_types
from loaderx.tree import Tree

_PART_BYTES = 1 << 28  # as in `save`


def fill(dataset: Dataset[Tree], path: object) -> Source | RowFolder:
    """Opens or begins the folder.  Records that it has are not made again."""
    place = folder_path("path", path)
    check_folder(place, fills=True)
    node, context = dataset._node, ReadContext(Pool().lend)
    positions, sample = _sample(node, context)
    told = made_by(node, sample, ())
    if is_complete(place, told):
        return open_saved(place)
    check_begun(place, told)
    part_records = max(1, _PART_BYTES // record_bytes(sample))
    assert node.length is not None
    try:
        rows = begin(place, Begun(told, node.length, part_records, dataset.classes))
    except OSError as error:
        raise FileError(f"cannot keep records in {place}: {error}.") from error
    if is_complete(place, told):  # completed by another process meanwhile
        return open_saved(place)
    if not context.failures:  # replaced records must be counted when the loader reads them
        rows.put(positions, sample)
    return saved_source(rows) or rows


def _sample(node: Node, context: ReadContext) -> tuple[Positions, Encoded]:
    """Some records, without those that fail: an `on_error` above may handle them."""
    try:
        return read_sample(node, context)
    except RecordError as error:
        failure = error
    work = sample_work(node)
    found: dict[int, Encoded] = {}
    for position in sample_positions(node).tolist():
        with contextlib.suppress(RecordError):
            (found[position],) = work.read(np.array([position]), context)
    if not found:
        raise failure
    return np.array(list(found)), _joined(list(found.values()))


def _joined(records: list[Encoded]) -> Encoded:
    kind = records[0].kind
    for record in records:
        kind = merged_types(kind, record.kind, "one of the records")
    pieces = [
        Piece(widened(record.data, record.kind, kind), np.zeros(1, np.int64), np.array([number]))
        for number, record in enumerate(records)
    ]
    return Encoded(kind, gathered(kind, pieces, len(records)))
