"""`CheckpointHandler`: the state of an iterator as an item of an Orbax checkpoint.

Orbax itself is imported when `CheckpointSave` or `CheckpointRestore` is asked for.
"""

from __future__ import annotations

import functools
import json
from dataclasses import make_dataclass
from importlib import import_module
from typing import TypeVar

from loaderx.compat.grain.checkpoint_files import Directory, read_text, state_file
from loaderx.compat.grain.data_loader import DataLoaderIterator
from loaderx.compat.grain.iterator import DatasetIterator
from loaderx.compat.grain.protocols import Element
from loaderx.errors import MissingPackageError

AnyIterator = TypeVar("AnyIterator", DataLoaderIterator, DatasetIterator)  # type: ignore[type-arg]


class CheckpointHandler:
    """Saves and restores iterators; an ``orbax.checkpoint.CheckpointHandler``."""

    def save(self, directory: Directory, item: Element = None, args: Element = None) -> None:
        """Writes the state of an iterator."""
        iterator = item or args.item
        state = iterator.get_state()
        text = state.decode() if isinstance(state, bytes) else json.dumps(state, indent=4)
        state_file(directory).write_text(text)

    def restore(self, directory: Directory, item: Element = None, args: Element = None) -> Element:
        """Sets the state of an iterator, and begins to read ahead."""
        iterator = item or args.item
        text = read_text(directory)
        in_bytes = isinstance(iterator, DataLoaderIterator)
        iterator.set_state(text.encode() if in_bytes else json.loads(text))
        iterator.start_prefetch()
        return iterator

    def structure(self, directory: Directory) -> None:
        """Orbax asks for it; iterators have none."""

    def metadata(self, directory: Directory) -> None:
        """Orbax asks for it; iterators have none."""

    def finalize(self, directory: Directory) -> None:
        """Everything has been written."""

    def close(self) -> None:
        """Nothing is open."""

    @classmethod
    def typestr(cls) -> str:
        """The name under which Orbax notes the handler."""
        return f"{cls.__module__}.{cls.__qualname__}"


@functools.cache
def checkpoint_arguments() -> dict[str, type]:
    """`CheckpointSave` and `CheckpointRestore`, made and registered once."""
    try:
        args = import_module("orbax.checkpoint").args
    except ImportError as error:
        raise MissingPackageError(
            "CheckpointSave and CheckpointRestore need Orbax: pip install orbax-checkpoint"
        ) from error
    made = {}
    for name, use in ("CheckpointSave", "for_save"), ("CheckpointRestore", "for_restore"):
        kind = make_dataclass(name, [("item", object)], bases=(args.CheckpointArgs,))
        kind.__module__ = "loaderx.compat.grain.checkpoint"
        made[name] = args.register_with_handler(CheckpointHandler, **{use: True})(kind)
    return made
