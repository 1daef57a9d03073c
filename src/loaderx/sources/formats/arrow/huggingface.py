"""Folders of Hugging Face `datasets`, read without that package.

- ``save_to_disk``: ``state.json`` names the Arrow files, ``dataset_info.json`` has the features;
- a saved `DatasetDict`: ``dataset_dict.json`` names the splits, each a folder as above;
- the cache: ``name-split-00000-of-00002.arrow`` beside a ``dataset_info.json``.  Files that are
  named ``cache-*.arrow`` are results of `map` and similar methods, and are not data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from loaderx.errors import FileError
from loaderx.sources.base import Source
from loaderx.sources.cache.folder import Json
from loaderx.sources.files.paths import natural_order
from loaderx.sources.format import Folder, OpenOptions, OpenSplit, Splits
from loaderx.sources.formats.arrow.arrow import open_arrow
from loaderx.sources.formats.arrow.types import Features
from loaderx.sources.formats.splits import split_of
from loaderx.sources.mapping import read_whole, reading

_STATE, _DICT, _INFO = "state.json", "dataset_dict.json", "dataset_info.json"
_TFDS = "features.json"  # TFDS has a dataset_info.json, too
_MOST_BYTES = 1 << 26
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


def is_folder(folder: Folder) -> bool:
    if folder.has(_DICT) or (folder.has(_STATE) and folder.has(_INFO)):
        return True
    return folder.has(_INFO) and not folder.has(_TFDS) and bool(_cached(folder))


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    if folder.has(_DICT):
        return _dict_splits(folder, options)
    if folder.has(_STATE):
        state = _read(folder, _STATE)
        split = state.get("_split")
        name = split if isinstance(split, str) else ""
        return {name: lambda: _open_saved(folder, options)}
    return _cache_splits(folder, options)


def _dict_splits(folder: Folder, options: OpenOptions) -> Splits:
    names = _read(folder, _DICT).get("splits")
    if not isinstance(names, list) or not names:
        raise FileError(f"{folder.join(_DICT)} names no splits.")

    def opener(name: str) -> OpenSplit:
        return lambda: _open_saved(folder.folder(name), options)

    return {str(name): opener(str(name)) for name in names}


def _open_saved(folder: Folder, options: OpenOptions) -> Source:
    state = _read(folder, _STATE)
    files = _named_files(folder, state.get("_data_files"))
    if not files:
        raise FileError(f"{folder.join(_STATE)} names no files: the dataset is empty.")
    # Old versions saved a choice of rows as row numbers; new ones write the rows themselves.
    told = state.get("_indices_data_files") or state.get("_indices_files")
    indices = _named_files(folder, told) or None
    features = _features(folder)
    return open_arrow(files, options, features=features, indices=indices, label="huggingface")


def _named_files(folder: Folder, told: Json) -> list[str]:
    found = []
    for one in told if isinstance(told, list) else []:
        name = one.get("filename") if isinstance(one, dict) else None
        found.append(folder.join(name))
    return found


# The cache --------------------------------------------------------------------------------------


def _cached(folder: Folder) -> list[str]:
    """The Arrow files of a cache folder that hold data."""
    return [
        name
        for name in folder.files
        if name.endswith(".arrow") and not name.startswith(("cache-", "tmp", "indices"))
    ]


def _cache_splits(folder: Folder, options: OpenOptions) -> Splits:
    told = _read(folder, _INFO).get("splits")
    known = list(told) if isinstance(told, dict) else []
    grouped: dict[str, list[str]] = {name: [] for name in known}
    for file in sorted(_cached(folder), key=natural_order):
        grouped.setdefault(_split_of(file, known), []).append(folder.join(file))

    def opener(files: list[str]) -> OpenSplit:
        features = _features(folder)
        return lambda: open_arrow(files, options, features=features, label="huggingface")

    return {name: opener(files) for name, files in grouped.items() if files}


def _split_of(file: str, known: Sequence[str]) -> str:
    stem = _SHARD.sub("", file.removesuffix(".arrow"))
    ends = [name for name in known if stem == name or stem.endswith(f"-{name}")]
    return max(ends, key=len) if ends else split_of(file)


# Descriptions -----------------------------------------------------------------------------------


def _features(folder: Folder) -> Features | None:
    if not folder.has(_INFO):
        return None
    told = _read(folder, _INFO).get("features")
    return Features(told) if isinstance(told, dict) else None


def _read(folder: Folder, name: str) -> Mapping[str, Json]:
    path = folder.join(name)
    with folder.open(name) as file, reading(path):
        told = json.loads(read_whole(file, _MOST_BYTES))
    if not isinstance(told, dict):
        raise FileError(f"{path} does not describe a dataset of Hugging Face.")
    return told
