"""Files behind URLs: a web server with 50 ms a request and 100 MB/s in all, on loopback.

    python benchmarks/remote.py [--megabytes N] [--latency-ms N] [--rate-mb N] [--folder DIR]

Records of 64 kB in the native layout, in parts of 16 MB.  The server is a process of its own; it
counts requests and bytes.  `open` is until the dataset is there, `first batch` from then on; `pass`
is one pass over all records with an empty folder of downloads, as a share of what the rate allows,
and `again` one that finds them there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from loaderx import DataLoader, Dataset
from loaderx.sources.column_data import ColumnData, ColumnType
from loaderx.sources.ondisk.native_layout import Description, write_description
from loaderx.sources.ondisk.native_writer import PartWriter

RECORD, PART, BATCH = 1 << 16, 256, 16  # bytes, records, records
PIECE = 1 << 17


def write(folder: Path, megabytes: int) -> None:
    """The native layout with one column."""
    kinds = {"x": ColumnType("fixed", np.dtype(np.uint8), (RECORD,))}
    parts = []
    for number in range(max(1, megabytes * 10**6 // (PART * RECORD))):
        rows = np.full((PART, RECORD), number % 251, np.uint8)
        with PartWriter(str(folder), number, kinds) as writer:
            writer.append({"x": ColumnData(PART, rows)})
            parts.append(writer.close())
    write_description(str(folder), Description(kinds, parts, {}, ()))


# The server ---------------------------------------------------------------------------------------


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


def serve(folder: str, latency_s: float, rate: Rate) -> None:
    asked = {"requests": 0, "bytes": 0}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/asked":
                self._answer(200, repr(asked).encode())
                return
            time.sleep(latency_s)
            asked["requests"] += 1
            try:
                data = Path(folder, self.path.lstrip("/")).read_bytes()
            except OSError:
                self._answer(404, b"")
                return
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            start, stop = (int(match[1]), int(match[2]) + 1) if match else (0, len(data))
            stop = min(stop, len(data))
            told = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"} if match else {}
            self._answer(206 if match else 200, data[start:stop], told)
            asked["bytes"] += stop - start

        def _answer(self, status: int, body: bytes, told: dict[str, str] | None = None) -> None:
            self.send_response(status)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(len(body)))
            for name, value in (told or {}).items():
                self.send_header(name, value)
            self.end_headers()
            for at in range(0, len(body), PIECE):
                piece = body[at : at + PIECE]
                rate.wait(len(piece))
                self.wfile.write(piece)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


@contextlib.contextmanager
def serving(folder: str, latency_ms: float, rate_mb: float) -> Iterator[str]:
    command = [sys.executable, __file__, "--serve", folder]
    command += ["--latency-ms", str(latency_ms), "--rate-mb", str(rate_mb)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


# What is measured ---------------------------------------------------------------------------------


def measure(url: str, engine: str, cache: str, rate_mb: float) -> None:
    begun = time.perf_counter()
    dataset = Dataset.open(f"{url}/", cache=cache)
    opened = time.perf_counter()
    passes, first = [], 0.0
    for _ in range(2):
        start = time.perf_counter()
        with DataLoader(dataset.batch(BATCH), engine=engine, num_workers=4) as loader:
            for batch in loader:
                first = first or time.perf_counter() - opened
                batch["x"][:, 0].sum()
        passes.append(time.perf_counter() - start)
    share = len(dataset) * RECORD / 1e6 / passes[0] / rate_mb
    told = urlopen(f"{url}/asked").read().decode()
    print(
        f"{engine:10} open {opened - begun:5.2f} s, first batch {first:5.2f} s, "
        f"pass {passes[0]:6.2f} s ({share:.2f} of the rate), again {passes[1]:5.2f} s; {told}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--latency-ms", type=float, default=50.0)
    parser.add_argument("--rate-mb", type=float, default=100.0)
    parser.add_argument("--folder", help="for the files and the downloads")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.latency_ms / 1e3, Rate(options.rate_mb * 1e6))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        data = Path(folder, "data")
        data.mkdir()
        write(data, options.megabytes)
        with serving(str(data), options.latency_ms, options.rate_mb) as url:
            for engine in ("inline", "threads", "processes"):
                cache = os.path.join(folder, f"cache-{engine}")
                measure(url, engine, cache, options.rate_mb)


if __name__ == "__main__":
    main()
