"""Object stores: ``s3://``, ``gs://`` and ``az://``, through the package obstore.

obstore finds credentials itself (the environment, the machine's role); loaderx never sees them.
Each process creates its own obstore stores.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import urlsplit

from loaderx.errors import FileError, MissingPackageError
from loaderx.sources.remote.store import (
    HEAD_BYTES,
    READ_BYTES,
    TIMEOUT_S,
    Listed,
    RemoteFile,
    TransientError,
    digest,
    file_changed,
)
from loaderx.sources.remote.urls import without_secrets

T = TypeVar("T")

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")
_HINTS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, or "
    "AWS_SKIP_SIGNATURE=true for public data",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for public data",
}
_AZURE_HINT = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
_ENDPOINTS = (
    "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AZURE_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL",
)  # fmt: skip
# Without one of these, obstore asks the metadata service of EC2, which other machines do not have.
_S3_WAYS = {
    "AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_METADATA_ENDPOINT",
}  # fmt: skip
MACHINE = "/sys/devices/virtual/dmi/id"  # where Linux tells who made it
_MOST_SHOWN = 200
_CHUNKS = 4  # of a file, of 5 MB each, that are in memory while it is written
RETRIES = {
    "max_retries": 5,
    "backoff": {
        "base": 3,
        "init_backoff": timedelta(seconds=0.1),
        "max_backoff": timedelta(seconds=30),
    },
    "retry_timeout": timedelta(seconds=180),
}


class ObjectStore:
    """The files of a bucket."""

    lists = True

    def __init__(self, address: str, given: Mapping[str, object]) -> None:
        """``given`` are options of obstore; they go before those of the environment."""
        self._root = _bucket(address)
        self._hint = _HINTS.get(self._root.partition("://")[0].removesuffix("a"), _AZURE_HINT)
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise MissingPackageError(
                f"{self._root} is reached through the package obstore: "
                "pip install 'loaderx-jax[remote]'."
            ) from error
        self._obstore = obstore
        if self._root.startswith("s3"):
            _check_keys(self._root, given)
        named = [*map(os.environ.get, _ENDPOINTS), *given.values()]
        options = {
            "timeout": timedelta(seconds=10 * TIMEOUT_S),
            "connect_timeout": "10s",
            # Explicit options replace those of the environment.
            "allow_http": any(str(one).startswith("http:") for one in named),
        }
        try:
            self._store = from_url(
                self._root, config=dict(given), client_options=options, retry_config=RETRIES
            )
        except Exception as error:
            raise FileError(
                f"{address} cannot be opened: {_text(error)}. Check {self._hint}."
            ) from None

    def find(
        self, url: str, address: str, head_bytes: int = HEAD_BYTES
    ) -> tuple[RemoteFile, bytes] | None:
        key = self._key(address)
        if not key:
            return None
        try:
            told = self._call(url, lambda: self._obstore.head(self._store, key))
        except FileNotFoundError:
            return None
        return RemoteFile(url, told["size"], _version(told), address), b""

    def names(self, address: str) -> list[Listed]:
        key = self._key(address)
        prefix = f"{key}/" if key else None
        try:
            told = self._call(
                address, lambda: self._obstore.list_with_delimiter(self._store, prefix)
            )
        except FileNotFoundError as error:
            raise self._no_bucket(address) from error
        start = len(prefix or "")
        folders = [Listed(one[start:].rstrip("/") + "/") for one in told["common_prefixes"]]
        files = [Listed(one["path"][start:], one["size"], _version(one)) for one in told["objects"]]
        return [one for one in folders + files if one.name.strip("/")]

    def read(self, file: RemoteFile, start: int, stop: int) -> Generator[bytes]:
        key, options = self._key(file.address), {"range": (start, stop)}
        try:
            answer = self._call(
                file.url, lambda: self._obstore.get(self._store, key, options=options)
            )
        except FileNotFoundError:
            raise file_changed(file.url, "it is not there any more") from None
        told = answer.meta
        if told["size"] != file.size:
            raise file_changed(file.url, f"it has {told['size']} bytes, and had {file.size}")
        if _version(told) != file.version:
            raise file_changed(file.url, "its ETag differs")
        if tuple(answer.range) != (start, stop):
            raise TransientError(f"the store sent other bytes than {start} to {stop - 1}")
        left, pieces = stop - start, iter(answer.stream(min_chunk_size=READ_BYTES))
        while left:
            piece = self._call(file.url, lambda: next(pieces, None))
            if piece is None:
                raise TransientError(f"an answer ended {left} bytes early")
            left -= len(piece)
            yield piece

    def below(self, address: str) -> Iterator[Listed]:
        prefix = f"{key}/" if (key := self._key(address)) else ""
        pages = self._obstore.list(self._store, prefix or None)
        while page := self._call(address, lambda: next(pages, None)):
            for one in page:
                yield Listed(one["path"][len(prefix) :], one["size"], _version(one))

    def put(self, address: str, content: bytes | Path, *, is_new: bool = False) -> None:
        key, mode = self._key(address), "create" if is_new else "overwrite"
        try:
            with contextlib.suppress(self._obstore.exceptions.AlreadyExistsError):
                self._obstore.put(self._store, key, content, mode=mode, max_concurrency=_CHUNKS)
        except Exception as error:
            if not is_new or "501 Not Implemented" not in str(error):
                self._refuse(address, error, "written")
            self.put(address, content)  # the store has no conditional writes

    def remove(self, addresses: Sequence[str]) -> None:
        keys = [self._key(one) for one in addresses]
        with contextlib.suppress(FileNotFoundError):
            self._call(self._root, lambda: self._obstore.delete(self._store, keys))

    def _key(self, address: str) -> str:
        return address[len(self._root) :].strip("/")

    def _call(self, url: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except FileNotFoundError:
            raise
        except Exception as error:  # errors of obstore and of reqwest
            self._refuse(url, error)

    def _no_bucket(self, url: str) -> FileError:
        return FileError(
            f"{url}: there is no bucket or container {self._root}. Check its name and {self._hint}."
        )

    def _refuse(self, url: str, error: Exception, done: str = "read") -> NoReturn:
        text, kind = _text(error), type(error).__name__
        if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
            raise self._no_bucket(url) from None
        # A listing that is refused has an error of the first kind.
        if "403 Forbidden" in text or kind in ("PermissionDeniedError", "UnauthenticatedError"):
            raise FileError(
                f"{url}: the store refused access. Credentials are found by obstore: "
                f"{self._hint}. It said: {text}"
            ) from None
        if kind == "GenericError":
            # obstore has already retried.
            raise TransientError(f"{text}; check {self._hint}", is_reached=False) from None
        raise FileError(f"{url} cannot be {done}: {text}") from None


def _check_keys(root: str, given: Mapping[str, object]) -> None:
    """Says at once that there are no keys for S3, where obstore would wait for a role."""
    have = {name for name, value in os.environ.items() if value}
    have |= {"AWS_" + name.upper().removeprefix("AWS_") for name, value in given.items() if value}
    if have & _S3_WAYS or _is_of_amazon():
        return
    raise FileError(
        f"{root}: no keys are set for it. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (`aws "
        "configure export-credentials --format env` prints those of ~/.aws, which is not read), or "
        "give storage_options={'key': ..., 'secret': ...}. A public bucket needs none: set "
        "AWS_SKIP_SIGNATURE=true, or give storage_options={'anon': True}. If this machine has a "
        "role, set AWS_METADATA_ENDPOINT=http://169.254.169.254."
    )


def _is_of_amazon() -> bool:
    """True on EC2, where machines may have roles."""
    found = ""
    for name in ("sys_vendor", "bios_version"):
        with contextlib.suppress(OSError), open(os.path.join(MACHINE, name)) as file:
            found += file.read()
    return "amazon" in found.lower()


def _text(error: Exception) -> str:
    plain, _, _ = without_secrets(str(error)).partition("Debug source:")
    return " ".join(plain.split())[:_MOST_SHOWN].rstrip(".")


def _bucket(address: str) -> str:
    parts = urlsplit(address)
    if not parts.netloc:
        raise FileError(f"{address} names no bucket: write {parts.scheme}://bucket/path.")
    return f"{parts.scheme}://{parts.netloc}"


def _version(told: dict[str, object]) -> str:
    return digest(told.get("e_tag") or str(told.get("last_modified")))
