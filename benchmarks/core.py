"""The core figures, each against its bar.

    python benchmarks/core.py [--quick] [--only NAME ...] [--json FILE]

How they are measured is told in `figures.py`.  What happens only once (imports, the first batch,
cold caches) is measured in fresh processes.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from figures import (
    Bar,
    Batches,
    Figures,
    Ours,
    Row,
    compare,
    main,
    megabytes_fresh,
    milliseconds_fresh,
    passes_for,
    row,
    run_python,
    seconds,
    skipped,
)

from loaderx import DataLoader, Dataset

ROUND_S = 0.3
JPEG_ROUND_S = 5.0


# In memory ----------------------------------------------------------------------------------------


def images(count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Arrays of MNIST's shape."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    return x, rng.integers(0, 10, count, dtype=np.int32)


def mnist(name: str, batch_size: int, bar: Bar, quick: bool) -> list[Row]:
    """Shuffled arrays, against fancy indexing with a permutation."""
    x, y = images(3_000 if quick else 60_000)

    def loop(epochs: int) -> Iterator[Any]:
        rng = np.random.default_rng(0)
        for _ in range(epochs):
            order = rng.permutation(len(x))
            for start in range(0, len(x), batch_size):
                ix = order[start : start + batch_size]
                yield {"image": x[ix], "label": y[ix]}

    epochs = 2 if quick else passes_for(ROUND_S, lambda: loop(1))
    dataset = Dataset.from_arrays(image=x, label=y)
    ours = Ours(dataset, batch_size=batch_size, num_epochs=epochs)
    result = compare(ours, lambda: loop(epochs), rounds=2 if quick else 15)
    return [result.row(name, bar, epochs * len(x), ours.engines())]


def scale(record: dict[str, Any]) -> dict[str, Any]:
    return {"image": record["image"].astype(np.float32) / 255, "label": record["label"]}


def stack_by_hand(records: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.stack([record[name] for record in records]) for name in records[0]}


def map_record(quick: bool) -> list[Row]:
    """A Python function per record, against a plain loop and against torch without workers."""
    x, y = images(1_280 if quick else 60_000)
    rounds, batch_size = 2 if quick else 9, 128

    epochs = 1 if quick else 3  # about a second: `auto` looks around once, at the beginning

    def loop() -> Iterator[Any]:
        rng = np.random.default_rng(0)
        for _ in range(epochs):
            order = rng.permutation(len(x))
            for start in range(0, len(x), batch_size):
                chosen = order[start : start + batch_size]
                yield stack_by_hand([scale({"image": x[i], "label": y[i]}) for i in chosen])

    mapped = Dataset.from_arrays(image=x, label=y).shuffle(seed=0).map(scale).batch(batch_size)
    ours = Ours(mapped.repeat(epochs))
    by_hand = compare(ours, loop, rounds)
    rows = [by_hand.row("map_record", Bar(">=", 1.1), epochs * len(x), ours.engines())]
    bar = Bar(">=", 1.0)
    try:
        from torch.utils import data
    except ImportError as error:
        return [*rows, skipped("map_record_torch", bar, error)]

    class Scaled(data.Dataset[Any]):
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, i: int) -> dict[str, Any]:
            return scale({"image": x[i], "label": y[i]})

    def torch() -> Batches:
        loader = data.DataLoader(
            Scaled(), batch_size, shuffle=True, num_workers=0, collate_fn=stack_by_hand
        )
        return itertools.chain.from_iterable(loader for _ in range(epochs))

    ours.loaders.clear()
    against_torch = compare(ours, torch, rounds)
    return [*rows, against_torch.row("map_record_torch", bar, epochs * len(x), ours.engines())]


# Files --------------------------------------------------------------------------------------------


def jpeg(quick: bool) -> list[Row]:
    """Decoding and resizing, with the engine left to `auto`, against two threads by hand."""
    bar = Bar(">=", 0.92)
    try:
        import cv2
    except ImportError as error:
        return [skipped("jpeg", bar, error)]
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)  # one image, one thread: the engines share out the images
    try:
        with tempfile.TemporaryDirectory() as folder:
            paths = write_jpegs(cv2, Path(folder), 128 if quick else 600)
            return [decode_jpegs(cv2, paths, bar, quick)]
    finally:
        cv2.setNumThreads(threads)


def write_jpegs(cv2: Any, folder: Path, count: int) -> list[str]:
    """Smooth random colour images."""
    rng = np.random.default_rng(0)
    paths = []
    for number in range(count):
        coarse = rng.integers(0, 256, (15, 17, 3), dtype=np.uint8)
        image = cv2.resize(coarse, (500, 450), interpolation=cv2.INTER_CUBIC)
        path = folder / f"{number}.jpg"
        path.write_bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes())
        paths.append(str(path))
    return paths


def decode_jpegs(cv2: Any, paths: list[str], bar: Bar, quick: bool) -> Row:
    batch_size = 64

    def decode(path: str) -> Any:
        image = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)
        return cv2.resize(image, (224, 224), interpolation=cv2.INTER_AREA)

    def loop(work: list[str]) -> Iterator[Any]:
        with ThreadPoolExecutor(2) as pool:
            ahead = pool.map(decode, work[:batch_size])
            for start in range(batch_size, len(work), batch_size):
                following = pool.map(decode, work[start : start + batch_size])
                yield np.stack(list(ahead))
                ahead = following
            yield np.stack(list(ahead))

    seconds(lambda: loop(paths))  # the files are in the page cache from here on
    work = paths * (1 if quick else passes_for(JPEG_ROUND_S, lambda: loop(paths)))
    ours = Ours(Dataset.from_source(work).map(decode).batch(batch_size))
    result = compare(ours, lambda: loop(work), rounds=1 if quick else 3)
    return result.row("jpeg", bar, len(work), ours.engines())


# Removed records ----------------------------------------------------------------------------------


class Billion:
    """A billion rows of 2,048 tokens; each of those in memory has many numbers."""

    thread_safe = True

    def __init__(self, count: int) -> None:
        self.tokens = np.random.default_rng(0).integers(0, 50_000, (count, 2048), np.uint16)

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": self.tokens[index % len(self.tokens)]}

    def gather(self, indices: Any) -> dict[str, Any]:
        return {"tokens": self.tokens.take(indices % len(self.tokens), axis=0)}


def removed(quick: bool) -> list[Row]:
    """A million records removed from a billion, against the same dataset with all of them."""
    ids = np.random.default_rng(0).integers(0, 10**9, 1_000 if quick else 1_000_000)
    whole = Dataset.from_source(Billion(100 if quick else 50_000))
    batches = 100 if quick else 1_500
    with_all = Ours(whole.shuffle(seed=0).batch(128).take(batches), engine="inline")
    ours = Ours(whole.without(ids).shuffle(seed=0).batch(128).take(batches), engine="inline")
    result = compare(ours, with_all, rounds=2 if quick else 15)
    held = run_python(
        "import tracemalloc\n"
        f"{IMPORTS}ids = np.random.default_rng(0).integers(0, 10**9, {len(ids)})\n"
        "Dataset.range(9).without([1])[0]\ntracemalloc.start()\n"
        "ds = Dataset.range(10**9).without(ids)\nds[0]\n"
        "print(tracemalloc.get_traced_memory()[0] / 1e6)"
    )
    return [
        result.row("removed", Bar(">=", 0.95), batches * 128),
        row("removed_memory", Bar("<=", 16, "MB"), held, [held]),
    ]


# Fresh processes ----------------------------------------------------------------------------------

IMPORTS = "import itertools, numpy as np\nfrom loaderx import DataLoader, Dataset\n"
TRILLION = "loader = DataLoader(Dataset.range(10**12).shuffle(seed=0).batch(256))\n"
ITERATOR = "it = iter(loader)\n"


def trillion(quick: bool) -> list[Row]:
    """A shuffled dataset far larger than memory: no part may depend on the length."""
    parts = {
        "build": (IMPORTS, TRILLION),
        "100_batches": (IMPORTS + TRILLION, "for batch in itertools.islice(loader, 100): pass"),
        "seek": (IMPORTS + TRILLION + ITERATOR, "it.seek(10**9); next(it)"),
    }
    rows = []
    for name, (setup, code) in parts.items():
        times = [milliseconds_fresh(setup, code) for _ in range(1 if quick else 7)]
        peaks = [megabytes_fresh(setup, code) for _ in range(1 if quick else 3)]
        rows.append(row(f"trillion_{name}", Bar("<", 50, "ms"), median(times), times))
        rows.append(row(f"trillion_{name}_memory", Bar("<", 1, "MB"), median(peaks), peaks))
    return rows


def records_of_steps(quick: bool) -> list[Row]:
    """The records of steps of a mix of 10^9, and the steps of 10^6 of these."""
    dataset = Dataset.mix(
        {
            "large": Dataset.range(10**9).shuffle(seed=0),
            "blocks": Dataset.range(10**8).shuffle(seed=1, block=1000, window=10_000),
            "small": Dataset.range(10**7).shuffle(seed=2),
        },
        [16, 4, 1],
        stop="repeat",
    ).batch(1024)
    loader: DataLoader[Any] = DataLoader(dataset)
    steps = np.random.default_rng(0).integers(0, len(dataset), 20 if quick else 1000).tolist()
    loader.records(0)
    times, found = [], []
    for step in steps:
        begun = perf_counter()
        found.append(loader.records(step))
        times.append(1e3 * (perf_counter() - begun))
    rows = [row("records_of_a_step", Bar("<=", 5, "ms"), median(times), times)]
    pairs, begun = 0, perf_counter()
    for step, records in zip(steps, found, strict=True):
        for part in ("large", "blocks", "small"):
            index = records.index[records.part == part]
            if step not in loader.steps_of(index, part=part, until=step + 1):
                raise AssertionError(f"step {step} is not among the steps of its records")
            pairs += len(index)
    took = 1e6 * (perf_counter() - begun) / pairs
    note = f"{pairs:,} pairs of a record and a step, there and back"
    return [*rows, row("steps_of_a_record", Bar("<=", 1000, "µs"), took, [took], note)]


def first_batch_ms(quick: bool) -> list[Row]:
    """From arrays of MNIST's shape to the first batch: loader, iterator and first `next`."""
    # Arithmetic rather than random numbers, so that nothing is imported or warmed up beforehand.
    arrays = (
        "x = np.arange(60_000 * 784, dtype=np.uint32).astype(np.uint8).reshape(60_000, 28, 28)\n"
        "y = np.arange(60_000, dtype=np.int32) % 10\n"
    )
    timed = "next(iter(DataLoader(Dataset.from_arrays(image=x, label=y), batch_size=128)))"
    times = [milliseconds_fresh(IMPORTS + arrays, timed) for _ in range(1 if quick else 5)]
    return [row("first_batch_ms", Bar("<", 20, "ms"), median(times), times)]


