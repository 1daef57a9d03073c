"""Where the features of many ``tf.Example`` lie, found for thousands of records at once.

Nearly all records of a file are written by one program, and so are alike: key by key, the same
fields in the same order.  `find_positions` walks through all of them side by side, one NumPy call
for the same byte of every record.  What it does not expect in a record (values that are not one
run, a key that comes twice, damage) makes it leave that record to the parser in `example`, which
reads everything and takes ten times as long.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.sources.base import BadRecordError
from loaderx.sources.files.byte_ranges import gather_rows
from loaderx.sources.formats.tf.example import (
    BYTES,
    DAMAGED,
    FLOAT,
    INT64,
    MISSING,
    PARSED_LATE,
    find_leaves,
)
from loaderx.tree import Array

Numbers: TypeAlias = npt.NDArray[np.int64]

_RECORDS_AT_ONCE = 8192
_MOST_FEATURES = 4096
_LENGTH_BYTES = 5  # bytes of the varint of a length: more than any message may have


class FeaturePositions:
    """One feature in a number of records: the places, kinds and counts of its values."""

    def __init__(self, key: bytes, records: int) -> None:
        self.key = key
        self.at = np.zeros(records, np.int64)
        self.sizes = np.full(records, MISSING, np.int32)
        self.kinds = np.zeros(records, np.int8)
        self.counts = np.zeros(records, np.int32)  # of values

    def put(self, rows: Numbers, at: Numbers, sizes: Numbers, kind: int, counts: Numbers) -> None:
        """Notes where some of the records have it."""
        self.at[rows], self.sizes[rows] = at, sizes
        self.kinds[rows], self.counts[rows] = kind, counts

    def summary(self) -> FeatureSummary:
        """A summary of its values."""
        has_it = (self.sizes >= 0) | (self.sizes == PARSED_LATE)
        kinds = {
            kind: int(np.argmax(has_it & (self.kinds == kind)))
            for kind in np.unique(self.kinds[has_it]).tolist()
        }
        counts = self.counts[has_it]
        lacking = np.flatnonzero(self.sizes == MISSING)
        return FeatureSummary(
            kinds,
            int(counts.min()) if len(counts) else 0,
            int(counts.max()) if len(counts) else 0,
            int(lacking[0]) if len(lacking) else None,
        )


class FeatureSummary(NamedTuple):
    """A summary of the values of a feature in one file."""

    kinds: dict[int, int]  # each kind, and the first record that has it
    least: int  # values in a record
    most: int
    missing: int | None  # the first record without it


class Positions:
    """Where the features of a number of records lie."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.features: dict[bytes, FeaturePositions] = {}
        self.damaged: dict[int, str] = {}  # records that are not Examples, and why

    def feature(self, key: bytes) -> FeaturePositions:
        """The feature with this key; a new one has no places yet."""
        found = self.features.get(key)
        if found is None:
            if len(self.features) >= _MOST_FEATURES:
                raise FileError(
                    f"its records have more than {_MOST_FEATURES} different features. Read them as "
                    "bytes with decode=False, and parse them in .map."
                )
            found = self.features[key] = FeaturePositions(key, self.records)
        return found


def find_positions(
    data: Array, starts: Numbers, stops: Numbers, *, counted: bool = True
) -> Positions:
    """The positions of all features of the records from ``starts`` to ``stops`` of ``data``.

    The numbers in a list of integers are counted only where ``counted`` says so.
    """
    found = Positions(len(starts))
    if not len(data):  # all records are empty; the walk looks at one byte at least
        data = np.zeros(1, np.uint8)
    for first in range(0, len(starts), _RECORDS_AT_ONCE):
        rows = np.arange(first, min(first + _RECORDS_AT_ONCE, len(starts)))
        _Walk(data, found, counted).run(rows, starts[rows], stops[rows])
    for feature in found.features.values():
        feature.sizes[list(found.damaged)] = DAMAGED
    return found


