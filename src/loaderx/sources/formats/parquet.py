"""Parquet: copied once into the native layout, or read row group by row group (`blocks`)."""

from __future__ import annotations

from loaderx.sources.base import Source
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.blocks import open_blocks
from loaderx.sources.ondisk.file_set import FileSet
from loaderx.sources.parquet_files import ParquetFiles
from loaderx.sources.remote.urls import is_url


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of Parquet files."""

    def open_parquet() -> ParquetFiles:
        found = FileSet(files, files=options.cache.files)
        in_pieces = not options.cache.makes_copies and all(map(is_url, files))
        return ParquetFiles(found, options.columns, options.fill, in_pieces=in_pieces)

    return open_blocks(open_parquet, files, options, "parquet")
