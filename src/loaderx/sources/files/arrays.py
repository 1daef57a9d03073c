"""Arrays in files: ``.npy``, ``.npz``, a folder of ``.npy``.  Mapped, never unpickled.

An uncompressed ``.npz`` is a zip archive that holds its members byte for byte, so each can be
mapped.  A compressed member cannot; it is unpacked once, when it is first needed.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import numpy as np

from loaderx.errors import FileError, warn_user
from loaderx.frozen import Frozen
from loaderx.locks import new_lock
from loaderx.sources.base import ForWorkers, Indices
from loaderx.sources.files.file_set import FileRanges, FileSet
from loaderx.sources.files.file_system import LOCAL_FILES, FileSystems
from loaderx.sources.files.npy import MAGIC, Header, read_header
from loaderx.sources.files.paths import missing, unpacked_name
from loaderx.sources.files.unpacking import Unpacked
from loaderx.sources.mapping import (
    LARGE_UNPACKED,
    Identity,
    changed,
    map_array,
    read_exactly,
    reading,
)
from loaderx.sources.remote.urls import is_url
from loaderx.tree import Array, DType, Leaf


class PlacedArray(Frozen):
    """An array in a file of a set; a `LazyArray`."""

    files: FileSet
    number: int
    offset: int  # bytes
    dtype: DType
    shape: tuple[int, ...]
    fortran: bool = False
    strides: tuple[int, ...] | None = None
    in_pieces: bool = False  # behind a URL: are rows fetched as they are read?  In C order.

    @property
    def is_fetched(self) -> bool:
        return self.in_pieces and self.files.files.is_remote(self.files.paths[self.number])

    def array(self) -> Array:
        """The array, read-only."""
        if 0 in self.shape:  # its file may have no bytes to map
            return np.empty(self.shape, self.dtype)
        return self.on(self.files.data(self.number))

    def on(self, data: Array) -> Array:
        """The array on the bytes of its file."""
        order: Literal["F", "C"] = "F" if self.fortran else "C"
        return np.ndarray(self.shape, self.dtype, data, self.offset, self.strides, order)

    def __getitem__(self, index: slice | Indices) -> Leaf:
        return self.array()[index]


class PlacedArrays:
    """One array in each part; an `ArrayOf`."""

    def __init__(self, arrays: Sequence[PlacedArray]) -> None:
        self._arrays = list(arrays)
        self.is_mapped = not any(one.files.is_remote for one in self._arrays)
        self._kept: dict[int, Array] = {}  # for few files, whose maps stay anyway

    def __call__(self, part: int) -> Array:
        found = self._kept.get(part)
        if found is None:
            found = self._arrays[part].array()
            if self._arrays[part].files.keeps_maps:
                self._kept[part] = found
        return found

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": {}}


class FetchedPlacedArrays(PlacedArrays):
    """Those behind URLs, in C order: rows are fetched as they are needed; a `FetchedArrays`."""

    def rows(self, part: int, starts: Indices, lengths: Indices | int) -> Array:
        ranges, one = self._ranges(part, starts, lengths), self._arrays[part]
        if ranges is None:
            return self(part)
        whole = one.files.whole(one.number)
        return one.on(one.files.data_with(ranges) if whole is None else whole)

    def needs(
        self, part: int, starts: Indices, lengths: Indices | int
    ) -> list[tuple[FileSet, FileRanges]]:
        ranges, files = self._ranges(part, starts, lengths), self._arrays[part].files
        if ranges is None or not len(ranges.starts) or files.whole(ranges.number) is not None:
            return []
        return [(files, ranges)]

    def _ranges(self, part: int, starts: Indices, lengths: Indices | int) -> FileRanges | None:
        """The bytes of rows, as far as there are such; None if the whole file is here anyway."""
        one = self._arrays[part]
        if 0 in one.shape or not one.is_fetched:
            return None
        width = one.dtype.itemsize * math.prod(one.shape[1:])
        rows = np.clip([starts, starts + lengths], 0, one.shape[0])
        first, stops = rows * width + one.offset
        is_some = stops > first
        return FileRanges(one.number, first[is_some], stops[is_some])


def placed_arrays(arrays: Sequence[PlacedArray]) -> PlacedArrays:
    """Arrays in files, one in each part; those behind URLs are fetched in pieces."""
    is_fetched = any(one.is_fetched for one in arrays)
    return (FetchedPlacedArrays if is_fetched else PlacedArrays)(arrays)


_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, then the lengths of name and extra field
_MOST_DEFLATED = 1032  # bytes that one byte of a deflate stream can unpack to


Opened: TypeAlias = "Array | CompressedArray | PlacedArray"
MapArray: TypeAlias = "Callable[[BinaryIO, Header, int], Array | PlacedArray]"


def open_arrays(
    path: str | os.PathLike[str],
    keys: Sequence[str] | None = None,
    systems: FileSystems = LOCAL_FILES,
) -> dict[str, Opened]:
    """The named arrays of a file or folder (all of them by default), mapped into memory."""
    given = os.fspath(path)
    place = given if is_url(given) else str(Path(given))
    system, (stem, suffix) = systems.of(place), os.path.splitext(unpacked_name(place))
    if system.is_folder(place):
        listed = (name.rstrip("/") for name in system.names(place))
        names = [name for name in listed if name.endswith(".npy")]  # a folder is refused below
        members = {name.removesuffix(".npy"): os.path.join(place, name) for name in names}
        if not members:
            raise FileError(f"{place} has no .npy files.")
        return {key: open_npy(members[key], systems) for key in _chosen(place, list(members), keys)}
    if not (is_url(place) or os.path.exists(place)):
        raise missing(place)
    with system.open(place) as file:
        # By the first bytes: the data of an .npy may look like the end of a zip archive.
        is_npy = file.read(len(MAGIC)) == MAGIC
        if not is_npy and zipfile.is_zipfile(file):
            return _open_npz(place, file, keys, _Mapper(place), systems)
        if suffix == ".npz":
            raise FileError(
                f"{place} is not a zip archive: it is not an .npz file, or it is cut off."
            )
        if not is_npy and suffix != ".npy":
            raise FileError(
                f"{place} is not a NumPy array file (.npy, .npz). Other formats are opened by "
                "Dataset.open(path)."
            )
        return dict.fromkeys(_chosen(place, [stem], keys), _map_npy(place, file))


def open_shard(files: FileSet, number: int, keys: Sequence[str] | None) -> dict[str, Opened]:
    """The arrays of one ``.npz`` among many: they are mapped when they are read."""

    def placed(file: BinaryIO, header: Header, start: int) -> PlacedArray:
        shape, fortran, dtype, inside = header
        return PlacedArray(files, number, start + inside, dtype, shape, fortran)

    place = files.paths[number]
    with files.open(number) as file:
        if not zipfile.is_zipfile(file):
            raise FileError(
                f"{place} is not a zip archive: it is not an .npz file, or it is cut off."
            )
        return _open_npz(place, file, keys, placed, files.files)


def _chosen(place: str, have: list[str], keys: Sequence[str] | None) -> list[str]:
    if keys is None:
        return have
    wanted, known = [key.removesuffix(".npy") for key in keys], set(have)
    for key in wanted:
        if key not in known:
            raise FileError(f"{place} has no array {key!r}; it has {', '.join(map(repr, have))}.")
    return wanted


def open_npy(place: str, systems: FileSystems = LOCAL_FILES) -> Array:
    """The array of an ``.npy`` file, mapped into memory."""
    with systems.open(place) as file:
        return _map_npy(place, file)


def _map_npy(place: str, file: BinaryIO) -> Array:
    file.seek(0)
    header = read_header(file, os.fstat(file.fileno()).st_size, f"{place}")
    with reading(f"{place}"):
        return _Mapper(place)(file, header, 0)


class _Mapper:
    """Maps a file once, for all of its arrays."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._data: Array | None = None

    def __call__(self, file: BinaryIO, header: Header, start: int) -> Array:
        if 0 in header.shape:
            return np.empty(header.shape, header.dtype)
        if self._data is None:
            size = os.fstat(file.fileno()).st_size
            # The map of a download holds its lock, so that it is not evicted.
            holding = is_url(self._place)
            self._data = map_array(file, np.dtype(np.uint8), (size,), holding=holding)
        order: Literal["F", "C"] = "F" if header.fortran else "C"
        return np.ndarray(header.shape, header.dtype, self._data, start + header.start, order=order)


