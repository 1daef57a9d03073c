"""The file of each process in a checkpoint: ``process_0-of-1.json``, as Grain names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from loaderx.compat.grain.sharding import process_index_and_count
from loaderx.errors import StateError


class File(Protocol):
    """A file: a `pathlib.Path`, or that of a library for remote storage."""

    def exists(self) -> bool: ...
    def read_text(self) -> str: ...
    def write_text(self, data: str, /) -> object: ...


class Directory(Protocol):
    """A directory of such files.  Orbax gives one with ``await_creation`` where it is saved."""

    def __truediv__(self, name: str, /) -> File: ...


def state_file(directory: Directory) -> File:
    """The file of this process."""
    index, count = process_index_and_count()
    return directory / f"process_{index}-of-{count}.json"


def read_text(directory: Directory) -> str:
    """What this process wrote."""
    file = state_file(directory)
    if not file.exists():
        raise StateError(
            f"File {file} does not exist. Was the checkpoint saved by another number of processes?"
        )
    return file.read_text()


async def write_state(directory: Directory, text: str) -> None:
    """Writes a state in a thread, when the directory has been created."""
    import asyncio  # late: only a program that awaits this needs it

    created = getattr(directory, "await_creation", None)
    place = directory if created is None else await created()
    await asyncio.to_thread(state_file(place).write_text, text)


async def read_state(directory: Directory, use: Callable[[str], None]) -> None:
    """Reads a state in a thread, and gives it to ``use``."""
    import asyncio

    use(await asyncio.to_thread(read_text, directory))
