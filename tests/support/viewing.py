"""A viewer that is served for a test, and requests to it."""

from __future__ import annotations

import contextlib
import html
import http.client
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from loaderx import DataLoader, Dataset, cli
from loaderx.commands.view import site_for
from loaderx.viewer.server import ViewServer
from loaderx.viewer.site import Site, site_of


def site(dataset: Dataset[Any] | DataLoader[Any], first: int = 0) -> Site:
    """The pages of a dataset."""
    if isinstance(dataset, Dataset):
        dataset = DataLoader(dataset, engine="inline")
    return site_of("a dataset", dataset, first)


def files(path: Path, *options: str) -> Site:
    """The pages of files, as the command makes them."""
    return site_for(cli.command_parser().parse_args(["view", str(path), *options]))


@contextlib.contextmanager
def served(shown: Site) -> Iterator[ViewServer]:
    """A server that answers until the block ends."""
    with ViewServer(shown) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


def ask(server: ViewServer, path: str, method: str = "GET", **headers: str) -> Answer:
    """What the server answers; the path is taken as it is.  ``Host=""`` sends no such header."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        host = headers.pop("Host", f"127.0.0.1:{server.port}")
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {**({"Host": host} if host else {}), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        found = connection.getresponse()
        return Answer(found.status, dict(found.getheaders()), found.read().decode())
    finally:
        connection.close()


def page(server: ViewServer, place: str = "") -> str:
    """A page, which must be there."""
    found = ask(server, f"/{server.token}/{place}")
    assert found.status == 200, found
    return found.text


def words(page: str) -> str:
    """What is read on a page: its text, with one space between elements."""
    inside = page[page.index("<body>") :]
    return html.unescape(re.sub(r"(\s|<[^>]*>)+", " ", inside)).strip()
