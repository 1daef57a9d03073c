"""Parquet: copied once into the native layout, or read row group by row group (`blocks`)."""

from __future__ import annotations

from loaderx.sources.base import Source
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.blocks import open_blocks
from loaderx.sources.ondisk.file_set import FileSet
from loaderx.sources.parquet_files import ParquetFiles


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of Parquet files."""

    def open_parquet() -> ParquetFiles:
        return ParquetFiles(
            FileSet(files, files=options.cache.files), options.columns, options.fill
        )

    return open_blocks(open_parquet, files, options, "parquet")
