"""Copies of files in the native layout, made once in the cache folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.native.layout import Description, Shard, write_description
from loaderx.sources.native.writer import PartWriter
from loaderx.sources.progress import progress


class CopiedFiles(Protocol):
    """The shards of a dataset, whose records come as columns."""

    kinds: dict[str, ColumnType]
    classes: dict[str, tuple[str, ...]]
    counts: list[int]  # records of each shard
    nbytes: int  # of all columns, more or less: progress is shown in it

    def steps(self) -> Iterator[Mapping[str, ColumnData]]:
        """All records in order, some at a time."""
        ...


def write_copy(
    found: CopiedFiles, files: list[str], folder: str, *, label: str, cache: str | None
) -> None:
    """Writes the columns of files into a folder, and says so; ``label`` is their format."""
    count = f"{len(files)} {label} file{'s' if len(files) != 1 else ''}"
    what = f"copying {count} into {cache}"
    total = sum(found.counts)
    _log(f"{what}: {total:,} records, {found.nbytes / 1e6:,.0f} MB, once")
    with progress(what, found.nbytes) as shown, PartWriter(folder, 0, found.kinds) as writer:
        for records in found.steps():
            before = writer.records
            writer.append(records)
            shown.add(found.nbytes * (writer.records - before) // total)
        part = writer.close()
    shards = [Shard(file, records) for file, records in zip(files, found.counts, strict=True)]
    write_description(folder, Description(found.kinds, [part], found.classes, tuple(shards)))


def _log(text: str) -> None:
    import logging  # late: it is slow to import

    logging.getLogger("loaderx").info(text)
