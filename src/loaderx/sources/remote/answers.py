"""`Answers`: what stores have said, kept so that data in the cache folder opens without a network.

``answers/<hash of the question>.json`` holds the last answer to one question: the size and version
of a file, its first bytes, or the entries of a folder.  It has no secrets: neither addresses that
the user gave, nor headers.  Its mtime is when the store said so.  An answer is used only where the
store cannot be asked: after failed attempts, or if ``$LOADERX_OFFLINE`` is set.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
import zlib
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from loaderx.errors import FileError, warn_user
from loaderx.sources.remote.private_files import READ, WRITE, open_own, own_folder
from loaderx.sources.remote.store import FIRST_ATTEMPTS, UnreachableError, retrying

Json: TypeAlias = Any

ANSWERS = "answers"  # within the cache folder
OFFLINE = "LOADERX_OFFLINE"


def is_offline() -> bool:
    """True if the user wants no server to be asked."""
    return os.environ.get(OFFLINE, "").strip().lower() not in ("", "0", "false", "no", "off")


class Answers:
    """The answers of all stores, for one cache folder."""

    def __init__(self, cache: str | None) -> None:
        self._cache = cache
        self._unreached: dict[str, UnreachableError] = {}  # servers that are not asked again

    def of(self, question: str, url: str, server: str, ask: Callable[[], Json]) -> Json:
        """The answer of a store, or the kept one if it cannot be reached."""
        name = _name(question, url)
        if server in self._unreached and (kept := self._read(name)):
            return kept[0]
        try:
            told = retrying(ask, url, FIRST_ATTEMPTS)
        except UnreachableError as error:
            if (kept := self._read(name)) is None:
                raise
            self._warn(server, error, kept[1])
            return kept[0]
        self._keep(name, told)
        return told

    def kept(self, question: str, url: str) -> Json:
        """The kept answer; None if there is none."""
        found = self._read(_name(question, url))
        return found and found[0]

    def _warn(self, server: str, error: UnreachableError, told_s: float) -> None:
        if self._unreached.setdefault(server, error) is error and not is_offline():
            told = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(told_s))
            warn_user(
                f"{server} gives no answer ({error.__context__}). What the cache folder "
                f"{self._cache} has of it is used, as the server described it on {told}; newer "
                f"data is not seen. Set {OFFLINE}=1 to use that folder alone, without a warning."
            )

    def _read(self, name: str) -> tuple[Json, float] | None:
        """An answer, and its time in seconds since 1970; None if there is none."""
        if self._cache is None or not os.path.isdir(os.path.join(self._cache, ANSWERS)):
            return None
        # A damaged answer, or one of another user, is none.
        with contextlib.suppress(
            OSError, FileError, ValueError, LookupError, TypeError, RecursionError
        ):
            with own_folder(os.path.join(self._cache, ANSWERS)) as at:
                opened = open_own(name, READ, at)
            if opened is not None:
                with open(opened, encoding="utf-8") as file:
                    checksum, text = json.load(file)
                    if zlib.crc32(text.encode()) == checksum:
                        return json.loads(text), os.fstat(file.fileno()).st_mtime
        return None

    def _keep(self, name: str, told: Json) -> None:
        if self._cache is None:
            return
        text, temporary = json.dumps(told), f"{name}.{secrets.token_hex(4)}.tmp"
        # A folder that cannot be written to has no answers; downloads complain about it.
        with contextlib.suppress(OSError, FileError):
            os.makedirs(self._cache, 0o700, exist_ok=True)
            with own_folder(os.path.join(self._cache, ANSWERS)) as at:
                opened = open_own(temporary, WRITE, at)
                assert opened is not None
                with open(opened, "w", encoding="utf-8") as file:
                    json.dump([zlib.crc32(text.encode()), text], file)
                os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)


class OfflineStore:
    """Stands for a store while no server is asked: it has nothing."""

    def __init__(self, cache: str | None, *, lists: bool) -> None:
        self._cache, self.lists = cache, lists

    def _refuse(self, *asked: Any, **_: Any) -> NoReturn:
        url = getattr(asked[0], "url", asked[0])  # of a `RemoteFile`, or itself
        raise UnreachableError(
            f"{url} is not, or only in part, in the cache folder {self._cache}, and no server is "
            f"asked because {OFFLINE} is set. Read it once without {OFFLINE}, or give the folder "
            "that has it with `cache=` or LOADERX_CACHE."
        )

    find = names = read = _refuse


def _name(question: str, url: str) -> str:
    return hashlib.sha256(f"1 {question} {url}".encode()).hexdigest()[:32] + ".json"
