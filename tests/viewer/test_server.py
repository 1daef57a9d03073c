"""Who gets an answer of the viewer, and that nothing is left of it."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderx import Dataset
from loaderx.viewer.server import HEADERS, ViewServer
from viewing import ask, page, served, site, words


@pytest.fixture(scope="module")
def server():
    with served(site(Dataset.range(100).batch(4))) as made:
        yield made


def test_headers(server):
    for place in ("", "viewer.css", "viewer.js", "?step=x", "nothing"):
        found = ask(server, f"/{server.token}/{place}")
        assert HEADERS.items() <= found.headers.items()
    found = ask(server, f"/{server.token}/")
    policy = dict(
        part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert {*policy.values()} == {"'none'", "'self'", "data:"}
    assert found.headers["Referrer-Policy"] == "no-referrer"
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    assert found.headers["Cache-Control"] == "no-store"
    assert found.headers["Content-Type"] == "text/html; charset=utf-8"
    assert found.headers["Server"].strip() == "loaderx"
    assert "Access-Control-Allow-Origin" not in found.headers


def test_nothing_is_loaded_from_elsewhere(server):
    told = "".join(page(server, name) for name in ("", "viewer.css", "viewer.js", "columns"))
    assert "http:" not in told
    assert "https:" not in told
    assert "//" not in told.replace("// ", "")  # but for comments
    assert " style=" not in told
    assert " on" not in page(server).partition("<body>")[2].lower().replace(" on ", "")


@pytest.mark.parametrize(
    "path",
    ["/", "/{0}", "/{0}x/", "/x{0}/", "/{1}/", "//", "/favicon.ico", "/viewer.css", "/%C3%A9/", "*",
     "x", "/{2}/"],
)  # fmt: skip
def test_nobody_is_answered_without_the_token(server, path):
    token = server.token
    given = path.format(token, token[:-1], token.swapcase())
    found = ask(server, given)
    assert found.status == 404
    assert "there is no such page" in found.text
    assert token not in found.text


def test_tokens_are_random_and_long():
    with ViewServer(site(Dataset.range(3))) as one, ViewServer(site(Dataset.range(3))) as two:
        assert one.token != two.token
        assert min(len(one.token), len(two.token)) >= 32
        assert one.url == f"http://127.0.0.1:{one.port}/{one.token}/"
        assert one.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{}", 200),
        ("localhost:{}", 200),
        ("", 403),
        ("127.0.0.1", 403),
        ("localhost", 403),
        ("127.0.0.1:1{}", 403),
        ("evil.example:{}", 403),
        ("127.0.0.1.evil.example:{}", 403),
        ("127.0.0.1:{}@evil.example", 403),
        ("evil.example#127.0.0.1:{}", 403),
        ("[::1]:{}", 403),
        ("0.0.0.0:{}", 403),
    ],
)
def test_other_names_of_the_machine_are_refused(server, host, status):
    found = ask(server, f"/{server.token}/", Host=host.format(server.port))
    assert found.status == status
    assert ("batch(4)" in found.text) == (status == 200)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_it_can_only_be_read(server, method):
    found = ask(server, f"/{server.token}/", method)
    assert found.status == 405
    assert HEADERS.items() <= found.headers.items()
    assert "can only be read" in found.text


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "BREW", "get", "__init__"])
def test_unknown_methods(server, method):
    found = ask(server, f"/{server.token}/", method)
    assert found.status == 501
    assert HEADERS.items() <= found.headers.items()
    assert method not in found.text


def test_head_has_the_headers_alone(server):
    for place in ("", "viewer.js", "nothing", "?step=-1"):
        got, head = (ask(server, f"/{server.token}/{place}", method) for method in ("GET", "HEAD"))
        assert (head.status, head.text) == (got.status, "")
        assert head.headers["Content-Length"] == got.headers["Content-Length"]


@pytest.mark.parametrize(
    "place",
    [
        "../", "../../etc/passwd", "..%2f..%2fetc/passwd", "%2e%2e/server.py", "server.py",
        "page.html", "viewer.css/", "viewer.css/../server.py", "/viewer.css", "./viewer.css",
        "__init__.py", "nothing", "viewer.css%00", "records/", "answer", "_steps",
    ],
)  # fmt: skip
def test_there_are_no_other_pages(server, place):
    found = ask(server, f"/{server.token}/{place}")
    assert found.status == 404
    assert "import" not in found.text


@pytest.mark.parametrize(
    "number", ["x", "-1", "1e3", "1.0", "", "+1", "%201", "0x10", "%D9%A3", "9" * 19, "1%00", "<b>"]
)
@pytest.mark.parametrize("place", ["?step=", "records?record=", "stages?record=0&step="])
def test_bad_numbers(server, place, number):
    found = ask(server, f"/{server.token}/{place}{number}")
    assert found.status == 400
    assert "must be a number from 0 to 999,999,999,999,999,999." in found.text


def test_numbers_that_are_too_large(server):
    told = words(page(server, "?step=99999999999999999"))
    assert " 0 96 3999999999999999 1 97 3999999999999999 " in told  # its epoch
    assert "there is no record 100: there are 100." in words(page(server, "records?record=100"))
    assert "there is no record 100: there are 100." in words(page(server, "record?record=100"))
    assert "step 3 has no record 4" in words(page(server, "stages?step=3&record=4"))


@pytest.mark.parametrize(
    "line", ["GET http://[/ HTTP/1.0", "GET", "\x16\x03\x01", "GET / HTTP/9.9", "A B C D"]
)
def test_what_is_no_request(server, line):
    told = raw(server, f"{line}\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode("latin-1"))
    assert b"batch(4)" not in told
    assert page(server)  # it goes on


def raw(server, request):
    """What is answered to any bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # it did not read all of them
            return b"".join(iter(lambda: connection.recv(4096), b""))
    return b""


