"""Datasets of the Hugging Face hub: ``hf://datasets/owner/name[@revision]/path``.

A revision is resolved to a commit when a dataset is opened, and files are read at that commit, so
they cannot change.  The hub's address is ``$HF_ENDPOINT``; the token is ``$HF_TOKEN``, or the one
that ``hf auth login`` has stored.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Mapping
from typing import NamedTuple, cast
from urllib.parse import quote, urljoin, urlsplit

from loaderx.errors import ArgumentError, FileError
from loaderx.sources.remote.http_store import Answer, HttpStore, read_piece
from loaderx.sources.remote.store import (
    FIRST_ATTEMPTS,
    HEAD_BYTES,
    READ_BYTES,
    Listed,
    Pace,
    RemoteFile,
    TransientError,
    digest,
    retrying,
)

_URL = re.compile(
    r"hf://datasets/([\w.-]+/[\w.-]+?)(?:@(refs/(?:convert|pr)/[\w.-]+|[^/]+))?(?:/(.*))?"
)
_NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')
_SHA256 = re.compile(r"[0-9a-f]{64}")
MOST_BYTES = 1 << 28  # of one answer of the hub
MOST_PAGES = 100_000


class _Place(NamedTuple):
    repository: str
    revision: str
    path: str


class Entry(NamedTuple):
    size: int
    version: str
    sha256: str  # of files in LFS, which holds all large files


class HubStore:
    """The files of datasets on the hub."""

    lists = False  # `find` knows all files of a repository

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        """``headers`` replace those with the token of the environment."""
        self._endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        if not headers and (token := _token()):
            headers = {"Authorization": f"Bearer {token}"}
        self._http = HttpStore(headers, tells_version=False)
        self._elsewhere = HttpStore(tells_version=False)  # without the token
        self._commits: dict[tuple[str, str], str] = {}
        self._trees: dict[tuple[str, str], dict[str, Entry]] = {}
        self._folders: dict[tuple[str, str], dict[str, dict[str, Listed]]] = {}

    def find(
        self, url: str, address: str, head_bytes: int = HEAD_BYTES
    ) -> tuple[RemoteFile, bytes] | None:
        place = _place(url)
        found = self._tree(place, url).get(place.path)
        if found is None:
            return None
        at = f"{self._commit(place, url)}/{quote(place.path)}"
        address = f"{self._endpoint}/datasets/{place.repository}/resolve/{at}"
        return RemoteFile(url, found.size, found.version, address, found.sha256), b""

    def names(self, address: str) -> list[Listed]:
        place = _place(address)
        tree = self._tree(place, address)
        key = place.repository, self._commit(place, address)
        if key not in self._folders:
            self._folders[key] = by_folder(tree)
        return list(self._folders[key].get(place.path, {}).values())

    def read(self, file: RemoteFile, start: int, stop: int) -> Generator[bytes]:
        """Reuses the hub's redirect, valid for about an hour, instead of asking each time."""
        moved = self._http.moved.get(file.address)
        if moved is not None:
            try:
                yield from self._elsewhere.read(file._replace(address=moved), start, stop)
                return
            except FileError:  # the redirect has expired
                self._http.moved.pop(file.address, None)
        yield from self._http.read(file, start, stop)

    def _commit(self, place: _Place, url: str) -> str:
        key = place.repository, place.revision
        if key not in self._commits:
            revision = quote(place.revision, safe="")
            told, _ = self._api(f"/api/datasets/{place.repository}/revision/{revision}", url)
            if not isinstance(told, dict) or not re.fullmatch(r"\w+", str(told.get("sha", ""))):
                raise FileError(f"{url}: the hub does not say which commit it is.")
            self._commits[key] = str(told["sha"])
        return self._commits[key]

    def _tree(self, place: _Place, url: str) -> dict[str, Entry]:
        """All files of the repository, by path."""
        commit = self._commit(place, url)
        key = place.repository, commit
        if key not in self._trees:
            found: dict[str, Entry] = {}
            at: str | None = f"/api/datasets/{place.repository}/tree/{commit}?recursive=true"
            asked = set[str]()
            while at is not None:
                if at in asked or len(asked) == MOST_PAGES:
                    raise FileError(
                        f"{url}: the hub's list of files does not end: after {len(asked)} pages it "
                        "names one that was read before, or still another. Try again later, or "
                        "give the URLs of files."
                    )
                asked.add(at)
                told, at = self._api(at, url)
                found.update(_entries(told, url))
            self._trees[key] = found
        return self._trees[key]

    def _api(self, path: str, url: str) -> tuple[object, str | None]:
        """The hub's answer, and the path of the next page."""

        def ask() -> tuple[object, str | None]:
            with self._http.ask(self._endpoint + path, {}, {404, 401}) as answer:
                if answer.status != 200:
                    raise FileError(
                        f"{url}: the hub has no such dataset or revision, or does not show it to "
                        "you. For private and gated data set HF_TOKEN, or log in with "
                        "`hf auth login`."
                    )
                more = _NEXT.search(answer.headers.get("Link", ""))
                return _json(answer), more[1] if more else None

        told, more = retrying(ask, url, FIRST_ATTEMPTS)
        if more is None:
            return told, None
        following = urlsplit(urljoin(self._endpoint + path, more))  # the token stays with the hub
        return told, f"{following.path}?{following.query}"


