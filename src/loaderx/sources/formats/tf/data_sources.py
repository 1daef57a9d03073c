"""Objects of the libraries array_record and TFDS, read as the files that they stand for.

`ArrayRecordDataSource` gives bytes, `tfds.data_source` gives what TFDS makes of them in NumPy; both
are read here from the same files, with the same results, many times as fast.  An object that is not
understood in all its parts is read through its own methods, as any other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from loaderx.errors import LoaderxError
from loaderx.sources.base import BadRecordError, FileSource, Indices
from loaderx.sources.cache.folder import CacheFolder
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Parts
from loaderx.sources.formats.tf.array_record_files import ArrayRecordExamples, ArrayRecordFiles
from loaderx.sources.formats.tf.decoders import NO_FILL, Bytes, Decoder, Fixed, Leaves
from loaderx.sources.formats.tf.tfds_decoders import DecodeImage, DecodeText
from loaderx.sources.formats.tf.tfds_features import LeafTree, LeafType, make_decoder, read_features
from loaderx.tree import Tree, flatten


class _Instruction(Protocol):
    """What `ArrayRecordDataSource` says of a file: records ``start`` to ``end - 1`` of it."""

    filename: str
    start: int
    end: int


def array_record_source(obj: Any) -> FileSource | None:
    """An `ArrayRecordDataSource` as its files; None if that cannot be."""
    try:
        chosen = _Chosen(obj._read_instructions)
        return _BytesRecords(obj, ArrayRecordFiles(chosen.files, CacheFolder(None)), chosen)
    except (LoaderxError, AttributeError, TypeError, ValueError):
        return None


def tfds_source(obj: Any) -> FileSource | None:
    """A data source of TFDS as its files; None if that cannot be."""
    try:
        method = obj.deserialize_method.name
        if obj.decoders is not None or method not in ("RAW_BYTES", "DESERIALIZE_AND_DECODE"):
            return None
        chosen = _Chosen(obj.data_source._read_instructions)
        if method == "RAW_BYTES":
            return _BytesRecords(obj, ArrayRecordFiles(chosen.files, CacheFolder(None)), chosen)
        leaves = read_features(obj.dataset_info.features.to_json(), None, "features")
        if not all(map(_is_equal, flatten(leaves)[0])):
            return None
        reader = ArrayRecordExamples(chosen.files, CacheFolder(None))
        return _TfdsRecords(obj, reader, chosen, leaves)
    except (LoaderxError, AttributeError, TypeError, ValueError):
        return None


def _is_equal(leaf: LeafType) -> bool:
    """Is it a kind of leaf of which TFDS makes in NumPy what is made of it here?"""
    shape = (*leaf.lengths, *leaf.shape)
    if isinstance(leaf.decode, DecodeImage):
        return not leaf.lengths and leaf.dtype == np.uint8 and leaf.shape[-1] in (1, 3)
    is_plain = leaf.decode is None or isinstance(leaf.decode, DecodeText)
    return is_plain and leaf.default is NO_FILL and len(leaf.lengths) < 2 and shape.count(None) < 2


class _Chosen:
    """Which records of which files an object stands for."""

    def __init__(self, instructions: Sequence[_Instruction]) -> None:
        told = [(os.path.abspath(one.filename), one.start, one.end) for one in instructions]
        paths = list(dict.fromkeys(path for path, _, _ in told))
        self.files = FileSet(paths)
        self.parts = Parts([end - start for _, start, end in told])
        self._starts = np.array([start for _, start, _ in told], np.int64)
        self._numbers = np.array([paths.index(path) for path, _, _ in told], np.int64)

    def indices(self, indices: Indices, files: Parts) -> Indices:
        """The numbers that records have in the files."""
        which = np.searchsorted(self.parts.ends, indices, side="right")
        inside = indices - self.parts.starts[which] + self._starts[which]
        numbers = self._numbers[which]
        if (inside >= files.counts[numbers]).any():
            raise BadRecordError("there are fewer records in the file")
        found: Indices = inside + files.starts[numbers]
        return found


class _Records(FileSource):
    """The base of both: records that are not stacked before they are handed out."""

    def __init__(self, obj: object, reader: ArrayRecordFiles, chosen: _Chosen) -> None:
        self._name, self._reader, self._chosen = type(obj).__name__, reader, chosen

    def __len__(self) -> int:
        return len(self._chosen.parts)

    def label(self) -> str:
        return f"from_source({self._name}, {len(self)} records)"

    def where(self, index: int) -> str:
        return self._reader.where(self._inside(np.array([index])).item())

    def _inside(self, indices: Indices) -> Indices:
        return self._chosen.indices(indices, self._reader.parts)

    def records(self, indices: Indices) -> list[Tree]:
        try:
            return self._read(self._inside(indices))
        except BadRecordError as error:
            if len(indices) > 1:  # the plan reads them again, one by one
                raise
            raise BadRecordError(f"{self.where(int(indices[0]))}: {error}.") from error

    def _read(self, inside: Indices) -> list[Tree]:
        raise NotImplementedError


class _BytesRecords(_Records):
    """Records as bytes."""

    def _read(self, inside: Indices) -> list[Tree]:
        return list(self._reader.payloads(inside))


class _TfdsRecords(_Records):
    """Records as TFDS gives them: single numbers as Python's own, texts as bytes."""

    _reader: ArrayRecordExamples

    def __init__(
        self, obj: object, reader: ArrayRecordExamples, chosen: _Chosen, leaves: LeafTree
    ) -> None:
        super().__init__(obj, reader, chosen)
        found, self._structure = flatten(leaves)
        self._decoders = [_decoder(leaf) for leaf in found]
        self._names = [name for one in self._decoders for name in one.features]

    def _read(self, inside: Indices) -> list[Tree]:
        leaves = self._reader.leaves(inside, self._names)
        columns = [_values(decoder, leaves) for decoder in self._decoders]
        return [self._structure.build(row) for row in zip(*columns, strict=True)]


def _decoder(leaf: LeafType) -> Decoder:
    if isinstance(leaf.decode, DecodeText):
        return Bytes(leaf.path) if not leaf.lengths else make_decoder(leaf, False, leaf.default)
    return make_decoder(leaf, True, leaf.default)


def _values(decoder: Decoder, leaves: Leaves) -> Sequence[object]:
    values = decoder.values(leaves)
    if isinstance(decoder, Fixed) and not decoder.spec.shape:
        return [value.item() for value in values]  # type: ignore[attr-defined]
    return values
