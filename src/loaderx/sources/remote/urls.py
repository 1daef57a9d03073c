"""URLs without their secrets.

Users and passwords (``https://user:password@host``) and queries (which sign a URL, or hold a token)
are secrets.  The *public* URL, without them, is used throughout loaderx and in messages; only the
reader of a file knows the *address*, with them.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from loaderx.errors import ArgumentError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")  # one letter would be a Windows drive
_IN_TEXT = re.compile(r"(https?://)(?:[^\s/@\"'<>]+@)?([^\s?\"'<>]+)(\?[^\s\"'<>)]+)?")
_ODD = re.compile(r"[^\w.+=@-]")
_SIGNS = re.compile(  # signatures of S3, GCS, CloudFront or Azure: they change, the file does not
    r"x-amz-.*|x-goog-.*|awsaccesskeyid|googleaccessid|signature|expires|policy|key-pair-id"
    r"|sv|ss|srt|sp|se|st|spr|sr|sip|si|sig|skoid|sktid|skt|ske|sks|skv",
    re.IGNORECASE,
)


def is_url(path: str) -> bool:
    """True for a URL, False for a path of this machine.

    >>> is_url("s3://bucket/a.npy"), is_url("C://a.npy"), is_url("/data/a.npy")
    (True, False, False)
    """
    return _URL.match(path) is not None


def scheme_of(url: str) -> str:
    """The scheme of a URL, in lower case."""
    match = _URL.match(url)
    assert match is not None
    return match[1].lower()


def is_http(url: str) -> bool:
    """True for plain HTTP, in which ``?`` begins a query."""
    return scheme_of(url) in ("http", "https")


def public_url(url: str) -> str:
    """The URL without secrets; a query that is not a signature is replaced by its hash.

    >>> public_url("https://me:pw@host/a.npy?X-Amz-Signature=1")
    'https://host/a.npy'
    >>> public_url("https://host/get?id=1")
    'https://host/get?d9fc91d4'
    """
    if not is_http(url):
        return url
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    told = [one for one in parse_qsl(parts.query, True) if not _SIGNS.fullmatch(one[0])]
    query = hashlib.sha256(urlencode(told).encode()).hexdigest()[:8] if told else ""
    return urlunsplit((parts.scheme, host, parts.path, query, ""))


def check_url(url: str) -> None:
    """Refuses passwords in URLs of other schemes: they would appear in messages."""
    if not is_http(url) and ":" in urlsplit(url).netloc.rpartition("@")[0]:
        raise ArgumentError(
            f"a URL of {scheme_of(url)} has a password in it. Set the variables that the store's "
            "library reads (docs/remote.md), or bring a file system, fsspec.open(url)."
        )


def without_secrets(text: str) -> str:
    """A message of another library, without the secrets of URLs in it."""
    return _IN_TEXT.sub(lambda match: match[1] + match[2] + ("?..." if match[3] else ""), text)


def harmless_name(name: str) -> str:
    """The name of a file behind a path or URL, made safe as a local file name.

    >>> harmless_name("../a b.npy"), harmless_name("")
    ('_a_b.npy', 'file')
    """
    return _ODD.sub("_", name).lstrip(".")[-100:] or "file"


def file_name(path: str) -> str:
    """The name of the file that a path or a URL leads to.

    >>> file_name("https://host/data/a%20b.npy?1234"), file_name("/data/c?.npy")
    ('a b.npy', 'c?.npy')
    """
    if is_url(path) and is_http(path):
        return unquote(urlsplit(path).path.rpartition("/")[2])
    return path.rpartition("/")[2]
