"""Errors of a user's function in words, with advice where its arguments are the reason."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator
from types import CodeType

from loaderx.errors import RecordError, StackError, below_own_frames, one_line

USER_ERRORS = (Exception, SystemExit)
"""Errors of a user's function.  Its ``sys.exit()`` must not end the program that loads the data,
and in a worker it would."""

READING = "reading the source"
"""The stage of errors that come from a source."""

_CALLS = {
    "filter": "f(record), where a tuple is one record",
    "flat_map": "f(record), where a tuple is one record",
    "map": "f(element), where a tuple is one element",
    "map_with_index": "f(index, element)",
    "random_map": "f(element, rng)",
}
# Messages of tokenizers that take a list of texts, such as those of transformers.
_WANTS_TEXT = r"(?i)must be of type `str`|TextInputSequence|TextEncodeInput|list of (str|text)"
_MISCALLED = r"takes .*positional argument|missing \d+ required positional argument"


def failed(stage: str, record: str, index: int | None, error: BaseException) -> RecordError:
    """The error to raise when a stage fails on a record, or with no index, on many at once."""
    reason = error_line(error, stage, is_batch=index is None)
    detail = f"{stage} failed on {record}: {reason}"
    return RecordError(detail, index=index, stage=stage, record=record, reason=reason)


def failed_on_batch(stage: str, error: BaseException) -> RecordError:
    """The error to raise when a stage fails on a whole batch."""
    reason = error_line(error, stage, is_batch=True)
    return RecordError(f"{stage} failed on a batch: {reason}", stage=stage)


def within(dataset: int, error: RecordError) -> RecordError:
    """The same error, with the number of its dataset in a join."""
    error.detail = f"dataset {dataset}: {error.detail}"
    if error.record:
        error.record += f" of dataset {dataset}"
    return error


def error_line(error: BaseException, stage: str, *, is_batch: bool) -> str:
    """An exception as one line, with advice unless it is our own."""
    raise_if_signalled(error)
    if isinstance(error, StackError):
        return str(error)
    text = one_line(error)
    if "read-only" in text:
        text += " (records are read-only views of the data: copy before changing in place)"
    return text + _advice(error, text, stage, is_batch=is_batch)


def _advice(error: BaseException, text: str, stage: str, *, is_batch: bool) -> str:
    """How the stage calls its function, if the error shows that the function expects otherwise."""
    kind = stage.partition("(")[0]
    call = "f(element)" if "seed_globals=True" in stage else _CALLS.get(kind)
    if call is None:
        return ""
    if isinstance(error, TypeError) and re.search(_MISCALLED, text):
        # A traceback without a user's frame means that the function never began.
        is_ours = below_own_frames(error.__traceback__) is None
        return f" ({kind} calls {call})" if is_ours else ""
    if is_batch and isinstance(error, (TypeError, ValueError)) and re.search(_WANTS_TEXT, text):
        return ' (the texts of a batch are an array: hand over a list, batch["text"].tolist())'
    if is_batch and isinstance(error, ValueError) and "truth value of an array" in text:
        rng = ", and rng gives one draw for each" if kind == "random_map" else ""
        return f" (f gets the rows of many records at once{rng}: use np.where(...) for `if`)"
    return ""


def raise_if_signalled(error: BaseException) -> None:
    """Raises a SystemExit that comes from a signal handler: it is meant for the program.

    A scheduler's SIGTERM may arrive while a user's function runs in the main thread.
    """
    if not isinstance(error, SystemExit):
        return
    if threading.current_thread() is not threading.main_thread():
        return  # no handler runs here
    handlers, traceback = set(_handler_codes()), error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            raise error
        traceback = traceback.tb_next


def _handler_codes() -> Iterator[CodeType]:
    """The code of all signal handlers that are written in Python."""
    import signal  # late: it is slow to import, and few programs get here

    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        if callable(handler) and not hasattr(handler, "__code__"):
            handler = type(handler).__call__
        code = getattr(handler, "__code__", None)  # a handler in C has none
        if isinstance(code, CodeType):
            yield code