def _open_npz(
    place: str, file: BinaryIO, keys: Sequence[str] | None, mapper: MapArray, systems: FileSystems
) -> dict[str, Opened]:
    with reading(f"{place}"), zipfile.ZipFile(file) as archive:
        infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        members = {info.filename.removesuffix(".npy"): info for info in infos}
        if not members:
            raise FileError(f"{place} has no arrays (.npy members).")
        if len(members) < len(infos):
            names = [info.filename for info in infos]
            double = next(name for name in names if names.count(name) > 1)
            raise FileError(f"{place} has two arrays with the name {double!r}: save it again.")
        ends = _ends(archive)
        opened: dict[str, Opened] = {}
        for key in _chosen(place, list(members), keys):
            where = f"{place}, array {key!r}"
            found = _open_member(file, archive, members[key], ends, where, mapper)
            if not isinstance(found, Header):
                opened[key] = found
                continue
            identity = None if systems.is_remote(place) else Identity.of(file)
            size = os.fstat(file.fileno()).st_size
            opened[key] = CompressedArray(place, members[key], found, size, identity, systems)
    _warn_if_large(place, opened)
    return opened


def _warn_if_large(place: str, opened: dict[str, Opened]) -> None:
    nbytes = sum(one.nbytes for one in opened.values() if isinstance(one, CompressedArray))
    if nbytes >= LARGE_UNPACKED:
        warn_user(
            f"{place} is compressed: its arrays are read whole into memory ({nbytes / 1e9:,.1f} GB)"
            " when they are first used. Save them with np.savez instead of np.savez_compressed to "
            "have them mapped."
        )


