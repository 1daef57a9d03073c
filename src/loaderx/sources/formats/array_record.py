"""ArrayRecord files, read without the library of that name.

What a record means is not said in the file: records are ``{"data": bytes}``.  Where these are
Examples, ``.map(lambda record: parse_example(record["data"]))`` takes them apart.  Simple chunks,
uncompressed or compressed with zstd, are what every writer makes that is not told otherwise; the
others are left to the library.
"""

from __future__ import annotations

from loaderx.errors import FileError
from loaderx.sources.base import Source
from loaderx.sources.format import OpenOptions
from loaderx.sources.formats.tf.array_record_files import ArrayRecordFiles
from loaderx.sources.formats.tf.payloads import NAME, PayloadSource
from loaderx.sources.ondisk.cache import CacheFolder
from loaderx.sources.ondisk.file_set import FileSet


def open_array_records(files: list[str], cache: CacheFolder) -> PayloadSource:
    """The records of files, as bytes."""
    reader = ArrayRecordFiles(FileSet(files, files=cache.files), cache)
    if not len(reader):
        raise FileError(f"{files[0]} has no records.")
    return PayloadSource(reader, "array_record")


def open_files(files: list[str], options: OpenOptions) -> Source:
    """The records of files of this format."""
    options.chosen([NAME], files[0])
    return open_array_records(files, options.cache)
