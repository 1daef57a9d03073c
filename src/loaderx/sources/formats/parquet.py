"""Parquet: copied once into the native layout, or read row group by row group (`blocks`)."""

from __future__ import annotations

from loaderx.sources.base import Source
from loaderx.sources.format import FileFormat, OpenOptions
from loaderx.sources.formats.blocks import open_blocks
from loaderx.sources.ondisk.file_set import FileSet
from loaderx.sources.parquet_files import ParquetFiles


def _open(files: list[str], options: OpenOptions) -> Source:
    def open_files() -> ParquetFiles:
        return ParquetFiles(FileSet(files), options.columns, options.fill)

    return open_blocks(open_files, files, options, "parquet")


def _is_head(head: bytes) -> bool:
    return head.startswith((b"PAR1", b"PARE"))


PARQUET = FileFormat(
    name="parquet", suffixes=(".parquet", ".pq", ".parq"), open=_open, is_head=_is_head
)
