"""Plain HTTP: what is refused, and how it is said; secrets stay secret."""

from __future__ import annotations

import base64
import io
import pickle
import socket
import threading
from contextlib import suppress
from http.client import HTTPMessage
from urllib.request import Request

import numpy as np
import pytest

from file_server import serving
from loaderx import DataLoader, Dataset
from loaderx.errors import FileError
from loaderx.sources.remote import http_store, store
from loaderx.sources.remote.connections import Redirects
from loaderx.sources.remote.store import TransientError, retrying


@pytest.fixture
def url(server, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4))
    server.files["/x.npy"] = (tmp_path / "x.npy").read_bytes()
    return f"{server.url}/x.npy"


def test_a_file_costs_two_requests(server, tmp_path, cache):
    np.save(tmp_path / "x.npy", np.arange(100))
    server.add(tmp_path)
    Dataset.open(f"{server.url}/x.npy", cache=cache)
    assert server.requests == ["GET /x.npy", "GET /x.npy"]
    assert server.ranges("/x.npy") == [(512, 928)]


def test_a_small_file_costs_one_request(server, url, cache):
    assert [int(one["x"]) for one in Dataset.open(url, cache=cache)] == [0, 1, 2, 3]
    assert server.requests == ["GET /x.npy"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/none.npy", r"there is no file .*/none.npy \(404\). Plain HTTP has no listing"),
        (
            "/folder/",
            r"/folder is a folder or a pattern of a web server, and plain HTTP has no listing",
        ),
        ("/*.npy", r"/\*.npy is a folder or a pattern of a web server"),
        ("/{1..2}.npy", r"there is no file .*/1.npy"),
        ("/page", r"/page has a format that loaderx does not know"),
        ("/empty.npy", r"/empty.npy is not a NumPy array file: it begins with b''"),
    ],
)
def test_what_cannot_be_opened(server, cache, path, message):
    server.files.update({"/page": b"<html>", "/empty.npy": b""})
    with pytest.raises(FileError, match=message):
        Dataset.open(server.url + path, cache=cache)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, r"the server refused access \(401 Unauthorized\). A signed URL may have expired"),
        (403, r"the server refused access \(403 Forbidden\)"),
        (418, r"the server answered 418"),
        (500, r"cannot be read: the server answered 500 Internal Server Error \(6 attempts\)"),
    ],
)
def test_a_server_that_refuses(server, url, cache, status, message):
    server.fault = lambda number, path: status
    with pytest.raises(FileError, match=message):
        Dataset.open(url.replace("http://", "http://me:word@") + "?sig=word", cache=cache)


def test_no_server(cache):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    message = rf"127.0.0.1:{port}/x.npy cannot be read: 127.0.0.1:{port} cannot be reached: "
    with pytest.raises(FileError, match=message + "Connection refused"):
        Dataset.open(f"http://127.0.0.1:{port}/x.npy", cache=cache)


def test_a_look_that_is_cut_off(server, url, cache, pauses):
    server.fault = lambda number, path: ("cut", 3) if number < 2 else None
    assert len(Dataset.open(url, cache=cache)) == 4
    assert len(pauses) == 2


def test_what_the_server_asks_for_is_waited_for(server, url, cache, pauses, monkeypatch):
    server.fault = lambda number, path: 429 if number == 0 else None
    Dataset.open(url, cache=cache)
    assert len(pauses) == 1


def test_secrets_are_sent_and_never_shown(server, url, cache):
    server.password = base64.b64encode(b"me:pass word").decode()
    secret = url.replace("http://", "http://me:pass%20word@") + "?X-Amz-Signature=sign&id=query"
    dataset = Dataset.open(secret, cache=cache)
    assert [int(one["x"]) for one in dataset] == [0, 1, 2, 3]
    with DataLoader(dataset.batch(2), engine="inline") as loader:
        iterator = iter(loader)
        next(iterator)
        state = iterator.get_state()
    kept = [path.read_bytes() for path in cache.rglob("*") if path.is_file()]
    shown = f"{dataset!r} {state} {loader!r} {loader.stats()} {kept}"
    for word in ("pass", "sign", "query", server.password):
        assert word not in shown
    server.files.clear()
    with pytest.raises(FileError) as caught:
        Dataset.open(secret, cache=cache)
    for word in ("pass", "sign", "query", server.password):
        assert word not in str(caught.value)