@settings(max_examples=150)
@given(st.data())
def test_generated_requests(server, data):
    """Of words that are nearly right, only the right ones in the right order get a page."""
    token, port = server.token, server.port
    pieces = [
        "GET",
        "HEAD",
        "POST",
        " ",
        "/",
        "\r\n",
        "Host: ",
        ":",
        "?",
        "%",
        token[:-1],
        "localhost",
    ]
    right = f"GET /{token}/?step=1 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(right))] * 2)))
    other = data.draw(st.lists(st.sampled_from(pieces) | st.text(max_size=3), max_size=4))
    made = right[:start] + "".join(other) + right[stop:]
    told = raw(server, made.encode("utf-8", "replace"))
    if b"batch(4)" in told:
        assert f"/{token}/" in made
        assert re.search(rf"(?i)\nhost:[ \t]*(127\.0\.0\.1|localhost):{port}\s", made)
        assert made.split()[0] == "GET"
    elif told:
        assert int(told.split(b" ", 2)[1]) >= 400 or made.startswith("HEAD")
        assert token.encode() not in told
    assert b"batch(4)" in raw(server, right.encode())


def test_too_many_fields(server):
    found = ask(server, f"/{server.token}/?" + "&".join(f"a{n}=1" for n in range(9)))
    assert found.status == 400


class OneAtATime:
    """Records of a source that is not safe for threads."""

    def __init__(self):
        self.inside, self.most, self.reads = 0, 0, 0
        self.goes_on = threading.Event()
        self.is_read = threading.Event()

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.is_read.set()
        self.goes_on.wait()
        self.reads += 1
        self.inside -= 1
        return {"x": index}


def test_two_requests_at_once():
    source = OneAtATime()
    with (
        served(site(Dataset.from_source(source).batch(4))) as server,
        ThreadPoolExecutor(8) as pool,
    ):
        pages = [pool.submit(page, server, f"?step={n}") for n in range(8)]
        source.is_read.wait()
        assert "live" in page(server, "viewer.js")  # is not held up
        source.goes_on.set()
        for step, made in enumerate(pages):
            assert f'value="{step}"' in made.result()
    assert source.most == 1
    assert source.reads == 32


def test_nothing_is_left():
    before = {*threading.enumerate()}
    with served(site(Dataset.range(100).batch(4))) as server:
        port = server.port
        idle = socket.create_connection(("127.0.0.1", port))  # as browsers keep ready
        page(server)
        address = (idle, http.client.HTTPConnection("127.0.0.1", port))
    assert idle.recv(1) == b""
    for one in address:
        one.close()
    assert {*threading.enumerate()} <= before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with ViewServer(site(Dataset.range(3)), port) as again:
        assert again.port == port
