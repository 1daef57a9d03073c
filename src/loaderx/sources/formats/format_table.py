"""All formats of `Dataset.open`: their names, suffixes and marks; `register` adds to them.

A format has a module below `loaderx.sources`, with a function ``open_files``, or ``is_folder`` and
``folder_splits``.  It is imported when it is needed: to open the format, or to look at a folder.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from types import ModuleType

from loaderx.errors import ArgumentError, ArgumentTypeError
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
    has_splits: bool = False,
) -> FileFormat:
    def open_files(files: list[str], options: OpenOptions) -> Source:
        source: Source = _imported(module or f"formats.{name}").open_files(files, options)
        return source

    def splits(files: list[str], options: OpenOptions) -> Splits:
        found: Splits = _imported(module or f"formats.{name}").file_splits(files, options)
        return found

    return FileFormat(name, suffixes, open_files, is_head, weak, splits if has_splits else None)


def _folder(name: str, module: str = "", *, marks: str = "") -> FolderFormat:
    def is_folder(folder: Folder) -> bool:
        return bool(_imported(module or f"formats.{name}").is_folder(folder))

    def splits(folder: Folder, options: OpenOptions) -> Splits:
        found: Splits = _imported(module or f"formats.{name}").folder_splits(folder, options)
        return found

    return FolderFormat(name, is_folder, splits, marks)


FILE_FORMATS: list[FileFormat] = [
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
    _files("csv", ".csv", ".tsv", ".tab", module="formats.csv.csv"),
    _files("hdf5", ".h5", ".hdf5", ".hdf", is_head=heads.is_hdf5, has_splits=True),
    _files("idx", "-ubyte", ".idx1", ".idx3", is_head=heads.is_idx),
    # No suffixes: media beside the files of another format do not make the format ambiguous.
    _files("audio", is_head=heads.is_audio, module="formats.audio_folder"),
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
]  # fmt: skip
FOLDER_FORMATS: tuple[FolderFormat, ...] = (
    _folder("arrays", "formats.array_folder"),
    _folder("audio", "formats.audio_folder"),
    _folder(
        "huggingface",
        "formats.arrow.huggingface",
        marks="state.json, dataset_dict.json, or .arrow files with dataset_info.json",
    ),
    _folder("idx"),
    _folder("image_pairs"),
    _folder("images", "formats.image_folder"),
    _folder("lance", marks="_versions"),
    _folder("metadata", "formats.metadata_folder"),
    _folder("mds"),
    _folder("loaderx", "native.reader", marks="loaderx.json"),
    _folder("npy"),
    _folder("tfds", "formats.tf.tfds"),
    _folder("zarr", marks=".zarray or .zgroup or zarr.json"),
)

ENTRY_POINTS = "loaderx.formats"
_OWN = {one.name for one in FILE_FORMATS} | {one.name for one in FOLDER_FORMATS}


def register(format: FileFormat) -> None:
    """Adds a format to those of `Dataset.open` and of the command line.

    A package needs no call: an entry point of the group ``loaderx.formats`` that leads to
    a `FileFormat` is found when a file is of no other format.

    >>> from loaderx.sources import mapped_arrays
    >>> register(FileFormat("rows", (".rows",), mapped_arrays(lambda data, path: {"x": data})))
    """
    if not isinstance(format, FileFormat):
        raise ArgumentTypeError(f"`register` needs a FileFormat, got {format!r}.")
    if format.name in _OWN:
        raise ArgumentError(
            f"loaderx has a format {format.name!r} of its own: choose another name."
        )
    suffixes: object = format.suffixes
    if not isinstance(suffixes, tuple) or not all(map(_is_suffix, suffixes)):
        raise ArgumentError(
            f"the suffixes of a format are a tuple of lower case, such as ('.rows',), got "
            f"{suffixes!r}."
        )
    # A cell of a notebook that is run again replaces what it registered.
    FILE_FORMATS[:] = [one for one in FILE_FORMATS if one.name != format.name] + [format]


def _is_suffix(text: object) -> bool:
    return isinstance(text, str) and text[:1] in (".", "-", "_") and text == text.lower()


@cache
def register_installed() -> bool:
    """Registers the formats that installed packages name; True if there are any."""
    from importlib.metadata import entry_points  # late: it takes longer than all of loaderx

    found = entry_points(group=ENTRY_POINTS)
    for entry in found:
        register(entry.load())
    return bool(found)
