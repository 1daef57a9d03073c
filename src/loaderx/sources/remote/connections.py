"""Keeps connections to web servers alive, and reuses them for later requests.

urllib opens and closes a connection for each request; the handlers here replace that.  urllib still
handles proxies and certificates.  Redirects are followed only to HTTP, and never from HTTPS to an
unencrypted address; secrets go only to the server that they were given for.  A connection is kept
once its answer was read to the end, and replaced if the server has hung up meanwhile.  However a
request ends, Ctrl-C included, no socket stays open.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import socket
import ssl
import time
from collections import deque
from typing import IO, NamedTuple, cast
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from loaderx.errors import FileError
from loaderx.sources.remote.urls import public_url

_MOST_IDLE = 32  # of a server
_LONGEST_IDLE_S = 20.0  # servers and some routers drop connections after about a minute
_SMALL_REST = 1 << 12  # an unread rest up to this size is read, so that the connection can be kept
_PORTS = {"http": 80, "https": 443}
_PROXY_HEADER = "Proxy-Authorization"


class _Place(NamedTuple):
    """The destination of a connection."""

    scheme: str
    host: str  # of the server, or of the proxy
    tunnel: str  # the server, behind a proxy
    proxy_secret: str


class Connections:
    """The idle connections of one process."""

    def __init__(self) -> None:
        # Without a lock: an answer may also return its connection when it is collected.
        self._idle: dict[_Place, deque[tuple[float, http.client.HTTPConnection]]] = {}
        self._process, self._is_closed = os.getpid(), False
        self.context: ssl.SSLContext | None = None  # certificates take long to load

    def opener(self) -> OpenerDirector:
        """A urllib opener that uses them, and opens only HTTP."""
        opener = OpenerDirector()
        for handler in (
            ProxyHandler(),
            UnknownHandler(),
            HTTPDefaultErrorHandler(),
            HTTPErrorProcessor(),
            Redirects(),
            _Http(self),
            _Https(self),
        ):
            opener.add_handler(handler)
        return opener

    def take(self, place: _Place) -> http.client.HTTPConnection | None:
        """An idle connection; None if there is none."""
        if self._process != os.getpid():  # a fork must not read its parent's answers
            self._drop()
            self._process = os.getpid()
        idle = self._idle.get(place)
        while idle:
            with contextlib.suppress(IndexError):  # another thread has taken it
                since, connection = idle.pop()
                if time.monotonic() - since < _LONGEST_IDLE_S and not has_ended(connection):
                    return connection
                connection.close()
        return None

    def keep(self, place: _Place, connection: http.client.HTTPConnection) -> None:
        """Keeps a connection for reuse."""
        idle = self._idle.setdefault(place, deque())
        is_own = self._process == os.getpid() and not self._is_closed
        if len(idle) < _MOST_IDLE and is_own:
            idle.append((time.monotonic(), connection))
        else:
            connection.close()

    def close(self) -> None:
        """Closes idle connections now, and those in use when they are returned."""
        self._is_closed = True
        self._drop()

    def _drop(self) -> None:
        for idle in list(self._idle.values()):
            while idle:
                with contextlib.suppress(IndexError):
                    idle.pop()[1].close()

    def exchange(self, request: Request, kind: type[http.client.HTTPConnection]) -> _Answer:
        """The answer to a request; a kept connection that fails is replaced."""
        headers = {**request.headers, **request.unredirected_hdrs}
        headers = {name.title(): value for name, value in headers.items()}
        tunnel = str(vars(request).get("_tunnel_host") or "")
        told = str(headers.pop(_PROXY_HEADER, "")) if tunnel else ""
        place = _Place(request.type, str(request.host), tunnel, told)
        while True:
            connection = self.take(place)
            is_kept = connection is not None
            if connection is None:
                connection = self.new(place, kind, float(request.timeout or 0) or None)
            try:
                return self._ask(connection, place, request, headers)
            except BaseException as error:
                connection.close()
                is_stale = isinstance(error, (OSError, http.client.BadStatusLine))
                if not (is_kept and is_stale) or isinstance(error, TimeoutError):
                    raise

    def new(
        self, place: _Place, kind: type[http.client.HTTPConnection], timeout_s: float | None
    ) -> http.client.HTTPConnection:
        if issubclass(kind, _SecureConnection):
            made: http.client.HTTPConnection = kind(
                place.host, timeout=timeout_s, context=self.context
            )
            self.context = vars(made)["_context"]
        else:
            made = kind(place.host, timeout=timeout_s)
        vars(made)["_create_connection"] = connect
        made.response_class = _Answer
        if place.tunnel:
            told = {_PROXY_HEADER: place.proxy_secret} if place.proxy_secret else {}
            made.set_tunnel(place.tunnel, headers=told)
        return made

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        place: _Place,
        request: Request,
        headers: dict[str, str],
    ) -> _Answer:
        connection.request(request.get_method(), request.selector, headers=headers)
        answer = cast(_Answer, connection.getresponse())
        answer.lent = (self, place, connection)
        answer.url = request.get_full_url()
        vars(answer)["msg"] = answer.reason  # as urllib does
        return answer


def origin_of(url: str) -> tuple[str, str | None, int | None]:
    """The server of a URL: scheme, host and port."""
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.hostname, parts.port or _PORTS.get(parts.scheme.lower())


class Redirects(HTTPRedirectHandler):
    """Follows redirects that are safe."""

    def redirect_request(
        self,
        req: Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> Request | None:
        old, new = origin_of(req.full_url), origin_of(newurl)
        if new[0] not in _PORTS or (old[0], new[0]) == ("https", "http"):
            fp.close()
            raise FileError(
                f"{public_url(req.full_url)}: the server sends us to {new[0]}://{new[1]}, which is "
                "not followed: only from https to https, and never to anything but HTTP. If you "
                "trust that address, open it itself."
            )
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and old == new:  # passwords and tokens stay with their server
            made.unredirected_hdrs.update(req.unredirected_hdrs)
        return made


class _Http(HTTPHandler):
    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections

    def http_open(self, req: Request) -> http.client.HTTPResponse:
        return self._connections.exchange(req, http.client.HTTPConnection)


class _Https(HTTPSHandler):
    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections

    def https_open(self, req: Request) -> http.client.HTTPResponse:
        return self._connections.exchange(req, _SecureConnection)


class _Answer(http.client.HTTPResponse):
    """Returns its connection when it is closed, if all of it was read."""

    lent: tuple[Connections, _Place, http.client.HTTPConnection] | None = None

    def close(self) -> None:
        lent, self.lent = self.lent, None
        if lent is not None and not self.isclosed() and self._left() <= _SMALL_REST:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.read()
        is_whole = self.isclosed() and not self._left()
        super().close()
        if lent is not None:
            connections, place, connection = lent
            if is_whole and connection.sock is not None:
                connections.keep(place, connection)
            else:
                connection.close()

    def _left(self) -> int:
        """Bytes not read yet; for chunked answers unknown until the end."""
        if vars(self).get("chunked"):
            return 0 if self.isclosed() else _SMALL_REST + 1
        return _SMALL_REST + 1 if self.length is None else self.length


class _SecureConnection(http.client.HTTPSConnection):
    """Knows its socket before the handshake, so that it is closed whatever happens there."""

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        context = cast(ssl.SSLContext, vars(self)["_context"])
        name = str(vars(self).get("_tunnel_host") or self.host)
        made = context.wrap_socket(self.sock, server_hostname=name, do_handshake_on_connect=False)
        self.sock = made
        made.do_handshake()


def connect(
    address: tuple[str, int], timeout_s: float | None, source: tuple[str, int] | None = None
) -> socket.socket:
    """Like `socket.create_connection`, which leaks its socket if Ctrl-C interrupts it."""
    failure = OSError(f"{address[0]} has no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(*address, 0, socket.SOCK_STREAM):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(timeout_s)
            if source:
                made.bind(source)
            made.connect(place)
            return made
        except OSError as error:
            made.close()
            failure = error
        except BaseException:
            made.close()
            raise
    raise failure


def has_ended(connection: http.client.HTTPConnection) -> bool:
    """True if the server has hung up: then the socket is readable, at its end."""
    if connection.sock is None:
        return True
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
