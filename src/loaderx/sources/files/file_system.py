"""The small interface through which all files are read.

Files lie on this machine or behind URLs.  All other modules use `FileSystems`, which knows the file
system of each path, and the cache folder into which files behind URLs are fetched.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeAlias

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.mapping import Identity, changed, map_array, open_regular
from loaderx.sources.remote.urls import is_url, scheme_of
from loaderx.tree import Array

if TYPE_CHECKING:
    from loaderx.sources.remote.fsspec_store import FsspecFileSystem
    from loaderx.sources.remote.options import StorageOptions
    from loaderx.sources.remote.remote_files import RemoteFiles
    from loaderx.sources.remote.store import RemoteFile

FileIdentity: TypeAlias = "Identity | RemoteFile"


class FileSystem(Protocol):
    """The operations on files that reading records needs."""

    def is_file(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; those of folders end with a slash."""
        ...

    def glob(self, folder: str, pattern: str) -> Sequence[str]:
        """The files in a folder that match a pattern."""
        ...

    def identity(self, path: str) -> FileIdentity:
        """Distinguishes a file from others, and from itself after a change."""
        ...

    def head(self, path: str, nbytes: int) -> bytes:
        """The first bytes of a file."""
        ...

    def open(
        self, path: str, identity: FileIdentity | None = None
    ) -> AbstractContextManager[BinaryIO]:
        """Opens a file on disk: it has a descriptor and a name."""
        ...

    def map(self, path: str, identity: FileIdentity) -> Array:
        """The bytes of a file, which must still have this identity."""
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
            raise FileError(f"the folder {folder} cannot be read: {error.strerror}.") from error

    def glob(self, folder: str, pattern: str) -> list[str]:
        found = glob.glob(os.path.join(glob.escape(folder), pattern), recursive=True)
        return [os.path.abspath(one) for one in found]

    def identity(self, path: str) -> Identity:
        found = Identity.at(path)
        if found is None:
            raise FileError(f"there is no file {path}.")
        return found

    def head(self, path: str, nbytes: int) -> bytes:
        with open_regular(path) as opened:
            return opened.read(nbytes)

    def open(
        self, path: str, identity: FileIdentity | None = None
    ) -> AbstractContextManager[BinaryIO]:
        return open_regular(path)

    def map(self, path: str, identity: FileIdentity) -> Array:
        assert isinstance(identity, Identity)
        with open_regular(path) as file:
            if change := identity.change(Identity.of(file)):
                raise changed(path, change)
            if not identity.size:  # an empty file cannot be mapped
                return np.empty(0, np.uint8)
            return map_array(file, np.dtype(np.uint8), (identity.size,), holding=False)


LOCAL = LocalFileSystem()


class CopiedFiles(LocalFileSystem):
    """Files that are read from a copy in the cache folder; errors name the original."""

    def __init__(self, copies: Mapping[str, str]) -> None:
        self.copies = dict(copies)

    def is_file(self, path: str) -> bool:
        return True

    def is_folder(self, path: str) -> bool:
        return False

    def identity(self, path: str) -> Identity:
        with self._naming(path):
            return super().identity(self.copies[path])

    def head(self, path: str, nbytes: int) -> bytes:
        with self._naming(path):
            return super().head(self.copies[path], nbytes)

    @contextlib.contextmanager
    def open(self, path: str, identity: FileIdentity | None = None) -> Iterator[BinaryIO]:
        with contextlib.ExitStack() as opened:
            with self._naming(path):
                file = opened.enter_context(super().open(self.copies[path], identity))
            yield file

    def map(self, path: str, identity: FileIdentity) -> Array:
        with self._naming(path):
            return super().map(self.copies[path], identity)

    @contextlib.contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileError as error:
            what = f"{path} is read from a copy in the cache folder"
            raise FileError(f"{what}, and {error}") from error


def needs_folder(path: str, done: str) -> FileError:
    """The error for a file that must be unpacked or converted, and there is nowhere to."""
    return FileError(
        f"{path} must be {done} first, and there is no cache folder: leave `cache` out, or give a "
        "folder that can be written to."
    )


class FileSystems:
    """The file systems of one dataset."""

    def __init__(
        self,
        cache: str | None = None,
        brought: Mapping[str, FsspecFileSystem] | None = None,
        copies: Mapping[str, str] | None = None,
        options: StorageOptions | None = None,
    ) -> None:
        """``cache`` is the folder for downloads; ``brought`` maps schemes to file systems.

        ``copies`` maps paths to the local files that are read in their place; with ``options``
        stores are reached.
        """
        self.options = options
        self._cache, self._brought = cache, dict(brought or {})
        self._copied = CopiedFiles(copies or {})
        self.packed: dict[str, bytes] = {}
        """The magic bytes of files that are compressed and have no copy: lines are read so."""
        self._remote: RemoteFiles | None = None

    def of(self, path: str) -> FileSystem:
        """The file system that a path belongs to."""
        if self.has_copy(path):
            return self._copied
        return self.remote() if is_url(path) else LOCAL

    def is_remote(self, path: str) -> bool:
        """True if a file must be fetched before it can be read."""
        return is_url(path) and not self.has_copy(path)

    def has_copy(self, path: str) -> bool:
        """True if a copy is read in place of a file, as for one that was unpacked."""
        return path in self._copied.copies

    def add_copy(self, path: str, copy: str) -> None:
        """Makes reads of a path use a copy."""
        self._copied.copies[path] = copy

    def remote(self) -> RemoteFiles:
        """That of URLs."""
        if self._remote is None:
            # Late: most datasets have no URLs, and HTTP takes 50 ms to import.
            from loaderx.sources.remote.remote_files import RemoteFiles

            self._remote = RemoteFiles(self._cache, self._brought, self.options)
        return self._remote

    def bring(self, files: FsspecFileSystem, path: str) -> str:
        """The URL under which a path of an fsspec file system will be read."""
        url = files.unstrip_protocol(path)
        self._brought[scheme_of(url)] = files
        self._remote = None
        return url

    def open(
        self, path: str, identity: FileIdentity | None = None
    ) -> AbstractContextManager[BinaryIO]:
        return self.of(path).open(path, identity)

    def __reduce__(self) -> tuple[object, ...]:
        # Listings are not pickled.
        return FileSystems, (self._cache, self._brought, self._copied.copies, self.options)


LOCAL_FILES = FileSystems()
