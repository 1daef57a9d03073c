"""Functions for contracts of stages.  Worker processes import this module: it must stay light."""

from __future__ import annotations

import os
from typing import Any

Record = dict[str, Any]


def value(record: Record) -> int:
    return int(record["x"])


def is_not_three(record: Record) -> bool:
    return bool(record["x"] != 3)


def are_not_three(columns: Record) -> Any:
    return columns["x"] != 3


def counted(record: Record) -> list[Record]:
    return [{"x": record["x"], "n": n} for n in range(value(record) % 3)]


def jitter(record: Record, rng: Any) -> Record:
    return {**record, "jitter": rng.random()}


def double(record: Record) -> Record:
    return {"x": record["x"] * 2}


def numbered(index: int, record: Record) -> Record:
    return {**record, "index": index}


def keep(record: Record) -> Record:
    return record


class ByProcess:
    """Makes something else in another process."""

    def __init__(self) -> None:
        self.home = os.getpid()

    def __call__(self, record: Record) -> Record:
        return {"x": record["x"] + (os.getpid() != self.home)}
