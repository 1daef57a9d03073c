"""Stores for zarr 3: files behind URLs, whose chunks are fetched when they are read; and a check.

Blosc reads as many bytes of a chunk as its header says, even if the chunk is cut off: it would
return the memory behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, WrapperStore

from loaderx.sources.files.file_system import FileSystems
from loaderx.sources.remote.urls import is_url

_BLOSC_HEADER = 16  # bytes, of which the last four are the length of all


def store_of(path: str, systems: FileSystems) -> CheckedStore:
    """The store of a folder, which may lie behind a URL."""
    if is_url(path):
        return CheckedStore(UrlStore(path, systems))
    return CheckedStore(LocalStore(path, read_only=True))


class CheckedStore(WrapperStore):  # type: ignore[misc]  # mypy has no types of zarr
    """A store that compares the chunks of Blosc with their length."""

    _blosc: tuple[str, ...] = ()  # the paths of arrays with such chunks

    def know(self, arrays: Iterable[Any]) -> None:
        """Lists the arrays."""
        self._blosc = tuple(_folder(array) for array in arrays if _is_blosc(array))

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        found = await self._store.get(key, prototype, byte_range)
        is_chunk = byte_range is None and key.startswith(self._blosc) and not _is_note(key)
        if found is not None and is_chunk:
            data = found.to_bytes()
            size = int.from_bytes(data[12:_BLOSC_HEADER], "little")
            if len(data) < max(size, _BLOSC_HEADER):
                raise EOFError(f"the chunk {key} has {len(data)} bytes instead of {size}.")
        return found


def _folder(array: Any) -> str:
    return f"{array.path}/" if array.path else ""


def _is_blosc(array: Any) -> bool:
    last = (array.compressors or (None,))[-1]
    return getattr(last, "codec_id", "") == "blosc" or type(last).__name__ == "BloscCodec"


def _is_note(key: str) -> bool:
    return key.rpartition("/")[2] in (".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json")


class UrlStore(Store):  # type: ignore[misc]  # mypy has no types of zarr
    """A folder behind a URL, read only."""

    supports_writes = supports_deletes = supports_partial_writes = False
    supports_listing = True

    def __init__(self, url: str, systems: FileSystems) -> None:
        super().__init__(read_only=True)
        self._url, self._systems = url, systems

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UrlStore) and other._url == self._url

    def __repr__(self) -> str:
        return f"UrlStore({self._url!r})"

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        data = await asyncio.to_thread(self._read, key, byte_range)
        return None if data is None else prototype.buffer.from_bytes(data)

    def _read(self, key: str, wanted: ByteRequest | None) -> bytes | None:
        path = self._path(key)
        if not self._systems.of(path).is_file(path):
            return None
        with self._systems.open(path) as file:
            if isinstance(wanted, RangeByteRequest):
                file.seek(wanted.start)
                return file.read(wanted.end - wanted.start)
            if isinstance(wanted, OffsetByteRequest):
                file.seek(wanted.offset)
            data = file.read()
        return data[-wanted.suffix :] if isinstance(wanted, SuffixByteRequest) else data

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, wanted) for key, wanted in key_ranges]

    async def exists(self, key: str) -> bool:
        path = self._path(key)
        return await asyncio.to_thread(self._systems.of(path).is_file, path)

    async def set(self, key: str, value: Buffer) -> None:
        raise NotImplementedError

    async def delete(self, key: str) -> None:
        raise NotImplementedError

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for name in await asyncio.to_thread(self._names, prefix):
            if name.endswith("/"):
                async for key in self.list_prefix(f"{prefix}{name}"):
                    yield key
            else:
                yield prefix + name

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        inside = f"{prefix.rstrip('/')}/" if prefix else ""
        for name in await asyncio.to_thread(self._names, inside):
            yield name.rstrip("/")

    def _path(self, key: str) -> str:
        return f"{self._url.rstrip('/')}/{key}"

    def _names(self, prefix: str) -> Iterable[str]:
        path = self._path(prefix).rstrip("/")
        system = self._systems.of(path)
        return system.names(path) if system.is_folder(path) else []