def import_ratio(quick: bool) -> list[Row]:
    """What `import loaderx` takes, by what the NumPy in it takes; both compiled beforehand."""
    own: list[float] = []
    numpy: list[float] = []
    with tempfile.TemporaryDirectory() as compiled:
        milliseconds_fresh("", "import loaderx", compiled)
        for _ in range(1 if quick else 15):
            numpy.append(milliseconds_fresh("", "import numpy", compiled))
            own.append(milliseconds_fresh("", "import loaderx", compiled))
    ratios = [mine / theirs for mine, theirs in zip(own, numpy, strict=True)]
    note = f"loaderx {median(own):.0f} ms, numpy {median(numpy):.0f} ms"
    return [row("import_ratio", Bar("<=", 1.3), median(own) / median(numpy), ratios, note)]


# State --------------------------------------------------------------------------------------------


def augment(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**record, "image": np.roll(record["image"], rng.integers(-2, 3), axis=1)}


def normalise(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "image": batch["image"] / np.float32(255)}


def state_bytes(quick: bool) -> list[Row]:
    """A saved position of a typical chain, some way into the stream."""
    x, y = images(1_000)
    dataset = Dataset.from_arrays(image=x, label=y).shuffle().random_map(augment)
    loader: DataLoader[Any] = DataLoader(dataset.batch(128).map(normalise).repeat())
    iterator = iter(loader)
    iterator.seek(123_456)
    next(iterator)
    size = len(json.dumps(iterator.get_state()))
    return [row("state_bytes", Bar("<", 400, "B"), size, [size])]


# The script ---------------------------------------------------------------------------------------

FIGURES: Figures = {
    "mnist128": lambda quick: mnist("mnist128", 128, Bar(">=", 0.9), quick),
    "mnist1024": lambda quick: mnist("mnist1024", 1024, Bar(">=", 1.05), quick),
    "map_record": map_record,
    "jpeg": jpeg,
    "removed": removed,
    "trillion": trillion,
    "records_of_steps": records_of_steps,
    "state_bytes": state_bytes,
    "first_batch_ms": first_batch_ms,
    "import_ratio": import_ratio,
}


if __name__ == "__main__":
    main(FIGURES, "the core")
