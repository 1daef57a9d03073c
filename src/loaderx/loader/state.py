"""A position as a small dict: JSON-able, independent of engines, workers and hosts.

``step`` is the next batch to be handed out.  ``chain`` has one short string per stage, so that a
state from another chain is refused by name.  ``epoch`` and ``record`` say the same position in
records, for a chain whose batch size has changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from loaderx.chain.base import Node
from loaderx.chain.marks import identity
from loaderx.errors import LoaderxWarning, StateError
from loaderx.loader.position import rows_before
from loaderx.order.permutation import VERSION as ORDER_VERSION

STATE_VERSION = 1
_ORDER = f"order {ORDER_VERSION}"


def make_state(chain: list[str], base: Node, step: int) -> dict[str, Any]:
    """The state at a step; ``base`` is one epoch."""
    epoch, inside = divmod(step, base.length) if base.length is not None else (0, step)
    return {
        "version": STATE_VERSION,
        "step": step,
        "epoch": epoch,
        "record": rows_before(base, inside),
        "chain": [_ORDER, *chain],
    }


def read_state(state: Any, chain: list[str], base: Node, *, strict: bool) -> int:
    """The step at which this chain goes on."""
    step, saved = _parse(state)
    here = [_ORDER, *chain]
    problem = _difference(saved, here)
    if problem is None:
        _warn_about_names(saved, here)
        return step
    if strict:
        raise StateError(
            f"the state belongs to another chain: {problem} Pass strict=False to continue at "
            "the same record position all the same."
        )
    moved = _same_record(state, base)
    warnings.warn(
        f"the state belongs to another chain: {problem} Going on at step {moved} "
        f"(it was step {step}).",
        LoaderxWarning,
        stacklevel=4,
    )
    return moved


def merge_states(states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One state of the states that several processes have saved at the same step.

    A chain's position is the same on every process, so the states must be equal.

    >>> from loaderx import DataLoader, Dataset
    >>> parts = [iter(DataLoader(Dataset.range(8).batch(4), shard=(host, 2))) for host in (0, 1)]
    >>> merge_states(part.get_state() for part in parts)["step"]
    0
    """
    parts = list(states)
    if not parts:
        raise StateError("there are no states to merge.")
    steps = [_parse(part)[0] for part in parts]
    if len(set(steps)) > 1:
        raise StateError(
            f"the states were saved at different steps: {', '.join(map(str, steps))}. All "
            "processes must save after the same step."
        )
    for number, part in enumerate(parts):
        problem = _difference(_parse(part)[1], _parse(parts[0])[1])
        if problem is not None:
            raise StateError(f"states 0 and {number} belong to different chains: {problem}")
    return dict(parts[0])


def _parse(state: Any) -> tuple[int, list[str]]:
    if not isinstance(state, dict) or not {"version", "step", "chain"} <= state.keys():
        raise StateError(f"this is no state of a loader: {str(state)[:80]!r}.")
    if state["version"] != STATE_VERSION:
        raise StateError(
            f"the state has version {state['version']!r}, this loaderx reads {STATE_VERSION}."
        )
    step = state["step"]
    for name in ("step", "epoch", "record"):
        value = state.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise StateError(f"the state's {name} must be a whole number, got {value!r}.")
    if not isinstance(state["chain"], (list, tuple)):
        raise StateError(f"this is no state of a loader: {str(state)[:80]!r}.")
    return step, [str(stage) for stage in state["chain"]]


def _same_record(state: dict[str, Any], base: Node) -> int:
    """The step at the record that the state names, in a chain that may be cut another way."""
    epoch, record = state.get("epoch", 0), state.get("record", 0)
    size = (base.batch_size if base.batched else 1) or 1
    if base.length is None:
        return int(record // size)
    rows = rows_before(base, base.length)
    epoch, record = epoch + record // rows, record % rows  # it may have counted on and on
    return int(epoch * base.length + min(record // size, base.length))


def _difference(saved: list[str], here: list[str]) -> str | None:
    for number, (old, new) in enumerate(zip(saved, here, strict=False)):
        if identity(old) != identity(new):
            return f"stage {number} was {old!r} and is {new!r} now."
    if len(saved) > len(here):
        return f"it had a stage {saved[len(here)]!r} that is not here now."
    if len(here) > len(saved):
        return f"it had no stage {here[len(saved)]!r}."
    return None


def _warn_about_names(saved: list[str], here: list[str]) -> None:
    for old, new in zip(saved, here, strict=True):
        if old != new:
            warnings.warn(
                f"the state was saved with {old!r}, the chain has {new!r} now. If the function "
                "does something else, so will the stream from here on.",
                LoaderxWarning,
                stacklevel=4,
            )
