"""Names that are imported at first use, and the error for names that do not exist."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

GRAIN_VERSION = "0.2.18"
"""The version of Grain whose names, streams and states these are."""

LEFT_OUT = ("CacheIterDataset", "RebatchIterDataset", "RngPool")
"""Names of Grain that are not here: no known program uses them."""


def late_name(module: str, homes: Mapping[str, str], name: str) -> object:
    """The object that ``homes`` locates in another module; an AttributeError for other names.

    A home is a module, or ``module:name`` if the object has another name there.
    """
    if name not in homes:
        raise AttributeError(
            f"module {module!r} has no attribute {name!r}: it has the names of Grain "
            f"{GRAIN_VERSION}, but for {', '.join(LEFT_OUT)}."
        )
    home, _, inner = homes[name].partition(":")
    return getattr(import_module(f"{__package__}.{home}"), inner or name)
