"""Functions for pipelines in tests.  Worker processes import this module: it must stay light."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

# These work on a record and, row by row, on a batch.


def grow(element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "y": element["y"] * 2 + 1}


def jitter(element: dict[str, Any], rng: Any) -> dict[str, Any]:
    first, second = rng.random(), rng.integers(0, 1000)
    if np.ndim(first):  # a batch: one draw per record
        first, second = np.asarray(first)[:, None], np.asarray(second)[:, None]
    return {**element, "y": element["y"] + first + second}


def tag(index: int, element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "y": element["y"] + index * 0.5}


def first_of_two(pair: Any) -> dict[str, Any]:
    left, right = pair
    return {"x": left["x"], "y": left["y"] + right["y"]}


def ends_of_window(window: dict[str, Any]) -> dict[str, Any]:
    return {"x": window["x"][0], "y": window["y"][-1]}


def drop_extras(element: dict[str, Any]) -> dict[str, Any]:
    return {"x": element["x"], "y": element["y"]}


def is_odd(number: int) -> bool:
    return number % 2 == 1


def echo(task: Any) -> Any:
    """The numbers of a task."""
    return np.array(task, np.uint64)


_one_at_a_time = threading.Lock()


def hold(element: Any) -> Any:
    """Like Python that holds the GIL: threads cannot share it.  But it leaves the cores alone.

    It takes so long that waking up late, on a busy machine, does not matter beside it.
    """
    with _one_at_a_time:
        time.sleep(0.02)
    return element


def everything(element: Any) -> bool:
    return True


def maker(record: dict[str, Any]) -> dict[str, Any]:
    """A record, and the thread that made it."""
    return {**record, "thread": np.int32(threading.get_native_id())}
