"""Saving and restoring iterators with Orbax, and a check of both for users' own datasets.

Orbax is imported when `CheckpointSave` or `CheckpointRestore` is first used.
"""

from __future__ import annotations

import functools
from dataclasses import make_dataclass
from importlib import import_module

import numpy as np

from loaderx import MissingPackageError
from loaderx.compat.grain.iter_dataset import IterDataset
from loaderx.compat.grain.iterator import read_text, set_state_text, state_file, state_text
from loaderx.compat.grain.protocols import Element, State
from loaderx.compat.grain.trees import spec_text

__all__ = ["CheckpointHandler", "CheckpointRestore", "CheckpointSave"]  # noqa: F822 (below)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> type:
    if name in ("CheckpointSave", "CheckpointRestore"):
        return checkpoint_arguments()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def assert_equal_output_after_checkpoint(ds: IterDataset[Element]) -> None:
    """Restores the state before every element, and compares all elements that follow."""
    iterator = ds.__iter__()
    states: list[State] = []
    elements: list[Element] = []
    spec = spec_text(iterator.get_state())
    while True:
        state = iterator.get_state()
        found = spec_text(state)
        assert found == spec, f"the state before element {len(states)} is {found}, not {spec}."
        try:
            elements.append(next(iterator))
        except StopIteration:
            break
        states.append(state)
    assert elements, "the dataset has no elements."
    for number, state in enumerate(states):
        again = ds.__iter__()
        again.set_state(state)
        np.testing.assert_equal(again.get_state(), state, f"the state before element {number}")
        np.testing.assert_equal([*again], elements[number:], f"from element {number} on")


class CheckpointHandler:
    """Saves and restores iterators; an ``orbax.checkpoint.CheckpointHandler``."""

    def save(self, directory: Element, item: Element = None, args: Element = None) -> None:
        """Writes the state of an iterator."""
        state_file(directory).write_text(state_text(item or args.item))

    def restore(self, directory: Element, item: Element = None, args: Element = None) -> Element:
        """Sets the state of an iterator, and begins to read ahead."""
        iterator = item or args.item
        set_state_text(iterator, read_text(directory))
        iterator.start_prefetch()
        return iterator

    def structure(self, directory: Element) -> None:
        """Required by Orbax; iterators have no structure."""

    def metadata(self, directory: Element) -> None:
        """Required by Orbax; iterators have no metadata."""

    def finalize(self, directory: Element) -> None:
        """Does nothing: `save` has written everything."""

    def close(self) -> None:
        """Does nothing: no file stays open."""

    @classmethod
    def typestr(cls) -> str:
        """The name that Orbax records for the handler."""
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
