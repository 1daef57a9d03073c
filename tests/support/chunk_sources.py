"""Sources of chunks that write down which chunk they read, in a file that all processes share."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from loaderx import ArraySpec
from loaderx.sources import ChunkSource, Indices


class Chunks(ChunkSource):
    """Records {"x": number, "y": two floats} in chunks of these sizes."""

    thread_safe = True

    def __init__(self, sizes: list[int], log: Path | None = None) -> None:
        self.starts = np.cumsum([0, *sizes])
        self.log = log

    @property
    def spec(self) -> Any:
        return {"x": ArraySpec((), np.dtype(np.int64)), "y": ArraySpec((2,), np.dtype(np.float32))}

    def chunks(self) -> Indices:
        return self.starts

    def read_chunk(self, number: int) -> Any:
        note(self.log, number)
        x = np.arange(self.starts[number], self.starts[number + 1])
        return {"x": x, "y": np.stack([x, -x], 1).astype(np.float32)}


class Documents(Chunks):
    """Records of different lengths."""

    @property
    def spec(self) -> Any:
        return None

    def read_chunk(self, number: int) -> Any:
        note(self.log, number)
        numbers = range(self.starts[number], self.starts[number + 1])
        return [{"x": n, "t": np.full(n % 4 + 1, n), "text": "ä" * (n % 3)} for n in numbers]


class Logged:
    """A function of a number that writes the number down."""

    def __init__(self, function: Any, log: Path) -> None:
        self.function, self.log = function, log

    def __call__(self, number: int) -> Any:
        note(self.log, number)
        return self.function(number)


def note(log: Path | None, number: int) -> None:
    if log is not None:
        with log.open("a") as file:  # one short write, which no other process can cut in two
            file.write(f"{number}\n")


def reads(log: Path) -> Counter[int]:
    """How often each chunk was read."""
    return Counter(int(line) for line in log.read_text().split()) if log.exists() else Counter()
