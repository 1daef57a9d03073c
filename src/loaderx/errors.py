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
from typing import Any, SupportsIndex


class LoaderxError(Exception):
    """The base of every error that loaderx raises on purpose."""


class ArgumentError(LoaderxError, ValueError):
    """An argument has a value that cannot work."""


class ArgumentTypeError(LoaderxError, TypeError):
    """An argument has a type that cannot work."""


class ChainError(LoaderxError, ValueError):
    """A stage was put where it cannot stand."""


class FileError(LoaderxError, ValueError):
    """A file is damaged, of another kind, or lacks what was asked for."""


class MissingPackageError(LoaderxError, ImportError):
    """What was asked for needs a package that is not installed; the message names it."""


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
    """

    def __init__(
        self, detail: str, *, index: int | None = None, stage: str = "", step: int | None = None
    ) -> None:
        super().__init__(detail, index, stage, step)
        self.detail = detail
        self.index = index
        self.stage = stage
        self.step = step

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_record_error, (self.detail, self.index, self.stage, self.step)

    def __str__(self) -> str:
        where = "" if self.step is None else f"step {self.step}: "
        return f"{where}{self.detail}"


def _rebuild_record_error(
    detail: str, index: int | None, stage: str, step: int | None
) -> RecordError:
    return RecordError(detail, index=index, stage=stage, step=step)


class LoaderxWarning(UserWarning):
    """The base of every warning that loaderx gives."""


def check_int(name: str, value: SupportsIndex, *, least: int | None = None) -> int:
    """``value`` as an int of at least ``least``, or an error that names the argument."""
    number = None
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):  # arrays have an __index__, too
            number = operator.index(value)
    if number is None:
        raise ArgumentTypeError(
            f"`{name}` must be an integer, got {value!r} ({type(value).__name__})."
        )
    if least is not None and number < least:
        raise ArgumentError(f"`{name}` must be at least {least}, got {number}.")
    return number


def check_seed(value: SupportsIndex) -> int:
    """``value`` as a seed: an integer from 0 to 2**64 - 1."""
    seed = check_int("seed", value, least=0)
    if seed >= 1 << 64:
        raise ArgumentError(f"`seed` must be below 2**64, got {seed}.")
    return seed


def check_bool(name: str, value: Any) -> bool:
    """``value`` as a bool; a word is none, whatever it says."""
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
