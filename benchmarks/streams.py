"""The figures of streams, each against its bar; read `figures.py` first for how they are taken.

    python benchmarks/streams.py [--quick] [--only NAME ...] [--json FILE]

pack            packing log-normal documents (median 300, sigma 0.9, rows of 2,048), inline, against
                Grain's BestFitPackIterDataset with 64 bins on the same records
pack_density    how full the rows are, and how full Grain's are
pack_balance    packing with balance="squares", against packing without it
pack_cost       the dearest of 8 devices with 8 rows each in a step over their mean, with it; the
                note has other numbers of rows, and lanes, without it and with it
pack_saved      the bytes of saved packed rows over those of their tokens (uint16)
pack_read       reading them, shuffled, against plain columns of the same rows
tokens          rows of a 2 GB file of uint16, shuffled, against a NumPy loop that gathers the same
tokens_open     opening that file
mix_plan        `plan` at random steps of a mix of 1,000 phases of three parts, the slowest of 100
mix_phases      batches of such a mix, read by index, against those of a mix with flat weights
filter          a vectorised mask over arrays, against boolean indexing of the same arrays
count           counting the rows of a filter of records, against reading them once; the note has
                a loop that only calls its function
count_mask      the same of a vectorised mask
count_cached    finding the counts in the cache folder

Without Grain installed, its row is skipped.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from core import images
from figures import Bar, Figures, Ours, Row, compare, main, row, skipped

from loaderx import DataLoader, Dataset
from loaderx.sources import Tokens

ROW = 2048


# Packing ------------------------------------------------------------------------------------------


def documents(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(300), 0.9, count), 1, ROW).astype(np.int64)
    text = rng.integers(0, 50_000, int(lengths.sum()), dtype=np.int32)
    ends = np.cumsum(lengths).tolist()
    return [{"tokens": text[end - n : end]} for n, end in zip(lengths.tolist(), ends, strict=True)]


def grain_rows(records: list[dict[str, Any]]) -> Iterator[Any]:
    import grain

    source = grain.MapDataset.source(records).to_iter_dataset(grain.ReadOptions(0, 0))
    packed = grain.experimental.BestFitPackIterDataset(
        source, length_struct={"tokens": ROW}, num_packing_bins=64
    )
    return iter(packed.batch(8))


def seconds_of(make: Callable[[], Any]) -> float:
    begun = perf_counter()
    for _ in make():
        pass
    return perf_counter() - begun


def pack(quick: bool) -> list[Row]:
    """Both sides batch their rows by 8; Grain gets a part of the records, since it takes long."""
    speed, density = Bar(">=", 8), Bar(">=", 0.995, "of the row")
    records = documents(2_000 if quick else 40_000)
    few = records[: 200 if quick else 4_000]
    packed = Dataset.from_source(records).pack({"tokens": ROW}).batch(8)
    rows = sum(len(batch["tokens"]) for batch in packed)
    tokens = sum(len(record["tokens"]) for record in records)
    full = tokens / (rows * ROW)
    try:
        theirs = sum(len(batch["tokens"]) for batch in grain_rows(few))
    except (ImportError, AttributeError) as error:
        missing = error if isinstance(error, ImportError) else ImportError(str(error))
        return [skipped("pack", speed, missing), row("pack_density", density, full, [full])]
    ratios, ours_s, theirs_s = [], [], []
    for _ in range(1 if quick else 7):
        ours_s.append(seconds_of(Ours(packed, engine="inline")) / len(records))
        theirs_s.append(seconds_of(lambda: grain_rows(few)) / len(few))
        ratios.append(theirs_s[-1] / ours_s[-1])
    note = f"{median(ours_s) * 1e6:.1f} us per record, Grain {median(theirs_s) * 1e6:.1f}"
    other = sum(len(record["tokens"]) for record in few) / (theirs * ROW)
    return [
        row("pack", speed, median(ratios), ratios, note),
        row("pack_density", density, full, [full], f"Grain {other:.4f} on {len(few):,} records"),
    ]


def balance(quick: bool) -> list[Row]:
    records = Dataset.from_source(documents(2_000 if quick else 40_000))
    plain = records.pack({"tokens": ROW}).batch(32, drop_remainder=True)
    balanced = records.pack({"tokens": ROW}, balance="squares").batch(32, drop_remainder=True)
    sides = Ours(plain, engine="inline"), Ours(balanced, engine="inline")
    pairs = [[seconds_of(side) for side in sides] for _ in range(1 if quick else 9)]
    ratios = [without / with_it for without, with_it in pairs]
    costs = {}
    for lanes in (1, 8):
        for rows in (1, 2, 4, 8, 16):
            balanced = records.pack({"tokens": ROW}, balance="squares", balance_rows=rows)
            sides = [
                one.batch(8 * rows, lanes=lanes)
                for one in (records.pack({"tokens": ROW}), balanced)
            ]
            costs[lanes, rows] = [dearest(side, rows) for side in sides]
    note = "; ".join(f"{r} of {n} lanes {a:.2f} -> {b:.2f}" for (n, r), (a, b) in costs.items())
    cost = costs[1, 8][1]
    return [
        row("pack_balance", Bar(">=", 0.8), median(ratios), ratios),
        row("pack_cost", Bar("<", 1.05), cost, [cost], note),
    ]


def dearest(batches: Dataset[Any], rows: int) -> float:
    """The dearest of 8 devices in each step over the mean of all, for all steps together."""
    shares = []
    for batch in batches:
        lengths = [np.bincount(ids)[1:] for ids in batch["tokens_segment_ids"]]
        if len(lengths) == 8 * rows:
            shares.append(np.array([(n**2).sum() for n in lengths]).reshape(8, rows).sum(axis=1))
    return float(np.max(shares, axis=1).sum() / np.mean(shares, axis=1).sum())


def saved(quick: bool) -> list[Row]:
    """Segment ids and positions are stored as lines, and made when they are read."""
    few = [{"tokens": r["tokens"].astype(np.uint16)} for r in documents(2_000 if quick else 40_000)]
    packed = Dataset.from_source(few).pack({"tokens": ROW})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "lines"
        packed.save(folder)
        size = sum(path.stat().st_size for path in folder.rglob("*.npy"))
        lines = Dataset.open(folder)
        ratio = size / (len(lines) * ROW * 2)
        (whole,) = lines.batch(len(lines))
        for leaf, values in whole.items():
            np.save(Path(name) / f"{leaf}.npy", values)
        plain = Dataset.from_arrays(
            {leaf: np.load(Path(name) / f"{leaf}.npy", "r") for leaf in whole}
        )
        sides = [
            Ours(one.shuffle(0).batch(32, drop_remainder=True), engine="inline")
            for one in (plain, lines)
        ]
        pairs = [[seconds_of(side) for side in sides] for _ in range(1 if quick else 9)]
    ratios = [without / with_lines for without, with_lines in pairs]
    note = f"{min(seconds for _, seconds in pairs) / len(lines) * 1e6:.1f} us per row"
    return [
        row("pack_saved", Bar("<", 1.6), ratio, [ratio]),
        row("pack_read", Bar(">=", 0.25), median(ratios), ratios, note),
    ]


# Tokens -------------------------------------------------------------------------------------------


def tokens(quick: bool) -> list[Row]:
    length, size = 1024, 32
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        count = 1_000_000 if quick else 1_000_000_000
        write_tokens(path, count)
        return [tokens_speed(path, length, size, quick), tokens_open(path, length, quick)]


def write_tokens(path: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for start in range(0, count, 50_000_000):
            part = rng.integers(0, 50_000, min(50_000_000, count - start), dtype=np.uint16)
            part.tofile(file)


def tokens_speed(path: Path, length: int, size: int, quick: bool) -> Row:
    steps = 20 if quick else 4_000
    source = Tokens(path, length, np.uint16)
    dataset = Dataset.from_source(source).shuffle(0).batch(size, drop_remainder=True)
    steps = min(steps, len(dataset))
    mapped = np.memmap(path, np.uint16, "r")
    matrix = np.asarray(mapped)[: len(source) * length].reshape(-1, length)
    order = np.random.default_rng(0).permutation(len(matrix))[: steps * size]

    def loop() -> Iterator[Any]:
        for start in range(0, len(order), size):
            yield {"tokens": matrix[order[start : start + size]]}

    ours = Ours(dataset.take(steps))
    result = compare(ours, loop, rounds=2 if quick else 9)
    return result.row("tokens", Bar(">=", 0.9), steps * size, ours.engines())


def tokens_open(path: Path, length: int, quick: bool) -> Row:
    times = []
    for _ in range(2 if quick else 9):
        begun = perf_counter()
        Tokens(path, length, np.uint16)
        times.append((perf_counter() - begun) * 1e3)
    tracemalloc.start()
    kept = Tokens(path, length, np.uint16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    note = f"{len(kept):,} rows, {peak / 1e3:.0f} kB at most"
    return row("tokens_open", Bar("<", 20, "ms"), median(times), times, note)


# Filter -------------------------------------------------------------------------------------------


def filtered(quick: bool) -> list[Row]:
    x, y = images(4_000 if quick else 60_000)
    size = 1024
    dataset = Dataset.from_arrays(x=x, y=y).filter(lambda run: run["y"] % 2 == 0, batched=True)
    dataset = dataset.batch(size // 2)

    def loop() -> Iterator[Any]:
        for start in range(0, len(x), size):
            mask = y[start : start + size] % 2 == 0
            yield {"x": x[start : start + size][mask], "y": y[start : start + size][mask]}

    ratios, ours_s = [], []
    ours = Ours(dataset, engine="inline")
    for _ in range(2 if quick else 15):
        ours_s.append(seconds_of(ours))
        ratios.append(seconds_of(loop) / ours_s[-1])
    note = f"{len(x) / median(ours_s):,.0f} records/s read; ours are cut into equal batches"
    return [row("filter", Bar(">=", 0.5), median(ratios), ratios, note)]


# Counts -------------------------------------------------------------------------------------------


def counts(quick: bool) -> list[Row]:
    records = documents(2_000 if quick else 40_000)
    x, y = images(4_000 if quick else 60_000)
    size = 1024

    def is_long(record: dict[str, Any]) -> bool:
        return len(record["tokens"]) > 200 and int(record["tokens"][:64].sum()) % 3 > 0

    def is_even(run: dict[str, Any]) -> Any:
        return run["y"] % 2 == 0

    def call_each() -> Iterator[Any]:
        yield sum(is_long(record) for record in records)

    def call_all() -> Iterator[Any]:
        for start in range(0, len(x), size):
            rows = slice(start, start + size)
            yield is_even({"x": x[rows], "y": y[rows]}).sum()

    chains = {
        "count": (
            Dataset.from_source(records).filter(is_long).batch(64, pad_to={"tokens": ROW}),
            call_each,
        ),
        "count_mask": (
            Dataset.from_arrays(x=x, y=y).filter(is_even, batched=True).batch(64),
            call_all,
        ),
    }
    return [
        *[count_row(name, *chain, quick=quick) for name, chain in chains.items()],
        count_cached(quick),
    ]


def count_row(
    name: str, dataset: Dataset[Any], loop: Callable[[], Iterator[Any]], *, quick: bool
) -> Row:
    ratios, ours_s, loops = [], [], []
    read = Ours(dataset, engine="inline")
    for _ in range(2 if quick else 15):
        with tempfile.TemporaryDirectory() as folder, environment("LOADERX_CACHE", folder):
            begun = perf_counter()
            found = DataLoader(dataset, engine="inline").counts()
            ours_s.append(perf_counter() - begun)
        ratios.append(seconds_of(read) / ours_s[-1])
        loops.append(seconds_of(loop) / ours_s[-1])
    took = f"{found.rows:,} rows in {median(ours_s) * 1e3:,.1f} ms"
    note = f"{took}; {median(loops):.2f} of a loop that calls the function"
    return row(name, Bar(">=", 0.9), median(ratios), ratios, note)


def count_cached(quick: bool) -> Row:
    times = []
    with tempfile.TemporaryDirectory() as folder, environment("LOADERX_CACHE", folder):
        np.save(Path(folder) / "x.npy", np.arange(100_000))
        for _ in range(3 if quick else 16):
            dataset = Dataset.open(Path(folder) / "x.npy").filter(lambda r: r["x"] % 3 > 0)
            loader = DataLoader(dataset.batch(64, lanes=8), engine="inline")
            begun = perf_counter()
            loader.counts()
            times.append((perf_counter() - begun) * 1e3)
    note = f"the first, which reads 100,000 records, took {times[0]:,.0f} ms"
    return row("count_cached", Bar("<=", 5, "ms"), median(times[1:]), times[1:], note)


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})


# Mixes with a plan --------------------------------------------------------------------------------


def mixes(quick: bool) -> list[Row]:
    rng = np.random.default_rng(0)
    parts = {name: Dataset.range(10**9).repeat() for name in "abc"}
    weights = [(10_000 * n, rng.integers(1, 99, 3).tolist()) for n in range(20 if quick else 1_000)]
    planned, flat = (Dataset.mix(parts, w).batch(256) for w in (weights, weights[0][1]))
    begun = perf_counter()
    planned.plan(0)
    built = perf_counter() - begun
    times = []
    for step in rng.integers(0, 40_000, 100).tolist():
        begun = perf_counter()
        planned.plan(step)
        times.append((perf_counter() - begun) * 1e3)
    note = f"built in {built:.2f} s; median {median(times):.3g} ms"
    plan = row("mix_plan", Bar("<=", 1, "ms"), max(times), times, note)
    steps = 50 if quick else 20_000
    ours, theirs = (Ours(each.take(steps), engine="inline") for each in (planned, flat))
    result = compare(ours, theirs, rounds=2 if quick else 9)
    return [plan, result.row("mix_phases", Bar(">=", 0.8), steps * 256, ours.engines())]


# The script ---------------------------------------------------------------------------------------

FIGURES: Figures = {
    "pack": pack,
    "balance": balance,
    "saved": saved,
    "tokens": tokens,
    "mix": mixes,
    "filter": filtered,
    "counts": counts,
}


if __name__ == "__main__":
    main(FIGURES, "what streams do")
