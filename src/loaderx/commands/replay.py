"""Make the batch of a step again, and say which records it has.

The dataset is the one of the run: its state is compared first.

examples:
  loaderx replay train:make_dataset --state state.json --step 81234
  loaderx replay train:make_dataset --state checkpoints --step 81234 --show
  loaderx replay train:make_dataset --state state.json --step 812 --npz b.npz
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loaderx.commands.terminal import say
from loaderx.dataset import Dataset
from loaderx.display.show import show
from loaderx.errors import ArgumentError, FileError, LoaderxError, StateError, one_line
from loaderx.loader import DataLoader
from loaderx.loader.checkpoint import read_parts, read_state_file
from loaderx.loader.state import State, without_advice
from loaderx.memory import Pool
from loaderx.plans.index_plan import IndexPlan
from loaderx.tree import Tree, flatten


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "function",
        metavar="MODULE:FUNCTION",
        help="what returns the Dataset or the DataLoader of the run: train:make_dataset",
    )
    command.add_argument(
        "--state", required=True, metavar="CHECKPOINT", help="a state of the run, to compare with"
    )
    command.add_argument("--step", required=True, type=int, metavar="N")
    command.add_argument("--show", action="store_true", help="show the leaves of the batch")
    command.add_argument("--npz", metavar="FILE", help="write the batch to a file")


def run(options: argparse.Namespace) -> bool:
    function, step, npz = options.function, options.step, options.npz
    loader = loader_of(function)
    saved = state_of(Path(options.state))
    try:
        iter(loader).set_state(saved)
    except StateError as error:
        text = without_advice(error)
        if text != str(error):  # it is the state of another chain
            text += f" {function} must make the dataset as it was then."
        raise StateError(text) from None
    near = None if loader._stream is None else saved
    say(f"step {step:,}: {loader.records(step, near=near)!r}")
    steps = loader._node.length  # None if it is endless, and of a stream
    if steps and step >= steps:
        say(f"the dataset has {steps:,} steps: this one is in loop {step // steps + 1:,} over it")
    if options.show or npz is not None:
        batch = _batch(loader, saved, step)
        if options.show:
            say(f"{show(batch)!r}")
        if npz is not None:
            _write(npz, batch)
            say(f"written to {npz}")
    return True


def loader_of(function: str) -> DataLoader[Tree]:
    """A loader, without workers, of the dataset that a function of the user's returns."""
    name, _, attribute = function.partition(":")
    if not attribute or name.endswith(".py"):
        raise ArgumentError(
            f"{function!r} must be MODULE:FUNCTION, such as train:make_dataset for the function "
            "make_dataset of train.py in this folder."
        )
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    with _running(name):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise ArgumentError(
                f"there is no module {name!r} in this folder, nor is one installed: run the "
                "command in the folder of your script."
            ) from None
    make = getattr(module, attribute, None)
    if not callable(make):
        raise ArgumentError(f"{module.__file__} has no function {attribute!r}.")
    try:
        inspect.signature(make).bind()
    except TypeError:
        raise ArgumentError(f"{function} must take no arguments.") from None
    with _running(function):
        made = make()
    if isinstance(made, DataLoader):
        return DataLoader(made.dataset, engine="inline", shard=made._shard)
    if not isinstance(made, Dataset):
        raise ArgumentError(
            f"{function} must return the Dataset or the DataLoader of the run, and it returned "
            f"{type(made).__name__}."
        )
    return DataLoader(made, engine="inline")


@contextlib.contextmanager
def _running(name: str) -> Iterator[None]:
    """What the user's code raises becomes one line, with the line of code."""
    try:
        yield
    except LoaderxError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        file, line = os.path.basename(last.filename), last.lineno
        where = "" if file.startswith("<") else f" ({file}, line {line})"  # "<frozen importlib>"
        raise LoaderxError(f"{name} failed: {one_line(error)}{where}") from error


def state_of(path: Path) -> State:
    """The state in a file, or in a checkpoint."""
    if path.is_file():
        return read_state_file(path)
    if not path.exists():
        raise FileError(f"there is no file or folder {path}.")
    places = sorted({part.parent for part in path.rglob("part-*-of-*.json")})
    # Orbax's JsonSave writes files of this name, also for what is no state.
    saved = [file for file in path.rglob("metadata") if file.is_file()]
    places = places or sorted(file for file in saved if b'"chain"' in file.read_bytes())
    if len(places) > 1:
        listed = ", ".join(map(str, places[:8]))
        raise StateError(f"{path} has several states, choose one: {listed}.")
    place = places[0] if places else path
    return read_state_file(place) if place.is_file() else read_parts(place)


def _batch(loader: DataLoader[Tree], saved: State, step: int) -> Tree:
    if loader._stream is None:
        return IndexPlan(loader._all, shard=loader._shard).read_alone(step, Pool().lend)
    iterator = iter(loader)
    iterator.set_state(saved)
    if iterator.step > step:
        iterator.seek(0)
    while iterator.step < step:
        next(iterator)
    return next(iterator)


def _write(path: str, batch: Tree) -> None:
    leaves, structure = flatten(batch)
    names = [name or "batch" for name in structure.paths()]
    named: dict[str, Any] = dict(zip(names, map(np.asarray, leaves), strict=True))
    try:
        with open(path, "wb") as file:  # else NumPy may change the name
            np.savez(file, **named)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}.") from None
