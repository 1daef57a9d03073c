"""Every error and warning that loaderx raises on purpose.

::

    LoaderxError
    ├── ArgumentError (ValueError)        an argument has a wrong value
    ├── ArgumentTypeError (TypeError)     an argument has a wrong type
    ├── ChainError (ValueError)           stages that cannot follow each other
    ├── FileError (ValueError)            a file is missing a part, or is of another kind
    ├── MissingPackageError (ImportError) an optional package is not installed
    ├── PositionError (IndexError)        an index that the dataset does not have
    ├── RecordError (RuntimeError)        user code or a source failed for a record or a batch
    ├── StackError (ValueError)           records that do not fit together
    └── StateError (ValueError)           a state that belongs to another chain

    LoaderxWarning (UserWarning)

A message says what happened, where, and what to do next.  Argument errors are raised when a
description is built, the others where the data is read.
"""

from __future__ import annotations

import contextlib
import operator
import os
import sys
import warnings
from types import TracebackType
from typing import Protocol


class LoaderxError(Exception):
    """The base of every error that loaderx raises on purpose."""


class ArgumentError(LoaderxError, ValueError):
    """An argument has a value that cannot work."""


class ArgumentTypeError(LoaderxError, TypeError):
    """An argument has a type that cannot work."""


class ChainError(LoaderxError, ValueError):
    """A stage cannot follow the stages before it."""


class FileError(LoaderxError, ValueError):
    """A file is damaged, of another kind, or lacks what was asked for."""


class MissingPackageError(LoaderxError, ImportError):
    """A package that is not installed is needed; the message names it."""


class PositionError(LoaderxError, IndexError):
    """A position outside the dataset."""


class StackError(LoaderxError, ValueError):
    """Records, or components of a mix, whose leaves do not fit together."""


class StateError(LoaderxError, ValueError):
    """A saved state does not belong to the chain that it is restored into."""


class RecordError(LoaderxError, RuntimeError):
    """User code, or the source, failed.  The original exception is its ``__cause__``.

    Attributes:
        index: the record's index in its source; None when a whole batch failed.
        stage: the stage that failed, as the dataset's ``repr`` shows it.
        step: the step at which it failed; None outside a loader.
        record: the record as messages name it, ``"record 7 of dataset 1"``.
        reason: the original exception as text, ``"ValueError: no number"``.
    """

    def __init__(
        self,
        detail: str,
        *,
        index: int | None = None,
        stage: str = "",
        step: int | None = None,
        record: str = "",
        reason: str = "",
    ) -> None:
        super().__init__(detail, index, stage, step)
        self.detail = detail
        self.index = index
        self.stage = stage
        self.step = step
        self.record = record
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        values = (self.detail, self.index, self.stage, self.step, self.record, self.reason)
        return _rebuild_record_error, values

    def __str__(self) -> str:
        where = "" if self.step is None else f"step {self.step}: "
        return f"{where}{self.detail}"


def _rebuild_record_error(
    detail: str, index: int | None, stage: str, step: int | None, record: str, reason: str
) -> RecordError:
    return RecordError(detail, index=index, stage=stage, step=step, record=record, reason=reason)


class LoaderxWarning(UserWarning):
    """The base of every warning that loaderx gives."""


def one_line(error: BaseException) -> str:
    """An exception as text, ``ValueError: no number``.  It never raises.

    >>> one_line(ValueError("no number"))
    'ValueError: no number'
    """
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception as problem:
        cause = type(problem).__name__
        return f"{kind} (its message cannot be shown: str() raised {cause})"
    return f"{kind}: {text}" if text else kind


_OWN_FILES = os.path.join(os.path.dirname(__file__), "")


def hide_own_frames(error: BaseException) -> None:
    """Removes loaderx's own frames from the tracebacks of an error and of its causes.

    The error itself is about to be raised again, where the user called loaderx.  With
    ``LOADERX_TRACEBACK=full`` in the environment every frame stays.
    """
    if shows_all_frames():
        return
    BaseException.with_traceback(error, None)
    cause, left = error.__cause__, 16  # a chain of causes may be a cycle
    while cause is not None and left:
        # Not `cause.__traceback__ = ...`: a class may forbid setting attributes.
        BaseException.with_traceback(cause, below_own_frames(cause.__traceback__))
        cause, left = cause.__cause__, left - 1


def hide_waiting_frames(error: KeyboardInterrupt) -> None:
    """Removes loaderx's frames above the user's function, if one ran when Ctrl-C came."""
    if not shows_all_frames():
        error.with_traceback(below_own_frames(error.__traceback__))


class _ExceptionInfo(Protocol):
    """What pytest passes to a function in ``__tracebackhide__``; pytest is not imported here."""

    def errisinstance(self, kind: type[BaseException], /) -> bool: ...


def hidden_by_pytest(info: _ExceptionInfo) -> bool:
    """``__tracebackhide__`` of modules that users call: pytest then shows their line, not ours."""
    return info.errisinstance(LoaderxError) and not shows_all_frames()


def below_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of loaderx at its beginning."""
    while traceback is not None and is_own_file(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    return traceback


def is_own_file(path: str) -> bool:
    return path.startswith(_OWN_FILES)


def warn_user(text: str) -> None:
    """Gives a `LoaderxWarning` at the line of user code that called loaderx."""
    level, frame = 1, sys._getframe()
    while is_own_file(frame.f_code.co_filename) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, LoaderxWarning, stacklevel=level)


def shows_all_frames() -> bool:
    return os.environ.get("LOADERX_TRACEBACK") == "full"


def check_int(name: str, value: object, *, least: int | None = None) -> int:
    """``value`` as an int of at least ``least``, or an error that names the argument."""
    number = None
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):  # not `hasattr`: arrays have an __index__ that raises
            number = operator.index(value)  # type: ignore[arg-type]
    if number is None:
        raise ArgumentTypeError(
            f"`{name}` must be an integer, got {value!r} ({type(value).__name__})."
        )
    if least is not None and number < least:
        raise ArgumentError(f"`{name}` must be at least {least}, got {number}.")
    return number


def check_seed(value: object) -> int:
    """``value`` as a seed: an integer from 0 to 2**64 - 1."""
    seed = check_int("seed", value, least=0)
    if seed >= 1 << 64:
        raise ArgumentError(f"`seed` must be below 2**64, got {seed}.")
    return seed


def check_bool(name: str, value: object) -> bool:
    """``value`` as a bool.  Accepts bools and 0/1; strings such as "yes" are rejected."""
    # Numbers and NumPy bools have a `__bool__`; strings and lists do not.
    if not (hasattr(value, "__bool__") and value in (0, 1)):
        raise ArgumentTypeError(
            f"`{name}` must be True or False, got {value!r} ({type(value).__name__})."
        )
    return bool(value)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """``value`` if it is one of ``choices``."""
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise ArgumentError(f"`{name}` must be one of {known}, got {value!r}.")
    return value


def check_name(name: str, value: str) -> str:
    """``value`` if it is a string."""
    if not isinstance(value, str):
        raise ArgumentTypeError(
            f"`{name}` must be a string, got {value!r} ({type(value).__name__})."
        )
    return value


def bytes_setting(name: str, default: int, least: int = 1) -> int:
    """The number of bytes in an environment variable; the default if it is not set."""
    given = os.environ.get(name, "")
    if not given:
        return default
    try:
        found = int(given)
    except ValueError:
        found = -1
    if found < least:
        raise ArgumentError(
            f"{name} is {given!r}, and must be a number of bytes, at least {least}: {default} is "
            f"{default / 2**30:g} GiB, the default."
        )
    return found