def test_pickles_are_read_elsewhere(url, cache, tmp_path):
    dataset = pickle.loads(pickle.dumps(Dataset.open([url], cache=cache)))
    assert [int(one["x"]) for one in dataset] == [0, 1, 2, 3]


def test_a_web_page(server, cache, monkeypatch):
    server.files["/data"] = b"<html>listing</html>"
    server.kinds = {"/data": "text/html"}
    with pytest.raises(FileError, match=r"/data is a web page, not a file of data"):
        Dataset.open(f"{server.url}/data", cache=cache)


def test_lists_keep_their_order(server, cache, tmp_path):
    for n in (3, 1, 2):
        np.savez(tmp_path / f"{n}.npz", x=np.array([n]))
    server.add(tmp_path)
    urls = [f"{server.url}/{n}.npz" for n in (3, 1, 2)]
    assert [int(one["x"]) for one in Dataset.open(urls, cache=cache)] == [3, 1, 2]


# Redirects --------------------------------------------------------------------------------------


def test_a_redirect_within_a_server_keeps_the_password(server, url, cache):
    server.password = base64.b64encode(b"me:word").decode()
    server.redirects["/old.npy"] = "/x.npy"
    asked = url.replace("http://", "http://me:word@").replace("/x.npy", "/old.npy")
    assert [int(one["old"]) for one in Dataset.open(asked, cache=cache)] == [0, 1, 2, 3]


def test_a_redirect_to_another_server_loses_the_password(server, url, cache):
    with serving() as other:
        other.files["/x.npy"] = server.files["/x.npy"]
        server.redirects["/old.npy"] = f"{other.url}/x.npy"
        asked = url.replace("http://", "http://me:word@").replace("/x.npy", "/old.npy")
        assert len(Dataset.open(asked, cache=cache)) == 4
        assert [one for one in server.headers if "Authorization" in one]
        assert not [one for one in other.headers if "Authorization" in one]


@pytest.mark.parametrize("to", ["ftp://127.0.0.1/x.npy", "file:///etc/hostname", "data:,x"])
def test_redirects_to_anything_but_http(server, cache, to):
    server.redirects["/old.npy"] = to
    message = (
        r"/old.npy: the server (sends us to ftp://127.0.0.1, which is not followed|answered 302)"
    )
    with pytest.raises(FileError, match=message):
        Dataset.open(f"{server.url}/old.npy", cache=cache)
    assert server.requests == ["GET /old.npy"]


def test_redirects_never_go_down_from_https():
    asked = Request("https://me.org/x.npy")
    with pytest.raises(FileError) as caught:
        Redirects().redirect_request(
            asked, io.BytesIO(), 302, "Found", HTTPMessage(), "http://me.org/x.npy"
        )
    assert str(caught.value).startswith(
        "https://me.org/x.npy: the server sends us to http://me.org, which is not followed: only "
        "from https to https"
    )


@pytest.mark.parametrize(
    "to", ["https://me.org:8443/x", "https://you.org/x", "https://ME.org:443/x"]
)
def test_which_servers_are_the_same(to):
    asked = Request("https://me.org/x.npy")
    asked.add_unredirected_header("Authorization", "Bearer word")
    made = Redirects().redirect_request(asked, io.BytesIO(), 302, "Found", HTTPMessage(), to)
    assert ("Authorization" in made.unredirected_hdrs) == ("ME" in to)
    assert "Authorization" not in made.headers


# A least speed ----------------------------------------------------------------------------------


class Slow:
    """A clock on which each read takes half a second."""

    now = 0.0

    def __call__(self):
        Slow.now += 0.5
        return Slow.now


