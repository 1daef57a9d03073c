"""The work of a loader as it travels to workers that may be on other machines.

Files go by their paths.  A worker first checks that it finds the same ones: their sizes, and a
digest of how they begin.  Arrays in memory go along, once to each worker, unless they are large.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
import socket
import sys
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from loaderx.engines.base import Work
from loaderx.engines.processes.pickling import (
    PicklingError,
    ResetAttribute,
    pickled_work,
    warn_of_replaced,
    without_duplicates,
)
from loaderx.errors import FileError, LoaderxError
from loaderx.tree import Array

MOST_BYTES = 1 << 30  # of data in memory
MOST_DIGESTS = 256  # files whose beginnings are compared; of the others only the sizes
DIGEST_BYTES = 4096
SHOWN_FILES = 3


class SeenFile(NamedTuple):
    """A file as the consumer sees it."""

    path: str
    size: int
    digest: bytes  # of its beginning; empty: not compared


class Payload(NamedTuple):
    """The work, pickled."""

    key: str  # by which a worker knows it
    pickled: bytes
    buffers: list[Array]  # large arrays, as bytes; each once
    order: list[tuple[int, bool]]  # for each buffer of the pickle: which it is, and if writable
    files: list[SeenFile]
    places: list[str]  # from where the consumer imports modules
    host: str  # the consumer's
    pid: int


def payload_of(work: Work) -> tuple[Payload, list[ResetAttribute]]:
    """The work as it travels, and the attributes that were sent as before their first use."""
    buffers: list[pickle.PickleBuffer] = []
    replaced: list[str] = []
    reset: list[ResetAttribute] = []
    files: set[str] = set()
    pickled = pickled_work(work, buffers, replaced, reset, files)
    warn_of_replaced(replaced)
    raws, order = without_duplicates(buffers)
    nbytes = len(pickled) + sum(raw.nbytes for raw in raws)
    if nbytes > MOST_BYTES:
        raise PicklingError(
            f"the dataset holds {nbytes / 1e9:.2f} GB in memory, and each of its workers, which "
            "may be on other machines, would get a copy. Write it to a folder that they see, "
            "ds.save(folder), and open it with Dataset.open(folder): then they get its path."
        )
    writable = [not buffer.raw().readonly for buffer in buffers]
    arrays = [np.frombuffer(raw, np.uint8) for raw in raws]
    places = [os.path.abspath(place) for place in sys.path]
    made = Payload(
        key=secrets.token_hex(8),
        pickled=pickled,
        buffers=arrays,
        order=list(zip(order, writable, strict=True)),
        files=_seen(files),
        places=places,
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    return made, reset


def load(payload: Payload) -> Work:
    """The work, in a worker."""
    sys.path += [
        place for place in payload.places if place not in sys.path and os.path.isdir(place)
    ]
    _check_files(payload)
    buffers = [
        payload.buffers[number].copy() if is_writable else payload.buffers[number]
        for number, is_writable in payload.order
    ]
    try:
        work: Work = pickle.loads(payload.pickled, buffers=buffers)
    except ModuleNotFoundError as error:
        raise LoaderxError(
            f"the dataset needs the module {error.name!r}, which a worker on "
            f"{socket.gethostname()} does not have. Install it there."
        ) from error
    return work


def _seen(paths: Collection[str]) -> list[SeenFile]:
    """The files among these paths; the others are URLs, or members of archives."""
    files = sorted(path for path in map(os.path.abspath, paths) if os.path.isfile(path))
    step = -(-len(files) // MOST_DIGESTS) or 1
    return [see(path, is_compared=not place % step) for place, path in enumerate(files)]


def see(path: str, *, is_compared: bool) -> SeenFile:
    """A file as this process sees it."""
    digest = b""
    if is_compared:
        with open(path, "rb") as file:
            digest = hashlib.blake2b(file.read(DIGEST_BYTES), digest_size=16).digest()
    return SeenFile(path, os.path.getsize(path), digest)


def _check_files(payload: Payload) -> None:
    """Raises an error that names files which this machine does not have, or has otherwise."""
    different = [found for file in payload.files if (found := _difference(file))]
    if different:
        more = len(different) - SHOWN_FILES
        shown = "; ".join(different[:SHOWN_FILES]) + (f"; and {more} more" if more > 0 else "")
        raise FileError(
            f"{len(different)} of the {len(payload.files)} files that the dataset reads are not "
            f"the same on {socket.gethostname()}, where a worker runs, as on {payload.host}: "
            f"{shown}. Workers read files under the same paths: put the data on a file system that "
            "all machines see, or copy it to each. Files in loaderx's own folder of copies follow "
            "LOADERX_CACHE."
        )


def _difference(file: SeenFile) -> str:
    """How a file differs from the one that the consumer sees; empty if it does not."""
    try:
        now = see(file.path, is_compared=bool(file.digest))
    except OSError as error:
        return f"{file.path} cannot be read ({error.strerror})"
    if now.size != file.size:
        return f"{file.path} has {now.size:,} bytes, not {file.size:,}"
    return "" if now == file else f"{file.path} begins with other bytes"