def _ends(archive: zipfile.ZipFile) -> dict[int, int]:
    """Where each member must end: at the next one or at the directory."""
    starts = sorted({info.header_offset for info in archive.infolist()})
    return dict(zip(starts, [*starts[1:], archive.start_dir], strict=True))


def _open_member(
    file: BinaryIO,
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    ends: dict[int, int],
    where: str,
    mapper: MapArray,
) -> Array | PlacedArray | Header:
    """The array; if compressed, with only its header read."""
    with reading(where):
        start = _data_offset(file, info.header_offset, where)
        _check_room(info, ends[info.header_offset] - start, where)
        with archive.open(info) as member:  # checks names, flags and passwords
            if info.compress_type == zipfile.ZIP_STORED:
                return mapper(file, read_header(member, info.file_size, where), start)
        return read_header(Unpacked(file, start, info), info.file_size, where)


def _data_offset(file: BinaryIO, header: int, where: str) -> int:
    file.seek(header)
    raw = file.read(_LOCAL_HEADER.size)
    if len(raw) < _LOCAL_HEADER.size or raw[:4] != b"PK\x03\x04":
        raise FileError(f"{where}: the archive is damaged.")
    _, name, extra = _LOCAL_HEADER.unpack(raw)
    return header + _LOCAL_HEADER.size + int(name) + int(extra)


def _check_room(info: zipfile.ZipInfo, room: int, where: str) -> None:
    """Refuses a member that does not fit in its place, or claims an impossible unpacked size."""
    held = info.compress_size
    if held > room:
        raise FileError(
            f"{where} is damaged: the archive says that it has {held} bytes, and there is room "
            f"for {max(0, room)}."
        )
    factor = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: _MOST_DEFLATED}.get(info.compress_type)
    if factor is not None and info.file_size > held * factor:
        raise FileError(
            f"{where} is damaged: {held} bytes of the archive cannot unpack to the "
            f"{info.file_size} bytes that it promises."
        )


class CompressedArray(ForWorkers):
    """A compressed array of an ``.npz``: its header is read at once, its data on first use."""

    def __init__(
        self,
        place: str,
        member: zipfile.ZipInfo,
        header: Header,
        size: int,
        identity: Identity | None,
        systems: FileSystems,
    ) -> None:
        """``size`` and ``identity`` are those of the archive."""
        is_known = is_url(place) or systems.has_copy(place)
        self._place = place if is_known else os.path.realpath(place)
        self._member, self._header = member, header
        self._size, self._identity = size, identity
        self._systems = systems
        self._array: Array | None = None
        self._lock = new_lock()

    @property
    def nbytes(self) -> int:
        return self._header.nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        return self._header.shape

    @property
    def dtype(self) -> DType:
        return self._header.dtype

    def whole(self) -> Array:
        """The array, read by the first call."""
        with self._lock:
            if self._array is None:
                self._array = self._read()
        return self._array

    def __getitem__(self, index: slice | Indices) -> Leaf:
        return self.whole()[index]

    def _read(self) -> Array:
        info = self._member
        where = f"{self._place}, array {info.filename.removesuffix('.npy')!r}"
        with self._systems.open(self._place) as file, reading(where):
            now = Identity.of(file)
            known = self._identity or now._replace(size=self._size)
            if change := known.change(now):
                raise changed(self._place, change)
            if self._identity is None:  # the file may be another one of the same size
                info = _member_now(file, info.filename)
            # The directory is not read again: it is long if there are many arrays.
            member = Unpacked(file, _data_offset(file, info.header_offset, where), info)
            header = read_header(member, info.file_size, where)
            if header != self._header:
                raise changed(self._place, "has been written to")
            return header.array(read_exactly(member, header.nbytes, where))

    def for_workers(self) -> tuple[object, ...]:
        """Unpacked, so that the array goes to all workers as one copy in shared memory."""
        return _with_array, (self.__getstate__(), self.whole())

    def __getstate__(self) -> dict[str, object]:
        # On another machine the same file has another inode; its size and header are checked when
        # it is read.
        return {**self.__dict__, "_array": None, "_lock": None, "_identity": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _lock=new_lock())


def _member_now(file: BinaryIO, name: str) -> zipfile.ZipInfo:
    with zipfile.ZipFile(file) as archive:
        return archive.getinfo(name)


def _with_array(state: dict[str, object], array: Array) -> CompressedArray:
    made = CompressedArray.__new__(CompressedArray)
    made.__setstate__({**state, "_array": array})
    return made
