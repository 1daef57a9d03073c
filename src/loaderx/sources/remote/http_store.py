"""Plain HTTP: files by URL, in ranges of bytes.  There is no listing of folders.

Python's own client suffices: ``https://`` and ``hf://`` need no package.  Range requests have no
``If-Match``, which servers with weak ETags would always reject; the headers of the answer are
compared instead.
"""

from __future__ import annotations

import base64
import http.client
import re
import ssl
import weakref
from collections.abc import Generator, Mapping
from email.message import Message
from typing import Protocol, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import OpenerDirector, Request

from loaderx.errors import FileError, warn_user
from loaderx.sources.remote.connections import Connections, origin_of
from loaderx.sources.remote.store import (
    HEAD_BYTES,
    READ_BYTES,
    TIMEOUT_S,
    Listed,
    NoRangesError,
    Pace,
    RemoteFile,
    TransientError,
    digest,
    file_changed,
)
from loaderx.sources.remote.urls import public_url, without_secrets

_RANGE = re.compile(r"bytes (?:([0-9]{1,19})-([0-9]{1,19})|\*)/([0-9]{1,19})")
_NUMBER = re.compile(r"[0-9]{1,19}")
_PASSING = {408, 425, 429, 500, 502, 503, 504}
LONGEST_WAIT_S = 60.0
_BY_HEAD = "head-"  # prefix of a version for which the server gives no ETag or time
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"  # not escaped in a path; "%" keeps existing escapes


class Answer(Protocol):
    """The part of `http.client.HTTPResponse` that is used."""

    status: int
    headers: Message

    def read1(self, n: int, /) -> bytes: ...
    def geturl(self) -> str: ...
    def __enter__(self) -> Answer: ...
    def __exit__(self, *exception: object) -> None: ...


class HttpStore:
    """Files of any web server."""

    lists = False

    def __init__(self, headers: Mapping[str, str] | None = None, *, tells_version: bool = True):
        """``headers`` are sent to the server of the URL, not to those that it redirects to."""
        self._headers = dict(headers or {})
        self._tells_version = tells_version
        self._opener: OpenerDirector | None = None
        self.moved: dict[str, str] = {}  # addresses that were redirected to another server

    def find(
        self, url: str, address: str, head_bytes: int = HEAD_BYTES
    ) -> tuple[RemoteFile, bytes] | None:
        """The file with its first bytes, by one GET request, which signed URLs allow."""
        with self.ask(address, {"Range": f"bytes=0-{head_bytes - 1}"}, {404, 410, 416}) as answer:
            if answer.status in (404, 410):
                return None
            size, version = _size(answer, url), _version(answer)
            kind = answer.headers.get("Content-Type", "")
            if kind.startswith("text/html") and not url.endswith((".html", ".htm")):
                raise FileError(
                    f"{url} is a web page, not a file of data. Plain HTTP has no listing of "
                    "folders: give the URLs of files, a list of them, or braces, "
                    "https://host/part-{000..099}.npz."
                )
            head = b"" if answer.status == 416 else read_piece(answer, head_bytes, Pace())
            if len(head) < min(size, head_bytes):
                raise TransientError("an answer ended early")
        if not version:
            if size > HEAD_BYTES:
                _warn_of_versions(url)
            version = _BY_HEAD + digest(head[:HEAD_BYTES])
        return RemoteFile(url, size, version, address), head

    def names(self, address: str) -> list[Listed]:
        raise FileError(
            f"{public_url(address)} is a folder or a pattern of a web server, and plain HTTP has "
            "no listing. Give the URLs of files, a list of them, or braces, "
            "https://host/part-{000..099}.npz. Folders that are opened by their URL with a slash "
            "at its end are those of `Dataset.save` (loaderx.json) and of Hugging Face's "
            "save_to_disk (state.json)."
        )

    def read(self, file: RemoteFile, start: int, stop: int) -> Generator[bytes]:
        is_whole = start == 0 and stop == file.size
        range_ = {} if is_whole else {"Range": f"bytes={start}-{stop - 1}"}
        with self.ask(file.address, range_, {404, 410, 416}) as answer:
            if answer.status in (404, 410):
                raise file_changed(file.url, "it is not there any more")
            size = _size(answer, file.url)
            if size != file.size:
                raise file_changed(file.url, f"it has {size} bytes, and had {file.size}")
            tells = self._tells_version and not file.version.startswith(_BY_HEAD)
            if tells and _version(answer) != file.version:
                raise file_changed(file.url, "its ETag or time of the last write differs")
            if not is_whole and answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                raise NoRangesError
            if _start(answer) != start:
                raise TransientError(f"the server sent other bytes than {start} to {stop - 1}")
            left, pace = stop - start, Pace()
            while left:
                piece = read_piece(answer, min(left, READ_BYTES), pace)
                if not piece:
                    raise TransientError(f"an answer ended {left} bytes early")
                left -= len(piece)
                yield piece

    def ask(self, address: str, headers: Mapping[str, str], expected: set[int]) -> Answer:
        """The answer to a GET request, if it is a success or has an expected status."""
        url, own = _request_url(address)
        request = Request(url, headers={"Accept-Encoding": "identity", **headers})
        for name, value in {**self._headers, **own}.items():
            if not request.has_header(name.capitalize()):  # as urllib writes them
                request.add_unredirected_header(name, value)
        if self._opener is None:
            connections = Connections()
            weakref.finalize(self, connections.close)
            self._opener = connections.opener()
        try:
            answer = cast(Answer, self._opener.open(request, timeout=TIMEOUT_S))
            if origin_of(answer.geturl()) != origin_of(url):
                self.moved[address] = answer.geturl()
            return answer
        except HTTPError as error:
            if error.code in expected:
                return cast(Answer, error)
            with error:
                raise _refused(address, error) from None  # its text may contain the address
        except (URLError, OSError, http.client.HTTPException) as error:
            raise _failure(address, error) from None


