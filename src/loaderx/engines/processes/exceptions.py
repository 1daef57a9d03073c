"""Exceptions that cross from a worker to the consumer.

The message and the traceback always arrive, the type if it can be pickled.  The consumer builds the
traceback (`remote_frames`), since it has the source of notebook cells.  It shows the user's frames;
`shows_all_frames` adds the others.  A note, which Python prints below the exception, names the
worker.
"""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Iterable
from itertools import pairwise
from types import TracebackType
from typing import Any, TypeAlias

from loaderx.engines.processes.pickling import ResetAttribute, dumps
from loaderx.engines.processes.remote_frames import RemoteFrame, frames_of, traceback_of
from loaderx.engines.processes.unsendable import getstate
from loaderx.errors import (
    LoaderxError,
    RecordError,
    below_own_frames,
    is_own_file,
    one_line,
    shows_all_frames,
)

Packed: TypeAlias = tuple[bytes | None, str, list[RemoteFrame]]
"""An exception: its pickle (if possible), its text, and its frames."""


def pack(error: BaseException, most_bytes: int | None = None) -> bytes:
    """An exception and its causes; only the text if the rest would take too many bytes."""
    packed = dumps(_chain(error))
    if most_bytes is None or len(packed) <= most_bytes:
        return packed
    return dumps([(None, one_line(error)[: most_bytes // 8], [])])


def _chain(error: BaseException) -> list[Packed]:
    chain: list[Packed] = []
    one: BaseException | None = error
    while one is not None and len(chain) < 8:
        frames = frames_of(_shown_traceback(one, is_cause=one is not error))
        chain.append((_pickled(one), one_line(one), frames))
        one = one.__cause__
    return chain


def _shown_traceback(error: BaseException, *, is_cause: bool) -> TracebackType | None:
    """The frames of an exception that tell the user something."""
    if shows_all_frames():
        return error.__traceback__
    shown = below_own_frames(error.__traceback__)
    if shown is None and not is_cause and not isinstance(error, LoaderxError):
        return error.__traceback__  # no user's function failed: this is a bug in loaderx
    return shown


def unpack(packed: bytes, worker: str, step: int | None) -> BaseException:
    """The exception, to be raised in the consumer."""
    try:
        return _unpack(packed, worker)
    except Exception as error:  # unpickling runs arbitrary code
        said = f"a function failed in {worker}, and its exception cannot be shown here: "
        said += one_line(error)
        return RecordError(said, step=step)


def text_of(packed: bytes) -> str:
    """The message of a packed exception, on one line."""
    said: str = pickle.loads(packed)[0][1]
    return " ".join(said.split())


def note_reset_attributes(error: BaseException, reset: Iterable[ResetAttribute]) -> None:
    """Adds a note to an error that seems to come from an attribute that could not be sent."""
    said = one_line(error.__cause__ or error)
    for owner, name, kind, text in reset:
        if f"'{name}'" in said or f"'{kind}'" in said:
            with contextlib.suppress(Exception):  # it may refuse notes
                error.add_note(
                    f"`{owner}.{name}` could not be sent to the worker and was set back to what it "
                    f"was before the first use, {text}. Write in {owner} what a worker is to get: "
                    f"`{getstate(name)}`."
                )


def _unpack(packed: bytes, worker: str) -> BaseException:
    chain: list[Packed] = pickle.loads(packed)
    errors = [_rebuilt(pickled, said) for pickled, said, _ in chain]
    for number, (error, (_, _, frames)) in enumerate(zip(errors, chain, strict=True)):
        if frames or number == len(chain) - 1:
            _set(error, "__notes__", [*getattr(error, "__notes__", ()), f"\nIn {worker}."])
        _set(error, "__traceback__", traceback_of(frames))
    for error, cause in pairwise(errors):
        _set(error, "__cause__", cause)
    return errors[0]


def shown_stacks(text: str) -> str:
    """The stacks that `faulthandler` printed for a worker, without loaderx's outer frames."""
    if shows_all_frames():
        return text
    stacks = [_without_own_frames(stack.splitlines()) for stack in text.split("\n\n")]
    return "\n\n".join(filter(None, stacks)) or text  # no user's frame: a bug in loaderx


def _without_own_frames(lines: list[str]) -> str:
    """A stack without loaderx's frames at its (outer) end; empty if no frame is left."""
    if any(_WATCH.search(line) and _is_own(line) for line in lines):
        return ""
    while lines and _is_own(lines[-1]):
        lines.pop()
    return "\n".join(lines) if len(lines) > 1 else ""  # the first names the thread


_WATCH = re.compile(
    r" in _exit_with_consumer$"
)  # the thread that checks whether the consumer is alive
_FILE = re.compile(r'^  File "(.*)", line \d+ in ')


def _is_own(line: str) -> bool:
    found = _FILE.match(line)
    return found is not None and is_own_file(found[1])


def _set(error: BaseException, name: str, value: object) -> None:
    BaseException.__setattr__(error, name, value)  # its class may forbid setting attributes


def _pickled(error: BaseException) -> bytes | None:
    """The exception alone; None if it cannot be pickled and read again."""
    try:
        pickled = dumps(error)
        return pickled if type(pickle.loads(pickled)) is type(error) else None
    except Exception:
        return None


def _rebuilt(pickled: bytes | None, said: str) -> BaseException:
    if pickled is not None:
        try:
            error: Any = pickle.loads(pickled)
            if isinstance(error, BaseException):
                return error
        except Exception:  # it can be pickled, but not unpickled here
            pass
    return LoaderxError(said)
