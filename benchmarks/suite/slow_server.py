"""A web server on loopback that answers late and not faster than a rate: a store far away.

    python slow_server.py FOLDER [--latency-ms N] [--rate-mb N]

It prints its port, and runs until its standard input ends.  Every request waits, then its bytes
share the rate with all others.  It knows HEAD and ranges, as stores do, and takes paths below
`/bucket/` too, so that a client of S3 finds a bucket of that name.  `/asked` says how many requests
and bytes there were.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

PIECE = 1 << 17
LATENCY_MS, RATE_MB = 50.0, 100.0


class Rate:
    """Lets so many bytes a second through, for all connections together."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate, self._free, self._lock = bytes_per_s, 0.0, threading.Lock()

    def wait(self, nbytes: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._free = max(self._free, now) + nbytes / self._rate
            left = self._free - now
        time.sleep(left)


class SlowServer(ThreadingHTTPServer):
    """Serves the files of a folder."""

    request_queue_size = 128

    def __init__(self, folder: str, latency_s: float, rate: Rate) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.latency_s, self.rate = folder, latency_s, rate
        self.asked = {"requests": 0, "bytes": 0}
        self.lock = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients end when they like; anything else is a fault of ours."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def count(self, nbytes: int) -> None:
        with self.lock:
            self.asked["requests"] += 1
            self.asked["bytes"] += nbytes


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, as those of stores are
    disable_nagle_algorithm = True  # else a short answer waits for an acknowledgement, 40 ms
    server: SlowServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.path == "/asked":
            body = repr(self.server.asked).encode()
            self._begin(200, len(body))
            self.wfile.write(body)
            return
        time.sleep(self.server.latency_s)
        place = self.path.partition("?")[0].removeprefix("/bucket").lstrip("/")
        path = Path(self.server.folder, place)
        try:
            with path.open("rb") as file:
                self._send(file)
        except (IsADirectoryError, FileNotFoundError):
            self._begin(404, 0)

    def _send(self, file: BinaryIO) -> None:
        """The range that was asked for, or all of it."""
        size = os.fstat(file.fileno()).st_size
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, stop = (int(match[1]), int(match[2] or size - 1) + 1) if match else (0, size)
        stop = min(stop, size)
        told = {"Content-Range": f"bytes {start}-{stop - 1}/{size}"} if match else {}
        self._begin(206 if match else 200, stop - start, told)
        if self.command == "HEAD":
            self.server.count(0)
            return
        self.server.count(stop - start)
        for at in range(start, stop, PIECE):
            piece = os.pread(file.fileno(), min(PIECE, stop - at), at)
            self.server.rate.wait(len(piece))
            self.wfile.write(piece)

    def _begin(self, status: int, length: int, told: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(length))
        if self.path.startswith("/bucket/"):  # forked workers would share a kept connection
            self.send_header("Connection", "close")
        for name, value in (told or {}).items():
            self.send_header(name, value)
        self.end_headers()


@contextlib.contextmanager
def serving(folder: str, latency_ms: float = LATENCY_MS, rate_mb: float = RATE_MB) -> Iterator[str]:
    """The URL of a server, in a process of its own, which ends with the block."""
    command = [sys.executable, __file__, folder]
    command += ["--latency-ms", str(latency_ms), "--rate-mb", str(rate_mb)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description="A slow web server on loopback.")
    parser.add_argument("folder")
    parser.add_argument("--latency-ms", type=float, default=LATENCY_MS)
    parser.add_argument("--rate-mb", type=float, default=RATE_MB)
    options = parser.parse_args()
    rate = Rate(options.rate_mb * 1e6)
    server = SlowServer(options.folder, options.latency_ms / 1e3, rate)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started it
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()  # to the end: whoever started it has ended, in whatever way


if __name__ == "__main__":
    main()
