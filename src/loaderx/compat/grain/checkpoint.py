"""Saving and restoring iterators with Orbax."""

from __future__ import annotations

from loaderx.compat.grain.checkpoint_handler import CheckpointHandler, checkpoint_arguments

__all__ = ["CheckpointHandler", "CheckpointRestore", "CheckpointSave"]  # noqa: F822 (below)


def __getattr__(name: str) -> type:
    if name in ("CheckpointSave", "CheckpointRestore"):
        return checkpoint_arguments()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
