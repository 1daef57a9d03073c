"""Reads through fsspec: URLs of schemes that loaderx does not know, and users' file systems.

A user passes one as an fsspec ``OpenFile`` or a ``UPath``: an object with ``fs`` and ``path``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar

from loaderx.errors import FileError, MissingPackageError
from loaderx.sources.remote.store import (
    HEAD_BYTES,
    READ_BYTES,
    Listed,
    RemoteFile,
    TransientError,
    digest,
    file_changed,
)
from loaderx.sources.remote.urls import scheme_of, without_secrets

T = TypeVar("T")

_VERSIONS = (
    "ETag", "etag", "e_tag", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime",
    "modified", "updated", "created",
)  # fmt: skip


class FsspecFileSystem(Protocol):
    """The part of an fsspec file system that is used."""

    def info(self, path: str) -> Mapping[str, object]: ...
    def ls(self, path: str, detail: bool = True) -> list[Mapping[str, object]]: ...
    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes: ...
    def find(self, path: str, *, detail: bool = False) -> Mapping[str, Mapping[str, object]]: ...
    def makedirs(self, path: str, exist_ok: bool = False) -> None: ...
    def pipe_file(self, path: str, value: bytes) -> None: ...
    def rm_file(self, path: str) -> None: ...
    def rmdir(self, path: str) -> None: ...
    def unstrip_protocol(self, name: str) -> str: ...
    def _strip_protocol(self, path: str) -> str: ...
    def invalidate_cache(self, path: str | None = None) -> None: ...


class BroughtPath(Protocol):
    """A path of a user's file system."""

    fs: FsspecFileSystem
    path: str


class FsspecStore:
    """The files of one fsspec file system."""

    lists = True

    def __init__(self, files: FsspecFileSystem) -> None:
        self._files = files

    @staticmethod
    def of(url: str, options: Mapping[str, object]) -> FsspecStore:
        """The store of a URL, if fsspec knows its scheme."""
        scheme = scheme_of(url)
        try:
            import fsspec
        except ImportError as error:
            raise MissingPackageError(
                f"{url}: loaderx reads s3, gs, az, http, https and hf; {scheme!r} needs the "
                "package fsspec: pip install fsspec."
            ) from error
        if scheme not in fsspec.available_protocols():
            raise FileError(
                f"{url}: neither loaderx (s3, gs, az, http, https, hf) nor fsspec knows {scheme!r}."
            )
        try:
            files, _ = fsspec.url_to_fs(url, **options)
        except ImportError as error:
            raise MissingPackageError(f"{url}: {error}.") from error
        except Exception as error:  # each file system has its own errors
            raise FileError(f"{url} cannot be opened by fsspec: {_text(error)}.") from None
        return FsspecStore(files)

    def find(
        self, url: str, address: str, head_bytes: int = HEAD_BYTES
    ) -> tuple[RemoteFile, bytes] | None:
        told = self._info(url)
        if told is None or told.get("type") != "file":
            return None
        return RemoteFile(url, _size(told, url), _version(told), address), b""

    def names(self, address: str) -> list[Listed]:
        path = self._files._strip_protocol(address)
        try:
            told = self._call(address, lambda: self._files.ls(path, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = []
        for one in told:
            name = str(one["name"]).rstrip("/").rpartition("/")[2]
            if one.get("type") == "directory":
                found.append(Listed(f"{name}/"))
            elif name:
                found.append(Listed(name, _size(one, address), _version(one)))
        return found

    def read(self, file: RemoteFile, start: int, stop: int) -> Generator[bytes]:
        self._files.invalidate_cache()
        told = self._info(file.url)
        if told is None or _size(told, file.url) != file.size or _version(told) != file.version:
            raise file_changed(file.url, "its size or time of the last write differs")
        path = self._files._strip_protocol(file.address)
        for at in range(start, stop, READ_BYTES):
            end = min(stop, at + READ_BYTES)
            try:
                piece = self._call(file.url, lambda: self._files.cat_file(path, at, end))  # noqa: B023
            except FileNotFoundError:
                raise file_changed(file.url, "it is not there any more") from None
            if len(piece) != end - at:
                raise TransientError(f"an answer ended {end - at - len(piece)} bytes early")
            yield piece

    def below(self, address: str) -> Iterator[Listed]:
        self._files.invalidate_cache()
        root = self._files._strip_protocol(address)
        told = self._call(address, lambda: self._files.find(root, detail=True))
        for path, one in told.items():
            yield Listed(path[len(root) :].strip("/"), _size(one, address), _version(one))

    def put(self, address: str, content: bytes | Path, *, is_new: bool = False) -> None:
        path = self._files._strip_protocol(address)

        def write() -> None:
            if is_new and self._info(address) is not None:
                return
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            data = content if isinstance(content, bytes) else content.read_bytes()
            self._files.pipe_file(path, data)

        self._call(address, write)

    def remove(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            path = self._files._strip_protocol(address)
            with contextlib.suppress(FileNotFoundError):
                self._call(address, lambda: self._files.rm_file(path))  # noqa: B023
            with contextlib.suppress(Exception):  # a file system may keep an empty folder
                self._files.rmdir(path.rpartition("/")[0])

    def _info(self, url: str) -> Mapping[str, object] | None:
        path = self._files._strip_protocol(url)
        try:
            return self._call(url, lambda: self._files.info(path))
        except FileNotFoundError:
            return None

    def _call(self, url: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except (FileNotFoundError, NotADirectoryError):
            raise
        except (PermissionError, NotImplementedError) as error:
            raise FileError(f"{url}: the store refused access: {_text(error)}.") from None
        except Exception as error:  # each file system has its own errors
            raise TransientError(_text(error)) from None


def _text(error: Exception) -> str:
    told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(without_secrets(told).split())[:200]


def _size(told: Mapping[str, object], url: str) -> int:
    size = told.get("size")
    if not isinstance(size, int):
        raise FileError(f"{url}: the store does not say how large the file is. Download it first.")
    return size


def _version(told: Mapping[str, object]) -> str:
    found = next((told[key] for key in _VERSIONS if told.get(key) is not None), None)
    # A time may be a datetime, or in a listing a number.
    return digest(str(found.timestamp() if isinstance(found, datetime) else found))
