"""What the pinned chains are made of: data, functions, iterables.

What they give must be the same on every machine: whole numbers, floats that are exact, and random
bits that NumPy promises not to change.  Numbers are given a dtype by name, since NumPy 1 and 2
differ in what they make of Python's.

Worker processes import this module: it must stay light.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np

from loaderx import Dataset
from loaderx.sources import ChunkSource, Indices, Lend, Source
from loaderx.stages import WindowStage

# Data -----------------------------------------------------------------------------------------


def arrays(n: int, base: int = 0) -> Dataset[Any]:
    x = np.arange(base, base + n, dtype=np.int64)
    y = np.stack([x, -x], 1).astype(np.float32) * np.float32(0.25)
    return Dataset.from_arrays(x=x, y=y)


def objects(n: int, base: int = 0) -> Dataset[Any]:
    """The records of `arrays`, one object each."""
    numbers = np.arange(base, base + n, dtype=np.int64)
    return Dataset.from_source(
        [{"x": i, "y": np.array([i, -i], np.float32) * np.float32(0.25)} for i in numbers]
    )


def documents(n: int, base: int = 0) -> Dataset[Any]:
    """Records whose one leaf, "t", has 1 to 11 numbers."""
    numbers = range(base, base + n)
    return Dataset.from_source(
        [{"t": np.arange(i * 7 % 11 + 1, dtype=np.int32) + 100 * i} for i in numbers]
    )


def numbered(n: int, base: int = 0) -> Dataset[Any]:
    """The records of `documents`, with a leaf "n" beside it."""
    return documents(n, base).map_with_index(lambda i, record: {**record, "n": np.int64(i)})


def pairs_of_texts(n: int) -> Dataset[Any]:
    """Records with two leaves of unequal lengths, one of them empty now and then."""
    made = []
    for i in range(n):
        source = np.arange(i * 5 % 7 + 1, dtype=np.int32) + 10 * i
        target = np.arange(i * 3 % 4, dtype=np.int32) - 10 * i
        made.append({"s": source, "t": target, "n": np.int64(i)})
    return Dataset.from_source(made)


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Sample:
    point: Point
    weight: Any


class Single:
    """An object of the user's with nothing but a length and an index."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict[str, Any]:
        if not 0 <= i < self.n:
            raise IndexError(i)
        return {"x": np.int64(i), "y": np.full(2, i, np.float32)}


class Several(Single):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[i] for i in indices]


class Gathering(Single):
    thread_safe = True

    def gather(self, indices: Any) -> dict[str, Any]:
        x = np.asarray(indices, np.int64)
        return {"x": x, "y": np.stack([x, x], 1).astype(np.float32)}


class Chunked(Source):
    """Records in chunks of these sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self.starts = np.cumsum([0, *sizes])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def chunks(self) -> Indices:
        return self.starts

    def gather(self, indices: Indices, lend: Lend) -> dict[str, Any]:
        return {"x": indices * 3}


class Stored(ChunkSource):
    """The same, of which only whole chunks can be read."""

    def __init__(self, sizes: list[int]) -> None:
        self.starts = np.cumsum([0, *sizes])

    def chunks(self) -> Indices:
        return self.starts

    def read_chunk(self, number: int) -> list[Any]:
        numbers = np.arange(self.starts[number], self.starts[number + 1])
        return [{"x": x * 3} for x in numbers]


def write_files(folder: Path) -> None:
    """The files that some of the chains read."""
    (np.arange(203, dtype=np.uint16) * 7).tofile(folder / "tokens.bin")
    (np.arange(90, dtype=np.uint16) * 11).tofile(folder / "more.bin")
    np.save(folder / "tokens.npy", np.arange(120, dtype=np.int32) * 3)
    x = np.arange(36, dtype=np.int16)
    columns = {"x": x.reshape(18, 2), "y": x[:18] % 5, "z": x[:18].astype(np.float32)}
    np.savez(folder / "plain.npz", **columns)
    np.savez_compressed(folder / "packed.npz", **columns)
    (folder / "columns").mkdir()
    for name, column in columns.items():
        np.save(folder / "columns" / f"{name}.npy", column)


def write_url(folder: Path) -> str:
    """A URL of columns, in a file system that is in memory."""
    files = fsspec.filesystem("memory")
    files.put(str(folder / "columns"), "/pinned/", recursive=True)
    return "memory://pinned/columns"


_VERSIONS = """
import sys
import lance, pyarrow as pa
from loaderx import Dataset

place, cache = sys.argv[1:]
x = list(range(30))
vectors = pa.array([[n, -n] for n in x], pa.list_(pa.float32(), 2))
lance.write_dataset(pa.table({"x": x, "v": vectors}), place, max_rows_per_file=10)
lance.dataset(place).delete("x % 7 = 3")
lance.dataset(place).delete("x > 5")
Dataset.open(place, version=2, cache=cache)
"""


def write_versions(folder: Path) -> tuple[Path, Path]:
    """A Lance dataset of three versions, and a cache folder with a copy of the second.

    They are made in another process: pylance leaves threads and descriptors behind.
    """
    place, cache = folder / "rows.lance", folder / "cache"
    if not place.exists():
        subprocess.run([sys.executable, "-c", _VERSIONS, place, cache], check=True)
    return place, cache


# Functions ------------------------------------------------------------------------------------
# Those without another word work on a record and, row by row, on a batch.


def double(element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "x": element["x"] * np.int64(2)}


def shift(by: int, element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "x": element["x"] + np.int64(by)}


def number(index: Any, element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "x": element["x"] * np.int64(1000) + np.int64(index)}


def draw(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Of a record: bits that NumPy promises not to change."""
    bits = rng.bit_generator.random_raw() >> 44
    return {**record, "x": record["x"] * np.int64(1 << 20) + np.int64(bits)}


