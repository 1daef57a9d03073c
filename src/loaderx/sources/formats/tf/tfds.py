"""Folders that TFDS has prepared, read without TensorFlow.

``dataset_info.json`` has the splits and the number of records in each shard, ``features.json`` the
types of their leaves.  The shards are TFRecord or ArrayRecord files of Examples.
Given the folder of a dataset, the newest version in it is read, as TFDS does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple, cast

from loaderx.errors import FileError
from loaderx.sources.base import Source
from loaderx.sources.cache.folder import Json
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.format import Folder, OpenOptions, OpenSplit, Splits
from loaderx.sources.formats.tf.array_record_files import ArrayRecordExamples
from loaderx.sources.formats.tf.decoders import NO_FILL
from loaderx.sources.formats.tf.example import BYTES, KIND_NAMES
from loaderx.sources.formats.tf.example_files import ExampleFiles
from loaderx.sources.formats.tf.example_source import ExampleReader, ExampleSource
from loaderx.sources.formats.tf.tfds_features import (
    LeafTree,
    LeafType,
    kind_of,
    make_decoders,
    read_features,
    top_level,
)
from loaderx.sources.mapping import read_whole, reading
from loaderx.tree import flatten

INFO, FEATURES = "dataset_info.json", "features.json"
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_MOST_JSON_BYTES = 1 << 28


class TfdsSplit(NamedTuple):
    """The files of a split, and the number of records in each."""

    files: list[str]
    counts: list[int]


class TfdsInfo(NamedTuple):
    """The content of dataset_info.json."""

    file_format: str
    splits: dict[str, TfdsSplit]


def is_folder(folder: Folder) -> bool:
    return _is_version(folder) or any(_versions(folder)) or any(_configurations(folder, 1))


def _is_version(folder: Folder) -> bool:
    return folder.has(INFO) and folder.has(FEATURES)


def _versions(folder: Folder) -> Iterator[Folder]:
    """The versions in the folder of a dataset, or of one of its configurations."""
    for one in folder.folders:
        if _VERSION.fullmatch(one.name) and _is_version(one):
            yield one


def _configurations(folder: Folder, most: int | None = None) -> Iterator[Folder]:
    """The configurations in the folder of a dataset, each a folder of versions.

    Every folder of the dataset is one, so it is enough to look at the first of perhaps thousands.
    """
    for one in folder.folders[:most]:
        if any(_versions(one)):
            yield one


def _newest(folder: Folder) -> Folder:
    if _is_version(folder):
        return folder
    if not any(_versions(folder)):
        configurations = list(_configurations(folder))
        if len(configurations) > 1:
            names = ", ".join(repr(one.name) for one in configurations)
            raise FileError(
                f"{folder.path} has the configurations {names}: open the folder of one of them."
            )
        folder = configurations[0] if configurations else folder
    found = {tuple(map(int, one.name.split("."))): one for one in _versions(folder)}
    if not found:
        raise FileError(f"{folder.path} has no {INFO} and {FEATURES}: it is not a folder of TFDS.")
    return found[max(found)]


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    version = _newest(folder)
    info = read_info(version)

    def opener(split: TfdsSplit) -> OpenSplit:
        return lambda: open_split(version, info.file_format, split, options)

    return {name: opener(split) for name, split in info.splits.items()}


def read_info(folder: Folder) -> TfdsInfo:
    """The splits of a version that have records, and their files."""
    path = folder.join(INFO)
    told = _read_json(folder, INFO)
    with reading(path):
        if not isinstance(told, dict):
            raise ValueError("it is not a dict")
        name, file_format = str(told["name"]), str(told.get("fileFormat") or "tfrecord")
        splits = {}
        for one in cast("list[dict[str, Json]]", told["splits"]):
            counts = [int(cast(str, count)) for count in cast(list[Json], one["shardLengths"])]
            template = str(one.get("filepathTemplate") or _TEMPLATE)
            split = str(one["name"])
            files = [
                folder.join(_shard(template, name, split, file_format, number, len(counts)))
                for number in range(len(counts))
            ]
            if sum(counts):
                splits[split] = TfdsSplit(files, counts)
    if not splits:
        raise FileError(f"{path} has no splits with records.")
    return TfdsInfo(file_format, splits)


def _shard(template: str, name: str, split: str, suffix: str, number: int, count: int) -> str:
    digits = max(5, len(str(count)))
    values = {
        "DATASET": name,
        "SPLIT": split,
        "FILEFORMAT": suffix,
        "SHARD_INDEX": f"{number:0{digits}d}",
        "NUM_SHARDS": f"{count:0{digits}d}",
        "SHARD_X_OF_Y": f"{number:0{digits}d}-of-{count:0{digits}d}",
    }
    for key, value in values.items():
        template = template.replace(f"{{{key}}}", value)
    return template


def open_split(folder: Folder, file_format: str, split: TfdsSplit, options: OpenOptions) -> Source:
    """The records of a split."""
    path = folder.join(FEATURES)
    told = _read_json(folder, FEATURES)
    chosen = options.chosen(list(top_level(told, path)), folder.path)
    leaves = read_features(told, chosen, path)
    for file in split.files:
        if not folder.file_systems.of(file).is_file(file):
            raise FileError(f"{folder.path} is incomplete: there is no file {file}.")
    reader = _reader(file_format, split, options, folder.path)
    for file, count, has in zip(split.files, split.counts, reader.counts, strict=True):
        if count != has:
            raise FileError(f"{file} has {has} records, and {INFO} says {count}.")
    if isinstance(reader, ExampleFiles):
        for leaf in flatten(leaves)[0]:
            _check_stored(reader, leaf, leaf.path in options.fill)
    decoders = make_decoders(leaves, options.decode, options.fill)
    classes = dict(_classes(folder, leaves, ""))
    return ExampleSource(reader, decoders, label="tfds", classes=classes)


def _check_stored(reader: ExampleFiles, leaf: LeafType, is_filled: bool) -> None:
    """Compares a description with the index, which has the kinds of all values."""
    feature = reader.features.get(leaf.path)
    kinds = {} if feature is None else feature.kinds
    for kind, (file, record) in kinds.items():
        expected = BYTES if leaf.decode is not None else kind_of(leaf.dtype)
        if kind != expected:
            raise FileError(
                f"{reader.files.paths[file]}, record {record}: {leaf.path!r} is "
                f"{KIND_NAMES[kind]}, and {FEATURES} says {KIND_NAMES[expected]}."
            )
    needs_one = not leaf.lengths and None not in leaf.shape and leaf.default is NO_FILL
    if needs_one and not is_filled and (feature is None or feature.missing is not None):
        file, record = (feature and feature.missing) or (0, 0)
        raise FileError(
            f"{reader.files.paths[file]}, record {record} has no {leaf.path!r}. Put a value in "
            f"place of missing ones with fill={{{leaf.path!r}: ...}}, or use columns= without it."
        )


def _reader(file_format: str, split: TfdsSplit, options: OpenOptions, where: str) -> ExampleReader:
    if file_format == "tfrecord":
        return ExampleFiles(FileSet(split.files, files=options.cache.files), options.cache)
    if file_format == "array_record":
        return ArrayRecordExamples(FileSet(split.files, files=options.cache.files), options.cache)
    raise FileError(
        f"{where} has shards of the format {file_format!r}; loaderx reads those of TFDS that are "
        "'tfrecord' or 'array_record'."
    )


def _classes(folder: Folder, leaves: LeafTree, path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, leaf in leaves.items():
        below = f"{path}.{name}" if path else name
        if not isinstance(leaf, LeafType):
            yield from _classes(folder, leaf, below)
        elif leaf.has_classes:
            file = f"{leaf.path.replace('/', '-')}.labels.txt"
            if folder.has(file):
                yield below, _lines(folder, file)
            elif leaf.class_count:  # the names that TFDS uses
                yield below, tuple(map(str, range(leaf.class_count)))


def _lines(folder: Folder, name: str) -> tuple[str, ...]:
    path = folder.join(name)
    with folder.open(name) as file, reading(path):
        text = str(read_whole(file, _MOST_JSON_BYTES), "utf-8")
    return tuple(line.strip() for line in text.split("\n") if line.strip())


def _read_json(folder: Folder, name: str) -> Json:
    path = folder.join(name)
    with folder.open(name) as file, reading(path):
        return cast(Json, json.loads(read_whole(file, _MOST_JSON_BYTES)))
