"""Copies of files in the native layout, made once in the cache folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeVar

from loaderx.errors import FileError
from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.native.layout import Description, Shard, write_description
from loaderx.sources.native.writer import PartWriter
from loaderx.sources.progress import progress, tell

LEAST_BYTES = 1 << 20
"""Smaller text files are parsed at every opening: a copy would save little."""

Opened = TypeVar("Opened")


class CopiedFiles(Protocol):
    """The shards of a dataset, with their records as columns."""

    kinds: dict[str, ColumnType]
    classes: dict[str, tuple[str, ...]]
    counts: list[int]  # records of each shard; may be empty until all records were read
    nbytes: int  # approximate, of all columns, for the progress bar

    def steps(self) -> Iterator[Mapping[str, ColumnData]]:
        """All records in order, some at a time."""
        ...


def write_copy(
    found: CopiedFiles, files: list[str], folder: str, *, label: str, cache: str | None
) -> None:
    """Writes the columns of files into a folder, and logs it; ``label`` is their format."""
    count = f"{len(files)} {label} file{'s' if len(files) != 1 else ''}"
    what = f"copying {count} into {cache}"
    total = sum(found.counts)
    told = f"{total:,} records, " if total else ""
    tell(f"{what}: {told}{found.nbytes / 1e6:,.0f} MB, once")
    with progress(what, found.nbytes) as shown, PartWriter(folder, 0, found.kinds) as writer:
        for records in found.steps():
            before = writer.records
            writer.append(records)
            if total:
                shown.add(found.nbytes * (writer.records - before) // total)
            else:
                shown.add(sum(column.nbytes for column in records.values()))
        part = writer.close()
    shards = [Shard(file, records) for file, records in zip(files, found.counts, strict=True)]
    write_description(folder, Description(found.kinds, [part], found.classes, tuple(shards)))


def is_worth_a_copy(files: FileSet) -> bool:
    """True if text files are so large that it pays to parse them only once."""
    return sum(files.sizes) >= LEAST_BYTES


def opened_copy(find: Callable[[], str | None], read: Callable[[str], Opened]) -> Opened | None:
    """The copy that ``find`` finds or makes, opened by ``read``; None if there is none."""
    folder = find()
    try:
        return None if folder is None else read(folder)
    except FileError:  # the copy is damaged: it is made again
        shutil.rmtree(str(folder), ignore_errors=True)
        folder = find()
        return None if folder is None else read(folder)
