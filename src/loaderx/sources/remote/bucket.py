"""A folder behind a URL that datasets are saved into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loaderx.errors import FileError
from loaderx.sources.remote.store import FIRST_ATTEMPTS, retrying


class Bucket:
    """The folder.  Names are paths below it."""

    def __init__(self, url: str) -> None:
        from loaderx.sources.remote.remote_files import writable_store  # late: most are on disk

        self.url, self._store = url, writable_store(url)
        self.files: dict[str, int] = {}  # their sizes, as `look` has found them

    def entries(self) -> list[str]:
        """The names directly in the folder."""
        found = retrying(lambda: self._store.names(self.url), self.url, FIRST_ATTEMPTS)
        return [one.name.rstrip("/") for one in found]

    def look(self) -> None:
        """Lists all files."""
        found = retrying(lambda: list(self._store.below(self.url)), self.url, FIRST_ATTEMPTS)
        self.files = {one.name: one.size for one in found}

    def read(self, name: str) -> bytes:
        """The content of a file."""
        url = f"{self.url}/{name}"

        def content() -> bytes:
            found = self._store.find(url, url)
            if found is None:
                raise FileError(f"there is no file {url}: it was removed while it was needed.")
            return b"".join(self._store.read(found[0], 0, found[0].size))

        return retrying(content, url, FIRST_ATTEMPTS)

    def put(self, name: str, content: bytes | Path, *, is_new: bool = False) -> None:
        """Writes a file, from memory or a path; with ``is_new`` only if there is none."""
        url = f"{self.url}/{name}"
        retrying(lambda: self._store.put(url, content, is_new=is_new), url, done="written")

    def remove(self, names: Sequence[str]) -> None:
        """Removes files."""
        urls = [f"{self.url}/{name}" for name in names]
        retrying(lambda: self._store.remove(urls), self.url, done="written")
