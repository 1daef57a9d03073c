"""Asks whether a cluster of Ray answers, before `ray.init` does.

`ray.init` tries an address that nothing answers for many minutes, in silence, and Ctrl-C reaches it
only now and then.  Here a thread connects first, and the caller, whom signals reach, waits for it.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from ipaddress import ip_address
from queue import Empty, SimpleQueue

from loaderx.errors import ArgumentError, LoaderxError

PATIENCE_S = 10.0
# All servers of Ray speak gRPC, which is HTTP/2: each side begins with a frame of settings.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_FRAME_BYTES, _KIND, _SETTINGS = 9, 3, 4

_HOST_AND_PORT = re.compile(r"(\[[^]]+\]|[^:\[\]/]+):(\d{1,5})")
_ADVICE = (
    "Is this the address that `ray start --head` has shown, with the port of the head (6379 by "
    "default), or ray:// and the port of Ray's client server (10001)? Does that cluster still run, "
    "and can this machine connect to it?"
)
_ADVICE_FOR_LAST = (
    'If it has ended, start a cluster for this program, engines.Ray(address="local"), or run `ray '
    "stop`, which ends all of Ray on this machine, and forgets that cluster."
)


def check_cluster(address: str | None) -> None:
    """Raises an error if Ray would connect to a cluster that does not answer.

    Args:
        address: as `ray.init` takes it.
    """
    source, advice = f"engines.Ray(address={address!r})", _ADVICE
    if address in (None, "auto"):
        if from_environment := os.environ.get("RAY_ADDRESS"):
            address, source = from_environment, f"RAY_ADDRESS={from_environment}"
        else:
            source, advice = "the cluster that was started last on this machine", _ADVICE_FOR_LAST
    scheme, _, place = (address or "").rpartition("://")
    if scheme not in ("", "ray"):
        return  # the address of a service that Ray knows
    if address not in (None, "auto", "local") and not _HOST_AND_PORT.fullmatch(place):
        raise ArgumentError(
            f"{source} is no address: give host and port, such as ray-head:6379 or "
            'ray://ray-head:10001, or "local".'
        )
    found = place if scheme else _found_by_ray(address)
    if found is not None:  # else Ray starts a cluster
        check_answers(found, source, advice)


def is_address_of(address: str | None, cluster: str) -> bool:
    """Whether this is an address of the cluster, host:port, that the process is connected to."""
    if address in (None, "auto", "local") or "://" in address:
        return True  # of a service, or a client: which cluster that is cannot be told from it
    if not _HOST_AND_PORT.fullmatch(address):
        return False
    found = _found_by_ray(address)
    return found == cluster or bool(_numbers(found or "") & _numbers(cluster))


def _numbers(place: str) -> set[tuple[str, str]]:
    """The IP addresses of a host, each with the port."""
    import ray  # late: an extra

    host, _, port = place.rpartition(":")
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(host.strip("[]"), port)}
    except OSError:
        return set()
    own = ray.util.get_node_ip_address()  # for Ray, this machine is never 127.0.0.1
    return {(own if ip_address(one).is_loopback else one, port) for one in found}


def _found_by_ray(address: str | None) -> str | None:
    """The host and the port to which `ray.init` connects; None if it starts a cluster."""
    from ray._private.services import canonicalize_bootstrap_address  # late: an extra

    logging.getLogger("ray").setLevel(logging.ERROR)  # as `ray.init` will
    try:
        found: str | None = canonicalize_bootstrap_address(address)
    except ConnectionError:
        raise LoaderxError(
            'engines.Ray(address="auto"): no cluster runs on this machine. Start one with `ray '
            "start --head`, or leave `address` out: then Ray starts one for this program."
        ) from None
    return found


def check_answers(place: str, source: str, advice: str) -> None:
    """Raises an error, which names the source of the address, if no server of Ray answers."""
    host, _, port = place.rpartition(":")
    problems: SimpleQueue[str] = SimpleQueue()

    def ask() -> None:
        problems.put(_problem(host.strip("[]"), int(port)))

    threading.Thread(target=ask, daemon=True, name="loaderx-ask-ray").start()
    try:
        problem = problems.get(timeout=PATIENCE_S)
    except Empty:  # looking a name up may take longer
        problem = "timed out"
    if problem:
        raise LoaderxError(f"{source}: Ray does not answer at {place} ({problem}). {advice}")


def _problem(host: str, port: int) -> str:
    """What is wrong with a server; empty if it is one of Ray."""
    try:
        with socket.create_connection((host, port), PATIENCE_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return ""  # it would have to be greeted in another way
            connection.sendall(_GREETING)
            with connection.makefile("rb") as answer:
                frame = answer.read(_FRAME_BYTES)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    is_ray = len(frame) == _FRAME_BYTES and frame[_KIND] == _SETTINGS
    return "" if is_ray else "something else listens there"
