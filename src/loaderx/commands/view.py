"""Show records, steps and stages in the browser.

Of files: their records, and the columns with histograms. Of a function that
returns a Dataset or a DataLoader: the batch of any step, the records that it
is made of, and what each stage does to one of them.

The pages come from a server in this process, for programs of this machine
that know the address, which is a new one each time. It only reads, and runs
until Ctrl-C.

examples:
  loaderx view photos --split train
  loaderx view train.jsonl --step 5000
  loaderx view train:make_dataset --step 81234
  loaderx view train:make_dataset --no-browser --port 8080
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from loaderx.commands.opening import Opening, add_opening
from loaderx.commands.replay import loader_of
from loaderx.commands.terminal import say
from loaderx.commands.words import in_options
from loaderx.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from loaderx.viewer.site import Site

_FUNCTION = re.compile(r"[\w.]+:\w+")
_OF_FILES = ("split", "columns", "format", "delimiter", "fill", "cache")


def add(command: argparse.ArgumentParser) -> None:
    what = "a file, a folder, a URL, a 'pattern', or what returns a Dataset or a DataLoader"
    add_opening(command, "PATH|MODULE:FUNCTION", what)
    step = command.add_argument("--step", type=_from_0, default=0, metavar="N")
    step.help = "the step, or the record of files, to begin with"
    port = command.add_argument("--port", type=_from_0, default=0, metavar="N")
    port.help = "of the server, by default a free one"
    command.add_argument("--no-browser", action="store_true", help="only say the address")


def _from_0(text: str) -> int:
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a number of at least 0, got {text!r}")


def run(options: argparse.Namespace) -> bool:
    """Serves the pages until Ctrl-C, which is how it ends: with exit code 0."""
    from loaderx.viewer.server import ViewServer  # late: other commands need no server

    site = site_for(options)
    try:
        server = ViewServer(site, options.port)
    except (OSError, OverflowError) as error:
        raise FileError(f"port {options.port} cannot be used: {str(error).rstrip('.')}.") from None
    try:
        with server:
            say(f"{options.path}: {server.url} (Ctrl-C ends)")
            sys.stdout.flush()
            opens = not options.no_browser and _has_display()
            with _opened(server.url) if opens else contextlib.nullcontext():
                server.serve_forever()
    except KeyboardInterrupt:
        say()
    return True


def site_for(options: argparse.Namespace) -> Site:
    """The pages of what is to be shown."""
    from loaderx.viewer.looking import Split  # late, as above
    from loaderx.viewer.site import Site, site_of

    if _FUNCTION.fullmatch(options.path) and not os.path.exists(options.path):
        given = next((name for name in _OF_FILES if getattr(options, name)), None)
        if given is not None:
            raise ArgumentError(f"--{given} is for files, and {options.path} is a function.")
        return site_of(options.path, loader_of(options.path), options.step)
    opening = Opening(options)
    _, found = opening.splits()
    splits = {name: Split(open_parts, opening.fill) for name, open_parts in found.items()}
    in_words = partial(in_options, has=vars(options))
    return Site(options.path, splits, first=options.step, in_words=in_words)


def _has_display() -> bool:
    """Is there a screen?  Else a browser for terminals would be opened in this one."""
    known = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, known))


@contextlib.contextmanager
def _opened(url: str) -> Iterator[None]:
    """The browser, with the page.

    It is given a file of this user's that leads there: all users see the arguments of programs.
    """
    import webbrowser  # late, as above

    with tempfile.TemporaryDirectory(prefix="loaderx-view-") as folder:
        path = Path(folder, "view.html")
        path.write_text(f'<meta http-equiv="refresh" content="0; url={url}">')
        # Some browsers return only when they are closed.
        threading.Thread(target=webbrowser.open, args=(path.as_uri(),), daemon=True).start()
        yield
