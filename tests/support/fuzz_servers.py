"""Servers that answer with damaged headers, bodies and listings.  A target of `fuzz.py`.

A case is a file of a web server, or a dataset of the hub, of which some answers are damaged.  What
is read is what the server has, or it is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import socket
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from fuzz_case import run_case
from fuzz_files import damaged
from loaderx import Dataset, LoaderxError
from loaderx.sources.remote import http_store, store

COMMIT = "c0ffee" * 6
ODD = (
    b"Retry-After: \xb2", b"Retry-After: " + b"9" * 5000, b"Content-Length: -1",
    b"Content-Length: \xb2", b"Content-Range: bytes */5", b"ETag: \xff\xfe",
    b"Content-Range: bytes 0-9/" + b"9" * 5000, b"Content-Encoding: gzip",
    b"Transfer-Encoding: chunked", b"Location: file:///etc/hostname", b'Link: <x>; rel="next"',
    b"Content-Type: text/html", b"\0: \0", b"X" * 70_000 + b": 1", b": ",
)  # fmt: skip


def check(seed: int) -> str:
    return run_case(seed, (_web, _web, _hub))


class Server:
    """One connection after the other; ``answer`` makes the bytes that are sent."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.files: dict[str, bytes] = {}
        self.draw, self.damages = random.Random(0), 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            taken, _ = self.listening.accept()
            with suppress(OSError), taken:
                taken.settimeout(5)
                taken.sendall(self._answer(taken.recv(65536)))

    def _answer(self, request: bytes) -> bytes:
        path = request.split(b" ")[1].decode().partition("?")[0]
        data = self.files.get(path)
        if data is None:
            return b"HTTP/1.1 404 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        headers = [b"Connection: close", b'ETag: "1"']
        status, match = b"200", re.search(rb"Range: bytes=(\d+)-(\d+)", request, re.I)
        if match:
            start, stop = int(match[1]), min(len(data), int(match[2]) + 1)
            status, body = b"206", data[start:stop]
            headers.append(b"Content-Range: bytes %d-%d/%d" % (start, stop - 1, len(data)))
        else:
            body = data
        headers.append(b"Content-Length: %d" % len(body))
        return self._damaged(status, headers, body)

    def _damaged(self, status: bytes, headers: list[bytes], body: bytes) -> bytes:
        draw = self.draw
        if self.damages > 0 and draw.random() < 0.7:
            self.damages -= 1
            match draw.randrange(5):
                case 0:
                    headers.insert(draw.randrange(len(headers)), draw.choice(ODD))
                case 1:
                    headers[draw.randrange(len(headers))] = draw.choice(ODD)
                case 2:
                    status = draw.choice(
                        [b"500", b"503", b"302", b"416", b"204", b"99", b"x", b"403"]
                    )
                case 3:
                    body = body[: draw.randrange(len(body) + 1)]
                case 4:
                    whole = b"HTTP/1.1 " + status + b" X\r\n" + b"\r\n".join(headers)
                    # An end in the middle would make a body of the rest, which nobody can tell.
                    head = damaged(draw, whole)[0].rstrip(b"\r\n").replace(b"\r\n\r\n", b"\r\n")
                    return head + b"\r\n\r\n" + body
        return b"HTTP/1.1 " + status + b" X\r\n" + b"\r\n".join(headers) + b"\r\n\r\n" + body


@lru_cache(maxsize=1)
def _server() -> Server:
    store.FIRST_PAUSE_S, store.GROWTH, http_store.LONGEST_WAIT_S = 0.001, 1.0, 0.001
    http_store.TIMEOUT_S = 5.0
    made = Server()
    os.environ.update(HF_ENDPOINT=made.url, HF_HOME=os.path.abspath("home"))
    return made


def _web(draw: random.Random, place: Path) -> str:
    server = _server()
    server.files = {"/x.txt": _lines(draw)}
    return _read(draw, server, f"{server.url}/x.txt", place)


def _hub(draw: random.Random, place: Path) -> str:
    server = _server()
    data = _lines(draw)
    lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
    tree = [{"type": "file", "path": "x.txt", "size": len(data), "oid": "p", "lfs": lfs}]
    told = {
        f"/api/datasets/a/b/revision/{COMMIT}": json.dumps({"sha": COMMIT}).encode(),
        "/api/datasets/a/b/revision/main": json.dumps({"sha": COMMIT}).encode(),
        f"/api/datasets/a/b/tree/{COMMIT}": json.dumps(tree).encode(),
    }
    if draw.random() < 0.5:
        name = draw.choice(list(told))
        told[name] = damaged(draw, told[name])[0]
    server.files = {**told, f"/datasets/a/b/resolve/{COMMIT}/x.txt": data}
    return _read(draw, server, "hf://datasets/a/b/x.txt", place)


def _lines(draw: random.Random) -> bytes:
    return b"".join(b"line %d\n" % n for n in range(draw.choice([1, 40, 2000])))


def _read(draw: random.Random, server: Server, url: str, place: Path) -> str:
    server.draw, server.damages = draw, draw.choice([0, 1, 1, 2, 9])
    expected = next(data for path, data in server.files.items() if path.endswith("x.txt"))
    try:
        found = [record["text"] for record in Dataset.open(url, cache=place / "cache")]
    except LoaderxError:
        return "refused"
    is_cut = expected.startswith("\n".join(found).encode())  # a listing may tell another size
    assert found == expected.decode().splitlines() or is_cut, "other lines than the server has"
    return "data"
