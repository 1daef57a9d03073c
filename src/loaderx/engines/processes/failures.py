"""Exceptions that cross from a worker to the consumer.

The type comes along where it can be pickled, the message and the traceback always: as a note, which
Python prints below the exception.  The note is written by the consumer, since it knows the source
of what was typed into a notebook.
"""

from __future__ import annotations

import pickle
import traceback
from itertools import pairwise
from typing import Any, TypeAlias

from loaderx.engines.processes.ship import dumps
from loaderx.errors import LoaderxError, RecordError

Frame: TypeAlias = tuple[Any, ...]
Packed: TypeAlias = tuple[bytes | None, str, list[Frame]]


def pack(error: BaseException) -> bytes:
    """An exception and what it was raised from."""
    chain: list[Packed] = []
    one: BaseException | None = error
    while one is not None and len(chain) < 8:
        stack = traceback.StackSummary.extract(
            traceback.walk_tb(one.__traceback__), lookup_lines=False
        )
        frames = [(f.filename, f.lineno, f.name, *_columns(f)) for f in stack]
        chain.append((_pickled(one), _say(one), frames))
        one = one.__cause__
    return dumps(chain)


def unpack(packed: bytes, worker: str, step: int) -> BaseException:
    """The exception, to be raised in the consumer."""
    try:
        return _unpack(packed, worker)
    except Exception as error:  # exceptions can be as odd as they like
        said = f"a function failed in {worker}, and its exception cannot be shown here: {error!r}"
        return RecordError(said, step=step)


def _unpack(packed: bytes, worker: str) -> BaseException:
    chain: list[Packed] = pickle.loads(packed)
    errors = [_rebuilt(pickled, said) for pickled, said, _ in chain]
    _, said, frames = chain[-1]  # where it began; the others are loaderx passing it on
    stack = traceback.StackSummary.from_list([_frame(*frame) for frame in frames])
    lines = "".join(stack.format())
    note = f"\nIn {worker}:\nTraceback (most recent call last):\n{lines}{said}"
    try:
        errors[-1].add_note(note)
    except Exception:
        errors[-1] = LoaderxError(said)
        errors[-1].add_note(note)
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


def _columns(frame: Any) -> tuple[Any, ...]:
    return (frame.end_lineno, frame.colno, frame.end_colno)


def _frame(
    file: str, line: int, name: str, end_lineno: Any, colno: Any, end_colno: Any
) -> traceback.FrameSummary:
    return traceback.FrameSummary(
        file, line, name, end_lineno=end_lineno, colno=colno, end_colno=end_colno
    )


def _pickled(error: BaseException) -> bytes | None:
    """The exception alone; None if it does not survive the journey."""
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
        except Exception:  # it can be pickled, but not here
            pass
    return LoaderxError(said)


def _say(error: BaseException) -> str:
    try:
        return f"{type(error).__qualname__}: {error}"
    except Exception:
        return type(error).__qualname__
