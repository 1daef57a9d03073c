"""Files behind URLs: a web server with 50 ms a request and 100 MB/s in all, on loopback.

    python benchmarks/remote.py [--megabytes N] [--latency-ms N] [--rate-mb N] [--folder DIR]
        [--workers 1 2 4] [--engines inline threads processes] [--failing 0.05] [--order NAME]
        [--format parquet]

Records of 64 kB in parts of 16 MB: in the native layout, or in Parquet, which is not copied (in
row groups of 64 records, the blocks of the shuffle).  The server is a process of its own, and
counts.  `open` is until the dataset is there, `first batch` from then on; `rounds` is the longest
chain of requests until that batch, each sent after the answer to the one before it; `pass` is one
pass over all records with an empty folder of downloads, as a share of what the rate allows, and
`again` one that finds them there.  CPU time is that of this process, without its workers; `twice`
counts bytes that were sent more than once.  Records come in a shuffle of blocks (the default), in
order, or shuffled one by one; `--failing` is the share of requests that the server answers with
503.  Every batch is compared with what was written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import urlopen

import numpy as np
from suite.slow_server import Rate

from loaderx import DataLoader, Dataset
from loaderx.sources.columns.data import ColumnData, ColumnType
from loaderx.sources.native.layout import Description, write_description
from loaderx.sources.native.writer import PartWriter

RECORD, PART, BATCH, BLOCK = 1 << 16, 256, 16, 64  # bytes, and then records
PIECE = 1 << 17


def write(folder: Path, megabytes: int) -> None:
    """The native layout: bytes, and the number of the record that they follow from."""
    kinds = {
        "x": ColumnType("fixed", np.dtype(np.uint8), (RECORD,)),
        "number": ColumnType("fixed", np.dtype(np.int64)),
    }
    parts = []
    for number in range(max(1, megabytes * 10**6 // (PART * RECORD))):
        numbers = np.arange(number * PART, (number + 1) * PART)
        rows = np.repeat((numbers % 251).astype(np.uint8)[:, None], RECORD, axis=1)
        with PartWriter(str(folder), number, kinds) as writer:
            writer.append({"x": ColumnData(PART, rows), "number": ColumnData(PART, numbers)})
            parts.append(writer.close())
    write_description(str(folder), Description(kinds, parts, {}, ()))


def write_parquet(folder: Path, megabytes: int) -> int:
    """The same as Parquet files; returns how many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = max(1, megabytes * 10**6 // (PART * RECORD))
    for number in range(count):
        numbers = np.arange(number * PART, (number + 1) * PART)
        rows = [bytes([int(one) % 251]) * RECORD for one in numbers]
        pq.write_table(
            pa.table({"x": rows, "number": numbers}), folder / f"{number}.parquet",
            row_group_size=BLOCK, compression="none", use_dictionary=False,
        )  # fmt: skip
    return count


# The server ---------------------------------------------------------------------------------------


class Counts:
    """What was asked for since the last time that it was told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._requests = self._failed = self._rounds = 0
        self._sent: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def begin(self) -> int:
        """The round of a request: one more than those of all answers before it."""
        with self._lock:
            self._requests += 1
            return self._rounds + 1

    def end(self, round_: int, path: str, start: int, stop: int) -> None:
        with self._lock:
            self._rounds = max(self._rounds, round_)
            self._failed += start == stop
            self._sent[path].append((start, stop))

    def told(self, *, forget: bool) -> dict[str, int]:
        with self._lock:
            twice = 0
            for ranges in self._sent.values():
                end = 0
                for start, stop in sorted(ranges):
                    twice += max(0, min(end, stop) - start)
                    end = max(end, stop)
            nbytes = sum(stop - start for one in self._sent.values() for start, stop in one)
            found = {
                "requests": self._requests, "failed": self._failed, "rounds": self._rounds,
                "bytes": nbytes, "twice": twice,
            }  # fmt: skip
            if forget:
                self._forget()
            return found


def serve(folder: str, latency_s: float, rate: Rate, failing: float) -> None:
    counts, random = Counts(), Random(0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path in ("/asked", "/begin"):
                told = counts.told(forget=self.path == "/begin")
                self._answer(200, json.dumps(told).encode())
                return
            round_ = counts.begin()
            time.sleep(latency_s)
            start = stop = 0
            try:
                with open(Path(folder, self.path.lstrip("/")), "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    if random.random() < failing:
                        self._answer(503, b"")
                        return
                    match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                    start, stop = (int(match[1]), int(match[2]) + 1) if match else (0, size)
                    stop = min(stop, size)
                    file.seek(start)
                    body = file.read(stop - start)
                told = {"Content-Range": f"bytes {start}-{stop - 1}/{size}"} if match else {}
                self._answer(206 if match else 200, body, told)
            except FileNotFoundError:
                self._answer(404, b"")
            finally:
                counts.end(round_, self.path, start, stop)

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

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that has hung up

    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


@contextlib.contextmanager
def serving(folder: str, latency_ms: float, rate_mb: float, failing: float) -> Iterator[str]:
    command = [sys.executable, __file__, "--serve", folder]
    command += ["--latency-ms", str(latency_ms), "--rate-mb", str(rate_mb)]
    command += ["--failing", str(failing)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


# What is measured ---------------------------------------------------------------------------------


def shuffled(dataset: Dataset, order: str) -> Dataset:
    if order == "blocks":
        return dataset.shuffle(seed=0, window=256, block=BLOCK)
    return dataset.shuffle(seed=0) if order == "records" else dataset


def told_by(url: str, path: str) -> dict[str, int]:
    with urlopen(f"{url}/{path}") as answer:
        found: dict[str, int] = json.loads(answer.read())
        return found


def open_dataset(url: str, cache: str, files: int) -> Dataset:
    if not files:
        return Dataset.open(f"{url}/", cache=cache)
    os.environ["LOADERX_CACHE"] = cache  # for downloads; there is no copy
    dataset = Dataset.open([f"{url}/{number}.parquet" for number in range(files)], cache=False)
    return dataset.map(as_array)


def as_array(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "x": np.frombuffer(record["x"], np.uint8)}


def measure(
    url: str, engine: str, workers: int, cache: str, files: int, options: argparse.Namespace
) -> None:
    told_by(url, "begin")
    begun = time.perf_counter()
    dataset = open_dataset(url, cache, files)
    opened = time.perf_counter()
    chain = shuffled(dataset, options.order).batch(BATCH)
    passes, cpu, first, rounds, seen = [], [], 0.0, 0, 0
    for _ in range(2):
        start, used = time.perf_counter(), time.process_time()
        with DataLoader(chain, engine=engine, num_workers=workers) as loader:
            for batch in loader:
                if not first:
                    first = time.perf_counter() - opened
                    rounds = told_by(url, "asked")["rounds"]
                numbers = batch["number"]
                assert (batch["x"][:, ::4096] == (numbers % 251)[:, None]).all()
                seen += int(numbers.sum())
        passes.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    assert seen == 2 * sum(range(len(dataset)))
    share = len(dataset) * RECORD / 1e6 / passes[0] / options.rate_mb
    told = told_by(url, "asked")
    print(
        f"{engine:9} {workers}: open {opened - begun:5.2f} s, first batch {first:5.2f} s "
        f"({rounds} rounds), pass {passes[0]:6.2f} s ({share:.2f} of the rate, "
        f"{cpu[0]:.2f} s CPU), again {passes[1]:5.2f} s; {told['requests']} requests "
        f"({told['failed']} failed), {told['bytes'] / 1e6:.1f} MB, twice {told['twice']} bytes",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--latency-ms", type=float, default=50.0)
    parser.add_argument("--rate-mb", type=float, default=100.0)
    parser.add_argument("--folder", help="for the files and the downloads")
    parser.add_argument("--workers", type=int, nargs="+", default=[4])
    parser.add_argument("--engines", nargs="+", default=["inline", "threads", "processes"])
    parser.add_argument("--failing", type=float, default=0.0)
    parser.add_argument("--order", choices=["blocks", "file", "records"], default="blocks")
    parser.add_argument("--format", choices=["native", "parquet"], default="native")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        rate = Rate(options.rate_mb * 1e6)
        serve(options.serve, options.latency_ms / 1e3, rate, options.failing)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        data = Path(folder, "data")
        data.mkdir()
        files = 0
        if options.format == "parquet":
            files = write_parquet(data, options.megabytes)
        else:
            write(data, options.megabytes)
        with serving(str(data), options.latency_ms, options.rate_mb, options.failing) as url:
            for engine in options.engines:
                for workers in options.workers if engine != "inline" else [0]:
                    cache = os.path.join(folder, f"cache-{engine}-{workers}")
                    measure(url, engine, workers, cache, files, options)


if __name__ == "__main__":
    main()
