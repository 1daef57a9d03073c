"""Objects of other libraries that stand for files, which are then read without them."""

from __future__ import annotations

from typing import Any

from loaderx.sources.base import Source

_READERS = ("__getitem__", "__getitems__")


def source_of_files(obj: Any) -> Source | None:
    """The source that reads the files of an object; None if it stands for none that are known."""
    if _is(obj, "array_record.python.array_record_data_source", "ArrayRecordDataSource"):
        from loaderx.sources.formats.tf.data_sources import array_record_source  # slow to import

        return array_record_source(obj)
    if _is(obj, "tensorflow_datasets.core.data_sources.array_record", "ArrayRecordDataSource"):
        from loaderx.sources.formats.tf.data_sources import tfds_source

        return tfds_source(obj)
    return None


def _is(obj: Any, module: str, name: str) -> bool:
    """Is it of this class, or of one below it that reads in the same way?"""
    for kind in type(obj).__mro__:
        if kind.__module__ == module and kind.__name__ == name:
            return all(getattr(type(obj), one) is getattr(kind, one) for one in _READERS)
    return False
