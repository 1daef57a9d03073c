"""Whether a cluster of Ray answers; needs no Ray."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import sys
import threading
import types

import pytest

from loaderx import ArgumentError, LoaderxError
from loaderx.engines.elsewhere import ray_address, ray_session
from loaderx.engines.elsewhere.ray_address import check_cluster
from loaderx.errors import MissingPackageError

SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


@contextlib.contextmanager
def server(answer, host="127.0.0.1", accepted=lambda: None):
    """Its address: it sends this to one client, or nothing if it is None."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)
    is_over = threading.Event()

    def serve():
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            accepted()
            if answer is None:
                is_over.wait(60)
            else:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(100):
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    finally:
        is_over.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        listener.close()


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(autouse=True)
def make_ray(monkeypatch):
    """A stand-in for Ray: `latest` is the cluster that it would find."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_USE_TLS", raising=False)

    def make(latest=None, **attributes):
        def canonicalize_bootstrap_address(address):
            if address == "auto" and latest is None:
                raise ConnectionError("Could not find any running Ray instance.")
            return {None: latest, "auto": latest, "local": None}.get(address, address)

        services = types.SimpleNamespace(
            canonicalize_bootstrap_address=canonicalize_bootstrap_address
        )
        monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(**attributes))
        monkeypatch.setitem(sys.modules, "ray._private", types.SimpleNamespace())
        monkeypatch.setitem(sys.modules, "ray._private.services", services)

    make()
    return make


def test_clusters_that_answer(monkeypatch, make_ray):
    with server(SETTINGS) as address:
        check_cluster(address)
    with server(SETTINGS + b"more") as address:
        check_cluster(f"ray://{address}")
    with server(SETTINGS) as address:
        check_cluster(address.replace("127.0.0.1", "localhost"))
    with server(SETTINGS) as address:
        make_ray(latest=address)
        check_cluster("auto")
    with server(SETTINGS) as address:
        make_ray(latest=address)
        check_cluster(None)
    make_ray(latest=closed_port())
    with server(SETTINGS) as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        check_cluster(None)
    with server(b"not this one's language") as address:
        monkeypatch.setenv("RAY_USE_TLS", "1")
        check_cluster(address)


def test_clusters_on_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server(SETTINGS, "::1") as address:
        check_cluster(address)


@pytest.mark.parametrize("address", [None, "local", "service://some/cluster"])
def test_where_ray_starts_a_cluster_or_asks_a_service_nobody_is_asked(address, monkeypatch):
    monkeypatch.setattr(ray_address, "check_answers", None)
    check_cluster(address)


def test_a_cluster_that_does_not_answer_is_an_error_at_once(monkeypatch, make_ray):
    address = closed_port()
    advice = (
        " Is this the address that `ray start --head` has shown, with the port of the head (6379 "
        "by default), or ray:// and the port of Ray's client server (10001)? Does that cluster "
        "still run, and can this machine connect to it?"
    )
    refused = f"Ray does not answer at {address} (connection refused)."
    for given in (address, f"ray://{address}"):
        message = f"engines.Ray(address={given!r}): {refused}{advice}"
        with pytest.raises(LoaderxError, match=f"^{re.escape(message)}$"):
            check_cluster(given)
    make_ray(latest=address)
    message = (
        f"the cluster that was started last on this machine: {refused} If it has ended, start a "
        'cluster for this program, engines.Ray(address="local"), or run `ray stop`, which ends all '
        "of Ray on this machine, and forgets that cluster."
    )
    for given in (None, "auto"):
        with pytest.raises(LoaderxError, match=f"^{re.escape(message)}$"):
            check_cluster(given)
    monkeypatch.setenv("RAY_ADDRESS", address)
    message = f"RAY_ADDRESS={address}: {refused}{advice}"
    with pytest.raises(LoaderxError, match=f"^{re.escape(message)}$"):
        check_cluster(None)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0"])
def test_another_server_is_an_error(answer):
    with (
        server(answer) as address,
        pytest.raises(LoaderxError, match=r"\(something else listens there\)"),
    ):
        check_cluster(address)


def test_a_server_that_says_nothing_is_an_error(monkeypatch):
    monkeypatch.setattr(ray_address, "PATIENCE_S", 0.05)
    with server(None) as address, pytest.raises(LoaderxError, match=r"\(timed out\)"):
        check_cluster(address)


def test_a_name_that_nobody_looks_up_in_time_is_an_error(monkeypatch):
    is_over = threading.Event()

    def connect(*_):
        is_over.wait(60)
        raise OSError("too late")

    monkeypatch.setattr(ray_address, "PATIENCE_S", 0.05)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(LoaderxError, match=r"at ray-head:6379 \(timed out\)"):
        check_cluster("ray-head:6379")
    is_over.set()


def test_ctrl_c_ends_the_wait():
    def interrupt():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread alone")
    with server(None, accepted=interrupt) as address, pytest.raises(KeyboardInterrupt):
        check_cluster(address)


@pytest.mark.parametrize("address", ["ray-head", "ray-head:", "ray-head:x", "::1:6379", "", "a b"])
def test_what_is_no_address(address):
    message = (
        f"engines.Ray(address={address!r}) is no address: give host and port, such as "
        'ray-head:6379 or ray://ray-head:10001, or "local".'
    )
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        check_cluster(address)


def test_auto_without_a_cluster():
    with pytest.raises(
        LoaderxError, match="no cluster runs on this machine. Start one with `ray s"
    ):
        check_cluster("auto")


def test_a_program_whose_machine_has_no_node_is_told(make_ray):
    def init(**_):
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")

    make_ray(is_initialized=lambda: False, init=init)
    with pytest.raises(LoaderxError, match="is this machine part of the cluster"):
        ray_session.connected("local")


def connect(make_ray):
    """This process is connected to a cluster, and on its head."""
    context = types.SimpleNamespace(gcs_address="10.7.0.1:6379")
    util = types.SimpleNamespace(get_node_ip_address=lambda: "10.7.0.1")
    make_ray(is_initialized=lambda: True, get_runtime_context=lambda: context, util=util)


@pytest.mark.parametrize(
    "address",
    [
        None,
        "auto",
        "local",
        "127.0.0.1:6379",
        "localhost:6379",
        "127.0.1.1:6379",
        "10.7.0.1:6379",
        "ray://head:10001",
    ],
)
def test_addresses_of_the_cluster_that_this_process_is_connected_to(address, make_ray):
    connect(make_ray)
    assert ray_session.connected(address) is sys.modules["ray"]


@pytest.mark.parametrize(
    "address", ["127.0.0.1:6380", "10.7.0.2:6379", "nobody.invalid:6379", "head"]
)
def test_another_cluster_than_the_one_that_this_process_is_connected_to(address, make_ray):
    connect(make_ray)
    message = (
        f"engines.Ray(address={address!r}): this process is connected to Ray at 10.7.0.1:6379 "
        "already. Leave `address` out, or disconnect first: ray.shutdown()."
    )
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        ray_session.connected(address)


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match="pip install ray"):
        ray_session.connected(None)