def by_folder(tree: dict[str, Entry]) -> dict[str, dict[str, Listed]]:
    """The entries of each folder of a tree, by name."""
    found: dict[str, dict[str, Listed]] = {}
    for path, entry in tree.items():
        folder, _, name = path.rpartition("/")
        is_new = folder not in found
        found.setdefault(folder, {})[name] = Listed(name, *entry[:2])
        while folder and is_new:  # add the folder to its parent
            around, _, name = folder.rpartition("/")
            is_new = around not in found
            found.setdefault(around, {})[name] = Listed(f"{name}/")
            folder = around
    return found


def _json(answer: Answer) -> object:
    pace, pieces, left = Pace(), list[bytes](), MOST_BYTES
    while piece := read_piece(answer, READ_BYTES, pace):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            raise FileError(f"an answer of the hub has more than {MOST_BYTES} bytes.")
    try:
        return json.loads(b"".join(pieces))
    except (ValueError, RecursionError):
        raise TransientError("an answer of the hub is not JSON") from None


def _entries(told: object, url: str) -> dict[str, Entry]:
    """The files of a page of a tree."""
    found = {}
    try:
        if not isinstance(told, list):
            raise TypeError(told)
        for one in cast("list[dict[str, dict[str, str]]]", told):
            if str(one["type"]) == "file":
                oid = str((one.get("lfs") or one)["oid"])
                sha256 = oid if one.get("lfs") and _SHA256.fullmatch(oid) else ""
                path, size = str(one["path"]), int(str(one["size"]))
                if size < 0 or not path.encode():  # raises for half a surrogate
                    raise ValueError(path)
                found[path] = Entry(size, digest(oid), sha256)
    except (TypeError, LookupError, ValueError, AttributeError) as error:
        raise FileError(f"{url}: the hub's list of files is not understood ({error!r}).") from error
    return found


def _place(url: str) -> _Place:
    match = _URL.fullmatch(url)
    if match is None:
        raise ArgumentError(
            f"{url} is not understood: write hf://datasets/owner/name, with a revision and a path "
            "if you like, hf://datasets/owner/name@main/data/train.parquet."
        )
    return _Place(match[1], match[2] or "main", (match[3] or "").strip("/"))


def _token() -> str:
    told = os.environ.get("HF_TOKEN")
    if told:
        return told.strip()
    home = os.environ.get("HF_HOME") or os.path.join("~", ".cache", "huggingface")
    path = os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeError):
        return ""
