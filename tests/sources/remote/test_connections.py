"""Connections to web servers: kept, replaced, and never left open."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request

import numpy as np
import pytest

from loaderx import Dataset
from loaderx.errors import FileError
from loaderx.sources.remote.connections import Connections, connect
from loaderx.sources.remote.http_store import HttpStore


@pytest.fixture
def url(server):
    server.files["/x"] = bytes(range(256)) * 100
    return f"{server.url}/x"


def read(store, url, start=0, stop=25_600):
    file, _ = store.find(url, url)
    return b"".join(store.read(file, start, stop))


def test_one_connection_serves_many_requests(server, url):
    store = HttpStore()
    for start in range(0, 20_000, 1000):
        assert read(store, url, start, start + 1000) == server.files["/x"][start : start + 1000]
    assert store.find(f"{server.url}/none", f"{server.url}/none") is None
    read(store, url)
    assert len(server.requests) == 43
    assert server.connections == 1


def test_an_answer_that_is_not_read_closes_its_connection(server, url):
    store = HttpStore()
    file, _ = store.find(url, url)
    pieces = store.ask(url, {}, set())
    assert pieces.read(10) == bytes(range(10))
    pieces.__exit__(None, None, None)
    assert b"".join(store.read(file, 0, 300)) == server.files["/x"][:300]
    assert server.connections == 2


def test_a_server_that_hangs_up_without_a_word(server, url, pauses):
    server.hangs_up = True
    store = HttpStore()
    for _ in range(5):
        assert read(store, url) == server.files["/x"]
    assert not pauses
    assert len(server.requests) == 10


def test_a_connection_that_fails_when_it_is_used_again(server, url, monkeypatch):
    monkeypatch.setattr("loaderx.sources.remote.connections.has_ended", lambda one: False)
    test_a_server_that_hangs_up_without_a_word(server, url, [])


def test_a_fork_does_not_use_the_connections_of_its_parent(server, url, monkeypatch):
    store = HttpStore()
    read(store, url)
    process = os.getpid()
    monkeypatch.setattr("loaderx.sources.remote.connections.os.getpid", lambda: process + 1)
    assert read(store, url) == server.files["/x"]
    assert server.connections == 2


def test_a_proxy_of_the_environment(server, cache, tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.arange(3))
    server.add(tmp_path)
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "")
    dataset = Dataset.open("http://data.invalid/x.npy", cache=cache)
    assert [int(one["x"]) for one in dataset] == [0, 1, 2]
    assert {one["Host"] for one in server.headers} == {"data.invalid"}


def test_a_tunnel_through_a_proxy(server, monkeypatch):
    asked = []

    class Refuses(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_CONNECT(self):
            asked.append((self.path, self.headers.get("Proxy-Authorization")))
            self.send_error(407)

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("https_proxy", f"http://me:word@127.0.0.1:{proxy.server_port}")
        monkeypatch.setenv("no_proxy", "")
        try:
            with pytest.raises(Exception, match="407") as caught:
                HttpStore().ask("https://data.invalid/x", {}, set())
        finally:
            proxy.shutdown()
            thread.join()
    assert asked == [("data.invalid:443", "Basic bWU6d29yZA==")]
    assert "word" not in str(caught.value)


# Ctrl-C -----------------------------------------------------------------------------------------


@pytest.fixture
def sockets(monkeypatch):
    """The sockets that are made; each is interrupted while it connects."""
    made = []

    class Interrupted(socket.socket):
        def __init__(self, *args, **others):
            super().__init__(*args, **others)
            made.append(self)

        def connect(self, address):
            raise KeyboardInterrupt

    monkeypatch.setattr("loaderx.sources.remote.connections.socket.socket", Interrupted)
    return made


def test_an_interrupt_inside_connect_closes_the_socket(sockets):
    with pytest.raises(KeyboardInterrupt):
        HttpStore().ask("http://127.0.0.1:9/x", {}, set())
    assert [one.fileno() for one in sockets] == [-1]


def test_an_interrupt_inside_the_handshake_closes_the_socket(server, monkeypatch):
    made = []

    def interrupt(self, *args):
        made.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", interrupt)
    with pytest.raises(KeyboardInterrupt):
        HttpStore().ask(server.url.replace("http", "https") + "/x", {}, set())
    assert [one.fileno() for one in made] == [-1]


@pytest.mark.parametrize("where", ["request", "getresponse"])
def test_an_interrupt_inside_a_request_closes_the_socket(server, url, where, monkeypatch):
    class Interrupted(Connections):
        def new(self, *args):
            made = super().new(*args)
            taken.append(made)

            def interrupt(*args, **others):
                if where == "request":
                    made.connect()
                raise KeyboardInterrupt

            setattr(made, where, interrupt)
            return made

    taken = []
    with pytest.raises(KeyboardInterrupt):
        Interrupted().opener().open(Request(url), timeout=5)
    assert [one.sock for one in taken] == [None]


def test_no_address_can_be_reached(monkeypatch):
    monkeypatch.setattr("socket.getaddrinfo", lambda *args: [])
    with pytest.raises(OSError, match="host has no address"):
        connect(("host", 80), 1.0)


def test_a_certificate_that_is_not_valid(server, monkeypatch):
    def refuse(self, *args):
        raise ssl.SSLCertVerificationError("self-signed")

    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", refuse)
    with pytest.raises(FileError, match="its certificate is not valid"):
        HttpStore().ask(server.url.replace("http", "https") + "/x", {}, set())
