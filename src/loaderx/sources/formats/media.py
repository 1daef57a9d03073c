"""Files of images or of sound, each of them a value: their columns, and tables of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from loaderx.frozen import Frozen
from loaderx.sources.audio import AUDIO_SUFFIXES, decode_audio, sampling_rate, soundfile_module
from loaderx.sources.base import BadRecordError, Indices
from loaderx.sources.columns.column import OBJECT, Column
from loaderx.sources.columns.table import TableSource
from loaderx.sources.decoding import Decoding, image_decoder
from loaderx.sources.files.npy import MAGIC
from loaderx.sources.files.parts import Located
from loaderx.sources.format import Folder
from loaderx.sources.formats.loose_files import AnyFiles, UrlFiles, folders_in
from loaderx.sources.formats.tar.values import decoder_of, reason
from loaderx.sources.images import IMAGE_SUFFIXES
from loaderx.tree import ArraySpec

METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
"""Files with columns for the files of their folder."""

MOST_LOOKED_AT = 100  # folders that are searched for a file, to recognise a format
_DEEPEST = 4
_OTHER_FORMATS = (
    ".parquet", ".arrow", ".feather", ".tar", ".tgz", ".gz", ".zst", ".jsonl", ".ndjson", ".csv",
    ".tsv", ".npy", ".npz", ".h5", ".hdf5", ".safetensors", ".bin", ".idx", ".mds", ".mdb",
    ".array_record", ".arrayrecord", ".tfrecord", ".tfrecords", ".riegeli",
)  # fmt: skip
_RATE = ArraySpec((), np.dtype(np.int32))


class FileColumn(Column):
    """The content of files, decoded or not."""

    def __init__(
        self,
        files: AnyFiles,
        decode: Callable[[bytes], object] | None,
        spec: ArraySpec | None = None,
    ) -> None:
        self.files, self._decode = files, decode
        self._spec = OBJECT if decode is None else spec
        self.is_large = self._spec is None
        self.is_named = False  # True if messages name the file, since records have several

    @property
    def spec(self) -> ArraySpec | None:
        return self._spec

    def values(self, at: Located) -> Sequence[object]:
        try:
            contents = self.files.read(at.rows)
            return list(contents if self._decode is None else map(self._decode, contents))
        except BadRecordError as error:
            if self.is_named and len(at) == 1:  # many are read again one by one
                path = self.files.path(int(at.rows[0]))
                raise BadRecordError(f"{path}: {error}") from error
            raise


class FilesTable(TableSource):
    """A record for each file, or for several files that belong together."""

    one_file_per_record = True

    def __init__(
        self,
        files: AnyFiles,
        columns: Mapping[str, Column],
        *,
        label: str,
        classes: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """``files`` say where a record is."""
        self._files = files
        read = [column.files for column in columns.values() if isinstance(column, FileColumn)]
        self._urls = {one for one in read if isinstance(one, UrlFiles)}
        super().__init__(dict(columns), len(files), label=label, classes=classes)

    def file_of(self, index: int) -> tuple[str, int]:
        return self._files.path(index), 0

    def where(self, index: int) -> str:
        return self._files.path(index)

    @property
    def fetches(self) -> bool:
        return bool(self._urls)

    def fetch(self, indices: Indices) -> int:
        return sum(one.fetch(indices) for one in self._urls)


# Kinds of files ---------------------------------------------------------------------------------


class Media(Frozen):
    """Files of one kind."""

    name: str  # of the format, and in messages
    leaf: str
    suffixes: tuple[str, ...]
    decoder: Callable[[bool | str], Callable[[bytes], object]]  # for a way of decoding

    def is_file(self, name: str) -> bool:
        return name.lower().endswith(self.suffixes) and not name.startswith(".")

    def columns(self, files: AnyFiles, leaf: str, decode: Decoding) -> dict[str, FileColumn]:
        """The columns of files, for a leaf with this name."""
        way = decode.of_file(leaf)
        found = {leaf: FileColumn(files, self.decoder(way) if way else None)}
        if way and self is AUDIO:
            rate = "sampling_rate" if leaf == self.leaf else f"{leaf}_sampling_rate"
            found[rate] = FileColumn(files, sampling_rate, _RATE)
        return found


def _audio_decoder(way: bool | str) -> Callable[[bytes], object]:
    soundfile_module()  # not at the first record, if it is not installed
    return decode_audio


def _decode_arrays(data: bytes) -> object:
    decode = decoder_of("npy" if data.startswith(MAGIC) else "npz", True, None)
    assert decode is not None
    try:
        return decode(data)
    except Exception as error:  # of damaged files zipfile raises almost anything
        raise BadRecordError(f"it is no file of arrays, or damaged: {reason(error)}") from error


ARRAYS = Media("arrays", "array", (".npy", ".npz"), lambda way: _decode_arrays)
AUDIO = Media("audio", "audio", AUDIO_SUFFIXES, _audio_decoder)
IMAGES = Media("images", "image", IMAGE_SUFFIXES, image_decoder)


# Folders ----------------------------------------------------------------------------------------


def metadata_of(folder: Folder) -> list[str]:
    """The files with metadata in a folder."""
    return [name for name in METADATA if folder.has(name)]


def has_other_data(folder: Folder, besides: Sequence[str] = ()) -> bool:
    """True if there are files in a folder that other formats would read."""
    return any(
        name.lower().endswith(_OTHER_FORMATS) and name not in besides for name in folder.files
    )


def holds(folder: Folder, media: Media) -> bool:
    """True if one of the first folders below a folder has such a file."""
    left, looked_at = [(folder, 0)], 0
    while left and looked_at < MOST_LOOKED_AT:
        one, depth = left.pop(0)
        looked_at += 1
        if depth and any(map(media.is_file, one.files)):
            return True
        if depth < _DEEPEST:
            left += [(below, depth + 1) for below in folders_in(one)]
    return False


def some_of(names: Sequence[str]) -> str:
    """A few names, for messages."""
    few = ", ".join(names[:3])
    return few if len(names) <= 3 else f"{few} and {len(names) - 3} more"
