"""Exceptions that cross from a worker to the consumer.

The type comes along where it can be pickled, the message and the traceback's text always: the text
stands in a note, which Python prints below the exception.
"""

from __future__ import annotations

import pickle
import traceback
from itertools import pairwise
from typing import Any

from loaderx.engines.processes.ship import dumps
from loaderx.errors import LoaderxError


def pack(error: BaseException) -> bytes:
    """An exception and what it was raised from."""
    chain: list[tuple[bytes | None, str, str]] = []
    one: BaseException | None = error
    while one is not None and len(chain) < 8:
        text = "".join(traceback.format_exception(type(one), one, one.__traceback__, chain=False))
        chain.append((_pickled(one), _say(one), text))
        one = one.__cause__
    return dumps(chain)


def unpack(packed: bytes, worker: str) -> BaseException:
    """The exception, to be raised in the consumer."""
    chain: list[tuple[bytes | None, str, str]] = pickle.loads(packed)
    errors = [_rebuilt(pickled, said) for pickled, said, _ in chain]
    for error, (_, _, text) in zip(errors, chain, strict=True):
        error.add_note(f"\nIn {worker}:\n{text.rstrip()}")
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


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
