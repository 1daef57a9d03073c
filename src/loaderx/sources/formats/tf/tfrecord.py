"""TFRecord files of ``tf.Example``, read without TensorFlow.

Files are indexed once: the place of each record, and of each of its features.  A batch then
needs no parsing: floats are one indexed copy, texts are slices, integers (which are stored as
varints) are decoded for all records of a batch at once.

A file does not say whether a feature is one value or a list.  It is one value if all records have
exactly one, an array if all have as many, and a list otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias, cast

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError, FileError
from loaderx.sources.base import Indices, Source
from loaderx.sources.cache.folder import CacheArgument, CacheFolder, IndexedFile, cache_folder
from loaderx.sources.cache.unpack import unpack, unpack_all
from loaderx.sources.columns.elements import file_bytes
from loaderx.sources.decoding import DECODED
from loaderx.sources.files.cold import Span
from loaderx.sources.files.compressed import HEAD_BYTES, ZLIB
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.parts import Located, in_places
from loaderx.sources.files.paths import PathLike, find
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.tf.decoders import (
    NO_FILL,
    Bytes,
    Decoder,
    Fixed,
    FixedBytes,
    Ragged,
    Raw,
    Text,
)
from loaderx.sources.formats.tf.example import BYTES, FLOAT, INT64, KIND_NAMES
from loaderx.sources.formats.tf.example_files import ExampleFiles, Feature
from loaderx.sources.formats.tf.example_source import ExampleSource
from loaderx.sources.formats.tf.frames import (
    find_frames,
    is_payload_intact,
    is_zlib_frame,
)
from loaderx.sources.formats.tf.payloads import NAME, PayloadReader, PayloadSource
from loaderx.tree import ArraySpec

FeatureType: TypeAlias = "ArraySpec | type[str] | type[bytes]"
"""The type of a feature: an array of this dtype and shape, text, or bytes."""

_DTYPES: dict[int, np.dtype[np.generic]] = {FLOAT: np.dtype(np.float32), INT64: np.dtype(np.int64)}
_FRAMES_VERSION = 1


class TFRecord(ExampleSource):
    """TFRecord files of ``tf.Example``, with given types of features.

    Args:
        path: a file, a pattern, or a list of them.
        features: what a feature is, by name. An `ArraySpec` with None for the first axis is a list;
            of a feature that holds bytes it is an array of which these are the elements, as in
            `tf.io.decode_raw`. `str` is text. Features that are not named are read as
            `Dataset.open` reads them.
        columns: the features to read; all by default.
        fill: values in place of missing ones, by feature.
        cache: as in `Dataset.open`.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        *,
        features: Mapping[str, FeatureType] | None = None,
        columns: Sequence[str] | None = None,
        fill: Mapping[str, object] | None = None,
        cache: CacheArgument = None,
    ) -> None:
        kept = cache_folder(cache)
        found = find(path, kept.files)
        if found.folder is not None:
            raise ArgumentError(f"{found.folder} is a folder: give files, or a pattern.")
        unpack_all(found.files, kept)
        options = OpenOptions(
            columns=None if columns is None else tuple(columns),
            decode=DECODED,
            fill=dict(fill or {}),
            cache=kept,
        )
        reader = _example_files(found.files, options)
        super().__init__(reader, _decoders(reader, options, features or {}), label="tfrecord")


def _head(path: str, cache: CacheFolder) -> bytes:
    return cache.files.of(path).head(path, HEAD_BYTES)


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    if not options.decode:
        reader = TFRecordPayloads(_plain(files, options.cache), options.cache)
        options.chosen([NAME], files[0])
        return PayloadSource(reader, "tfrecord")
    found = _example_files(files, options)
    return ExampleSource(found, _decoders(found, options, {}), label="tfrecord")


def _example_files(files: list[str], options: OpenOptions) -> ExampleFiles:
    found = ExampleFiles(_plain(files, options.cache), options.cache)
    if not len(found):
        raise FileError(f"{files[0]} has no records.")
    return found


# Which leaves there are -------------------------------------------------------------------------


def _decoders(
    found: ExampleFiles, options: OpenOptions, types: Mapping[str, FeatureType]
) -> dict[str, Decoder]:
    have = [name for name, feature in found.features.items() if feature.kinds]
    where = found.files.paths[0]
    for name in (*types, *options.fill):
        if name not in have:
            raise ArgumentError(f"{where} has no feature {name!r}; it has {have}.")
    chosen = options.chosen(sorted(have), where)
    if not chosen:
        raise FileError(f"{where}: no feature has a value in any record.")
    return {
        name: _decoder(found, found.features[name], types.get(name), options.fill)
        for name in chosen
    }


