"""`LooseFiles`: many small files, each of them a record.

Names are kept as bytes, one after another in one array: a million of them take some 30 MB and no
Python object each.  Listing takes no system call for each file (`os.scandir` knows folders from
files); files are opened only to be read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loaderx.errors import FileError
from loaderx.sources.base import BadRecordError, Indices
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.file_system import FileSystems
from loaderx.sources.files.parts import Parts

_SKIPPED = b"__MACOSX"  # files that unpacking on another system leaves behind
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a named pipe would wait for its writer
)


class FolderFiles(NamedTuple):
    """The names of files in a folder, one after another, and the length of each."""

    folder: bytes
    names: bytes
    lengths: npt.NDArray[np.uint16]  # a name has 255 bytes at most, on Windows 765

    @staticmethod
    def of(folder: bytes, names: Sequence[bytes]) -> FolderFiles:
        return FolderFiles(
            folder, b"".join(names), np.fromiter(map(len, names), np.uint16, len(names))
        )


class LooseFiles:
    """Files by number: folder after folder, and by name within each."""

    def __init__(self, listed: Sequence[FolderFiles]) -> None:
        self.folders = [one.folder for one in listed]
        self.parts = Parts([len(one.lengths) for one in listed])
        self._names = np.frombuffer(b"".join(one.names for one in listed), np.uint8)
        lengths = np.concatenate([np.empty(0, np.uint16), *(one.lengths for one in listed)])
        self._ends = np.cumsum(lengths, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.parts)

    def path(self, number: int) -> str:
        (path,) = self._paths(np.array([number]))
        return os.fsdecode(path)

    def folder_numbers(self, indices: Indices) -> npt.NDArray[np.intp]:
        """The folder of each of these files."""
        return np.searchsorted(self.parts.ends, indices, side="right")

    def read(self, indices: Indices) -> Iterator[bytes]:
        """The content of these files, each read when it is requested."""
        return map(read_file, self._paths(indices))

    def _paths(self, indices: Indices) -> Iterator[bytes]:
        stops = self._ends[indices]
        starts = np.where(indices > 0, self._ends[indices - 1], 0)
        folders, names = self.folder_numbers(indices).tolist(), self._names.data
        for folder, start, stop in zip(folders, starts.tolist(), stops.tolist(), strict=True):
            yield os.path.join(self.folders[folder], bytes(names[start:stop]))


class UrlFiles:
    """Files behind URLs, each of them a record; the files of a batch are fetched at once."""

    def __init__(self, folders: Sequence[Sequence[str]], systems: FileSystems) -> None:
        self.parts = Parts([len(one) for one in folders])
        self._files = FileSet([path for one in folders for path in one], files=systems)

    def __len__(self) -> int:
        return len(self.parts)

    def path(self, number: int) -> str:
        return self._files.paths[number]

    def folder_numbers(self, indices: Indices) -> npt.NDArray[np.intp]:
        """The folder of each of these files."""
        return np.searchsorted(self.parts.ends, indices, side="right")

    def read(self, indices: Indices) -> Iterator[bytes]:
        """The content of these files."""
        if len(indices) > 1:
            self.fetch(indices)
        return map(self._read, indices.tolist())

    def fetch(self, indices: Indices) -> int:
        """Fetches these files to disk; returns the number of bytes that were fetched."""
        return self._files.fetch_files(np.unique(indices).tolist())

    def _read(self, number: int) -> bytes:
        with self._files.open(number) as file:
            return file.read()


def read_file(path: bytes) -> bytes:
    """The whole content of a file.  Three system calls: Python's own files take twice the time."""
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError as error:
        raise BadRecordError("the file no longer exists.") from error
    except OSError as error:
        raise BadRecordError(f"it cannot be opened: {error.strerror}.") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadRecordError("it is not a regular file.")
        data = os.read(descriptor, status.st_size)
        while len(data) < status.st_size:  # the system reads 2 GB at most at a time
            piece = os.read(descriptor, status.st_size - len(data))
            if not piece:
                raise BadRecordError("it has shrunk while it was read.")
            data += piece
    except OSError as error:
        raise BadRecordError(f"it cannot be read: {error.strerror}.") from error
    finally:
        os.close(descriptor)
    return data


# Listing ----------------------------------------------------------------------------------------


def list_folder(folder: bytes, suffixes: tuple[bytes, ...]) -> tuple[list[bytes], list[bytes]]:
    """The names of the folders in a folder, and of its files with one of these endings; sorted.

    Hidden ones are left out.
    """
    folders: list[bytes] = []
    files: list[bytes] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith(b".") or name == _SKIPPED:
                    continue
                if entry.is_dir():
                    _check_link(folder, entry)
                    folders.append(name)
                elif name.lower().endswith(suffixes):
                    files.append(name)
    except OSError as error:
        raise FileError(
            f"the folder {os.fsdecode(folder)} cannot be read: {error.strerror}."
        ) from error
    return sorted(folders), sorted(files)


def _check_link(folder: bytes, entry: os.DirEntry[bytes]) -> None:
    """Refuses a link to a folder around it: its files would have no end."""
    if entry.is_symlink():
        target = os.path.realpath(entry.path)
        if os.path.commonpath([target, os.path.realpath(folder)]) == target:
            raise FileError(
                f"{os.fsdecode(entry.path)} is a link to {os.fsdecode(target)}, in which it lies "
                "itself: remove it."
            )


def list_below(folder: bytes, suffixes: tuple[bytes, ...]) -> list[FolderFiles]:
    """The folders with such files, this one and those below it, sorted by path."""
    found: list[FolderFiles] = []
    left = [folder]
    while left:
        one = left.pop()
        folders, files = list_folder(one, suffixes)
        left += [os.path.join(one, name) for name in folders]
        if files:
            found.append(FolderFiles.of(one, files))
    return sorted(found, key=lambda one: one.folder)
