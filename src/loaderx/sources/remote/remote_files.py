"""`RemoteFiles`: the file system of URLs.

Folders are listed and files looked up when a dataset is opened; what the store then says about a
file is its identity (`RemoteFile`), which goes to workers.  A file is fetched whole when it is
first read, or in pieces, if the format knows which bytes its records need.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO

import numpy as np

from loaderx.errors import FileError
from loaderx.sources.base import Indices
from loaderx.sources.mapping import Identity, map_array
from loaderx.sources.remote.answers import OFFLINE, Answers, Json, OfflineStore, is_offline
from loaderx.sources.remote.downloads import downloads_in
from loaderx.sources.remote.fsspec_store import FsspecFileSystem, FsspecStore
from loaderx.sources.remote.object_store import SCHEMES, ObjectStore
from loaderx.sources.remote.options import StorageOptions
from loaderx.sources.remote.part_file import PartFile
from loaderx.sources.remote.room import most_mapped
from loaderx.sources.remote.store import (
    HEAD_BYTES,
    Listed,
    NoRangesError,
    RemoteFile,
    Store,
    UnreachableError,
    at_once,
)
from loaderx.sources.remote.transfer import fetch_pieces
from loaderx.sources.remote.urls import is_http, public_url, scheme_of
from loaderx.tree import Array

_MARK_BYTES = 1 << 16  # read of a file that lists all others, which is needed anyway
_MARKS = ("loaderx.json", "state.json", "dataset_dict.json", "dataset_info.json")
_MAGIC = re.compile(r"[*?\[]")


class RemoteFiles:
    """Files behind URLs; a `FileSystem`."""

    def __init__(
        self,
        cache: str | None,
        brought: Mapping[str, FsspecFileSystem] | None = None,
        options: StorageOptions | None = None,
    ) -> None:
        """``brought``: fsspec file systems by scheme, used instead of the stores here."""
        self._cache, self._brought = cache, dict(brought or {})
        self._options = options or StorageOptions()
        self._answers = Answers(cache)
        self._stores: dict[str, Store] = {}
        self._files: dict[str, RemoteFile | None] = {}  # by public URL; None: no such file
        self._heads: dict[str, bytes] = {}
        self._folders: dict[str, dict[str, Listed]] = {}

    # Lookup -----------------------------------------------------------------------------------

    def add(self, address: str) -> str:
        """The public URL of a file; its address is remembered."""
        if address in self._files:  # already public
            return address
        url = public_url(address)
        self._find(url, address)
        return url

    def look_at(self, addresses: Sequence[str]) -> None:
        """Looks up many files at once, to save round trips."""
        downloads_in(self._cache, public_url(addresses[0]))  # says what is missing
        plain = [
            one
            for one in addresses
            if one not in self._files and (is_http(one) or not _MAGIC.search(one))
        ]
        for one in plain:
            self._store(one)
        at_once(self.add, [one for one in plain if not one.endswith("/")])

    def prepare(self, paths: Sequence[str]) -> None:
        """Looks up files, or lists their folders, all at once."""
        unknown = [path for path in paths if path not in self._files]
        alone = [path for path in unknown if not self._store(path).lists]
        folders = {path.rpartition("/")[0] for path in unknown if self._store(path).lists}
        if len(alone) > 1:
            self.look_at(alone)
        if len(folders) > 1:
            at_once(self._listed, sorted(folders))

    def is_file(self, path: str) -> bool:
        return self._look(path) is not None

    def is_folder(self, path: str) -> bool:
        if is_http(path):
            return path.endswith("/") and bool(self._listed(path))
        return self._find(path, path) is None and bool(self._listed(path))

    def names(self, folder: str) -> list[str]:
        found = self._listed(folder)
        if not found:
            raise FileError(f"there is no folder {folder}, or it is empty.")
        return sorted(found)

    def identity(self, path: str) -> RemoteFile:
        found = self._look(path)
        if found is None:
            raise self._missing(path)
        return found

    def head(self, path: str, nbytes: int) -> bytes:
        """The first bytes of a file, without the others."""
        file = self.identity(path)
        stop = min(nbytes, file.size)
        if len(self._heads.get(path, b"")) < stop:
            store = self._store(file.url)
            try:
                told = self._ask(
                    f"{stop} bytes of {file.version}",
                    path,
                    lambda: b"".join(store.read(file, 0, stop)).decode("latin-1"),
                )
                self._heads[path] = told.encode("latin-1")
            except (NoRangesError, UnreachableError):  # the whole file comes, or is here
                with self.open(path, file) as whole:
                    self._heads[path] = whole.read(stop)
        return self._heads[path][:stop] if stop else b""

    def matching(self, pattern: str) -> Iterator[str]:
        """The files of a pattern, or the one file or folder, as public URLs."""
        downloads_in(self._cache, public_url(pattern))  # says what is missing
        if is_http(pattern):
            if pattern.endswith("/") and self._listed(pattern):
                yield pattern
                return
            if "*" in pattern:
                self._store(pattern).names(pattern)  # raises that there is no listing
            url = self.add(pattern)
            self.identity(url)  # raises that it does not exist
            yield url
            return
        pattern = pattern.rstrip("/")
        root, _, below = _split_root(pattern)
        if not _MAGIC.search(below) or self._find(pattern, pattern):
            if not (self._find(pattern, pattern) or self.is_folder(pattern)):
                raise self._missing(pattern)
            yield pattern
            return
        parts = below.split("/")
        plain = next(n for n, one in enumerate(parts) if _MAGIC.search(one))
        found = list(self._glob("/".join([root, *parts[:plain]]), parts[plain:]))
        if not found:
            raise FileError(f"no file matches {pattern}.")
        yield from [one for one in found if not one.endswith("/")] or found

    def glob(self, folder: str, pattern: str) -> list[str]:
        """The files in a folder that match a pattern."""
        found = self._glob(folder, pattern.split("/"))
        return [one for one in found if not one.endswith("/")]

    def _glob(self, folder: str, parts: list[str]) -> Iterator[str]:
        first, rest = parts[0], parts[1:]
        for name in sorted(self._listed(folder)):
            path, is_dir = f"{folder.rstrip('/')}/{name}", name.endswith("/")
            is_hidden = name.startswith(".") and not first.startswith(".")
            if first == "**":
                if is_dir and not is_hidden:
                    yield from self._glob(path.rstrip("/"), parts)
            elif not is_hidden and fnmatch.fnmatchcase(name.rstrip("/"), first):
                if not rest:
                    yield path
                elif is_dir:
                    yield from self._glob(path.rstrip("/"), rest)
        if first == "**":
            yield from self._glob(folder, rest or ["*"])

    def _look(self, url: str) -> RemoteFile | None:
        """A file if it exists; stores that list do so once per folder."""
        folder, _, name = url.rpartition("/")
        if url not in self._files and self._store(url).lists and name:
            one = self._listed(folder).get(name)
            self._files[url] = one and RemoteFile(url, one.size, one.version, url)
        return self._find(url, url)

    def _find(self, url: str, address: str, head_bytes: int = HEAD_BYTES) -> RemoteFile | None:
        """A file if it exists, looked up without a listing."""
        if url not in self._files:
            store = self._store(url)

            def find() -> Json:
                if (found := store.find(url, address, head_bytes)) is None:
                    return None
                file, head = found
                self._files[url] = file
                # The user's address may have secrets; that of the hub is not known beforehand.
                moved = "" if file.address == address else public_url(file.address)
                return [*file._replace(address=moved), head.decode("latin-1")]

            try:
                told = self._ask("file", url, find)
            except UnreachableError:
                folder, _, name = url.rpartition("/")
                around = {one[0]: one[1:] for one in self._answers.kept("folder", folder) or ()}
                if name not in around and not self._answers.kept("folder", url):
                    raise
                told = [url, *around[name], "", "", ""] if name in around else None
            if told and told[-1]:
                self._heads[url] = told[-1].encode("latin-1")
            kept = told and RemoteFile(*told[:-1])
            self._files.setdefault(url, kept and kept._replace(address=kept.address or address))
        return self._files[url]

    def _listed(self, folder: str) -> dict[str, Listed]:
        folder = folder.rstrip("/")
        if folder not in self._folders:
            store = self._store(folder)
            found = self._marks(folder) if is_http(folder) else []
            told = found or self._ask("folder", folder, lambda: list(store.names(folder)))
            self._folders[folder] = {one[0]: Listed(*one) for one in told}
        return self._folders[folder]

    def _ask(self, question: str, url: str, ask: Callable[[], Json]) -> Json:
        return self._answers.of(question, url, _split_root(url)[0], ask)

    def _marks(self, folder: str) -> list[Listed]:
        """The files that list all others, looked up on a web server, which has no listing."""
        found = []
        for name in _MARKS:
            with contextlib.suppress(FileError):  # some servers deny access to missing files
                url = f"{folder}/{name}"
                if self._find(url, url, _MARK_BYTES):
                    found.append(Listed(name))
                    if name == _MARKS[0]:
                        break
        return found if {one.name for one in found} - {_MARKS[-1]} else []

    def _missing(self, path: str) -> FileError:
        if is_http(path):
            return FileError(
                f"there is no file {path} (404). Plain HTTP has no listing of folders: give the "
                "URLs of files, a list of them, or braces, https://host/part-{000..099}.npz."
            )
        return FileError(f"there is no file or folder {path}. Check its spelling.")

    # Stores -----------------------------------------------------------------------------------

    def _store_of(self, file: RemoteFile) -> Store:
        return self._store(file.url)

    def _store(self, url: str) -> Store:
        root, scheme, _ = _split_root(url)
        if root not in self._stores:
            self._stores[root] = self._made_store(url, scheme)
        return self._stores[root]

    def _made_store(self, url: str, scheme: str) -> Store:
        if is_offline():
            is_listed = scheme in self._brought or scheme not in ("http", "https", "hf")
            return OfflineStore(self._cache, lists=is_listed)
        if scheme in self._brought:
            return FsspecStore(self._brought[scheme])
        # Late: HTTP takes 50 ms to import, and workers may find everything on disk.
        if scheme in ("http", "https"):
            from loaderx.sources.remote.http_store import HttpStore

            return HttpStore(self._options.headers(url))
        if scheme == "hf":
            from loaderx.sources.remote.hub_store import HubStore

            return HubStore(self._options.headers(url))
        return writable_store(url, self._options)

    # Data -------------------------------------------------------------------------------------

    def open(
        self, path: str, identity: Identity | RemoteFile | None = None
    ) -> AbstractContextManager[BinaryIO]:
        file = identity if isinstance(identity, RemoteFile) else self.identity(path)
        head = self._heads.get(path, b"")
        return downloads_in(self._cache, path).open(file, self._store_of, head)

    def part(self, path: str, file: RemoteFile, head: bytes) -> PartFile:
        """A file that is mapped while pieces are missing; ``head`` is its known beginning."""
        return downloads_in(self._cache, path).part(file, self._store_of, head)

    def fetch_ranges(self, wanted: Sequence[tuple[PartFile, Indices, Indices]]) -> int:
        """Fetches ranges of files that are missing; returns the bytes fetched."""
        missing = [
            (part, part.still_missing(part.missing(starts, stops)))
            for part, starts, stops in wanted
            if not part.has(starts, stops)
        ]
        missing = [(part, pieces) for part, pieces in missing if len(pieces)]
        return fetch_pieces(missing) if missing else 0

    def known_head(self, path: str) -> bytes:
        """The first bytes of the file that came when it was looked up; may be empty."""
        return self._heads.get(path, b"")

    def most_mapped(self, nbytes: int) -> float:
        """How many bytes may be kept mapped, of files with this total size."""
        return most_mapped(downloads_in(self._cache, "").folder, nbytes)

    def map(self, path: str, identity: Identity | RemoteFile) -> Array:
        with self.open(path, identity) as file:
            if not identity.size:
                return np.empty(0, np.uint8)
            # The map holds the lock of the file, so that it is not evicted.
            return map_array(file, np.dtype(np.uint8), (identity.size,))


def writable_store(url: str, options: StorageOptions | None = None) -> ObjectStore | FsspecStore:
    """The store of a URL, if it is one that can be written to."""
    if is_offline():
        raise FileError(f"{url} cannot be written to: {OFFLINE} is set. Unset it, and save again.")
    given = options.all(url) if options else {}
    return ObjectStore(url, given) if scheme_of(url) in SCHEMES else FsspecStore.of(url, given)


def _split_root(url: str) -> tuple[str, str, str]:
    """Scheme and host (or bucket), the scheme, and the path."""
    start = url.index("://") + 3
    host, _, path = url[start:].partition("/")
    return url[:start] + host, scheme_of(url), path
