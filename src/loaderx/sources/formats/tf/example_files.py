"""TFRecord files of Examples: indexed once, then each feature is found by its position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, cast

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.base import Indices
from loaderx.sources.cache.folder import CacheFolder, FileIndex, IndexedFile, Json
from loaderx.sources.columns.elements import file_bytes
from loaderx.sources.files.cold import Span
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Parts
from loaderx.sources.formats.tf.decoders import Leaves
from loaderx.sources.formats.tf.example import MISSING, find_leaves
from loaderx.sources.formats.tf.example_index import FeatureSummary, Numbers, find_positions
from loaderx.sources.formats.tf.example_source import ExampleReader
from loaderx.sources.formats.tf.frames import find_frames, is_payload_intact
from loaderx.sources.formats.tf.leaves import Leaf, Sizes, missing_leaf
from loaderx.tree import Array

_VERSION = 1
_Note: TypeAlias = tuple[str, int, list[tuple[int, int]], int, int, int | None]
"""Of a feature in a file: name, number, kinds, fewest and most values, first record without it."""


class Feature:
    """One feature of all files: its places, and facts about its values."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kinds: dict[int, tuple[int, int]] = {}  # each kind: the first file and record with it
        self.least: int | None = None
        self.most = 0
        self.missing: tuple[int, int] | None = None  # the first file and record without it

    def add(self, file: int, one: FeatureSummary) -> None:
        """Adds the facts of one file."""
        for kind, record in one.kinds.items():
            self.kinds.setdefault(kind, (file, record))
        if one.kinds:
            self.least = one.least if self.least is None else min(self.least, one.least)
            self.most = max(self.most, one.most)
        if one.missing is not None and self.missing is None:
            self.missing = (file, one.missing)


class ExampleFiles(ExampleReader):
    """The records of TFRecord files, by number, and their features, by name."""

    def __init__(self, files: FileSet, cache: CacheFolder) -> None:
        index = cache.index("tfrecord-examples", _VERSION, files, _Indexer(files))
        self._starts, self._stops = index.arrays["starts"], index.arrays["stops"]
        super().__init__(files, index.parts["starts"])
        self._bytes = file_bytes(files, self.outside)
        self._numbers: dict[str, int] = {}
        self._positions: dict[str, _StoredPositions] = {}
        self.features = self._read_features(index)
        self.damaged = len(index.arrays["damaged"])

    def _read_features(self, index: FileIndex) -> dict[str, Feature]:
        found: dict[str, Feature] = {}
        for file, note in enumerate(index.notes):
            for name, number, kinds, least, most, missing in cast("list[_Note]", note):
                summary = FeatureSummary(dict(kinds), least, most, missing)
                found.setdefault(name, Feature(name)).add(file, summary)
                self._numbers[name] = number
        for name, feature in found.items():
            number = self._numbers[name]
            at, sizes = index.arrays[f"at{number}"], index.arrays[f"size{number}"]
            parts = index.parts[f"at{number}"]
            self._positions[name] = _StoredPositions(at, sizes, parts, self.parts)
            lacking = np.flatnonzero((parts.counts == 0) & (self.parts.counts > 0))
            if len(lacking) and (feature.missing is None or lacking[0] < feature.missing[0]):
                feature.missing = (int(lacking[0]), 0)
        return found

    def leaves(self, indices: Indices, names: Sequence[str]) -> Leaves:
        at, found = self.parts.at(indices), {}
        for name in names:
            if name not in self._positions:
                found[name] = missing_leaf(len(indices))
                continue
            starts, sizes = self._positions[name].take(indices, at.parts)
            found[name] = Leaf(self._bytes, at.moved(starts), sizes)
        return found

    def spans(self, indices: Indices, names: Sequence[str]) -> Iterator[Span]:
        for leaf in self.leaves(indices, names).values():
            yield from leaf.spans()

    def check(self, index: int) -> str | None:
        part, _ = self.parts.locate(index)
        data = self.files.data(part)
        start, stop = int(self._starts[index]), int(self._stops[index])
        if not is_payload_intact(data, start, stop):
            return "its checksum is wrong"
        find_leaves(data.data, start, stop)
        return None


class _StoredPositions:
    """The positions of a feature in the index; files without the feature have none."""

    def __init__(self, at: Array, sizes: Array, parts: Parts, records: Parts) -> None:
        self._at, self._sizes = at, sizes
        self._is_everywhere = bool((parts.counts == records.counts).all())
        self._has_it = parts.counts > 0
        self._shift = parts.starts - records.starts

    def take(self, indices: Indices, files: Numbers | None) -> tuple[Numbers, Sizes]:
        if self._is_everywhere or files is None:
            return self._at[indices], self._sizes[indices]
        at, sizes = np.zeros(len(indices), np.int64), np.full(len(indices), MISSING, np.int32)
        places = np.flatnonzero(self._has_it[files])
        where = indices[places] + self._shift[files[places]]
        at[places], sizes[places] = self._at[where], self._sizes[where]
        return at, sizes


class _Indexer:
    """Indexes one file after the other; a feature has the same number in all of them."""

    def __init__(self, files: FileSet) -> None:
        self._files = files
        self._numbers: dict[str, int] = {}

    def __call__(self, number: int) -> IndexedFile:
        data, path = self._files.data(number), self._files.paths[number]
        frames = find_frames(data, path)
        try:
            found = find_positions(data, frames.starts, frames.stops)
        except FileError as error:
            raise FileError(f"{path}: {error}") from error
        if len(found.damaged) == found.records > 0:
            raise FileError(
                f"{path}: its records are not tf.Examples (of record 0: {found.damaged[0]}). Read "
                "them as bytes with decode=False, and parse them in .map."
            )
        arrays: dict[str, Array] = {"starts": frames.starts, "stops": frames.stops}
        arrays["damaged"] = np.array(list(found.damaged), np.int64)
        note: list[Json] = []
        for key, feature in found.features.items():
            name = key.decode("utf-8", "backslashreplace")
            place = self._numbers.setdefault(name, len(self._numbers))
            arrays[f"at{place}"], arrays[f"size{place}"] = feature.at, feature.sizes
            kinds, least, most, missing = feature.summary()
            note.append([name, place, [[*pair] for pair in kinds.items()], least, most, missing])
        return IndexedFile(arrays, note)