def _decoder(
    found: ExampleFiles,
    feature: Feature,
    asked: FeatureType | None,
    fill: Mapping[str, object],
) -> Decoder:
    name, kind = feature.name, _kind(found, feature)
    if asked is not None:
        return _asked_decoder(name, kind, asked, fill.get(name, NO_FILL))
    least, most = feature.least or 0, feature.most
    is_one = most == 1
    may_lack = feature.missing is not None or least == 0
    if may_lack and (is_one or least == most > 0) and name not in fill:
        raise FileError(_lacks(found, feature, kind))
    filling = fill.get(name, NO_FILL)
    if kind == BYTES:
        if is_one:
            return Bytes(name, filling)
        return FixedBytes(name, (most,)) if least == most and not may_lack else Ragged(name, kind)
    if is_one:
        return Fixed(name, kind, ArraySpec((), _DTYPES[kind]), filling)
    if least == most > 0:
        return Fixed(name, kind, ArraySpec((most,), _DTYPES[kind]), filling)
    return Ragged(name, kind)


def _kind(found: ExampleFiles, feature: Feature) -> int:
    kinds = list(feature.kinds.items())
    if len(kinds) > 1:
        said = " and ".join(
            f"{KIND_NAMES[kind]} in record {record} of {found.files.paths[file]}"
            for kind, (file, record) in kinds[:2]
        )
        raise FileError(f"{feature.name!r} is {said}. Leave it out with columns=.")
    return kinds[0][0]


def _lacks(found: ExampleFiles, feature: Feature, kind: int) -> str:
    name, dtype = feature.name, KIND_NAMES[kind]
    value = 'b""' if kind == BYTES else "0"
    if feature.missing is None:
        which = f"some records of {found.files.paths[0]} and its shards have an empty list"
    else:
        file, record = feature.missing
        which = f"record {record} of {found.files.paths[file]} has none"
    as_list = (
        ""
        if kind == BYTES
        else f" If it is a list, say so: sources.TFRecord(path, features={{{name!r}: "
        f"ArraySpec((None,), np.dtype({dtype!r}))}})."
    )
    return (
        f"{name!r} has {feature.most} value{'s' if feature.most != 1 else ''} ({dtype}) in most "
        f"records, and {which}. Put a value in place of missing ones with fill={{{name!r}: "
        f"{value}}}, or leave it out with columns=.{as_list}"
    )


def _asked_decoder(name: str, kind: int, asked: FeatureType, fill: object) -> Decoder:
    if asked is str or asked is bytes:
        if kind != BYTES:
            raise ArgumentError(f"feature {name!r} is {KIND_NAMES[kind]}, not {asked.__name__}.")
        return Text(name, fill) if asked is str else Bytes(name, fill)
    if not isinstance(asked, ArraySpec):
        raise ArgumentTypeError(
            f"features[{name!r}] must be an ArraySpec, str or bytes, got {asked!r}."
        )
    is_list = bool(asked.shape) and asked.shape[0] is None
    row = asked.shape[1:] if is_list else asked.shape
    if None in row:
        raise ArgumentError(f"features[{name!r}]: only the first axis of {asked!r} may be open.")
    rest = tuple(axis for axis in row if axis is not None)
    if kind == BYTES and asked.dtype != np.dtype(object):
        if is_list:
            raise ArgumentError(f"features[{name!r}]: an array from bytes has no open axis.")
        return Raw(name, asked)
    if kind == BYTES:
        return Ragged(name, kind) if is_list else FixedBytes(name, rest)
    if is_list:
        return Ragged(name, kind, asked.dtype, asked.shape)
    return Fixed(name, kind, asked, fill)


# Records as bytes -------------------------------------------------------------------------------


class TFRecordPayloads(PayloadReader):
    """The records of TFRecord files as bytes."""

    def __init__(self, files: FileSet, cache: CacheFolder) -> None:
        def indexer(number: int) -> IndexedFile:
            frames = find_frames(files.data(number), files.paths[number])
            return IndexedFile({"starts": frames.starts, "stops": frames.stops})

        index = cache.index("tfrecord-frames", _FRAMES_VERSION, files, indexer)
        super().__init__(files, index.parts["starts"])
        self._starts, self._stops = index.arrays["starts"], index.arrays["stops"]
        self._bytes = file_bytes(files, self.outside)

    def _find(self, indices: Indices) -> tuple[Located, Indices]:
        return self.parts.at(indices).moved(self._starts[indices]), self._stops[indices]

    def payloads(self, indices: Indices) -> Sequence[bytes]:
        found = ((one.places, one.contents()) for one in self._bytes.runs(*self._find(indices)))
        return cast("Sequence[bytes]", in_places(len(indices), found))

    def spans(self, indices: Indices) -> Iterator[Span]:
        return self._bytes.spans(*self._find(indices))

    def check(self, index: int) -> str | None:
        part, _ = self.parts.locate(index)
        start, stop = int(self._starts[index]), int(self._stops[index])
        is_intact = is_payload_intact(self.files.data(part), start, stop)
        return None if is_intact else "its checksum is wrong"


# Files compressed with zlib ---------------------------------------------------------------------


def _plain(files: list[str], cache: CacheFolder) -> FileSet:
    """The files, unpacked if they were compressed with zlib (gzip is unpacked before)."""
    unpack({file: ZLIB for file in files if is_zlib_frame(_head(file, cache))}, cache)
    return FileSet(files, files=cache.files)
