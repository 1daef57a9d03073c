"""An iterator that checkpoint libraries can save and load.

Orbax (its v1 interface) takes any object with ``save`` and ``load`` as below, so nothing of it is
imported here.  Each process writes its state to a file of its own, ``part-2-of-4.json``; loading
reads the parts of all processes, so that any number of processes can go on.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable
from typing import Any

from loaderx.errors import StateError
from loaderx.loader.devices import processes
from loaderx.loader.state import merge_states

_SHOWN = 8  # names in a message


class Checkpointable:
    """Saves and loads the state of an iterator in a directory."""

    def get_state(self) -> dict[str, Any]:
        raise NotImplementedError

    def set_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

    def _part(self) -> tuple[int, int]:
        """This host's number and the number of hosts, as far as the loader knows."""
        raise NotImplementedError

    async def save(self, directory: Any) -> Awaitable[None]:
        """Takes the state now, and returns what writes it: for Orbax, see docs/jax.md."""
        running = processes()
        part, count = running if running[1] > 1 else self._part()
        return _write(directory, _name(part, count), json.dumps(self.get_state()))

    async def load(self, directory: Any) -> Awaitable[None]:
        """Returns what reads the state and goes there: for Orbax, see docs/jax.md."""
        return self._load(directory)

    async def _load(self, directory: Any) -> None:
        import asyncio  # whoever awaits this has imported it

        self.set_state(await asyncio.to_thread(read_parts, directory))


async def _write(directory: Any, name: str, text: str) -> None:
    import asyncio

    # Orbax makes the directory in the background, under a name of its own until all is written.
    created = getattr(directory, "await_creation", None)
    place = directory if created is None else await created()
    await asyncio.to_thread((place / name).write_text, text)


def read_parts(directory: Any) -> dict[str, Any]:
    """The state that the processes have saved in a directory."""
    names = sorted(file.name for file in directory.glob("part-*-of-*.json"))
    if not names:
        raise StateError(f"{directory} has no state of a loader (part-0-of-1.json or the like).")
    last = names[0].removesuffix(".json").rpartition("-")[2]
    count = int(last) if last.isdecimal() else 1
    if odd := _odd(names, count):
        raise StateError(
            f"{directory} should have parts 0 to {count - 1} of {count}; missing or left over: "
            f"{odd}. Was the checkpoint copied only in part?"
        )
    needed = [_name(part, count) for part in range(count)]
    states = [_read(directory / name) for name in needed]
    same = all(state == states[0] for state in states)
    return states[0] if same else merge_states(states)


def _name(part: int, count: int) -> str:
    return f"part-{part}-of-{count}.json"


def _odd(names: list[str], count: int) -> str:
    """Names of parts that are missing or left over, a few of them; "" if all is well."""
    have = set(names)
    # The count stands in the name of a file: of parts that are not there, the first few will do.
    missing = (_name(part, count) for part in range(count) if _name(part, count) not in have)
    odd = list(itertools.islice(missing, _SHOWN + 1))
    for name in names:
        part = name.removeprefix("part-").partition("-")[0]
        if not (part.isdecimal() and int(part) < count and name == _name(int(part), count)):
            odd.append(name)
    shown = ", ".join(sorted(odd)[:_SHOWN])
    return f"{shown}, and more" if len(odd) > _SHOWN else shown


def _read(file: Any) -> dict[str, Any]:
    if not file.is_file():
        raise StateError(f"{file} is no regular file.")  # reading a named pipe would wait for ever
    try:
        state: dict[str, Any] = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise StateError(f"{file} is damaged: {error}") from error
    return state
