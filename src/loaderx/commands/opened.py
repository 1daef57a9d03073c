"""The splits of a path, opened for a command."""

from __future__ import annotations

from collections.abc import Iterator

from loaderx.errors import LoaderxError
from loaderx.sources import Source
from loaderx.sources.cache.folder import CacheFolder, cache_folder
from loaderx.sources.format import OpenOptions
from loaderx.sources.open.opening import Recognised, recognise


class Opened:
    """A path, and the splits that were found there."""

    def __init__(self, path: str, format: str | None, cache: str | None) -> None:
        self.cache: CacheFolder = cache_folder(cache)
        options = OpenOptions(columns=None, decode=True, fill={}, cache=self.cache)
        self._found: Recognised = recognise(path, options, format)

    @property
    def format(self) -> str:
        return self._found.format

    def splits(self) -> Iterator[tuple[str, Source | LoaderxError]]:
        """Each split with its source, or with what is wrong with it."""
        for name, open_split in self._found.splits.items():
            try:
                yield name, open_split()
            except LoaderxError as error:
                yield name, error
