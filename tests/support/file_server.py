"""A web server on loopback with files in memory: ranges, ETags, faults, counts; S3 and the hub."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import socket
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

HEAD = 512  # bytes by which a format is known
COMMIT = "c0ffee" * 6


class FileServer:
    """Files by path; what is asked for is written down.

    A fault is what `fault(number, path)` gives for a request: a status, or ``("cut", nbytes)`` to
    send so many bytes of the body and hang up.
    """

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, int, int]] = []  # path, start, stop of ranges that were sent
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.has_ranges = self.has_etags = True
        self.hangs_up = False  # after each answer, without a word
        self.fault = lambda number, path: None
        self.cdn = ""  # where the files of the hub are, if not here
        self.redirects: dict[str, str] = {}  # where else a path is
        self.pages: dict[str, str] = {}  # the page that follows, in place of the right one
        self.kinds: dict[str, str] = {}  # what is told of the content, by path
        self.password = None  # "user:password" in base64, or a bearer token
        self.buckets: set[str] = set()  # those that may be empty
        self.uploads: dict[str, dict[int, bytes]] = {}  # their pieces, by number
        self.written: dict[str, bytes] = {}  # objects that were put, also those that are gone
        self.has_conditions = True  # of writes: only if there is no such object
        self.lock = threading.Lock()
        self.at: dict[str, str] = {}

    def add(self, folder, under=""):
        """Serves the files of a folder."""
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                name = file.relative_to(folder).as_posix()
                self.files[f"/{under}/{name}" if under else f"/{name}"] = file.read_bytes()

    @property
    def url(self):
        return self.at["url"]

    def ranges(self, path):
        """The ranges of a file that were sent."""
        return sorted(one[1:] for one in self.asked if one[0] == path)

    def fetched_twice(self):
        """Bytes that were sent more than once, by path; at the first ones there was a look."""
        found = {}
        for path in {one[0] for one in self.asked}:
            ranges = [(max(one, HEAD), other) for one, other in self.ranges(path) if other > HEAD]
            twice = sum(max(0, a[1] - b[0]) for a, b in itertools.pairwise(ranges))
            if twice:
                found[path] = twice
        return found


@contextmanager
def serving(server=None):
    """Runs a server for the time of a test."""
    server = server or FileServer()

    class Handler(_Handler):
        owner = server

    httpd = _Httpd(("127.0.0.1", 0), Handler)
    server.at["url"] = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        httpd.hang_up()
        thread.join()


class _Httpd(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, *args):
        self.open: dict[socket.socket, threading.Thread] = {}
        super().__init__(*args)

    def process_request_thread(self, request, client_address):
        self.open[request] = threading.current_thread()
        self.RequestHandlerClass.owner.connections += 1
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self.open[request]

    def hang_up(self):
        """Ends connections that clients keep."""
        for request, thread in list(self.open.items()):
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
            thread.join(10)

    def handle_error(self, request, client_address):
        pass  # a client that has hung up


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    disable_nagle_algorithm = True
    owner: FileServer

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET(is_head=True)

    def do_GET(self, *, is_head=False):
        owner, parts = self.owner, urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        with owner.lock:
            number = len(owner.requests)
            owner.requests.append(f"{self.command} {path}")
            owner.headers.append(dict(self.headers))
        fault = owner.fault(number, path)
        if isinstance(fault, int):
            return self._answer(fault, b"it failed", is_head=is_head)
        if owner.password and owner.password not in self.headers.get("Authorization", ""):
            return self._answer(403, b"no", is_head=is_head)
        if path in owner.redirects:
            return self._answer(302, b"", {"Location": owner.redirects[path]}, is_head=is_head)
        if "list-type" in query:
            return self._list(path, query)
        if path.startswith("/api/datasets/") and path not in owner.files:
            return self._hub(path, query)
        if path not in owner.files:
            path = re.sub(r"^/datasets/([^/]+/[^/]+)/resolve/[^/]+", r"/\1", path)
            if owner.cdn and path in owner.files and path != unquote(parts.path):
                return self._answer(302, b"", {"Location": f"{owner.cdn}{path}"})
        data = owner.files.get(path)
        if data is None:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", is_head=is_head)
        return self._send(path, data, fault, is_head)

    def do_PUT(self):
        """An object of S3, or a piece of one."""
        owner, path, query, fault = self._change()
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if fault is not None:
            return self._answer(fault, b"it failed")
        etag = {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}
        if "uploadId" in query:
            owner.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
            return self._answer(200, b"", etag)
        is_new = self.headers.get("If-None-Match") == "*"
        if is_new and not owner.has_conditions:
            return self._answer(501, b"<Error><Code>NotImplemented</Code></Error>")
        with owner.lock:
            if is_new and path in owner.files:
                return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            owner.files[path] = owner.written[path] = body
        return self._answer(200, b"", etag)

    def do_POST(self):
        """Removes objects of S3, or begins or completes one in pieces."""
        owner, path, query, fault = self._change()
        body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
        if fault is not None:
            return self._answer(fault, b"it failed")
        if "uploadId" in query:
            pieces = owner.uploads[query["uploadId"][0]]
            owner.files[path] = b"".join(pieces[number] for number in sorted(pieces))
            text = "<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>"
        elif "uploads" in query:
            with owner.lock:
                number = str(len(owner.uploads))
                owner.uploads[number] = {}
            text = f"<UploadId>{number}</UploadId>"
            text = f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>"
        else:
            text = ""
            for key in re.findall("<Key>(.*?)</Key>", body):
                owner.files.pop(f"{path.rstrip('/')}/{unescape(key)}", None)
                text += f"<Deleted><Key>{key}</Key></Deleted>"
            text = f"<DeleteResult>{text}</DeleteResult>"
        return self._answer(200, text.encode(), {"Content-Type": "application/xml"})

    def _change(self):
        """The owner, path, query and fault of a request that changes something."""
        owner, parts = self.owner, urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query, keep_blank_values=True)
        with owner.lock:
            number = len(owner.requests)
            owner.requests.append(f"{self.command} {path}")
            owner.headers.append(dict(self.headers))
        refused = owner.password and owner.password not in self.headers.get("Authorization", "")
        return owner, path, query, 403 if refused else owner.fault(number, path)

    def _send(self, path, data, fault, is_head):
        owner = self.owner
        headers = {"Content-Type": owner.kinds.get(path, "application/octet-stream")}
        if owner.has_etags:
            headers["ETag"] = f'"{hashlib.md5(data).hexdigest()}"'
            headers["Last-Modified"] = "Tue, 17 Nov 2026 08:00:00 GMT"
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        status, body, start = 200, data, 0
        if match and owner.has_ranges:
            start = int(match[1])
            stop = min(len(data), int(match[2] or len(data)) + 1)
            if start >= len(data):
                return self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            status, body = 206, data[start:stop]
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        if not is_head and self.headers.get("Range") != f"bytes=0-{HEAD - 1}":
            sent = len(body) if fault is None else min(len(body), fault[1])
            with owner.lock:
                owner.asked.append((path, start, start + sent))
        return self._answer(status, body, headers, fault, is_head=is_head)

    def _answer(self, status, body, headers=None, fault=None, *, is_head=False):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if not is_head:
            self.wfile.write(body if fault is None else body[: fault[1]])
        self.close_connection = self.close_connection or fault is not None or self.owner.hangs_up

    def _list(self, path, query):
        """The second version of S3's listing."""
        bucket = path.strip("/")
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        keys = {name.removeprefix(f"/{bucket}/"): data for name, data in [*self.owner.files.items()]
                if name.startswith(f"/{bucket}/")}  # fmt: skip
        if not keys and bucket not in self.owner.buckets:
            return self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        found, folders = "", set()
        for key in sorted(keys):
            if not key.startswith(prefix):
                continue
            below, slash, _ = key[len(prefix) :].partition(delimiter or "\0")
            if slash:
                folders.add(prefix + below + delimiter)
                continue
            etag = hashlib.md5(keys[key]).hexdigest()
            found += (
                f"<Contents><Key>{escape(key)}</Key><Size>{len(keys[key])}</Size>"
                f"<ETag>&quot;{etag}&quot;</ETag>"
                "<LastModified>2026-11-17T08:00:00.000Z</LastModified></Contents>"
            )
        for one in sorted(folders):
            found += f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>"
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
        return self._answer(200, text.encode(), {"Content-Type": "application/xml"})

    def _hub(self, path, query):
        """Two answers of the hub: the commit of a revision, and the tree, in pages of three."""
        match = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path)
        if match is None or (match[2] == "revision" and match[3] not in ("main", COMMIT)):
            return self._answer(404, b"{}")
        root = f"/{match[1]}/"
        names = sorted(name for name in self.owner.files if name.startswith(root))
        if not names:
            return self._answer(404, b"{}")
        if match[2] == "revision":
            return self._answer(200, json.dumps({"sha": COMMIT}).encode())
        start = int(query.get("cursor", ["0"])[0])
        told = [{"type": "directory", "path": "data", "oid": "0"}]
        for name in names[start : start + 3]:
            data = self.owner.files[name]
            oid = hashlib.sha256(data).hexdigest()
            told.append(
                {"type": "file", "path": name[len(root) :], "size": len(data), "oid": "pointer",
                 "lfs": {"oid": oid, "size": len(data)}}
            )  # fmt: skip
        headers = {}
        if start + 3 < len(names):
            following = f"{self.owner.url}{path}?recursive=true&cursor={start + 3}"
            headers["Link"] = f'<{self.owner.pages.get(path, following)}>; rel="next"'
        return self._answer(200, json.dumps(told).encode(), headers)