def test_what_comes_too_slowly_is_dropped_and_asked_for_again(
    server, cache, tmp_path, monkeypatch, pauses
):
    np.save(tmp_path / "y.npy", np.arange(4000))
    server.add(tmp_path)
    # Each read brings 100 bytes, and takes half a second.
    read = http_store.Pace.timed
    monkeypatch.setattr(
        http_store.Pace, "timed", lambda self, read1, most: read(self, read1, min(most, 100))
    )
    monkeypatch.setattr(http_store.Pace.__init__, "__defaults__", (Slow(),))
    monkeypatch.setenv("LOADERX_LEAST_SPEED", "250")
    monkeypatch.setattr(store, "SPEED_PERIOD_S", 5.0)
    message = (
        r"y.npy cannot be read: 1[01]00 bytes came in [56] s, less than 250 a second \(LOADERX_L"
    )
    with pytest.raises(FileError, match=message):
        Dataset.open(f"{server.url}/y.npy", cache=cache)
    assert len(pauses) >= 2
    monkeypatch.setenv("LOADERX_LEAST_SPEED", "150")
    assert len(Dataset.open(f"{server.url}/y.npy", cache=cache)) == 4000
    monkeypatch.setenv("LOADERX_LEAST_SPEED", "0")
    assert len(Dataset.open(f"{server.url}/y.npy", cache=tmp_path / "other")) == 4000


def test_time_that_is_not_spent_reading_does_not_count(monkeypatch):
    monkeypatch.setenv("LOADERX_LEAST_SPEED", "1000")
    times = iter([0, 1, 1000, 1001, 2000, 2001])
    pace = store.Pace(lambda: next(times))
    assert [pace.timed(bytes, 10) for _ in range(3)] == [bytes(10)] * 3


# Odd answers ------------------------------------------------------------------------------------


def answers(status, headers, body=b""):
    """A server that gives one answer to all, byte by byte as it is told; its address."""
    text = f"HTTP/1.1 {status} X\r\nConnection: close\r\n".encode() + headers + b"\r\n\r\n" + body
    listening = socket.create_server(("127.0.0.1", 0))

    def answer():
        with suppress(OSError):
            while True:
                taken, _ = listening.accept()
                with taken:
                    taken.recv(65536)
                    taken.sendall(text)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return listening, thread, f"http://127.0.0.1:{listening.getsockname()[1]}/x.npy"


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (503, b"Retry-After: \xb2\r\nContent-Length: 0", r"the server answered 503"),
        (503, b"Retry-After: " + b"9" * 5000, r"the server answered 503"),
        (200, b"Content-Length: " + b"9" * 5000, r"does not say how large|an answer"),
        (200, b"Content-Length: \xb2", r"does not say how large"),
        (206, b"Content-Range: bytes 0-1/" + b"9" * 5000, r"does not say how large"),
        (206, b"Content-Range: bytes \xb2-\xb2/\xb2", r"does not say how large"),
    ],
)
def test_odd_numbers_in_headers(cache, monkeypatch, status, headers, message):
    monkeypatch.setattr("loaderx.sources.remote.store.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("loaderx.sources.remote.store.GROWTH", 1.0)
    listening, thread, url = answers(status, headers)
    try:
        with pytest.raises(FileError, match=message):
            Dataset.open(url, cache=cache)
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


@pytest.mark.parametrize("reached", ["110000", "111000", "010101", "000000", "111111"])
def test_failures_of_both_kinds_end_in_an_error(monkeypatch, reached):
    """Whether the server is reached may change from one attempt to the next."""
    monkeypatch.setattr("loaderx.sources.remote.store.FIRST_PAUSE_S", 0.0)
    kinds = iter(reached)

    def fails():
        raise TransientError("it failed", is_reached=next(kinds) == "1")

    with pytest.raises(FileError, match=r"x.npy cannot be read: it failed \([3-6] attempts\)"):
        retrying(fails, "http://host/x.npy", 3)
