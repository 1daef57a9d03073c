"""`StorageOptions`: how the user lets a store be reached; it may hold secrets.

Workers get it.  All other pickles leave it out: they may be kept on disk, or hashed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

from loaderx.errors import ArgumentError, ArgumentTypeError
from loaderx.sources.remote.urls import scheme_of

_NAME = re.compile(r"[!#$%&'*+.^`|~\w-]+", re.ASCII)
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_S3_NAMES = {  # from those of s3fs to those of obstore
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "anon": "skip_signature",
}

_is_sending = ContextVar("is_sending", default=False)  # a pickle for workers is made


@contextlib.contextmanager
def for_workers() -> Iterator[None]:
    """Makes the pickles of this thread hold options."""
    before = _is_sending.set(True)
    try:
        yield
    finally:
        _is_sending.reset(before)


class StorageOptions:
    """The argument ``storage_options`` of `Dataset.open`."""

    def __init__(self, given: Mapping[str, object] | None = None) -> None:
        is_named = isinstance(given, Mapping) and all(isinstance(name, str) for name in given)
        if given is not None and not is_named:
            raise ArgumentTypeError(
                "`storage_options` must be a dict with names as keys, such as {'headers': "
                f"{{'Authorization': 'Bearer ...'}}}}, got {type(given).__name__}."
            )
        self._given = dict(given or {})

    def __reduce__(self) -> tuple[object, ...]:
        return StorageOptions, (self._given if _is_sending.get() else {},)

    def headers(self, url: str) -> dict[str, str]:
        """The headers that are sent to a web server, or to the hub, for which a token is given."""
        name = "token" if scheme_of(url) == "hf" else "headers"
        if others := [one for one in self._given if one != name]:
            raise ArgumentError(
                f"{url}: for {scheme_of(url)}:// `storage_options` may have {name!r} only, and it "
                f"has {others[0]!r}."
            )
        found = self._given.get(name) or {}
        if name == "token" and isinstance(found, str):
            found = {"Authorization": f"Bearer {found}"}
        if not isinstance(found, Mapping):
            what = "a text" if name == "token" else "a dict of texts"
            raise ArgumentTypeError(
                f"storage_options[{name!r}] must be {what}, got {type(found).__name__}."
            )
        for key, value in found.items():
            is_text = isinstance(value, str) and _VALUE.fullmatch(value)
            if not (is_text and _NAME.fullmatch(str(key))):
                raise ArgumentError(  # without the value, which may be a secret
                    f"storage_options[{name!r}]: {key!r:.40} must be the name of a header, and its "
                    "value a text in one line, of characters of latin-1."
                )
        return {str(key): value for key, value in found.items()}

    def all(self, url: str) -> dict[str, object]:
        """The options as the library of a store takes them; for S3 those of s3fs are renamed."""
        names = _S3_NAMES if scheme_of(url) in ("s3", "s3a") else {}
        return {names.get(name, name): value for name, value in self._given.items()}
