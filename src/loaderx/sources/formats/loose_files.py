"""`LooseFiles`: many small files, each of them a value.

Names are kept as bytes, one after another in one array: a million of them take some 40 MB and no
Python object each.  Files are opened only to be read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.base import BadRecordError, Indices
from loaderx.sources.files.file_set import FileSet
from loaderx.sources.files.file_system import FileSystems
from loaderx.sources.format import Folder
from loaderx.sources.formats.splits import splits_of
from loaderx.sources.remote.urls import is_url

_SKIPPED = (".", "__MACOSX")  # hidden, or left behind by unpacking on another system
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a named pipe would wait for its writer
)


class LooseFiles:
    """Files by number."""

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        """``names`` are paths below the folder, or whole paths."""
        self._folder = os.fsencode(folder)
        encoded = [*map(os.fsencode, names)]
        self._names = np.frombuffer(b"".join(encoded), np.uint8)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self._ends = np.cumsum(lengths)

    def __len__(self) -> int:
        return len(self._ends)

    def path(self, number: int) -> str:
        (path,) = self._paths(np.array([number]))
        return os.fsdecode(path)

    def read(self, indices: Indices) -> Iterator[bytes]:
        """The content of these files, each read when it is requested."""
        return map(read_file, self._paths(indices))

    def _paths(self, indices: Indices) -> Iterator[bytes]:
        stops = self._ends[indices]
        starts = np.where(indices > 0, self._ends[indices - 1], 0)
        names = self._names.data
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            yield os.path.join(self._folder, bytes(names[start:stop]))


class UrlFiles:
    """Files behind URLs; those of a batch are fetched at once."""

    def __init__(self, paths: Sequence[str], systems: FileSystems) -> None:
        self._files = FileSet(paths, files=systems)

    def __len__(self) -> int:
        return len(self._files.paths)

    def path(self, number: int) -> str:
        return self._files.paths[number]

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


AnyFiles: TypeAlias = LooseFiles | UrlFiles


def files_in(folder: Folder, names: Sequence[str]) -> AnyFiles:
    """Files with these paths below a folder, in this order."""
    if is_url(folder.path):
        return UrlFiles([folder.join(name) for name in names], folder.file_systems)
    return LooseFiles(folder.path, names)


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


def folders_in(folder: Folder) -> list[Folder]:
    """The folders in a folder that may have data."""
    return [one for one in folder.folders if not one.name.startswith(_SKIPPED)]


def split_folders(folder: Folder) -> dict[str, Folder]:
    """The folders in a folder by split, in order; empty if they are classes."""
    named = {one.name: one for one in folders_in(folder)}
    return {split: named[name] for split, name in splits_of(named).items()}


def names_below(folder: Folder, inside: str = "") -> list[str]:
    """The paths of all files below a folder, relative to it: folder after folder, in order.

    ``inside`` stands before each.
    """
    # By the path without its slash, as other libraries do it: x comes before x-y.
    found = sorted(_listed(folder, inside), key=lambda one: os.fsencode(one[0].rstrip("/")))
    return [path + name for path, names in found for name in sorted(names, key=os.fsencode)]


def _listed(folder: Folder, inside: str) -> Iterator[tuple[str, list[str]]]:
    yield inside, [name for name in folder.files if not name.startswith(".")]
    for one in folders_in(folder):
        _check_link(folder, one)
        yield from _listed(one, f"{inside}{one.name}/")


def _check_link(folder: Folder, inside: Folder) -> None:
    """Refuses a link to a folder around it: its files would have no end."""
    if os.path.islink(inside.path):
        target = os.path.realpath(inside.path)
        if os.path.commonpath([target, os.path.realpath(folder.path)]) == target:
            raise FileError(
                f"{inside.path} is a link to {target}, in which it lies itself: remove it."
            )
