"""Lance datasets: folders of fragments and versions, read by pylance.

Like Parquet, a version is copied once into the native layout, since a row at any place costs the
library fifty times what it should.  Which manifest belongs to a version is told by its name, so
what was copied is found again without pylance, which keeps threads and takes a second to import.
A manifest and the fragments that it names are never changed; deleted rows are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from loaderx.errors import ArgumentError, FileError, MissingPackageError
from loaderx.sources.base import Source
from loaderx.sources.columns.data import ColumnData, joined
from loaderx.sources.columns.gaps import keeping
from loaderx.sources.files.parts import Parts
from loaderx.sources.format import Folder, OpenOptions, Splits
from loaderx.sources.formats.arrow.columns import arrow_columns
from loaderx.sources.formats.arrow.shard_types import ShardTypes
from loaderx.sources.formats.blocks import BlockFiles, open_blocks
from loaderx.sources.mapping import reading
from loaderx.sources.remote.urls import is_url

if TYPE_CHECKING:
    import lance

_MARK = "_versions/"
_MANIFEST = re.compile(r"(\d{1,20})\.manifest")
_NEWEST_FIRST = (1 << 64) - 1  # names of twenty digits count down from it
_BLOCK_BYTES = 1 << 26  # of the parts in which a fragment is read
_BLOB = b"lance-encoding:blob"


def is_folder(folder: Folder) -> bool:
    return _MARK in folder.names


def folder_splits(folder: Folder, options: OpenOptions) -> Splits:
    return {"": lambda: _open(folder, options)}


def _open(folder: Folder, options: OpenOptions) -> Source:
    path = folder.path
    if is_url(path):
        raise FileError(
            f"{path} is a Lance dataset behind a URL, and loaderx reads those of this machine. "
            "Download the folder first."
        )
    version, manifest = _chosen(folder, options.version)

    def open_lance() -> LanceFragments:
        return LanceFragments(path, version, options)

    return open_blocks(open_lance, [manifest], options, "lance")


def _chosen(folder: Folder, version: int | str | None) -> tuple[int, str]:
    """The number and the manifest of a version."""
    inside, manifests = folder.folder(_MARK[:-1]), dict[int, str]()
    for name in inside.files:
        if match := _MANIFEST.fullmatch(name):
            number = int(match[1])
            manifests[_NEWEST_FIRST - number if len(match[1]) == 20 else number] = name
    if not manifests:
        raise FileError(f"{folder.path} is damaged: it has no manifest of a version.")
    if version is None:
        version = max(manifests)
    number = _tagged(folder, version) if isinstance(version, str) else version
    if number not in manifests:
        have = ", ".join(map(str, sorted(manifests)[-10:]))
        raise ArgumentError(f"{folder.path} has no version {number}; the newest are {have}.")
    return number, inside.join(manifests[number])


def _tagged(folder: Folder, tag: str) -> int:
    """The version with a tag."""
    tags = Folder(folder.join("_refs/tags"))
    have = [name.removesuffix(".json") for name in tags.files] if "_refs/" in folder.names else []
    if tag not in have:
        raise ArgumentError(f"{folder.path} has no tag {tag!r}; its tags are {have}.")
    with reading(f"{folder.path}, tag {tag!r}"), tags.open(f"{tag}.json") as file:
        told = json.load(file)
        if told.get("branch") is not None:
            raise FileError(
                f"{folder.path}: the tag {tag!r} is of the branch {told['branch']!r}, and loaderx "
                "reads the main one."
            )
        return int(told["version"])


class LanceFragments(BlockFiles):
    """The fragments of a version as columns."""

    def __init__(self, path: str, version: int, options: OpenOptions) -> None:
        self._path, self._version, self._fill = path, version, options.fill
        with reading(path):
            schema, fragments = self._data.schema, self._data.get_fragments()
            options.check_names(schema.names, path)
            types = ShardTypes(schema, path, options.columns)
            self.counts = [one.count_rows() for one in fragments]
            files = [file for one in fragments for file in one.metadata.files]
            stored = sum(one.physical_rows for one in fragments)
            packed = sum(file.file_size_bytes or 0 for file in files)
            self.nbytes = packed * sum(self.counts) // max(1, stored)  # without deleted rows
        self._ids = [one.fragment_id for one in fragments]
        self.shards = [f"{path}, fragment {number}" for number in self._ids]
        self._names, self.classes = types.names, types.classes
        self.kinds = keeping(types.kinds, options)
        if not sum(self.counts):
            raise FileError(f"{path}: there are no records in version {version}.")
        most = max(1, _BLOCK_BYTES * sum(self.counts) // max(1, self.nbytes))
        cuts = [[*range(0, rows, most), rows] for rows in self.counts]
        self._blocks = Parts([len(one) - 1 for one in cuts])
        self._starts = [one[:-1] for one in cuts]
        self.group_rows = np.concatenate([np.diff(one) for one in cuts])

    @cached_property
    def _data(self) -> lance.LanceDataset:
        try:
            import lance
        except ImportError as error:
            raise MissingPackageError(
                f"{self._path} is a Lance dataset, which needs the package pylance: "
                "pip install 'loaderx-jax[lance]'."
            ) from error
        return lance.dataset(self._path, version=self._version)

    def _scanner(self, **given: object) -> lance.LanceScanner:
        blobs = any(_BLOB in (field.metadata or {}) for field in self._data.schema)
        handling = {"blob_handling": "all_binary"} if blobs else {}  # else they come as addresses
        return self._data.scanner(self._names, scan_in_order=True, **handling, **given)

    def block(self, number: int) -> Mapping[str, ColumnData]:
        """The columns of a fragment, or of a part of it if it is large."""
        fragment, part = self._blocks.locate(number)
        start, rows = self._starts[fragment][part], int(self.group_rows[number])
        with reading(self.shards[fragment]):
            chosen = [self._data.get_fragment(self._ids[fragment])]
            table = self._scanner(fragments=chosen, offset=start, limit=rows).to_table()
            if table.num_rows != rows:
                raise FileError(
                    f"{self._path} is damaged: it says {rows} records, {table.num_rows} came."
                )
            data = [
                arrow_columns(batch, self._names, self.kinds, self._fill, self._path)
                for batch in table.to_batches()
            ]
            return {
                name: joined(self.kinds[name], [one[name] for one in data]) for name in self._names
            }

    def __getstate__(self) -> dict[str, object]:
        return {name: one for name, one in self.__dict__.items() if name != "_data"}
