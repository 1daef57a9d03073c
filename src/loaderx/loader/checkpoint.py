"""An iterator that checkpoint libraries can save and load.

Orbax (its v1 interface) takes any object with ``save`` and ``load`` as below, so nothing of it is
imported here.  Each process writes its state to a file of its own, ``part-2-of-4.json``; loading
reads the parts of all processes, so that any number of processes can continue.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Iterable
from typing import Protocol

from loaderx.errors import StateError
from loaderx.loader.devices import processes
from loaderx.loader.state import State, merge_states

_SHOWN = 8  # names in a message


class File(Protocol):
    """A file of a checkpoint: a `pathlib.Path`, or that of a library for remote storage."""

    @property
    def name(self) -> str: ...
    def is_file(self) -> bool: ...
    def read_text(self) -> str: ...
    def write_text(self, data: str, /) -> object: ...


class Directory(Protocol):
    """A directory of such files.  Orbax gives one with ``await_creation`` where it is saved."""

    def __truediv__(self, name: str, /) -> File: ...
    def glob(self, pattern: str, /) -> Iterable[File]: ...


class Checkpointable:
    """Saves and loads the state of an iterator in a directory."""

    def get_state(self) -> State:
        raise NotImplementedError

    def set_state(self, state: State) -> None:
        raise NotImplementedError

    def _part(self) -> tuple[int, int]:
        """This host's number and the number of hosts, as far as the loader knows."""
        raise NotImplementedError

    async def save(self, directory: Directory) -> Awaitable[None]:
        """Takes the state now, and returns the task that writes it: for Orbax, see docs/jax.md."""
        import json  # late, as in `read_state_file`: few programs save a state in this way

        running = processes()
        part, count = running if running[1] > 1 else self._part()
        return _write(directory, _name(part, count), json.dumps(self.get_state()))

    async def load(self, directory: Directory) -> Awaitable[None]:
        """Returns the task that reads the state and sets it: for Orbax, see docs/jax.md."""
        return self._load(directory)

    async def _load(self, directory: Directory) -> None:
        import asyncio  # late: only a program that awaits this needs it

        self.set_state(await asyncio.to_thread(read_parts, directory))


async def _write(directory: Directory, name: str, text: str) -> None:
    import asyncio

    # Orbax creates the directory in the background, under a temporary name until all is written.
    created = getattr(directory, "await_creation", None)
    place = directory if created is None else await created()
    await asyncio.to_thread((place / name).write_text, text)


def read_parts(directory: Directory) -> State:
    """The state that the processes saved in a directory."""
    names = sorted(file.name for file in directory.glob("part-*-of-*.json"))
    if not names:
        raise StateError(f"{directory} has no state of a loader (no file like part-0-of-1.json).")
    last = names[0].removesuffix(".json").rpartition("-")[2]
    count = int(last) if last.isdecimal() else 1
    if odd := _wrong_parts(names, count):
        raise StateError(
            f"{directory} should have parts 0 to {count - 1} of {count}; missing or unexpected: "
            f"{odd}. Was only a part of the checkpoint copied?"
        )
    needed = [_name(part, count) for part in range(count)]
    states = [read_state_file(directory / name) for name in needed]
    same = all(state == states[0] for state in states)
    return states[0] if same else merge_states(states)


def _name(part: int, count: int) -> str:
    return f"part-{part}-of-{count}.json"


def _wrong_parts(names: list[str], count: int) -> str:
    """Some names of parts that are missing or unexpected; "" if there are none."""
    have = set(names)
    # The count comes from a file name and may be huge: do not list all missing parts.
    missing = (_name(part, count) for part in range(count) if _name(part, count) not in have)
    odd = list(itertools.islice(missing, _SHOWN + 1))
    for name in names:
        part = name.removeprefix("part-").partition("-")[0]
        if not (part.isdecimal() and int(part) < count and name == _name(int(part), count)):
            odd.append(name)
    shown = ", ".join(sorted(odd)[:_SHOWN])
    return f"{shown}, and more" if len(odd) > _SHOWN else shown


def read_state_file(file: File) -> State:
    """The state in a file."""
    import json

    if not file.is_file():
        # Reading a named pipe would wait forever.
        raise StateError(f"{file} is not a regular file.")
    try:
        state: State = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise StateError(f"{file} is damaged: {error}") from error
    return state
