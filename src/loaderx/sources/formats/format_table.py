"""All formats of `Dataset.open`: their names, suffixes and marks.

A format has a module below `loaderx.sources`, with a function ``open_files``, or ``is_folder`` and
``folder_splits``.  It is imported when it is asked: to open one format, or to look at a folder.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

from loaderx.sources.base import Source
from loaderx.sources.format import FileFormat, Folder, FolderFormat, OpenOptions, Splits
from loaderx.sources.formats import heads


def _imported(module: str) -> ModuleType:
    return importlib.import_module(f"loaderx.sources.{module}")


def _files(
    name: str,
    *suffixes: str,
    is_head: Callable[[bytes], bool] | None = None,
    weak: tuple[str, ...] = (),
    module: str = "",
) -> FileFormat:
    def open_files(files: list[str], options: OpenOptions) -> Source:
        source: Source = _imported(module or f"formats.{name}").open_files(files, options)
        return source

    return FileFormat(name, suffixes, open_files, is_head, weak)


def _folder(name: str, module: str = "", *, marks: str = "") -> FolderFormat:
    def is_folder(folder: Folder) -> bool:
        return bool(_imported(module or f"formats.{name}").is_folder(folder))

    def splits(folder: Folder, options: OpenOptions) -> Splits:
        found: Splits = _imported(module or f"formats.{name}").folder_splits(folder, options)
        return found

    return FolderFormat(name, is_folder, splits, marks)


FILE_FORMATS: tuple[FileFormat, ...] = (
    _files(
        "array_record",
        ".arrayrecord", ".array_record", ".arecord",
        is_head=heads.is_array_record,
        module="formats.tf.array_record_files",
    ),
    _files(
        "arrow", ".arrow", ".feather", ".ipc", ".arrows", is_head=heads.is_arrow,
        module="formats.arrow.arrow",
    ),
    _files("csv", ".csv", ".tsv", ".tab"),
    _files("hdf5", ".h5", ".hdf5", ".hdf", is_head=heads.is_hdf5),
    _files("idx", "-ubyte", ".idx1", ".idx3", is_head=heads.is_idx),
    # No suffixes: pictures that lie beside the files of another format are no reason to ask which.
    _files("images", is_head=heads.is_image, module="formats.image_folder"),
    _files("jsonl", ".jsonl", ".ndjson", ".json", weak=(".json",), module="formats.lines.jsonl"),
    _files("megatron", ".bin", ".idx", is_head=heads.is_megatron),
    _files("npy", ".npy", ".npz", is_head=heads.is_npy),
    _files(
        "parquet", ".parquet", ".pq", ".parq", is_head=heads.is_parquet,
        module="formats.parquet.parquet",
    ),
    _files("safetensors", ".safetensors", is_head=heads.is_safetensors),
    _files("text", ".txt", weak=(".txt",), module="formats.lines.text"),
    _files(
        "tfrecord", ".tfrecord", ".tfrecords", ".tfrec", is_head=heads.is_tfrecord,
        module="formats.tf.tfrecord",
    ),
    _files("webdataset", ".tar", is_head=heads.is_tar, module="formats.tar.webdataset"),
)  # fmt: skip
FOLDER_FORMATS: tuple[FolderFormat, ...] = (
    _folder(
        "huggingface",
        "formats.arrow.huggingface",
        marks="state.json, dataset_dict.json, or .arrow files with dataset_info.json",
    ),
    _folder("idx"),
    _folder("images", "formats.image_folder"),
    _folder("mds"),
    _folder("loaderx", "native.reader", marks="loaderx.json"),
    _folder("npy"),
    _folder("tfds", "formats.tf.tfds"),
    _folder("zarr", marks=".zarray or .zgroup or zarr.json"),
)
