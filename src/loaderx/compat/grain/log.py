"""Where warnings go that Grain logs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


def log() -> logging.Logger:
    """The logger of the package; its module is imported when there is something to say."""
    found: logging.Logger = import_module("logging").getLogger(__package__)
    return found
