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
import os
import re
import sys
import webbrowser
from functools import partial

from loaderx.commands.opening import Opening, add_opening
from loaderx.commands.replay import loader_of
from loaderx.commands.terminal import say
from loaderx.commands.words import in_options
from loaderx.errors import ArgumentError, FileError
from loaderx.viewer.looking import Split
from loaderx.viewer.server import ViewServer
from loaderx.viewer.site import Site, site_of

_FUNCTION = re.compile(r"[\w.]+:\w+")
_OF_FILES = ("split", "columns", "format", "delimiter", "fill", "cache")


def add(command: argparse.ArgumentParser) -> None:
    add_opening(command, "PATH|MODULE:FUNCTION")
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
    site = site_for(options)
    try:
        server = ViewServer(site, options.port)
    except (OSError, OverflowError) as error:
        raise FileError(f"port {options.port} cannot be used: {error}.") from None
    try:
        with server:
            say(f"{options.path}: {server.url} (Ctrl-C ends)")
            sys.stdout.flush()
            if not options.no_browser and _has_display():
                webbrowser.open(server.url)
            server.serve_forever()
    except KeyboardInterrupt:
        say()
    return True


def site_for(options: argparse.Namespace) -> Site:
    """The pages of what is to be shown."""
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