def _request_url(address: str) -> tuple[str, dict[str, str]]:
    """The URL to request, and the header for the user and password that it contained."""
    parts = urlsplit(address)
    user, at, host = parts.netloc.rpartition("@")
    path = quote(parts.path, safe=_PATH_SAFE)
    url = urlunsplit((parts.scheme, host, path, parts.query, ""))
    if not at:
        return url, {}
    token = base64.b64encode(unquote(user).encode()).decode()
    return url, {"Authorization": f"Basic {token}"}


def read_piece(answer: Answer, most: int, pace: Pace) -> bytes:
    """The next ``most`` bytes of the body, fewer at its end."""
    pieces, left = list[bytes](), most
    try:
        while left and (piece := pace.timed(answer.read1, left)):
            pieces.append(piece)
            left -= len(piece)
    except (OSError, http.client.HTTPException, TransientError) as error:
        if not pieces:  # else return what came: the next read fails again
            is_slow = isinstance(error, TransientError)
            text = str(error) if is_slow else f"an answer was cut off: {_reason(error)}"
            raise TransientError(text) from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _size(answer: Answer, url: str) -> int:
    """The size of the whole file."""
    if match := _RANGE.fullmatch(answer.headers.get("Content-Range", "")):
        return int(match[3])
    told = answer.headers.get("Content-Length", "")
    is_whole = answer.status == http.HTTPStatus.OK and _NUMBER.fullmatch(told)
    if not is_whole or answer.headers.get("Content-Encoding", "identity") != "identity":
        raise FileError(
            f"{url}: the server does not say how large the file is. Download it first, and open "
            "the copy."
        )
    return int(told)


def _start(answer: Answer) -> int:
    match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    return int(match[1] or 0) if match else 0


def _version(answer: Answer) -> str:
    """A digest of the ETag or time that the server gives; empty if it gives none."""
    told = answer.headers.get("ETag", "").removeprefix("W/")
    told = told or answer.headers.get("Last-Modified", "")
    return digest(told) if told else ""


def _warn_of_versions(url: str) -> None:
    host = urlsplit(url).netloc
    if host not in _warned_of:
        _warned_of.add(host)
        warn_user(
            f"{url}: the server tells neither an ETag nor the time of the last write. A file is "
            f"known by its size and its first {HEAD_BYTES} bytes; a new version that has the same "
            "ones is not noticed. Write new versions of data to new names, or remove the old ones "
            "with `loaderx cache --clear`."
        )


_warned_of: set[str] = set()


def _refused(address: str, error: HTTPError) -> Exception:
    url, code = public_url(address), error.code
    if code in _PASSING:
        told = str(error.headers.get("Retry-After", ""))
        after_s = min(float(told), LONGEST_WAIT_S) if _NUMBER.fullmatch(told) else 0.0
        return TransientError(f"the server answered {code} {error.reason}", after_s)
    if code in (401, 403, 407):
        return FileError(
            f"{url}: the server refused access ({code} {error.reason}). A signed URL may have "
            "expired; a token is given with storage_options={'headers': {'Authorization': ...}}, "
            "which a pickle of a dataset leaves out; for data of the hub set HF_TOKEN, or log in "
            "with `hf auth login`."
        )
    return FileError(f"{url}: the server answered {code} {error.reason}.")


def _failure(address: str, error: Exception) -> Exception:
    reason: object = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return FileError(f"{public_url(address)}: its certificate is not valid: {reason}.")
    if isinstance(reason, (http.client.InvalidURL, UnicodeError)):
        return FileError(f"{public_url(address)} is not a valid URL.")
    host = urlsplit(public_url(address)).netloc
    return TransientError(f"{host} cannot be reached: {_reason(reason)}", is_reached=False)


def _reason(error: object) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return without_secrets(str(text))[:200].rstrip(".")
