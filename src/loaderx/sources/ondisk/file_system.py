"""Where paths lead: the small interface behind which files lie.

There is one file system now, the local one.  Everything above asks through `FileSystem`, so that
object stores can be added beside it.
"""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.mapping import Identity, changed, map_array, open_regular
from loaderx.tree import Array

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class FileSystem(Protocol):
    """What must be known of files to read records from them."""

    def is_file(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...

    def names(self, folder: str) -> list[str]:
        """What lies in a folder, sorted; the names of folders end with a slash."""
        ...

    def identity(self, path: str) -> Identity:
        """What tells a file from another, and from itself after a change."""
        ...

    def open(self, path: str) -> AbstractContextManager[BinaryIO]: ...

    def map(self, path: str, identity: Identity) -> Array:
        """The bytes of a file, which must still be the one that has this identity."""
        ...


class LocalFileSystem:
    """Files of this machine."""

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def names(self, folder: str) -> list[str]:
        try:
            with os.scandir(folder) as entries:
                return sorted(f"{one.name}/" if one.is_dir() else one.name for one in entries)
        except OSError as error:
            raise FileError(f"the folder {folder} cannot be read: {error}.") from error

    def identity(self, path: str) -> Identity:
        found = Identity.at(path)
        if found is None:
            raise FileError(f"there is no file {path}.")
        return found

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        return open_regular(path)

    def map(self, path: str, identity: Identity) -> Array:
        with open_regular(path) as file:
            if change := identity.change(Identity.of(file)):
                raise changed(path, change)
            if not identity.size:  # an empty file cannot be mapped
                return np.empty(0, np.uint8)
            return map_array(file, np.dtype(np.uint8), (identity.size,))


LOCAL = LocalFileSystem()


def file_system_of(path: str) -> FileSystem:
    """The file system that a path belongs to."""
    if _URL.match(path):
        raise FileError(
            f"{path} is a URL, and loaderx reads files of this machine only. Download it first, or "
            "mount the store."
        )
    return LOCAL