class _Walk:
    """A walk through some records, side by side."""

    def __init__(self, data: Array, found: Positions, counted: bool) -> None:
        self._data, self._found, self._counted = data, found, counted

    def run(self, rows: Numbers, starts: Numbers, stops: Numbers) -> None:
        is_left = np.zeros(len(rows), bool)  # to the other parser
        self._first, self._is_left = int(rows[0]), is_left
        begins, ends = self._run(rows, starts, stops, 0x0A)
        rows = self._kept(rows, ends == stops)
        position, stop = begins[~is_left], stops[~is_left]
        while len(rows):
            start, entry_stop = self._run(rows, position, stop, 0x0A)
            self._entries(rows, start, entry_stop)
            goes_on = (entry_stop < stop) & ~is_left[rows - self._first]
            rows, position, stop = rows[goes_on], entry_stop[goes_on], stop[goes_on]
        for place in np.flatnonzero(is_left).tolist():
            self._parse(self._first + place, int(starts[place]), int(stops[place]))

    def _entries(self, rows: Numbers, start: Numbers, stop: Numbers) -> None:
        """Entries of the map, one of each record."""
        key_start, key_stop = self._run(rows, start, stop, 0x0A)
        feature_start, feature_stop = self._run(rows, key_stop, stop, 0x12)
        self._leave(rows[feature_stop != stop])
        for key, places in self._keys(rows, key_start, key_stop):
            feature = self._found.feature(key)
            self._leave(rows[places][feature.sizes[rows[places]] != MISSING])  # it comes twice
            has_list = feature_start[places] < feature_stop[places]
            places = places[has_list]
            self._values(feature, rows[places], feature_start[places], feature_stop[places])

    def _keys(
        self, rows: Numbers, start: Numbers, stop: Numbers
    ) -> list[tuple[bytes, npt.NDArray[np.intp]]]:
        """Each key, and which of the entries have it."""
        left = np.flatnonzero(~self._is_left[rows - self._first])
        length = stop - start
        found = []
        while len(left):
            first = left[0]
            width = int(length[first])
            key = self._data[start[first] : start[first] + width]
            same = left[length[left] == width]
            if width:
                keys = np.empty((len(same), width), np.uint8)
                gather_rows(self._data, start[same], keys)
                same = same[(keys == key).all(1)]
            found.append((key.tobytes(), same))
            left = np.setdiff1d(left, same, True) if len(same) < len(left) else left[:0]
        return found

    def _values(self, feature: FeaturePositions, rows: Numbers, at: Numbers, stop: Numbers) -> None:
        """The lists of one feature; a tag says of which kind each is."""
        tags = self._data[at]
        for kind, tag in ((BYTES, 0x0A), (FLOAT, 0x12), (INT64, 0x1A)):
            of_kind = tags == tag
            if of_kind.any():
                self._list(feature, kind, rows[of_kind], at[of_kind], stop[of_kind])
        self._leave(rows[(tags != 0x0A) & (tags != 0x12) & (tags != 0x1A)])

    def _list(
        self, feature: FeaturePositions, kind: int, rows: Numbers, at: Numbers, stop: Numbers
    ) -> None:
        start, list_stop = self._run(rows, at, stop, (kind << 3) | 2)
        self._leave(rows[list_stop != stop])
        is_empty = start == stop
        if is_empty.any():
            empty = is_empty & ~self._is_left[rows - self._first]
            if kind == BYTES:
                self._leave(rows[is_empty])
            elif empty.any():
                zeros = np.zeros(int(empty.sum()), np.int64)
                feature.put(rows[empty], start[empty], zeros, kind, zeros)
            rows, start, stop = rows[~is_empty], start[~is_empty], stop[~is_empty]
        value, value_stop = self._run(rows, start, stop, 0x0A)
        sizes = value_stop - value
        is_wrong = value_stop != stop
        if kind == FLOAT:
            is_wrong |= sizes % 4 != 0
        elif kind == INT64 and len(rows):
            is_wrong |= (sizes > 0) & (self._data[np.maximum(value_stop - 1, 0)] >= 128)
        self._leave(rows[is_wrong])
        kept = ~self._is_left[rows - self._first]
        rows, value, sizes = rows[kept], value[kept], sizes[kept]
        if len(rows):
            feature.put(rows, value, sizes, kind, self._counts(kind, value, sizes))

    def _counts(self, kind: int, at: Numbers, sizes: Numbers) -> Numbers:
        if kind == BYTES:
            return np.ones(len(at), np.int64)
        if kind == FLOAT:
            return sizes // 4
        return varint_counts(self._data, at, sizes) if self._counted else sizes

    # Steps --------------------------------------------------------------------------------------

    def _run(self, rows: Numbers, at: Numbers, stop: Numbers, tag: int) -> tuple[Numbers, Numbers]:
        """Where the run of bytes after this tag starts and stops.

        Records without it, and those whose run is longer than it may be, are left; the numbers of
        these lie within the message all the same.
        """
        last = np.maximum(stop - 1, 0)
        is_wrong = (at >= stop) | (self._data[np.minimum(at, last)] != tag)
        position = np.minimum(at + 1, last)
        bytes_ = self._data[position]
        length = (bytes_ & 127).astype(np.int64)
        more = np.flatnonzero(bytes_ >= 128)
        ends = position + 1
        for number in range(1, _LENGTH_BYTES):
            if not len(more):
                break
            position = np.minimum(ends[more], last[more])
            bytes_ = self._data[position]
            length[more] |= (bytes_ & 127).astype(np.int64) << (7 * number)
            ends[more] = position + 1
            more = more[bytes_ >= 128]
        is_wrong[more] = True
        stops = ends + length
        is_wrong |= (stops > stop) | (at + 1 >= stop)
        if is_wrong.any():
            self._leave(rows[is_wrong])
            ends, stops = np.minimum(ends, stop), np.minimum(stops, stop)
        return ends, stops

    def _kept(self, rows: Numbers, is_right: npt.NDArray[np.bool_]) -> Numbers:
        self._leave(rows[~is_right])
        return rows[~self._is_left]

    def _leave(self, rows: Numbers) -> None:
        self._is_left[rows - self._first] = True

    def _parse(self, row: int, start: int, stop: int) -> None:
        """One record, by the complete parser."""
        found, one = self._found, np.array([row])
        for feature in found.features.values():
            feature.sizes[row] = MISSING
        try:
            leaves = find_leaves(self._data.data, start, stop)
        except BadRecordError as error:
            found.damaged[row] = str(error)
            return
        for key, leaf in leaves.items():
            feature = found.feature(key)
            if leaf is not None:
                at, size, count = (
                    np.array([number]) for number in (leaf.at, leaf.size, leaf.values)
                )
                feature.put(one, at, size, leaf.kind, count)


def varint_counts(data: Array, at: Numbers, sizes: Numbers) -> Numbers:
    """The number of varints in each run."""
    width = int(sizes[0])
    if width and (sizes == width).all():
        rows = np.empty((len(at), width), np.uint8)
        gather_rows(data, at, rows)
        return np.asarray((rows < 128).sum(1), np.int64)
    runs = [
        data[start:stop] for start, stop in zip(at.tolist(), (at + sizes).tolist(), strict=True)
    ]
    ends = np.concatenate([[0], np.cumsum(np.concatenate(runs) < 128)])
    borders = np.concatenate([[0], np.cumsum(sizes)])
    return np.asarray(np.diff(ends[borders]), np.int64)
