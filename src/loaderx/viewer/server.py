"""The server of the pages: for programs of this user on this machine, and for reading only.

Every answer needs a random token, which is the first part of the address.  The name in the
``Host`` header must be that of this machine, so no page from elsewhere can ask under a name that
it has pointed here.  Pages load nothing from elsewhere and run no script but `viewer.js`.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from loaderx.viewer import pages
from loaderx.viewer.looking import told
from loaderx.viewer.site import NoPageError, Site

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_FILES = {"viewer.css": "text/css", "viewer.js": "text/javascript"}
_MOST_FIELDS = 8  # of a query
_WAIT_S = 2.0  # at the end, for answers under way


class ViewServer(ThreadingTCPServer):
    """Serves a site on the loopback interface until it is closed."""

    daemon_threads = True
    allow_reuse_address = True  # a port that was given can be used again at once
    request_queue_size = 64

    def __init__(self, site: Site, port: int = 0) -> None:
        self._open: dict[socket.socket, threading.Thread] = {}
        super().__init__(("127.0.0.1", port), _Handler)
        self.site, self.token = site, secrets.token_urlsafe(24)
        self.port: int = self.server_address[1]
        self.hosts = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost")}

    @property
    def url(self) -> str:
        """The address of the first page."""
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._open[request] = threading.current_thread()
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._open[request]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser may close a connection at any time: that is no news."""

    def server_close(self) -> None:
        super().server_close()
        for request, thread in list(self._open.items()):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)  # browsers keep connections ready
            thread.join(_WAIT_S)


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    server_version, sys_version = "loaderx", ""
    default_request_version = "HTTP/1.0"  # 0.9, of requests without a version, has no headers
    timeout = 60  # seconds, for connections on which nothing is asked

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            self._fail(HTTPStatus.FORBIDDEN, "this server has another name.")
            return
        try:
            parts = urlsplit(self.path)
            query = dict(
                parse_qsl(parts.query, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
            )
        except ValueError:
            self._fail(HTTPStatus.BAD_REQUEST, "this is no address.")
            return
        token, name = self.server.token.encode(), parts.path.rpartition("/")[2]
        if not hmac.compare_digest(parts.path.encode(), b"/%b/%b" % (token, name.encode())):
            self._fail(HTTPStatus.NOT_FOUND, "there is no such page.")
        elif name in _FILES:
            self._send(HTTPStatus.OK, _FILES[name], pages.data_file(name))
        else:
            self._page(name, query)

    do_HEAD = do_GET  # noqa: N815

    def _page(self, name: str, query: dict[str, str]) -> None:
        try:
            made = self.server.site.answer(name, query)
        except NoPageError as error:
            self._fail(error.status, str(error))
        except Exception as error:  # of a function or a source of the user's
            self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, told(error))
        else:
            self._send(HTTPStatus.OK, "text/html", made)

    def _refuse(self) -> None:
        self._fail(HTTPStatus.METHOD_NOT_ALLOWED, "the viewer can only be read.")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _fail(self, status: HTTPStatus, text: str) -> None:
        self._send(status, "text/html", pages.page("loaderx", pages.problem(text)))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        data = text.encode("utf-8", "replace")
        self.send_response(status)
        more = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(data))}
        for name, value in {**HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self._fail(HTTPStatus(code), "this cannot be answered.")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""