def draw_of_window(window: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**window, "bits": np.int64(rng.bit_generator.random_raw() >> 44)}


def draw_rows(batch: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Of a batch, or of a run of records."""
    y = batch["y"] + rng.random(size=(..., 2), dtype=np.float32) + rng.uniform(0, 8)[:, None]
    return {**batch, "x": batch["x"] * 1024 + rng.integers(0, 1024), "y": y.astype(np.float32)}


def draw_globally(record: dict[str, Any]) -> dict[str, Any]:
    bits = int(random.random() * 1024) * 1024 + int(np.random.random_sample() * 1024)  # noqa: NPY002
    return {**record, "x": record["x"] * np.int64(1 << 20) + np.int64(bits)}


def in_part(of: int, element: dict[str, Any]) -> Any:
    return element["x"] % of != 1


def is_drawn(record: dict[str, Any]) -> Any:
    return record["x"] % 4 != 0


def is_even(x: Any) -> Any:
    return x % 2 == 0


def is_long(record: dict[str, Any]) -> bool:
    return len(record["t"]) > 3


def copies(record: dict[str, Any]) -> list[dict[str, Any]]:
    """None, one or two of them."""
    return [{**record, "y": record["y"] + np.float32(i)} for i in range(int(record["x"]) % 3)]


def halves(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    middle = len(record["t"]) // 2
    yield {**record, "t": record["t"][:middle]}
    yield {**record, "t": record["t"][middle:]}


def without_mask(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": batch["x"], "y": batch["y"]}


def to_lists(run: dict[str, Any]) -> dict[str, Any]:
    return {"t": [[ord(c) for c in text] for text in run["text"]]}


def fails(on: tuple[int, ...], record: dict[str, Any]) -> dict[str, Any]:
    if int(record["x"]) in on:
        raise ValueError(f"record {record['x']}")
    return record


def fails_every(n: int, record: dict[str, Any]) -> dict[str, Any]:
    return fails((int(record["x"]),) if record["x"] % n == n - 1 else (), record)


def replace_value_errors(error: Any) -> str:
    return "replace" if isinstance(error.__cause__, ValueError) else "raise"


def total(records: list[dict[str, Any]]) -> dict[str, Any]:
    x = np.array([record["x"] for record in records], np.int64)
    return {"x": x, "sum": np.cumsum(x), "count": np.arange(len(x), dtype=np.int16)}


class Doubling:
    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        return double(element)


class Drawing:
    def random_map(self, record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return draw(record, rng)


class Numbering:
    def map_with_index(self, index: int, record: dict[str, Any]) -> dict[str, Any]:
        return number(index, record)


class Copying:
    def flat_map(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        return [record, shift(7, record)]


class Choosing:
    def filter(self, record: dict[str, Any]) -> Any:
        return record["x"] % 3 != 0


class Batching:
    batch_size = 4
    drop_remainder = True


# Iterables ------------------------------------------------------------------------------------


def lines() -> Iterator[dict[str, Any]]:
    for i in range(29):
        yield {"x": np.int64(i), "y": np.full(2, i, np.float32)}


def shards(shard: int, count: int) -> Iterator[dict[str, Any]]:
    for i in range(shard, 41, count):
        yield {"x": np.int64(i), "y": np.full(2, shard, np.float32)}


class Cursor:
    """Knows its own position, in words of its own."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.at = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.at < self.n:
            self.at += 1
            yield {"x": np.int64(self.at - 1)}

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Ticking:
    """An iterator with a state."""

    def __init__(self, shard: int, count: int) -> None:
        self.next, self.count = shard, count

    def __iter__(self) -> Ticking:
        return self

    def __next__(self) -> dict[str, Any]:
        if self.next >= 60:
            raise StopIteration
        self.next += self.count
        return {"x": np.int64(self.next - self.count)}

    def get_state(self) -> list[int]:
        return [self.next]

    def set_state(self, state: list[int]) -> None:
        (self.next,) = state


# Stages ---------------------------------------------------------------------------------------


class OddFirst(WindowStage):
    """Reorders, drops and adds."""

    copies: int = 1
    window: int = 8

    def map_window(self, records: list[Any]) -> Iterator[tuple[int, Any]]:
        for rest in (1, 0):
            for number, record in enumerate(records):
                if record["x"] % 2 == rest and record["x"] % 5:
                    yield from [(number, record)] * self.copies


class DrawTogether(WindowStage):
    """Draws: bits that NumPy promises not to change."""

    window: int = 4

    def random_map_window(self, records: list[Any], rng: Any) -> Iterator[tuple[int, Any]]:
        for number, record in enumerate(records):
            bits = rng.bit_generator.random_raw() >> 44
            if bits % 4:
                yield number, {**record, "x": record["x"] * np.int64(1 << 20) + np.int64(bits)}
